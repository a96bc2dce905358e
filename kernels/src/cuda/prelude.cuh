// prelude.cuh: code shared by all kernels. It precedes the text of each kernel file.
//
// No CUDA header is needed: bf16 and f16 are unsigned shorts.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define WARP 32
#define ALL_LANES 0xffffffffu

// ---- formats ------------------------------------------------------------------------------------------------------
// bf16: the upper half of an f32. f16: IEEE 754 half precision. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

// What only the assembler of the hardware has; the virtual GPU brings its own.
#ifndef VIRTUAL_GPU
// The first statement of kernels that may follow others (source.rs). Waits until the kernels before it in the stream are complete and what they wrote is
// visible, then lets the next one be launched, which begins likewise: so at most two overlap. For launches of a kernel that follows
// another (launch.rs) on GPUs from Hopper on; of other launches it does nothing.
__device__ __forceinline__ void follow_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
// Begins to load the line of this address into the L2 cache.
__device__ __forceinline__ void prefetch(const void* p) { asm("prefetch.global.L2 [%0];" : : "l"(p)); }
// threadIdx.x from the hardware again: what is computed from it is computed again, too, and occupies no register meanwhile.
__device__ __forceinline__ u32 thread_anew() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ u16 bf16_bits(float x) {
    u16 bits;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    u32 u = __float_as_uint(x);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? (u16)0x7fffu : (u16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
    return bits;
}
__device__ __forceinline__ u16 f16_bits(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ float float_of_f16_bits(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

// a * b + c, rounded once. The compiler contracts nothing by itself (module.rs).
__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ double to_float(double x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) { return float_of_f16_bits(x.bits); }
__device__ __forceinline__ bf16 bf16_of(float x) {
    bf16 r = {bf16_bits(x)};
    return r;
}
__device__ __forceinline__ f16 f16_of(float x) {
    f16 r = {f16_bits(x)};
    return r;
}

// from_float<T>(x): x in format T.
template <class T> struct Format;
template <> struct Format<float> {
    typedef float math;
    static __device__ __forceinline__ float from(float x) { return x; }
};
template <> struct Format<double> {
    typedef double math;
    static __device__ __forceinline__ double from(double x) { return x; }
};
template <> struct Format<bf16> {
    typedef float math;
    static __device__ __forceinline__ bf16 from(float x) { return bf16_of(x); }
};
template <> struct Format<f16> {
    typedef float math;
    static __device__ __forceinline__ f16 from(float x) { return f16_of(x); }
};
// The type in which values of format T are computed.
#define MATH(T) typename Format<T>::math

// ---- numbers of any dtype ------------------------------------------------------------------------------------------
// A truth value: 0 or 1.
struct truth {
    u8 value;
};
// f64 to f32 rounded to odd: what f32 loses is kept as its lowest bit, so that only the rounding to a shorter format counts.
__device__ __forceinline__ float odd_of_double(double x) {
    float single = (float)x;
    double back = (double)single;
    if (x != x || back == x) return single;
    u32 towards_zero = __float_as_uint(single) - (u32)(fabs(back) > fabs(x));
    return __uint_as_float(towards_zero | 1u);
}
// The integer next to zero of x; the nearest one if x is out of range, 0 for NaN.
__device__ __forceinline__ i64 integer_of(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
    if (x < -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
    return (i64)x;
}
__device__ __forceinline__ i64 clamped(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }
// get, put: from and to the type `math` that operations compute in; `wide` holds every value, and sums: double or i64.
// of: converted from a double (saturating) or an i64 (wrapping).
template <class T> struct Number;
#define FLOAT_NUMBER(T, M, round, of_double)                                         \
    template <> struct Number<T> {                                                   \
        typedef M math;                                                              \
        typedef double wide;                                                         \
        static __device__ __forceinline__ M get(T x) { return to_float(x); }         \
        static __device__ __forceinline__ T put(M x) { return round(x); }            \
        static __device__ __forceinline__ T of(double x) { return of_double; }       \
        static __device__ __forceinline__ T of(i64 x) { return of((double)x); }      \
    };
FLOAT_NUMBER(float, float, (float), (float)x)
FLOAT_NUMBER(double, double, (double), x)
FLOAT_NUMBER(bf16, float, bf16_of, bf16_of(odd_of_double(x)))
FLOAT_NUMBER(f16, float, f16_of, f16_of(odd_of_double(x)))
#define INTEGER_NUMBER(T, low, high)                                                                       \
    template <> struct Number<T> {                                                                         \
        typedef i64 math;                                                                                  \
        typedef i64 wide;                                                                                  \
        static __device__ __forceinline__ i64 get(T x) { return (i64)x; }                                  \
        static __device__ __forceinline__ T put(i64 x) { return (T)x; }                                    \
        static __device__ __forceinline__ T of(double x) { return (T)clamped(integer_of(x), low, high); }  \
        static __device__ __forceinline__ T of(i64 x) { return (T)x; }                                     \
    };
INTEGER_NUMBER(i64, -0x7fffffffffffffffLL - 1, 0x7fffffffffffffffLL)
INTEGER_NUMBER(int, -2147483647LL - 1, 2147483647LL)
INTEGER_NUMBER(u8, 0LL, 255LL)
template <> struct Number<truth> {
    typedef i64 math;
    typedef i64 wide;
    static __device__ __forceinline__ i64 get(truth x) { return x.value; }
    static __device__ __forceinline__ truth put(i64 x) { return of(x); }
    static __device__ __forceinline__ truth of(double x) {
        truth r = {(u8)(x != 0.0)};
        return r;
    }
    static __device__ __forceinline__ truth of(i64 x) {
        truth r = {(u8)(x != 0)};
        return r;
    }
};

// ---- places -------------------------------------------------------------------------------------------------------
__device__ __forceinline__ size_t first_element() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ size_t grid_stride() { return (size_t)gridDim.x * blockDim.x; }

// Rows over threads, without a division: 2^log2_width threads share a row; blocks in x share the rows, blocks in y the items of
// a row (RowTiles in cuda/launch.rs computes the grid).
struct RowWalk {
    size_t row, row_stride, item, item_stride;
};
__device__ __forceinline__ RowWalk row_walk(u32 log2_width) {
    size_t rows = blockDim.x >> log2_width, width = (size_t)1 << log2_width;
    RowWalk w;
    w.row = blockIdx.x * rows + (threadIdx.x >> log2_width);
    w.row_stride = gridDim.x * rows;
    w.item = blockIdx.y * width + (threadIdx.x & (width - 1));
    w.item_stride = gridDim.y * width;
    return w;
}

// ---- reductions ---------------------------------------------------------------------------------------------------
// Over a warp: every lane gets the result. The order of the terms is fixed: bit-identical between runs.
template <class M> __device__ __forceinline__ M warp_sum(M v) {
    for (int o = WARP / 2; o; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}
template <class M> __device__ __forceinline__ M warp_max(M v) {
    for (int o = WARP / 2; o; o >>= 1) {
        M w = __shfl_xor_sync(ALL_LANES, v, o);
        v = w > v || w != w ? w : v;  // NaN wins
    }
    return v;
}
// Over a block of whole warps: every thread gets the result. `scratch` holds WARP values; it can be used again at once.
template <class M> __device__ __forceinline__ M block_sum(M v, M* scratch) {
    v = warp_sum(v);
    if (blockDim.x == WARP) return v;
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = v;
    __syncthreads();
    v = threadIdx.x % WARP < blockDim.x / WARP ? scratch[threadIdx.x % WARP] : (M)0;
    v = warp_sum(v);
    __syncthreads();
    return v;
}
template <class M> __device__ __forceinline__ M block_max(M v, M* scratch) {
    v = warp_max(v);
    if (blockDim.x == WARP) return v;
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = v;
    __syncthreads();
    v = scratch[threadIdx.x % WARP < blockDim.x / WARP ? threadIdx.x % WARP : 0];
    v = warp_max(v);
    __syncthreads();
    return v;
}

// Whether this is the last of `n` blocks to arrive. `counter` is 0 before and after the launch. Earlier writes of the other
// blocks are visible to the last one, whose threads then finish a reduction in a fixed order. One atomic per block, which
// decides which block sums but not the order, so the bits do not depend on it.
__device__ __forceinline__ bool is_last_block(u32* counter, u32 n) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(counter, n - 1) == n - 1;
    __syncthreads();
    __threadfence();
    return last;
}
// The same for all blocks of the grid.
__device__ __forceinline__ bool is_last_block(u32* counter) { return is_last_block(counter, gridDim.x * gridDim.y); }

// Sums one value per thread over a one-dimensional grid, in one launch, in the order of the blocks. True in one block, all of
// whose threads have the sum in `total`. `partials` has one element per block. All threads of all blocks call it, once.
template <class M> __device__ __forceinline__ bool grid_sum(M v, M* total, u32* counter, M* partials) {
    __shared__ M scratch[WARP];
    *total = block_sum(v, scratch);
    if (gridDim.x == 1) return true;
    if (threadIdx.x == 0) partials[blockIdx.x] = *total;
    if (!is_last_block(counter)) return false;
    v = 0;
    for (size_t b = threadIdx.x; b < gridDim.x; b += blockDim.x) v += partials[b];
    *total = block_sum(v, scratch);
    return true;
}

// ---- random numbers -----------------------------------------------------------------------------------------------
// Philox4x32-10 (Salmon et al., SC 2011), the same numbers as rng.rs.
struct Words {
    u32 w[4];
};
__device__ __forceinline__ Words philox(u64 seed, u32 c0, u32 c1, u32 c2, u32 c3) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (u32)b;
        c2 = n2;
        c3 = (u32)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Words r = {{c0, c1, c2, c3}};
    return r;
}

// ---- sums of a step -----------------------------------------------------------------------------------------------
// A double as two floats, hi and lo, so that a float all-reduce loses little of it (LossSums::store in ops/loss/sums.rs).
__device__ __forceinline__ double load_split(const float* p) { return (double)p[0] + (double)p[1]; }
__device__ __forceinline__ void store_split(float* p, double v) {
    float hi = (float)v;
    double rest = v - (double)hi;
    p[0] = hi;
    p[1] = rest - rest == 0.0 ? (float)rest : 0.0f;  // infinity minus infinity is NaN; hi is enough
}
// Sums one loss and weight per thread over the grid, in one launch and in a fixed order, and writes them to `tail` in the
// layout of LossSums::store (adds them if accumulate), and the number `extra` after them, if given; then the loss is NaN if the last element of `tail` is. `partials` has two elements
// per block. All threads of all blocks call it, once.
__device__ __forceinline__ void leave_sums(double loss, double weight, u32* counter, double* partials, float* tail,
                                           int accumulate, const double* extra) {
    __shared__ double scratch[WARP];
    loss = block_sum(loss, scratch);
    weight = block_sum(weight, scratch);
    if (threadIdx.x == 0) {
        partials[2 * (size_t)blockIdx.x] = loss;
        partials[2 * (size_t)blockIdx.x + 1] = weight;
    }
    if (!is_last_block(counter)) return;
    loss = weight = 0;
    for (size_t b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
        loss += partials[2 * b];
        weight += partials[2 * b + 1];
    }
    loss = block_sum(loss, scratch);
    weight = block_sum(weight, scratch);
    if (threadIdx.x != 0) return;
    // The update before has left weights that are not numbers: a fused ReLU would hide them.
    if (extra && tail[15] != tail[15]) loss = tail[15];
    store_split(tail, accumulate ? loss + load_split(tail) : loss);
    store_split(tail + 2, accumulate ? weight + load_split(tail + 2) : weight);
    if (extra) tail[4] = (float)*extra;
}
// The numbers of a step that an update reads from device memory, and the decision on it: StepNumbers in ops/update/decision.rs.
struct UpdateInputs {
    double lr, step, scale, power1, power2;
    bool applies;
};
__device__ __forceinline__ UpdateInputs update_inputs(const double* scalars, const float* sums, const double* sum_of_squares,
                                                      double max_norm) {
    const double infinity = (double)__uint_as_float(0x7f800000u);
    double loss = load_split(sums), weight = load_split(sums + 2), expected_weight = scalars[5], loss_limit = scalars[10];
    double mean = weight == 0 ? loss : loss / weight;
    // If the sum of weights is 0, every gradient is 0 and the scale must be finite: dividing by infinity gives 0.
    double divisor = weight == 0 ? infinity : weight;
    double unscaled = (expected_weight > 0 ? expected_weight / divisor : 1.0) * scalars[6];
    double norm = sum_of_squares ? sqrt(*sum_of_squares) * unscaled : 0.0;
    double clip_scale = sum_of_squares ? fmin(max_norm / (norm + 1e-6), 1.0) : 1.0;
    // MAX_GRAD_NORM of decision.rs. No comparison with NaN is true.
    bool applies = fabs(mean) < infinity && norm * clip_scale <= 1.8446743e19 && mean <= loss_limit;
    UpdateInputs r = {scalars[0], scalars[1], unscaled * clip_scale, scalars[8], scalars[9], applies};
    return r;
}

// ---- wide accesses ------------------------------------------------------------------------------------------------
// 16 bytes of T per access, for memory-bound loops over contiguous elements; fewer if a wider type sets the number.
template <class T, int N = 16 / sizeof(T)> struct alignas(sizeof(T) * N) Pack {
    static const int size = N;
    T v[N];
};
template <class T> __device__ __forceinline__ Pack<T> load_pack(const T* p, size_t i) {
    return reinterpret_cast<const Pack<T>*>(p)[i];
}
template <int N, class T> __device__ __forceinline__ Pack<T, N> load_pack(const T* p, size_t i) {
    return reinterpret_cast<const Pack<T, N>*>(p)[i];
}
template <class T, int N> __device__ __forceinline__ void store_pack(T* p, size_t i, Pack<T, N> v) {
    reinterpret_cast<Pack<T, N>*>(p)[i] = v;
}
// Whether all of these addresses are multiples of 16.
__device__ __forceinline__ bool are_packed(const void* a, const void* b = 0, const void* c = 0, const void* d = 0) {
    return (((size_t)a | (size_t)b | (size_t)c | (size_t)d) & 15) == 0;
}
// The same elements as load_pack(p, i), one by one if `packed` is false: for sums whose order must not depend on the address.
template <bool packed, class T> __device__ __forceinline__ Pack<T> load_elements(const T* p, size_t i) {
    if constexpr (packed) {
        return load_pack(p, i);
    } else {
        Pack<T> v;
#pragma unroll
        for (int j = 0; j < Pack<T>::size; j++) v.v[j] = p[i * Pack<T>::size + j];
        return v;
    }
}
