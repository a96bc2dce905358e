// rms_norm.cu: root mean square normalization and its gradients.
// math   forward  y[n,c] <- x[n,c]*rstd[n]*gamma[c], rstd = 1/sqrt(mean_c(x^2) + eps)
//         backward, with g = d*gamma and h = x*rstd: d <- rstd*(g - h*mean_c(g*h)); d_gamma <- sum_n d*h, of the incoming d
//         (+= if accumulate)
// shapes  x, y, d: T[rows, n]; gamma, d_gamma: M[n]; rstd: M[rows]; M is double for double, else float
// launch  fwd_warp, bwd_warp: a warp per row, n <= 1024, block 256; fwd_block, bwd_block: a block of 512 per row
//         bwd_columns: grid (columns / 32, chunks of rows), block 512 = 32 columns x 16 row lanes; before bwd_warp or bwd_block
//         16 bytes per access along aligned rows
// moved   forward 2 values per element and one read again from cache; backward 5 (columns read x d, rows read x d and write d)
//         and two read again from cache: memory-bound
// order   rows by lanes, columns by row lane, then chunks in order in f64: bit-identical between runs; one atomic per block
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// Threads that share a row.
struct WarpGroup {
    static const int size = WARP;
    static __device__ __forceinline__ int rank() { return threadIdx.x % WARP; }
    template <class M> static __device__ __forceinline__ M sum(M v, M*) { return warp_sum(v); }
};
struct BlockGroup {
    static const int size = 512;
    static __device__ __forceinline__ int rank() { return threadIdx.x; }
    template <class M> static __device__ __forceinline__ M sum(M v, M* scratch) { return block_sum(v, scratch); }
};

template <class G, int N, class T>
__device__ __forceinline__ void forward_row(const T* x, const MATH(T)* gamma, MATH(T) eps, T* y, MATH(T)* rstd, size_t n,
                                            MATH(T)* scratch) {
    typedef MATH(T) M;
    const size_t items = n / N;
    M squares = 0;
    for (size_t i = G::rank(); i < items; i += G::size) {
        Pack<T, N> v = load_pack<N>(x, i);
#pragma unroll
        for (int j = 0; j < N; j++) squares += to_float(v.v[j]) * to_float(v.v[j]);
    }
    M r = 1 / root(G::sum(squares, scratch) / (M)n + eps);
    for (size_t i = G::rank(); i < items; i += G::size) {
        Pack<T, N> v = load_pack<N>(x, i);
#pragma unroll
        for (int j = 0; j < N; j++) v.v[j] = Format<T>::from(to_float(v.v[j]) * r * gamma[i * N + j]);
        store_pack(y, i, v);
    }
    if (G::rank() == 0) *rstd = r;
}
template <class G, int N, class T>
__device__ __forceinline__ void backward_row(const T* x, const MATH(T)* gamma, MATH(T) r, T* d, size_t n, MATH(T)* scratch) {
    typedef MATH(T) M;
    const size_t items = n / N;
    M sum = 0;
    for (size_t i = G::rank(); i < items; i += G::size) {
        Pack<T, N> v = load_pack<N>(x, i), g = load_pack<N>((const T*)d, i);
#pragma unroll
        for (int j = 0; j < N; j++) sum += to_float(g.v[j]) * gamma[i * N + j] * (to_float(v.v[j]) * r);
    }
    M mean = G::sum(sum, scratch) / (M)n;
    for (size_t i = G::rank(); i < items; i += G::size) {
        Pack<T, N> v = load_pack<N>(x, i), g = load_pack<N>((const T*)d, i);
#pragma unroll
        for (int j = 0; j < N; j++)
            g.v[j] = Format<T>::from(r * (to_float(g.v[j]) * gamma[i * N + j] - to_float(v.v[j]) * r * mean));
        store_pack(d, i, g);
    }
}

// One row per group at a time; threads of a group leave the loop together.
template <class G, class T>
__device__ __forceinline__ void forward_rows(const T* x, const MATH(T)* gamma, double eps, T* y, MATH(T)* rstd, size_t rows,
                                             size_t n) {
    typedef MATH(T) M;
    __shared__ M scratch[WARP];
    const int per_pack = Pack<T>::size;
    bool packed = n % per_pack == 0 && are_packed(x, y);
    size_t groups = blockDim.x / G::size;
    for (size_t row = blockIdx.x * groups + threadIdx.x / G::size; row < rows; row += gridDim.x * groups) {
        if (packed)
            forward_row<G, per_pack>(x + row * n, gamma, (M)eps, y + row * n, rstd + row, n, scratch);
        else
            forward_row<G, 1>(x + row * n, gamma, (M)eps, y + row * n, rstd + row, n, scratch);
    }
}
template <class G, class T>
__device__ __forceinline__ void backward_rows(const T* x, const MATH(T)* gamma, const MATH(T)* rstd, T* d, size_t rows,
                                              size_t n) {
    __shared__ MATH(T) scratch[WARP];
    const int per_pack = Pack<T>::size;
    bool packed = n % per_pack == 0 && are_packed(x, d);
    size_t groups = blockDim.x / G::size;
    for (size_t row = blockIdx.x * groups + threadIdx.x / G::size; row < rows; row += gridDim.x * groups) {
        if (packed)
            backward_row<G, per_pack>(x + row * n, gamma, rstd[row], d + row * n, n, scratch);
        else
            backward_row<G, 1>(x + row * n, gamma, rstd[row], d + row * n, n, scratch);
    }
}

// d_gamma from the rows of chunk blockIdx.y; the last block sums the chunks if there are several.
template <class T>
__device__ __forceinline__ void backward_columns(const T* x, const MATH(T)* rstd, const T* d, MATH(T)* d_gamma, size_t rows,
                                                 size_t n, size_t chunk_rows, int accumulate, u32* counter, double* partials) {
    typedef MATH(T) M;
    const int row_lanes = 16;
    __shared__ M part[row_lanes][WARP];
    const int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    size_t begin = blockIdx.y * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;
    for (size_t tile = (size_t)blockIdx.x * WARP; tile < n; tile += (size_t)gridDim.x * WARP) {
        size_t c = tile + lane;
        M sum = 0;
        if (c < n) {
#pragma unroll 8
            for (size_t r = begin + row_lane; r < end; r += row_lanes)
                sum += (M)to_float(d[r * n + c]) * (to_float(x[r * n + c]) * rstd[r]);
        }
        part[row_lane][lane] = sum;
        __syncthreads();
        if (row_lane == 0 && c < n) {
            sum = 0;
            for (int i = 0; i < row_lanes; i++) sum += part[i][lane];
            if (gridDim.y > 1)
                partials[(size_t)blockIdx.y * n + c] = sum;
            else
                d_gamma[c] = accumulate ? d_gamma[c] + sum : sum;
        }
        __syncthreads();
    }
    if (gridDim.y == 1 || !is_last_block(counter)) return;
    for (size_t c = threadIdx.x; c < n; c += blockDim.x) {
        double sum = 0;
#pragma unroll 8
        for (u32 chunk = 0; chunk < gridDim.y; chunk++) sum += partials[(size_t)chunk * n + c];
        d_gamma[c] = accumulate ? d_gamma[c] + (M)sum : (M)sum;
    }
}

#define ROWS(form, G, threads, suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) rms_norm_fwd_##form##_##suffix(               \
        const T* x, const MATH(T)* gamma, double eps, T* y, MATH(T)* rstd, size_t rows, size_t n) {                    \
        forward_rows<G>(x, gamma, eps, y, rstd, rows, n);                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) rms_norm_bwd_##form##_##suffix(               \
        const T* x, const MATH(T)* gamma, const MATH(T)* rstd, T* d, size_t rows, size_t n) {                          \
        backward_rows<G>(x, gamma, rstd, d, rows, n);                                                                  \
    }
#define RMS_NORM(suffix, T)                                                                                            \
    ROWS(warp, WarpGroup, 256, suffix, T)                                                                              \
    ROWS(block, BlockGroup, 512, suffix, T)                                                                            \
    extern "C" __global__ void __launch_bounds__(512, 1) rms_norm_bwd_columns_##suffix(                                \
        const T* x, const MATH(T)* rstd, const T* d, MATH(T)* d_gamma, size_t rows, size_t n, size_t chunk_rows,       \
        int accumulate, u32* counter, double* partials) {                                                              \
        backward_columns(x, rstd, d, d_gamma, rows, n, chunk_rows, accumulate, counter, partials);                     \
    }
RMS_NORM(f32, float)
RMS_NORM(f64, double)
RMS_NORM(bf16, bf16)
RMS_NORM(f16, f16)
