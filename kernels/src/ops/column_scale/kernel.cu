// column_scale.cu: multiplies columns by numbers, and the gradient of these.
// math   forward  y[n, c] <- x[n, c]*scale[c]; x and y may be the same
//         columns  d_scale[c] <- sum_n d[n, c]*x[n, c] (+ d_scale[c] if accumulate)
// shapes  x, y, d: T[rows, cols]; scale, d_scale: M[cols]
// launch  forward: grid-stride; columns: a block per 32 columns, 8 threads per column; block 256; any shape
// moved   forward 2 values per element, columns 2: memory-bound
// order   columns: 8 sums of every eighth row, then these in order: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class T> __device__ void forward(const T* x, const MATH(T)* scale, T* y, size_t n, size_t cols) {
    for (size_t i = first_element(); i < n; i += grid_stride()) y[i] = Format<T>::from(to_float(x[i]) * scale[i % cols]);
}

template <class T>
__device__ void columns(const T* x, const T* d, MATH(T)* d_scale, size_t rows, size_t cols, int accumulate) {
    typedef MATH(T) M;
    __shared__ M parts[8][WARP];
    int lane = threadIdx.x % WARP, row_lane = threadIdx.x / WARP;
    size_t c = (size_t)blockIdx.x * WARP + lane;
    M sum = 0;
    if (c < cols)
        for (size_t r = row_lane; r < rows; r += 8) sum += (M)to_float(d[r * cols + c]) * (M)to_float(x[r * cols + c]);
    parts[row_lane][lane] = sum;
    __syncthreads();
    if (row_lane != 0 || c >= cols) return;
    for (int k = 1; k < 8; k++) sum += parts[k][lane];
    d_scale[c] = accumulate ? d_scale[c] + sum : sum;
}

#define COLUMN_SCALE(suffix, T)                                                                                           \
    extern "C" __global__ void column_scale_fwd_##suffix(const T* x, const MATH(T)* scale, T* y, size_t n, size_t cols) {  \
        forward<T>(x, scale, y, n, cols);                                                                                 \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) column_scale_bwd_columns_##suffix(                                  \
        const T* x, const T* d, MATH(T)* d_scale, size_t rows, size_t cols, int accumulate) {                              \
        columns<T>(x, d, d_scale, rows, cols, accumulate);                                                                \
    }
COLUMN_SCALE(f32, float)
COLUMN_SCALE(f64, double)
COLUMN_SCALE(bf16, bf16)
COLUMN_SCALE(f16, f16)
