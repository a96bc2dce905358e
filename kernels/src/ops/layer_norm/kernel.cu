// layer_norm.cu: layer normalization and its gradients.
// math   forward  y[n,c] <- h[n,c]*gamma[c] + beta[c], h = (x - mean[n])*rstd[n], rstd = 1/sqrt(variance + eps)
//         backward, with g = d*gamma: d <- rstd*(g - mean_c(g) - h*mean_c(g*h))
//                  d_gamma <- sum_n d*h, d_beta <- sum_n d, of the incoming d (+= if accumulate)
// shapes  x, y, d: T[rows, n]; gamma, beta, d_gamma, d_beta: M[n]; mean, rstd: M[rows]; M is double for double, else float
// launch  fwd_warp, bwd_warp: a warp per row, in registers, n <= 1024 (256 in f64), block 256
//         fwd_block, bwd_block: a block of 512 per row, in registers as far as it fits, the rest read again from cache, like all
//         of an unaligned row
//         bwd_columns: grid (columns / 32, chunks of rows), block 512 = 32 columns x 16 row lanes; before bwd_warp or bwd_block
//         bwd_fused: grid (1, chunks of rows), block 512: both for the rows of one chunk in one launch, for few rows
//         16 bytes per access along aligned rows
// moved   forward 2 values per element; backward 5 (columns read x d, rows read x d and write d), 3 of them from cache if x and
//         d fit there: memory-bound
// order   rows by lanes, columns by row lane, then chunks in order in f64: bit-identical between runs; one atomic per block
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// Threads that share a row.
struct WarpGroup {
    static const int size = WARP, held = 32;
    static __device__ __forceinline__ int rank() { return threadIdx.x % WARP; }
    template <class M> static __device__ __forceinline__ M sum(M v, M*) { return warp_sum(v); }
};
struct BlockGroup {
    static const int size = 512, held = 16;
    static __device__ __forceinline__ int rank() { return threadIdx.x; }
    template <class M> static __device__ __forceinline__ M sum(M v, M* scratch) { return block_sum(v, scratch); }
};
// Elements of a row that each thread keeps, with accesses of N: none for unaligned rows, which are rare and would need as many
// kernels again.
template <class G, int N, class T> struct Held {
    static const int value = N == 1 ? 0 : sizeof(T) == 8 ? G::held / 4 : G::held;
};

// N values in accesses of at most 16 bytes.
template <int N, class M> __device__ __forceinline__ void load_values(const M* p, M* out) {
    const int per_pack = N < Pack<M>::size ? N : Pack<M>::size;
#pragma unroll
    for (int k = 0; k < N / per_pack; k++) {
        Pack<M, per_pack> pack = load_pack<per_pack>(p, k);
#pragma unroll
        for (int j = 0; j < per_pack; j++) out[k * per_pack + j] = pack.v[j];
    }
}

// The part of a row that is kept in registers: at most 8,192 elements, so that int indices suffice, relative to the thread's
// first element. Threads of a group leave a loop over it together.
template <class G, int N, class T> __device__ __forceinline__ int held_part(size_t n) {
    const int most = G::size * Held<G, N, T>::value;
    return n < (size_t)most ? (int)n : most;
}

template <class G, int N, class T>
__device__ __forceinline__ void forward_row(const T* x, const MATH(T)* gamma, const MATH(T)* beta, MATH(T) eps, T* y,
                                            MATH(T)* mean, MATH(T)* rstd, size_t n, MATH(T)* scratch) {
    typedef MATH(T) M;
    const int held = Held<G, N, T>::value;
    const int step = G::size * N, start = G::rank() * N;
    const int part = held_part<G, N, T>(n), left = part - start;
    const size_t rest = (size_t)part + G::rank();
    M v[held + 1], sum = 0;  // + 1, as there are no arrays of 0
#pragma unroll
    for (int k = 0; k < held / N; k++) {
        if (k * step >= part) break;
        if (k * step >= left) continue;
        Pack<T, N> pack = load_pack<N>(x + start + k * step, 0);
#pragma unroll
        for (int j = 0; j < N; j++) sum += v[k * N + j] = to_float(pack.v[j]);
    }
    for (size_t c = rest; c < n; c += G::size) sum += to_float(x[c]);
    M m = G::sum(sum, scratch) / (M)n;

    // The mean first, so that the variance does not cancel.
    M squares = 0;
#pragma unroll
    for (int k = 0; k < held / N; k++) {
        if (k * step >= part) break;
        if (k * step >= left) continue;
#pragma unroll
        for (int j = 0; j < N; j++) squares += (v[k * N + j] - m) * (v[k * N + j] - m);
    }
    for (size_t c = rest; c < n; c += G::size) squares += (to_float(x[c]) - m) * (to_float(x[c]) - m);
    M r = 1 / root(G::sum(squares, scratch) / (M)n + eps);

#pragma unroll
    for (int k = 0; k < held / N; k++) {
        if (k * step >= part) break;
        if (k * step >= left) continue;
        M g[N], b[N];
        load_values<N>(gamma + start + k * step, g);
        load_values<N>(beta + start + k * step, b);
        Pack<T, N> pack;
#pragma unroll
        for (int j = 0; j < N; j++) pack.v[j] = Format<T>::from((v[k * N + j] - m) * r * g[j] + b[j]);
        store_pack(y + start + k * step, 0, pack);
    }
    for (size_t c = rest; c < n; c += G::size) y[c] = Format<T>::from((to_float(x[c]) - m) * r * gamma[c] + beta[c]);
    if (G::rank() == 0) {
        *mean = m;
        *rstd = r;
    }
}

template <class G, int N, class T>
__device__ __forceinline__ void backward_row(const T* x, const MATH(T)* gamma, MATH(T) m, MATH(T) r, T* d, size_t n,
                                             MATH(T)* scratch) {
    typedef MATH(T) M;
    const int held = Held<G, N, T>::value;
    const int step = G::size * N, start = G::rank() * N;
    const int part = held_part<G, N, T>(n), left = part - start;
    const size_t rest = (size_t)part + G::rank();
    M h[held + 1], g[held + 1], sum_g = 0, sum_gh = 0;
#pragma unroll
    for (int k = 0; k < held / N; k++) {
        if (k * step >= part) break;
        if (k * step >= left) continue;
        M weight[N];
        load_values<N>(gamma + start + k * step, weight);
        Pack<T, N> packed_x = load_pack<N>(x + start + k * step, 0), packed_d = load_pack<N>(d + start + k * step, 0);
#pragma unroll
        for (int j = 0; j < N; j++) {
            M one_h = (to_float(packed_x.v[j]) - m) * r, one_g = to_float(packed_d.v[j]) * weight[j];
            sum_g += one_g;
            sum_gh += one_g * one_h;
            h[k * N + j] = one_h;
            g[k * N + j] = one_g;
        }
    }
    // With 4 at a time, as the compiler would take, 128 registers are not enough on sm_120.
#pragma unroll 2
    for (size_t c = rest; c < n; c += G::size) {
        M one_g = to_float(d[c]) * gamma[c];
        sum_g += one_g;
        sum_gh += one_g * ((to_float(x[c]) - m) * r);
    }
    M mean_g = G::sum(sum_g, scratch) / (M)n, mean_gh = G::sum(sum_gh, scratch) / (M)n;
#pragma unroll
    for (int k = 0; k < held / N; k++) {
        if (k * step >= part) break;
        if (k * step >= left) continue;
        Pack<T, N> pack;
#pragma unroll
        for (int j = 0; j < N; j++) pack.v[j] = Format<T>::from(r * (g[k * N + j] - mean_g - h[k * N + j] * mean_gh));
        store_pack(d + start + k * step, 0, pack);
    }
    for (size_t c = rest; c < n; c += G::size)
        d[c] = Format<T>::from(r * (to_float(d[c]) * gamma[c] - mean_g - (to_float(x[c]) - m) * r * mean_gh));
}

// Rows first, first + step, ... below end, one per group.
template <class G, class T>
__device__ __forceinline__ void forward_rows(const T* x, const MATH(T)* gamma, const MATH(T)* beta, double eps, T* y,
                                             MATH(T)* mean, MATH(T)* rstd, size_t rows, size_t n) {
    typedef MATH(T) M;
    __shared__ M scratch[WARP];
    const int per_pack = Pack<T>::size;
    bool packed = n % per_pack == 0 && are_packed(x, y, gamma, beta);
    size_t groups = blockDim.x / G::size;
    for (size_t row = blockIdx.x * groups + threadIdx.x / G::size; row < rows; row += gridDim.x * groups) {
        const T* in = x + row * n;
        T* out = y + row * n;
        if (packed)
            forward_row<G, per_pack>(in, gamma, beta, (M)eps, out, mean + row, rstd + row, n, scratch);
        else
            forward_row<G, 1>(in, gamma, beta, (M)eps, out, mean + row, rstd + row, n, scratch);
    }
}
template <class G, class T>
__device__ __forceinline__ void backward_rows(const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d,
                                              size_t first, size_t step, size_t end, size_t n) {
    __shared__ MATH(T) scratch[WARP];
    const int per_pack = Pack<T>::size;
    bool packed = n % per_pack == 0 && are_packed(x, d, gamma);
    for (size_t row = first; row < end; row += step) {
        if (packed)
            backward_row<G, per_pack>(x + row * n, gamma, mean[row], rstd[row], d + row * n, n, scratch);
        else
            backward_row<G, 1>(x + row * n, gamma, mean[row], rstd[row], d + row * n, n, scratch);
    }
}

// d_gamma and d_beta from the rows of chunk blockIdx.y; the last block sums the chunks if there are several.
template <class T>
__device__ __forceinline__ void backward_columns(const T* x, const MATH(T)* mean, const MATH(T)* rstd, const T* d,
                                                 MATH(T)* d_gamma, MATH(T)* d_beta, size_t rows, size_t n, size_t chunk_rows,
                                                 int accumulate, double* partials) {
    typedef MATH(T) M;
    const int row_lanes = 16;
    __shared__ M part[2][row_lanes][WARP];
    const int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    size_t begin = blockIdx.y * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;
    for (size_t tile = (size_t)blockIdx.x * WARP; tile < n; tile += (size_t)gridDim.x * WARP) {
        size_t c = tile + lane;
        M gamma_sum = 0, beta_sum = 0;
        if (c < n) {
#pragma unroll 8
            for (size_t r = begin + row_lane; r < end; r += row_lanes) {
                M one = to_float(d[r * n + c]);
                gamma_sum += one * ((to_float(x[r * n + c]) - mean[r]) * rstd[r]);
                beta_sum += one;
            }
        }
        part[0][row_lane][lane] = gamma_sum;
        part[1][row_lane][lane] = beta_sum;
        __syncthreads();
        // One warp for each of the two.
        if (row_lane < 2 && c < n) {
            M sum = 0;
            for (int i = 0; i < row_lanes; i++) sum += part[row_lane][i][lane];
            M* out = (row_lane ? d_beta : d_gamma) + c;
            if (gridDim.y > 1)
                partials[(2 * (size_t)blockIdx.y + row_lane) * n + c] = sum;
            else
                *out = accumulate ? *out + sum : sum;
        }
        __syncthreads();
    }
}
template <class M>
__device__ __forceinline__ void add_chunks(M* d_gamma, M* d_beta, size_t n, int accumulate, u32* counter,
                                           const double* partials) {
    if (gridDim.y == 1 || !is_last_block(counter)) return;
    for (size_t i = threadIdx.x; i < 2 * n; i += blockDim.x) {
        double sum = 0;
#pragma unroll 8
        for (u32 chunk = 0; chunk < gridDim.y; chunk++) sum += partials[2 * (size_t)chunk * n + i];
        M* out = i < n ? d_gamma + i : d_beta + (i - n);
        *out = accumulate ? *out + (M)sum : (M)sum;
    }
}

#define FORWARD(form, G, threads, suffix, T)                                                                           \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) layer_norm_fwd_##form##_##suffix(                            \
        const T* x, const MATH(T)* gamma, const MATH(T)* beta, double eps, T* y, MATH(T)* mean, MATH(T)* rstd,         \
        size_t rows, size_t n) {                                                                                       \
        forward_rows<G>(x, gamma, beta, eps, y, mean, rstd, rows, n);                                                  \
    }
#define BACKWARD_ROWS(form, G, threads, suffix, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) layer_norm_bwd_##form##_##suffix(                            \
        const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d, size_t rows, size_t n) {     \
        size_t groups = blockDim.x / G::size;                                                                          \
        size_t first = blockIdx.x * groups + threadIdx.x / G::size;                                                    \
        backward_rows<G>(x, gamma, mean, rstd, d, first, gridDim.x * groups, rows, n);                                 \
    }
#define BACKWARD_COLUMNS(suffix, T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(512, 1) layer_norm_bwd_columns_##suffix(                                 \
        const T* x, const MATH(T)* mean, const MATH(T)* rstd, const T* d, MATH(T)* d_gamma, MATH(T)* d_beta,           \
        size_t rows, size_t n, size_t chunk_rows, int accumulate, u32* counter, double* partials) {                    \
        backward_columns(x, mean, rstd, d, d_gamma, d_beta, rows, n, chunk_rows, accumulate, partials);                \
        add_chunks(d_gamma, d_beta, n, accumulate, counter, partials);                                                 \
    }
// All of d is read before any of it is written: a row belongs to one block only.
#define BACKWARD_FUSED(suffix, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(512, 1) layer_norm_bwd_fused_##suffix(                                   \
        const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d, MATH(T)* d_gamma,            \
        MATH(T)* d_beta, size_t rows, size_t n, size_t chunk_rows, int accumulate, u32* counter, double* partials) {   \
        backward_columns(x, mean, rstd, (const T*)d, d_gamma, d_beta, rows, n, chunk_rows, accumulate, partials);      \
        size_t begin = blockIdx.y * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;           \
        backward_rows<WarpGroup>(x, gamma, mean, rstd, d, begin + threadIdx.x / WARP, (size_t)(blockDim.x / WARP),     \
                                 end, n);                                                                              \
        add_chunks(d_gamma, d_beta, n, accumulate, counter, partials);                                                 \
    }
#define LAYER_NORM(suffix, T)                          \
    FORWARD(warp, WarpGroup, 256, suffix, T)           \
    FORWARD(block, BlockGroup, 512, suffix, T)         \
    BACKWARD_ROWS(warp, WarpGroup, 256, suffix, T)     \
    BACKWARD_ROWS(block, BlockGroup, 512, suffix, T)   \
    BACKWARD_COLUMNS(suffix, T)                        \
    BACKWARD_FUSED(suffix, T)
LAYER_NORM(f32, float)
LAYER_NORM(f64, double)
LAYER_NORM(bf16, bf16)
LAYER_NORM(f16, f16)
