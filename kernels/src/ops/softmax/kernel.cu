// softmax.cu: softmax of rows in place, and its gradient in place.
// math   forward   y[n,c] <- exp(y[n,c] - max_c y[n,c]) / sum_c exp(y[n,c] - max_c y[n,c])
//         backward  d[n,c] <- y[n,c]*(d[n,c] - sum_c y[n,c]*d[n,c])
// shapes  y, d: T[rows, cols]
// launch  a warp per row, block 256 = 8 rows, grid rows / 8; any rows and cols
// moved   forward 3 reads and 1 write per element, the later reads from cache; backward 4 and 1
// order   lanes by column, then a tree over the warp: bit-identical between runs; no atomics
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
// Less than every value except minus infinity, and finite, so that it can be subtracted.
__device__ __forceinline__ void set_lowest(float* x) { *x = -3.4028234663852886e38f; }
__device__ __forceinline__ void set_lowest(double* x) { *x = -1.7976931348623157e308; }

template <class T> __device__ void softmax_fwd(T* y, size_t rows, size_t cols) {
    typedef MATH(T) M;
    size_t row = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    // All lanes of a warp have one row, so that none waits for a lane that left.
    if (row >= rows) return;
    T* of_row = y + row * cols;
    size_t lane = threadIdx.x % WARP;
    M largest;
    set_lowest(&largest);
    for (size_t c = lane; c < cols; c += WARP) {
        M value = to_float(of_row[c]);
        // A NaN may be skipped here; it reappears in the sum of exponentials.
        largest = value > largest ? value : largest;
    }
    largest = warp_max(largest);
    M total = 0;
    for (size_t c = lane; c < cols; c += WARP) total += exponential((M)to_float(of_row[c]) - largest);
    total = warp_sum(total);
    M factor = (M)1 / total;
    for (size_t c = lane; c < cols; c += WARP)
        of_row[c] = Format<T>::from(exponential((M)to_float(of_row[c]) - largest) * factor);
}

template <class T> __device__ void softmax_bwd(const T* y, T* d, size_t rows, size_t cols) {
    typedef MATH(T) M;
    size_t row = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    const T* y_of_row = y + row * cols;
    T* d_of_row = d + row * cols;
    size_t lane = threadIdx.x % WARP;
    M mean = 0;
    for (size_t c = lane; c < cols; c += WARP) mean += (M)to_float(y_of_row[c]) * (M)to_float(d_of_row[c]);
    mean = warp_sum(mean);
    for (size_t c = lane; c < cols; c += WARP)
        d_of_row[c] = Format<T>::from((M)to_float(y_of_row[c]) * ((M)to_float(d_of_row[c]) - mean));
}

#define SOFTMAX(name, T)                                                                                              \
    extern "C" __global__ void softmax_fwd_##name(T* y, size_t rows, size_t cols) { softmax_fwd(y, rows, cols); }     \
    extern "C" __global__ void softmax_bwd_##name(const T* y, T* d, size_t rows, size_t cols) {                       \
        softmax_bwd(y, d, rows, cols);                                                                                \
    }
SOFTMAX(f32, float)
SOFTMAX(f64, double)
SOFTMAX(bf16, bf16)
SOFTMAX(f16, f16)
