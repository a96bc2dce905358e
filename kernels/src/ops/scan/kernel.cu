// scan.cu: running sums and products along an axis.
// math   out[o, l, i] <- x[o, 0, i] op ... op x[o, l, i]; op 0: sum, 1: product; in double or i64
// shapes  x: T[outer, len, inner], n_lines = outer * inner; out: T, or i64 for integers
// launch  a block per line, grid-stride over lines; block 256; any shape
// moved   1 value read, 1 written per element; neighboring threads are inner elements apart
// order   a tree over the threads of a block, then chunks in order; no atomics: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ double combined(int op, double a, double b) { return op == 0 ? a + b : a * b; }
// Unsigned arithmetic wraps.
__device__ __forceinline__ i64 combined(int op, i64 a, i64 b) {
    return op == 0 ? (i64)((u64)a + (u64)b) : (i64)((u64)a * (u64)b);
}

// T: elements; W: what they are combined in; R: elements of the result.
template <class T, class W, class R>
__device__ void scan(int op, const T* x, size_t n_lines, size_t len, size_t inner, R* out) {
    __shared__ W shared[256];
    for (size_t line = blockIdx.x; line < n_lines; line += gridDim.x) {
        size_t first = line / inner * len * inner + line % inner;
        W before = (W)op;
        for (size_t start = 0; start < len; start += blockDim.x) {
            size_t l = start + threadIdx.x;
            W v = l < len ? (W)Number<T>::get(x[first + l * inner]) : (W)op;
            shared[threadIdx.x] = v;
            __syncthreads();
            for (u32 distance = 1; distance < blockDim.x; distance *= 2) {
                if (threadIdx.x >= distance) v = combined(op, shared[threadIdx.x - distance], v);
                __syncthreads();
                shared[threadIdx.x] = v;
                __syncthreads();
            }
            if (l < len) out[first + l * inner] = Number<R>::of(combined(op, before, v));
            before = combined(op, before, shared[blockDim.x - 1]);
            __syncthreads();
        }
    }
}
#define SCAN(name, T, R)                                                                                            \
    extern "C" __global__ void scan_##name(int op, const T* x, size_t n_lines, size_t len, size_t inner, R* out) {  \
        scan<T, Number<T>::wide, R>(op, x, n_lines, len, inner, out);                                               \
    }
SCAN(f32, float, float)
SCAN(f64, double, double)
SCAN(bf16, bf16, bf16)
SCAN(f16, f16, f16)
SCAN(int64, i64, i64)
SCAN(int32, int, i64)
SCAN(int8, u8, i64)
SCAN(int1, truth, i64)
