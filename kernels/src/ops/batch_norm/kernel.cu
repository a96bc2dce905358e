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
// launch  moments, sums: a block of 512 per tile of columns (2^log2_lanes threads wide) and chunk of rows: tiles in x, chunks in y;
//         the last block of a tile merges the chunks (ColumnGrid in cuda/column_grid.rs computes the grid);
//         stats, frozen, params: a thread per column; forward, backward: row_walk; 4 columns per access (2 in f64) if rows and
//         pointers allow it
// moved   moments 1 value per element; forward 2; sums 2; backward 3: memory-bound
// order   rows of a thread in M, compensated; row lanes, then chunks, then groups, all in f64: depends on the shape and on whether
//         pointers allow 4 columns per access: bit-identical between runs; one atomic per block
// twin    cpu.rs next to this file

#define COLUMN_BLOCK 512

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

// The rows of a thread that sums N columns at a time: begin, begin + stride, ... below end, if it has columns.
struct ColumnRows {
    u32 lanes, lane;
    size_t items, item, begin, stride, end;
    bool has_rows;
};
template <int N> __device__ __forceinline__ ColumnRows column_rows(size_t rows, size_t n, size_t chunk_rows, u32 log2_lanes) {
    ColumnRows at;
    at.lanes = 1u << log2_lanes;
    at.lane = threadIdx.x & (at.lanes - 1);
    at.items = n / N;
    at.item = (size_t)blockIdx.x * at.lanes + at.lane;
    size_t first = blockIdx.y * chunk_rows;
    at.begin = first + (threadIdx.x >> log2_lanes);
    at.stride = COLUMN_BLOCK >> log2_lanes;
    at.end = rows < first + chunk_rows ? rows : first + chunk_rows;
    at.has_rows = at.item < at.items && at.begin < at.end;
    return at;
}

// Sums of N columns of each thread over the threads that have the same ones; thread c gets the sum of column c of the tile.
template <int N> __device__ __forceinline__ double tile_sum(double (&v)[N], u32 lanes, double* part) {
    for (u32 o = lanes; o < WARP; o <<= 1) {
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += __shfl_xor_sync(ALL_LANES, v[j], o);
    }
    const u32 slice_threads = lanes < WARP ? WARP : lanes, width = lanes * N;
    __syncthreads();
    if (threadIdx.x % slice_threads < lanes) {
#pragma unroll
        for (int j = 0; j < N; j++) part[threadIdx.x / slice_threads * width + threadIdx.x % slice_threads * N + j] = v[j];
    }
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < width)
        for (u32 slice = 0; slice < COLUMN_BLOCK / slice_threads; slice++) sum += part[slice * width + threadIdx.x];
    return sum;
}
// Sum over the threads whose index is the same modulo `width`; thread c below `width` gets the sum of these.
__device__ __forceinline__ double chunk_sum(double v, u32 width, double* part) {
    __syncthreads();
    part[threadIdx.x] = v;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < width)
        for (u32 i = threadIdx.x; i < COLUMN_BLOCK; i += width) sum += part[i];
    return sum;
}
__device__ __forceinline__ double not_below_zero(double v) { return v < 0 ? 0 : v; }

// 64 bytes in flight per thread, at most 8 rows.
template <class T, int N> struct Batch {
    static const int rows = 64 / (sizeof(T) * N) < 8 ? 64 / (sizeof(T) * N) : 8;
};

// Adds the distances of ROWS rows from `shift`, and their squares: packs first, first + step, ...
template <int ROWS, class T, int N>
__device__ __forceinline__ void add_distances(const T* x, size_t first, size_t step, const MATH(T) (&shift)[N],
                                              RowSum<MATH(T)> (&sum)[N], RowSum<MATH(T)> (&squares)[N]) {
    typedef MATH(T) M;
    Pack<T, N> v[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) v[k] = load_pack<N>(x, first + k * step);
#pragma unroll
    for (int j = 0; j < N; j++) {
        M of_rows = 0, squares_of_rows = 0;
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            M distance = to_float(v[k].v[j]) - shift[j];
            of_rows += distance;
            squares_of_rows += distance * distance;
        }
        sum[j].add(of_rows);
        squares[j].add(squares_of_rows);
    }
}

// In one pass: each thread sums the distances from its first row, and their squares, so that little cancels.
template <class T, int N>
__device__ __forceinline__ void moments_of(const T* x, double* moments, size_t rows, size_t n, size_t chunk_rows, u32 log2_lanes,
                                           u32* counters, double* partials) {
    typedef MATH(T) M;
    const int batch = Batch<T, N>::rows;
    __shared__ double part[COLUMN_BLOCK * N], center[COLUMN_BLOCK];
    const ColumnRows at = column_rows<N>(rows, n, chunk_rows, log2_lanes);
    RowSum<M> sum[N], squares[N];
    M shift[N] = {};
    double own_rows = 0;
    if (at.has_rows) {
        const Pack<T, N> first = load_pack<N>(x, at.begin * at.items + at.item);
#pragma unroll
        for (int j = 0; j < N; j++) shift[j] = to_float(first.v[j]);
        size_t r = at.begin;
        u32 n_rows = 0;
        for (; r + (batch - 1) * at.stride < at.end; r += batch * at.stride, n_rows += batch)
            add_distances<batch>(x, r * at.items + at.item, at.stride * at.items, shift, sum, squares);
        for (; r < at.end; r += at.stride, n_rows++)
            add_distances<1>(x, r * at.items + at.item, 0, shift, sum, squares);
        own_rows = n_rows;
    }
    // The mean of the chunk, and the squares around it from those around the means of the threads.
    const u32 width = at.lanes * N;
    const size_t c = (size_t)blockIdx.x * width + threadIdx.x % width;
    const bool writes = threadIdx.x < width && c < n;
    const size_t first_row = blockIdx.y * chunk_rows;
    const double per_row = own_rows > 0 ? 1 / own_rows : 0;
    double* out = gridDim.y > 1 ? partials + 2 * (size_t)blockIdx.y * n : moments + 1;
    double v[N];
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = sum[j].value() + own_rows * (double)shift[j];
    double mean = at.end > first_row ? tile_sum(v, at.lanes, part) / (double)(at.end - first_row) : 0;
    if (threadIdx.x < width) center[threadIdx.x] = mean;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) {
        double of_thread = sum[j].value(), off = (double)shift[j] + of_thread * per_row - center[at.lane * N + j];
        v[j] = squares[j].value() - of_thread * of_thread * per_row + own_rows * off * off;
    }
    double around_mean = tile_sum(v, at.lanes, part);
    if (writes) {
        out[c] = mean;
        out[n + c] = not_below_zero(around_mean);
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) moments[0] = (double)rows;
    if (gridDim.y == 1 || !is_last_block(counters + blockIdx.x, gridDim.y)) return;

    // The same for the chunks.
    double of_chunks = 0;
    for (u32 chunk = threadIdx.x / width; c < n && chunk < gridDim.y; chunk += COLUMN_BLOCK / width) {
        size_t left = rows - chunk * chunk_rows;
        of_chunks += partials[2 * (size_t)chunk * n + c] * (double)(left < chunk_rows ? left : chunk_rows);
    }
    mean = chunk_sum(of_chunks, width, part) / (double)rows;
    if (threadIdx.x < width) center[threadIdx.x] = mean;
    __syncthreads();
    mean = center[threadIdx.x % width];
    of_chunks = 0;
    for (u32 chunk = threadIdx.x / width; c < n && chunk < gridDim.y; chunk += COLUMN_BLOCK / width) {
        size_t left = rows - chunk * chunk_rows;
        double off = partials[2 * (size_t)chunk * n + c] - mean;
        of_chunks += partials[(2 * (size_t)chunk + 1) * n + c] + off * off * (double)(left < chunk_rows ? left : chunk_rows);
    }
    of_chunks = chunk_sum(of_chunks, width, part);
    if (writes) {
        moments[1 + c] = mean;
        moments[1 + n + c] = of_chunks;
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
        auto normalized = [&](Pack<T, N> v) {
#pragma unroll
            for (int j = 0; j < N; j++) v.v[j] = Format<T>::from(fused(to_float(v.v[j]) - m[j], scale[j], shift[j]));
            return v;
        };
        // Several rows at a time, so that their loads overlap.
        const int batch = 4;
        size_t r = at.row;
        for (; r + (batch - 1) * at.row_stride < rows; r += batch * at.row_stride) {
            Pack<T, N> v[batch];
#pragma unroll
            for (int k = 0; k < batch; k++) v[k] = load_pack<N>(x, (r + k * at.row_stride) * items + i);
#pragma unroll
            for (int k = 0; k < batch; k++) store_pack(y, (r + k * at.row_stride) * items + i, normalized(v[k]));
        }
        for (; r < rows; r += at.row_stride) store_pack(y, r * items + i, normalized(load_pack<N>(x, r * items + i)));
    }
}

// Adds d and d*h of ROWS rows: packs first, first + step, ...
template <int ROWS, class T, int N>
__device__ __forceinline__ void add_gradients(const T* x, const T* d, size_t first, size_t step, const MATH(T) (&mean)[N],
                                              const MATH(T) (&rstd)[N], RowSum<MATH(T)> (&sum_of_d)[N],
                                              RowSum<MATH(T)> (&sum_of_dh)[N]) {
    typedef MATH(T) M;
    Pack<T, N> v[ROWS], g[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        v[k] = load_pack<N>(x, first + k * step);
        g[k] = load_pack<N>(d, first + k * step);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        M of_d = 0, of_dh = 0;
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            of_d += to_float(g[k].v[j]);
            of_dh += to_float(g[k].v[j]) * ((to_float(v[k].v[j]) - mean[j]) * rstd[j]);
        }
        sum_of_d[j].add(of_d);
        sum_of_dh[j].add(of_dh);
    }
}

template <class T, int N>
__device__ __forceinline__ void gradient_sums(const T* x, const T* d, const MATH(T)* mean, const MATH(T)* rstd, double* sums,
                                              size_t rows, size_t n, size_t chunk_rows, u32 log2_lanes, u32* counters,
                                              double* partials) {
    typedef MATH(T) M;
    const int batch = (Batch<T, N>::rows + 1) / 2;
    __shared__ double part[COLUMN_BLOCK * N];
    const ColumnRows at = column_rows<N>(rows, n, chunk_rows, log2_lanes);
    RowSum<M> sum_of_d[N], sum_of_dh[N];
    if (at.has_rows) {
        M m[N], scale[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            m[j] = mean[at.item * N + j];
            scale[j] = rstd[at.item * N + j];
        }
        size_t r = at.begin, step = at.stride * at.items;
        for (; r + (batch - 1) * at.stride < at.end; r += batch * at.stride)
            add_gradients<batch>(x, d, r * at.items + at.item, step, m, scale, sum_of_d, sum_of_dh);
        for (; r < at.end; r += at.stride)
            add_gradients<1>(x, d, r * at.items + at.item, 0, m, scale, sum_of_d, sum_of_dh);
    }
    const u32 width = at.lanes * N;
    const size_t c = (size_t)blockIdx.x * width + threadIdx.x % width;
    double of_d[N], of_dh[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        of_d[j] = sum_of_d[j].value();
        of_dh[j] = sum_of_dh[j].value();
    }
    double d_sum = tile_sum(of_d, at.lanes, part), dh_sum = tile_sum(of_dh, at.lanes, part);
    double* out = gridDim.y > 1 ? partials + 2 * (size_t)blockIdx.y * n : sums;
    if (threadIdx.x < width && c < n) {
        out[c] = d_sum;
        out[n + c] = dh_sum;
    }
    if (gridDim.y == 1 || !is_last_block(counters + blockIdx.x, gridDim.y)) return;

    double d_chunks = 0, dh_chunks = 0;
    for (u32 chunk = threadIdx.x / width; c < n && chunk < gridDim.y; chunk += COLUMN_BLOCK / width) {
        d_chunks += partials[2 * (size_t)chunk * n + c];
        dh_chunks += partials[(2 * (size_t)chunk + 1) * n + c];
    }
    d_chunks = chunk_sum(d_chunks, width, part);
    dh_chunks = chunk_sum(dh_chunks, width, part);
    if (threadIdx.x < width && c < n) {
        sums[c] = d_chunks;
        sums[n + c] = dh_chunks;
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
        auto of_x = [&](Pack<T, N> v, Pack<T, N> g) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                M h = (to_float(v.v[j]) - m[j]) * s[j];
                g.v[j] = Format<T>::from(scale[j] * (to_float(g.v[j]) - fused(h, mean_dh[j], mean_d[j])));
            }
            return g;
        };
        const int batch = 2;
        size_t r = at.row;
        for (; r + (batch - 1) * at.row_stride < rows; r += batch * at.row_stride) {
            Pack<T, N> v[batch], g[batch];
#pragma unroll
            for (int k = 0; k < batch; k++) {
                v[k] = load_pack<N>(x, (r + k * at.row_stride) * items + i);
                g[k] = load_pack<N>((const T*)d, (r + k * at.row_stride) * items + i);
            }
#pragma unroll
            for (int k = 0; k < batch; k++) store_pack(d, (r + k * at.row_stride) * items + i, of_x(v[k], g[k]));
        }
        for (; r < rows; r += at.row_stride) {
            Pack<T, N> v = load_pack<N>(x, r * items + i), g = load_pack<N>((const T*)d, r * items + i);
            store_pack(d, r * items + i, of_x(v, g));
        }
    }
}

#define BY_COLUMNS(suffix, T, N)                                                                                       \
    extern "C" __global__ void __launch_bounds__(COLUMN_BLOCK, 2) batch_norm_moments_##suffix(                         \
        const T* x, double* moments, size_t rows, size_t n, size_t chunk_rows, u32 log2_lanes, u32* counters,          \
        double* partials) {                                                                                            \
        moments_of<T, N>(x, moments, rows, n, chunk_rows, log2_lanes, counters, partials);                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(COLUMN_BLOCK, 2) batch_norm_sums_##suffix(                            \
        const T* x, const T* d, const MATH(T)* mean, const MATH(T)* rstd, double* sums, size_t rows, size_t n,         \
        size_t chunk_rows, u32 log2_lanes, u32* counters, double* partials) {                                          \
        gradient_sums<T, N>(x, d, mean, rstd, sums, rows, n, chunk_rows, log2_lanes, counters, partials);              \
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
BY_COLUMNS(f32, float, 1)
BY_COLUMNS(f64, double, 1)
BY_COLUMNS(bf16, bf16, 1)
BY_COLUMNS(f16, f16, 1)
BY_COLUMNS(f32_packed, float, 4)
BY_COLUMNS(f64_packed, double, 2)
BY_COLUMNS(bf16_packed, bf16, 4)
BY_COLUMNS(f16_packed, f16, 4)
BY_ROWS(f32, float, 1)
BY_ROWS(f64, double, 1)
BY_ROWS(bf16, bf16, 1)
BY_ROWS(f16, f16, 1)
BY_ROWS(f32_packed, float, 4)
BY_ROWS(f64_packed, double, 2)
BY_ROWS(bf16_packed, bf16, 4)
BY_ROWS(f16_packed, f16, 4)
OF_COLUMNS(f32, float)
OF_COLUMNS(f64, double)
