// select_targets.cu: targets of one of several losses, and the weights of their rows.
// math   selected[n, k] <- targets[n, first + k]; weights[n] <- factor * row_weights[n]; both 0 for a row with NaN among them
// shapes  targets: f32[rows, n_targets]; row_weights: f32[rows] or null; selected: S[rows, len]; weights: f32[rows]
// launch  grid-stride over rows, block 256; any shape
// moved   each selected target read twice and written once, each weight read and written once
// order   row by row: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class S>
__device__ void select_targets(const float* targets, const float* row_weights, S* selected, float* weights, size_t rows,
                               size_t n_targets, size_t first, size_t len, float factor) {
    for (size_t row = first_element(); row < rows; row += grid_stride()) {
        const float* from = targets + row * n_targets + first;
        bool lacks = false;
        for (size_t k = 0; k < len; ++k) lacks |= from[k] != from[k];
        for (size_t k = 0; k < len; ++k) selected[row * len + k] = lacks ? (S)0 : (S)from[k];
        weights[row] = lacks ? 0.0f : factor * (row_weights ? row_weights[row] : 1.0f);
    }
}
#define SELECT_TARGETS(suffix, S)                                                                                      \
    extern "C" __global__ void select_targets_##suffix(const float* targets, const float* row_weights, S* selected,    \
                                                       float* weights, size_t rows, size_t n_targets, size_t first,    \
                                                       size_t len, float factor) {                                     \
        select_targets(targets, row_weights, selected, weights, rows, n_targets, first, len, factor);                  \
    }
SELECT_TARGETS(f32, float)
SELECT_TARGETS(int64, i64)
