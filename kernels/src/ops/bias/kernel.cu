// bias.cu: the bias of a linear layer, and its gradient.
// math   forward y[n, c] <- y[n, c] + bias[c]; backward d_bias[c] <- sum_n d_y[n, c] (+ d_bias[c] if accumulate);
//         relu_bias_bwd first d_y[n, c] <- d_y[n, c] * (saved[n, c] > 0), as relu_bwd in activation.cu
// shapes  y, d_y, saved: T[rows, cols]; bias: T[cols]; d_bias: D[cols], D = T or float
// launch  forward row_walk over 16 bytes per access if rows and pointers allow it, else over elements; block 256.
//         backward one block of 512 per tile of columns (2^log2_lanes threads wide, each 16 bytes or one element) and share of
//         the rows: tiles in x, shares in y; the last block of a tile sums the shares; any shape
// moved   forward 2 values per element, backward 1, through ReLU 3: memory-bound
// order   the rows of a thread and the order of all sums depend on the shape and on whether addresses are multiples of 16:
//         bit-identical between runs. Backward has one atomic per block, a counter that decides which block is the last.
// twin    the functions `_cpu` in mod.rs next to this file

template <class T, int N> __device__ void add_bias(const T* __restrict__ bias, T* y, size_t rows, size_t cols, u32 log2_width) {
    RowWalk at = row_walk(log2_width);
    size_t items = cols / N;
    for (size_t i = at.item; i < items; i += at.item_stride) {
        Pack<T, N> b = load_pack<N>(bias, i);
        // Two rows at a time, so that their loads overlap.
        for (size_t n = at.row; n < rows; n += 2 * at.row_stride) {
            Pack<T, N> v[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (n + k * at.row_stride < rows) v[k] = load_pack<N>(y, (n + k * at.row_stride) * items + i);
#pragma unroll
            for (int k = 0; k < 2; k++) {
#pragma unroll
                for (int j = 0; j < N; j++) v[k].v[j] = Format<T>::from(to_float(v[k].v[j]) + to_float(b.v[j]));
                if (n + k * at.row_stride < rows) store_pack(y, (n + k * at.row_stride) * items + i, v[k]);
            }
        }
    }
}
#define ADD_BIAS(suffix, T, N)                                                                                         \
    extern "C" __global__ void bias_fwd_##suffix(const T* bias, T* y, size_t rows, size_t cols, u32 log2_width) {      \
        add_bias<T, N>(bias, y, rows, cols, log2_width);                                                               \
    }
ADD_BIAS(f32, float, 1)
ADD_BIAS(f64, double, 1)
ADD_BIAS(bf16, bf16, 1)
ADD_BIAS(f16, f16, 1)
ADD_BIAS(f32_by_16_bytes, float, 4)
ADD_BIAS(f64_by_16_bytes, double, 2)
ADD_BIAS(bf16_by_16_bytes, bf16, 8)
ADD_BIAS(f16_by_16_bytes, f16, 8)

#define COLUMN_BLOCK 512

// In steps of N columns, a divisor of cols. `counters`: one per tile; `partials`: cols elements per share of the rows.
template <class T, int N, class D, bool RELU>
__device__ void column_sums(T* d_y, const T* saved, D* d_bias, size_t rows, size_t cols, int accumulate, u32 log2_lanes,
                            u32* counters, MATH(T)* partials) {
    typedef MATH(T) M;
    __shared__ M part[COLUMN_BLOCK * N];
    const u32 lanes = 1u << log2_lanes, lane = threadIdx.x & (lanes - 1), width = lanes * N;
    const size_t items = cols / N, item = (size_t)blockIdx.x * lanes + lane, first = (size_t)blockIdx.x * width;
    const size_t row_lanes = COLUMN_BLOCK >> log2_lanes, stride = gridDim.y * row_lanes;

    M sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = 0;
    if (item < items) {
        // Several rows at a time, so that their loads overlap; a row past the end adds nothing. Through ReLU each is loaded twice, and
        // with more at a time 64 registers are not enough.
        const int batch = RELU ? (N == 1 ? 4 : 2) : (N == 1 ? 8 : 4);
        for (size_t n = blockIdx.y * row_lanes + (threadIdx.x >> log2_lanes); n < rows; n += batch * stride) {
            Pack<T, N> v[batch];
#pragma unroll
            for (int k = 0; k < batch; k++)
                v[k] = n + k * stride < rows ? load_pack<N>(d_y, (n + k * stride) * items + item) : Pack<T, N>{};
            if constexpr (RELU) {
                Pack<T, N> y[batch];
#pragma unroll
                for (int k = 0; k < batch; k++)
                    y[k] = n + k * stride < rows ? load_pack<N>(saved, (n + k * stride) * items + item) : Pack<T, N>{};
#pragma unroll
                for (int k = 0; k < batch; k++) {
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        v[k].v[j] = Format<T>::from(to_float(v[k].v[j]) * (to_float(y[k].v[j]) > 0 ? (M)1 : (M)0));
                        sum[j] += to_float(v[k].v[j]);
                    }
                    if (n + k * stride < rows) store_pack(d_y, (n + k * stride) * items + item, v[k]);
                }
            } else {
#pragma unroll
                for (int k = 0; k < batch; k++) {
#pragma unroll
                    for (int j = 0; j < N; j++) sum[j] += to_float(v[k].v[j]);
                }
            }
        }
    }
    // Lanes of a warp that hold the same columns, then warps: slices of the tile's columns in shared memory.
    for (u32 o = lanes; o < WARP; o <<= 1) {
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], o);
    }
    const u32 slice_threads = lanes < WARP ? WARP : lanes, slices = COLUMN_BLOCK / slice_threads;
    if (threadIdx.x % slice_threads < lanes) {
#pragma unroll
        for (int j = 0; j < N; j++) part[threadIdx.x / slice_threads * width + lane * N + j] = sum[j];
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width && first + c < cols; c += COLUMN_BLOCK) {
        M total = part[c];
        for (u32 s = 1; s < slices; s++) total += part[s * width + c];
        if (gridDim.y > 1)
            partials[blockIdx.y * cols + first + c] = total;
        else
            d_bias[first + c] = Format<D>::from(accumulate ? to_float(d_bias[first + c]) + total : total);
    }
    if (gridDim.y == 1 || !is_last_block(counters + blockIdx.x, gridDim.y)) return;
    // The shares of the rows, by all threads of a column.
    const u32 helpers = width < COLUMN_BLOCK ? COLUMN_BLOCK / width : 1, helper = threadIdx.x / width;
    for (u32 c = helpers > 1 ? threadIdx.x % width : threadIdx.x; c < width; c += COLUMN_BLOCK) {
        M total = 0;
        if (first + c < cols) {
            for (u32 y = helpers > 1 ? helper : 0; y < gridDim.y; y += 4 * helpers) {
                M v[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    v[k] = y + k * helpers < gridDim.y ? partials[(y + k * helpers) * cols + first + c] : (M)0;
                total += v[0] + v[1] + (v[2] + v[3]);
            }
        }
        part[helpers > 1 ? helper * width + c : c] = total;
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width && first + c < cols; c += COLUMN_BLOCK) {
        M total = part[c];
        for (u32 h = 1; h < helpers; h++) total += part[h * width + c];
        d_bias[first + c] = Format<D>::from(accumulate ? to_float(d_bias[first + c]) + total : total);
    }
}
#define COLUMN_SUMS(suffix, T, N, D)                                                                                   \
    extern "C" __global__ void __launch_bounds__(COLUMN_BLOCK, 2)                                                      \
        bias_bwd_##suffix(const T* d_y, D* d_bias, size_t rows, size_t cols, int accumulate, u32 log2_lanes,           \
                          u32* counters, MATH(T)* partials) {                                                          \
        column_sums<T, N, D, false>(const_cast<T*>(d_y), d_y, d_bias, rows, cols, accumulate, log2_lanes, counters,    \
                                    partials);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(COLUMN_BLOCK, 2)                                                      \
        relu_bias_bwd_##suffix(T* d_y, const T* saved, D* d_bias, size_t rows, size_t cols, int accumulate,            \
                               u32 log2_lanes, u32* counters, MATH(T)* partials) {                                     \
        column_sums<T, N, D, true>(d_y, saved, d_bias, rows, cols, accumulate, log2_lanes, counters, partials);        \
    }
COLUMN_SUMS(f32, float, 1, float)
COLUMN_SUMS(f64, double, 1, double)
COLUMN_SUMS(bf16, bf16, 1, bf16)
COLUMN_SUMS(f16, f16, 1, f16)
COLUMN_SUMS(bf16_f32, bf16, 1, float)
COLUMN_SUMS(f16_f32, f16, 1, float)
COLUMN_SUMS(f32_by_16_bytes, float, 4, float)
COLUMN_SUMS(f64_by_16_bytes, double, 2, double)
COLUMN_SUMS(bf16_by_16_bytes, bf16, 8, bf16)
COLUMN_SUMS(f16_by_16_bytes, f16, 8, f16)
COLUMN_SUMS(bf16_f32_by_16_bytes, bf16, 8, float)
COLUMN_SUMS(f16_f32_by_16_bytes, f16, 8, float)
