// batch_norm.cu: batch normalization over all groups of rows, and its gradient. The caller exchanges moments and sums in between.
// math   moments  [n, mean[c], sum_n (x[n,c] - mean[c])^2] of this group's rows
//         stats    merges the groups' moments (Chan et al.): mean, rstd = 1/sqrt(variance + eps), count;
//                  running <- (1 - momentum)*running + momentum*(mean, variance with n - 1); of a single row as frozen
//         frozen   mean, rstd from the running values, count = infinity
//         forward  y[n,c] <- (x[n,c] - mean[c])*rstd[c]*gamma[c] + beta[c]
//         sums     [sum_n d, sum_n d*h] of this group's rows, h = (x - mean)*rstd
//         params   d_beta, d_gamma <- this group's sums (+= if accumulate); sums <- their means over the rows of all groups
//         backward d <- gamma*rstd*(d - mean(d) - h*mean(d*h))
// shapes  x, y, d: T[rows, n]; gamma, beta, mean, rstd, running_*, d_gamma, d_beta: M[n]; M is double for double, else float;
//         moments: double[2n + 1] per group; sums: double[2n] per group
// launch  moments, sums: grid (columns / 32, chunks of rows), block 512 = 32 columns x 16 row lanes; stats, frozen, params: a thread
//         per column; forward, backward: row_walk, 16 bytes per access if rows and pointers allow it
// moved   moments 2 values per element, 1 of them from cache; forward 2; sums 2; backward 3: memory-bound
// order   rows of a thread in M, compensated; row lanes, then chunks in order, then groups in order, all in f64: bit-identical between
//         runs; one atomic per block
// twin    cpu.rs next to this file

static const int ROW_LANES = 16;

template <class M> __device__ __forceinline__ bool finite(M v) { return v - v == 0; }

// The sum of a thread's rows. In f32 it is compensated (Kahan), as exact as in f64, whose rate is 1/32 to 1/64 of that of f32 on GPUs
// for graphics and inference: there f64 would bound these passes instead of the memory.
template <class M> struct RowSum {
    M sum = 0, lost = 0;
    __device__ __forceinline__ void add(M v) {
        M more = v - lost, next = sum + more;
        lost = (next - sum) - more;
        sum = next;
    }
    __device__ __forceinline__ double value() const { return (double)sum - (double)lost; }
};

// Adds up v over the row lanes; the result is valid in row lane 0. All threads of the block call it.
__device__ __forceinline__ double column_sum(double v, double (*part)[WARP]) {
    const int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    __syncthreads();
    part[row_lane][lane] = v;
    __syncthreads();
    double sum = 0;
    if (row_lane == 0)
        for (int i = 0; i < ROW_LANES; i++) sum += part[i][lane];
    return sum;
}

template <class T>
__device__ __forceinline__ void moments_of(const T* x, double* moments, size_t rows, size_t n, size_t chunk_rows, u32* counter,
                                           double* partials) {
    typedef MATH(T) M;
    __shared__ double part[ROW_LANES][WARP], center[WARP];
    const int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    size_t begin = blockIdx.y * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;
    for (size_t tile = (size_t)blockIdx.x * WARP; tile < n; tile += (size_t)gridDim.x * WARP) {
        size_t c = tile + lane;
        RowSum<M> sum_of_rows, squares_of_rows;
        if (c < n) {
#pragma unroll 8
            for (size_t r = begin + row_lane; r < end; r += ROW_LANES) sum_of_rows.add(to_float(x[r * n + c]));
        }
        double sum = column_sum(sum_of_rows.value(), part);
        if (row_lane == 0) center[lane] = end > begin ? sum / (double)(end - begin) : 0;
        __syncthreads();
        double mean = center[lane];
        M near_mean = (M)mean;
        if (c < n) {
#pragma unroll 8
            for (size_t r = begin + row_lane; r < end; r += ROW_LANES) {
                M centered = to_float(x[r * n + c]) - near_mean;
                squares_of_rows.add(centered * centered);
            }
        }
        double squares = column_sum(squares_of_rows.value(), part);
        if (row_lane == 0 && c < n) {
            double* out = gridDim.y > 1 ? partials + 2 * (size_t)blockIdx.y * n : moments + 1;
            double off = mean - (double)near_mean, around_mean = squares - off * off * (double)(end > begin ? end - begin : 0);
            out[c] = mean;
            out[n + c] = around_mean > 0 || !(around_mean == around_mean) ? around_mean : 0;
        }
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) moments[0] = (double)rows;
    if (gridDim.y == 1 || !is_last_block(counter)) return;
    for (size_t c = threadIdx.x; c < n; c += blockDim.x) {
        double count = 0, mean = 0, squares = 0;
        for (u32 chunk = 0; chunk < gridDim.y; chunk++) {
            size_t first = chunk * chunk_rows;
            if (first >= rows) break;
            double more = (double)(rows - first < chunk_rows ? rows - first : chunk_rows), total = count + more;
            double delta = partials[2 * (size_t)chunk * n + c] - mean;
            mean += delta * more / total;
            squares += partials[(2 * (size_t)chunk + 1) * n + c] + delta * delta * (count * more / total);
            count = total;
        }
        moments[1 + c] = mean;
        moments[1 + n + c] = squares;
    }
}

template <class M>
__device__ __forceinline__ void freeze_column(const M* running_mean, const M* running_var, double eps, M* mean, M* rstd,
                                              double* count, size_t c) {
    mean[c] = running_mean[c];
    rstd[c] = (M)(1 / sqrt((double)running_var[c] + eps));
    if (c == 0) *count = 1 / 0.0;
}

template <class M>
__device__ __forceinline__ void merge(const double* all, size_t n_groups, double eps, double momentum, M* mean, M* rstd,
                                      double* count, M* running_mean, M* running_var, size_t n) {
    for (size_t c = blockIdx.x * (size_t)blockDim.x + threadIdx.x; c < n; c += (size_t)gridDim.x * blockDim.x) {
        double rows = 0, m = 0, squares = 0;
        for (size_t r = 0; r < n_groups; r++) {
            const double* of_group = all + r * (2 * n + 1);
            double more = of_group[0];
            if (!(more > 0)) continue;
            double total = rows + more, delta = of_group[1 + c] - m;
            m += delta * more / total;
            squares += of_group[1 + n + c] + delta * delta * (rows * more / total);
            rows = total;
        }
        if (rows == 1) {
            freeze_column(running_mean, running_var, eps, mean, rstd, count, c);
            continue;
        }
        mean[c] = (M)m;
        rstd[c] = (M)(1 / sqrt((rows > 0 ? squares / rows : 0) + eps));
        if (c == 0) *count = rows;
        if (rows > 1) {
            M next_mean = (M)(1 - momentum) * running_mean[c] + (M)momentum * (M)m;
            M next_var = (M)(1 - momentum) * running_var[c] + (M)momentum * (M)(squares / (rows - 1));
            if (finite(next_mean) && finite(next_var)) {
                running_mean[c] = next_mean;
                running_var[c] = next_var;
            }
        }
    }
}

template <class M>
__device__ __forceinline__ void freeze(const M* running_mean, const M* running_var, double eps, M* mean, M* rstd, double* count,
                                       size_t n) {
    for (size_t c = blockIdx.x * (size_t)blockDim.x + threadIdx.x; c < n; c += (size_t)gridDim.x * blockDim.x)
        freeze_column(running_mean, running_var, eps, mean, rstd, count, c);
}

template <class T, int N>
__device__ __forceinline__ void apply(const T* x, const MATH(T)* gamma, const MATH(T)* beta, const MATH(T)* mean,
                                      const MATH(T)* rstd, T* y, size_t rows, size_t n, u32 log2_width) {
    typedef MATH(T) M;
    RowWalk at = row_walk(log2_width);
    size_t items = n / N;
    for (size_t i = at.item; i < items; i += at.item_stride) {
        M m[N], scale[N], shift[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            m[j] = mean[i * N + j];
            scale[j] = rstd[i * N + j] * gamma[i * N + j];
            shift[j] = beta[i * N + j];
        }
        for (size_t r = at.row; r < rows; r += at.row_stride) {
            Pack<T, N> v = load_pack<N>(x, r * items + i);
#pragma unroll
            for (int j = 0; j < N; j++) v.v[j] = Format<T>::from((to_float(v.v[j]) - m[j]) * scale[j] + shift[j]);
            store_pack(y, r * items + i, v);
        }
    }
}

template <class T>
__device__ __forceinline__ void gradient_sums(const T* x, const T* d, const MATH(T)* mean, const MATH(T)* rstd, double* sums,
                                              size_t rows, size_t n, size_t chunk_rows, u32* counter, double* partials) {
    __shared__ double part[ROW_LANES][WARP];
    const int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    size_t begin = blockIdx.y * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;
    double* out = gridDim.y > 1 ? partials + 2 * (size_t)blockIdx.y * n : sums;
    for (size_t tile = (size_t)blockIdx.x * WARP; tile < n; tile += (size_t)gridDim.x * WARP) {
        size_t c = tile + lane;
        RowSum<MATH(T)> sum_of_d, sum_of_dh;
        if (c < n) {
            MATH(T) m = mean[c], s = rstd[c];
#pragma unroll 8
            for (size_t r = begin + row_lane; r < end; r += ROW_LANES) {
                MATH(T) one = to_float(d[r * n + c]);
                sum_of_d.add(one);
                sum_of_dh.add(one * ((to_float(x[r * n + c]) - m) * s));
            }
        }
        double of_d = column_sum(sum_of_d.value(), part), of_dh = column_sum(sum_of_dh.value(), part);
        if (row_lane == 0 && c < n) {
            out[c] = of_d;
            out[n + c] = of_dh;
        }
    }
    if (gridDim.y == 1 || !is_last_block(counter)) return;
    for (size_t i = threadIdx.x; i < 2 * n; i += blockDim.x) {
        double sum = 0;
#pragma unroll 8
        for (u32 chunk = 0; chunk < gridDim.y; chunk++) sum += partials[2 * (size_t)chunk * n + i];
        sums[i] = sum;
    }
}

template <class M>
__device__ __forceinline__ void parameter_gradients(double* own, const double* all, size_t n_groups, const double* count,
                                                    M* d_gamma, M* d_beta, int accumulate, size_t n) {
    double rows = *count;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < 2 * n; i += (size_t)gridDim.x * blockDim.x) {
        M* out = i < n ? d_beta + i : d_gamma + (i - n);
        double sum = own[i];
        *out = accumulate ? *out + (M)sum : (M)sum;
        if (all) {
            sum = 0;
            for (size_t r = 0; r < n_groups; r++) sum += all[r * 2 * n + i];
        }
        own[i] = rows > 0 ? sum / rows : 0;
    }
}

template <class T, int N>
__device__ __forceinline__ void gradient(const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd,
                                         const double* means, T* d, size_t rows, size_t n, u32 log2_width) {
    typedef MATH(T) M;
    RowWalk at = row_walk(log2_width);
    size_t items = n / N;
    for (size_t i = at.item; i < items; i += at.item_stride) {
        M m[N], s[N], scale[N], mean_d[N], mean_dh[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            size_t c = i * N + j;
            m[j] = mean[c];
            s[j] = rstd[c];
            scale[j] = gamma[c] * s[j];
            mean_d[j] = (M)means[c];
            mean_dh[j] = (M)means[n + c];
        }
        for (size_t r = at.row; r < rows; r += at.row_stride) {
            Pack<T, N> v = load_pack<N>(x, r * items + i), g = load_pack<N>((const T*)d, r * items + i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                M h = (to_float(v.v[j]) - m[j]) * s[j];
                g.v[j] = Format<T>::from(scale[j] * (to_float(g.v[j]) - (mean_d[j] + h * mean_dh[j])));
            }
            store_pack(d, r * items + i, g);
        }
    }
}

#define BY_COLUMNS(suffix, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(512, 1) batch_norm_moments_##suffix(                                  \
        const T* x, double* moments, size_t rows, size_t n, size_t chunk_rows, u32* counter, double* partials) {       \
        moments_of(x, moments, rows, n, chunk_rows, counter, partials);                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 1) batch_norm_sums_##suffix(                                     \
        const T* x, const T* d, const MATH(T)* mean, const MATH(T)* rstd, double* sums, size_t rows, size_t n,         \
        size_t chunk_rows, u32* counter, double* partials) {                                                           \
        gradient_sums(x, d, mean, rstd, sums, rows, n, chunk_rows, counter, partials);                                 \
    }
#define BY_ROWS(suffix, T, N)                                                                                          \
    extern "C" __global__ void batch_norm_fwd_##suffix(const T* x, const MATH(T)* gamma, const MATH(T)* beta,          \
                                                       const MATH(T)* mean, const MATH(T)* rstd, T* y, size_t rows,    \
                                                       size_t n, u32 log2_width) {                                     \
        apply<T, N>(x, gamma, beta, mean, rstd, y, rows, n, log2_width);                                               \
    }                                                                                                                  \
    extern "C" __global__ void batch_norm_bwd_##suffix(const T* x, const MATH(T)* gamma, const MATH(T)* mean,          \
                                                       const MATH(T)* rstd, const double* means, T* d, size_t rows,    \
                                                       size_t n, u32 log2_width) {                                     \
        gradient<T, N>(x, gamma, mean, rstd, means, d, rows, n, log2_width);                                           \
    }
#define OF_COLUMNS(suffix, M)                                                                                          \
    extern "C" __global__ void batch_norm_stats_##suffix(const double* all, size_t n_groups, double eps,               \
                                                         double momentum, M* mean, M* rstd, double* count,             \
                                                         M* running_mean, M* running_var, size_t n) {                  \
        merge(all, n_groups, eps, momentum, mean, rstd, count, running_mean, running_var, n);                          \
    }                                                                                                                  \
    extern "C" __global__ void batch_norm_frozen_##suffix(const M* running_mean, const M* running_var, double eps,     \
                                                          M* mean, M* rstd, double* count, size_t n) {                 \
        freeze(running_mean, running_var, eps, mean, rstd, count, n);                                                  \
    }                                                                                                                  \
    extern "C" __global__ void batch_norm_params_##suffix(double* own, const double* all, size_t n_groups,             \
                                                          const double* count, M* d_gamma, M* d_beta, int accumulate,  \
                                                          size_t n) {                                                  \
        parameter_gradients(own, all, n_groups, count, d_gamma, d_beta, accumulate, n);                                \
    }
BY_COLUMNS(f32, float)
BY_COLUMNS(f64, double)
BY_COLUMNS(bf16, bf16)
BY_COLUMNS(f16, f16)
BY_ROWS(f32, float, 1)
BY_ROWS(f64, double, 1)
BY_ROWS(bf16, bf16, 1)
BY_ROWS(f16, f16, 1)
BY_ROWS(f32_by_16_bytes, float, 4)
BY_ROWS(f64_by_16_bytes, double, 2)
BY_ROWS(bf16_by_16_bytes, bf16, 8)
BY_ROWS(f16_by_16_bytes, f16, 8)
OF_COLUMNS(f32, float)
OF_COLUMNS(f64, double)
