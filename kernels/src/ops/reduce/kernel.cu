// reduce.cu: sums, extremes and norms along an axis.
// math   out[o, i] <- op over l of x[o, l, i]; the numbers of op are the variants of ReduceOp in mod.rs; in double or i64
// shapes  x: T[outer, len, inner]; values, indices: [outer, n_chunks, inner], the results of chunks; out: [outer, inner]
// launch  reduce: a block per chunk of a row (by_block), or a thread per chunk of a column; finish: grid-stride over the results,
//         a thread each; reduce_whole: both at once, in one chunk; block 256; any shape
// moved   1 value read per element: memory-bound
// order   a tree over the threads of a block, then chunks in order; no atomics: bit-identical between runs
// twin    cpu.rs next to this file

#define SUM 0
#define MEAN 1
#define MIN 3
#define NORM 5

template <class W> struct Partial {
    W value;
    i64 index;  // -1: nothing yet
};
template <class W> __device__ __forceinline__ bool wins(int op, W later, W best) {
    return (op == MIN ? later < best : later > best) || (later != later && best == best);
}
// Combines both results; of equal values, the one with the smaller index counts.
template <class W> __device__ __forceinline__ Partial<W> both(int op, Partial<W> a, Partial<W> b) {
    if (b.index < 0) return a;
    if (a.index < 0) return b;
    if (op == SUM || op == MEAN || op == NORM) {
        a.value += b.value;
        return a;
    }
    if (wins(op, b.value, a.value)) return b;
    if (wins(op, a.value, b.value)) return a;
    return b.index < a.index ? b : a;
}

// store(task, result): what becomes of the result of a chunk.
template <class T, class W, class Store>
__device__ __forceinline__ void reduce(int op, const T* x, size_t outer, size_t len, size_t inner, size_t chunk, size_t n_chunks,
                                       int by_block, Store store) {
    __shared__ W shared_values[256];
    __shared__ i64 shared_indices[256];
    size_t first = by_block ? blockIdx.x : first_element(), stride = by_block ? gridDim.x : grid_stride();
    size_t thread = by_block ? threadIdx.x : 0, n_threads = by_block ? blockDim.x : 1;
    for (size_t task = first; task < outer * n_chunks * inner; task += stride) {
        size_t i = task % inner, c = task / inner % n_chunks, o = task / inner / n_chunks;
        size_t end = (c + 1) * chunk < len ? (c + 1) * chunk : len;
        Partial<W> result = {(W)0, -1};
        for (size_t l = c * chunk + thread; l < end; l += n_threads) {
            W v = (W)Number<T>::get(x[(o * len + l) * inner + i]);
            Partial<W> next = {op == NORM ? v * v : v, (i64)l};
            result = both(op, result, next);
        }
        if (by_block) {
            shared_values[threadIdx.x] = result.value;
            shared_indices[threadIdx.x] = result.index;
            for (u32 half = blockDim.x / 2; half; half /= 2) {
                __syncthreads();
                if (threadIdx.x < half) {
                    Partial<W> other = {shared_values[threadIdx.x + half], shared_indices[threadIdx.x + half]};
                    result = both(op, result, other);
                    shared_values[threadIdx.x] = result.value;
                    shared_indices[threadIdx.x] = result.index;
                }
            }
            __syncthreads();
        }
        if (thread == 0) store(task, result);
    }
}

__device__ __forceinline__ double finished(int op, double v, size_t len) {
    return op == MEAN ? v / (double)len : op == NORM ? sqrt(v) : v;
}
__device__ __forceinline__ i64 finished(int, i64 v, size_t) { return v; }

template <class T, class W> __device__ __forceinline__ void put(int op, Partial<W> result, size_t len, int form, void* out, size_t r) {
    if (form == 0) ((T*)out)[r] = Number<T>::of(finished(op, result.value, len));
    else ((i64*)out)[r] = form == 1 ? (i64)result.value : result.index;
}

template <class T, class W>
__device__ void finish(int op, const W* values, const i64* indices, size_t outer, size_t len, size_t inner, size_t n_chunks,
                       int form, void* out) {
    for (size_t r = first_element(); r < outer * inner; r += grid_stride()) {
        Partial<W> result = {(W)0, -1};
        for (size_t c = 0; c < n_chunks; c++) {
            size_t at = (r / inner * n_chunks + c) * inner + r % inner;
            Partial<W> next = {values[at], indices[at]};
            result = both(op, result, next);
        }
        put<T>(op, result, len, form, out, r);
    }
}
#define REDUCE(name, T)                                                                                                     \
    extern "C" __global__ void reduce_##name(int op, const T* x, size_t outer, size_t len, size_t inner, size_t chunk,      \
                                             size_t n_chunks, int by_block, Number<T>::wide* values, i64* indices) {        \
        typedef Number<T>::wide W;                                                                                          \
        reduce<T, W>(op, x, outer, len, inner, chunk, n_chunks, by_block, [=](size_t task, Partial<W> result) {             \
            values[task] = result.value;                                                                                    \
            indices[task] = result.index;                                                                                   \
        });                                                                                                                 \
    }                                                                                                                       \
    extern "C" __global__ void reduce_whole_##name(int op, const T* x, size_t outer, size_t len, size_t inner,              \
                                                   int by_block, int form, void* out) {                                     \
        typedef Number<T>::wide W;                                                                                          \
        reduce<T, W>(op, x, outer, len, inner, len, 1, by_block,                                                            \
                     [=](size_t task, Partial<W> result) { put<T>(op, result, len, form, out, task); });                    \
    }                                                                                                                       \
    extern "C" __global__ void finish_##name(int op, const Number<T>::wide* values, const i64* indices, size_t outer,       \
                                             size_t len, size_t inner, size_t n_chunks, int form, void* out) {              \
        finish<T>(op, values, indices, outer, len, inner, n_chunks, form, out);                                             \
    }
REDUCE(f32, float)
REDUCE(f64, double)
REDUCE(bf16, bf16)
REDUCE(f16, f16)
REDUCE(int64, i64)
REDUCE(int32, int)
REDUCE(int8, u8)
REDUCE(int1, truth)
