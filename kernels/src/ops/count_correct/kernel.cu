// count_correct.cu: number of rows whose first largest logit is at the label.
// math   count[0] <- |{n : x[n, c] < x[n, l] for c < l, x[n, c] <= x[n, l] for all c; l = labels[n]}| (+ count[0] if
//         accumulate); a row with NaN or with a label outside 0..cols is wrong; with row_weights their sum over those rows
// shapes  logits x: T[rows, cols]; labels: i64[rows]; row_weights: f32[rows], used if ROW_WEIGHTS is 1; count: f64[1]
// launch  one-dimensional grid, block 256; 2^log2_width threads per row: 1 to 32, or the whole block; any shape
// moved   1 value per element
// order   integers are counted, in f64 exactly; weights are summed by thread, block and then blocks in order:
//         bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

#ifndef ROW_WEIGHTS
#define ROW_WEIGHTS 0
#endif

// Whether no element in this thread's share of the row contradicts the label.
template <class T> __device__ __forceinline__ bool agrees(const T* row, i64 label, size_t cols, size_t lane, size_t width) {
    if ((size_t)label >= cols) return false;
    MATH(T) at_label = to_float(row[label]);
    bool ok = true;
    // Several at a time, so that their loads overlap.
    const int batch = 4;
    for (size_t c = lane; c < cols; c += batch * width) {
        T v[batch];
#pragma unroll
        for (int k = 0; k < batch; k++)
            if (c + k * width < cols) v[k] = row[c + k * width];
#pragma unroll
        for (int k = 0; k < batch; k++) {
            size_t place = c + k * width;
            ok &= place >= cols || (place < (size_t)label ? to_float(v[k]) < at_label : to_float(v[k]) <= at_label);
        }
    }
    return ok;
}

template <class T>
__device__ void count_correct(const T* logits, const i64* labels, const float* row_weights, double* count, size_t rows,
                              size_t cols, int accumulate, u32 log2_width, u32* counter, double* partials) {
    double n = 0;
    u32 width = 1u << log2_width, lane = threadIdx.x & (width - 1);
    if (width > WARP) {
        for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
            int ok = agrees(logits + row * cols, labels[row], cols, lane, width);
            if (__syncthreads_and(ok) && lane == 0) n += ROW_WEIGHTS ? row_weights[row] : 1.0f;
        }
    } else {
        u32 rows_of_block = blockDim.x >> log2_width, first_lane = threadIdx.x % WARP - lane;
        u32 lanes = (ALL_LANES >> (WARP - width)) << first_lane;
        // All lanes of a warp iterate together, also those whose row is past the end.
        for (size_t first = (size_t)blockIdx.x * rows_of_block; first < rows; first += (size_t)gridDim.x * rows_of_block) {
            size_t row = first + (threadIdx.x >> log2_width);
            bool ok = row < rows && agrees(logits + row * cols, labels[row], cols, lane, width);
            u32 agreeing = __ballot_sync(ALL_LANES, ok);
            if (lane == 0 && (agreeing & lanes) == lanes) n += ROW_WEIGHTS ? row_weights[row] : 1.0f;
        }
    }
    double total;
    if (grid_sum(n, &total, counter, partials) && threadIdx.x == 0) count[0] = accumulate ? count[0] + total : total;
}
#define COUNT_CORRECT(suffix, T)                                                                                       \
    extern "C" __global__ void count_correct_##suffix(const T* logits, const i64* labels, const float* row_weights,   \
                                                      double* count, size_t rows, size_t cols, int accumulate,         \
                                                      u32 log2_width, u32* counter, double* partials) {                \
        count_correct(logits, labels, row_weights, count, rows, cols, accumulate, log2_width, counter, partials);      \
    }
COUNT_CORRECT(f32, float)
COUNT_CORRECT(f64, double)
COUNT_CORRECT(bf16, bf16)
COUNT_CORRECT(f16, f16)
