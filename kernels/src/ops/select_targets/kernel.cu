// select_targets.cu: targets of one of several losses, and the weights of their rows.
// math   selected[n, k] <- targets[n, first + k]; weights[n] <- factor * row_weights[n]; both 0 for a row with NaN among them
// shapes  targets: f32[rows, n_targets]; row_weights: f32[rows] or null; selected: S[rows, len]; weights: f32[rows]
// launch  2^log2_lanes threads, at most a warp, share a row; grid-stride over rows, block 256; any shape
// moved   each selected target read and written once, and a row with NaN written again; each weight read and written once
// order   row by row: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class S>
__device__ void select_targets(const float* targets, const float* row_weights, S* selected, float* weights, size_t rows,
                               size_t n_targets, size_t first, size_t len, float factor, u32 log2_lanes) {
    const u32 lanes = 1u << log2_lanes, lane = threadIdx.x & (lanes - 1);
    const u32 own_lanes = (lanes == WARP ? ALL_LANES : (1u << lanes) - 1) << (threadIdx.x % WARP - lane);
    // All lanes of a warp vote, those without a row too.
    for (size_t block_row = blockIdx.x * (blockDim.x >> log2_lanes); block_row < rows; block_row += grid_stride() >> log2_lanes) {
        const size_t row = block_row + (threadIdx.x >> log2_lanes);
        const float* from = targets + row * n_targets + first;
        S* to = selected + row * len;
        bool lacks = false;
        if (row < rows) {
#pragma unroll 4
            for (size_t k = lane; k < len; k += lanes) {
                float target = from[k];
                lacks |= target != target;
                to[k] = target != target ? (S)0 : (S)target;
            }
        }
        lacks = (__ballot_sync(ALL_LANES, lacks) & own_lanes) != 0;
        if (row >= rows) continue;
        if (lacks) {
            for (size_t k = lane; k < len; k += lanes) to[k] = (S)0;
        }
        if (lane == 0) weights[row] = lacks ? 0.0f : factor * (row_weights ? row_weights[row] : 1.0f);
    }
}
#define SELECT_TARGETS(suffix, S)                                                                                      \
    extern "C" __global__ void select_targets_##suffix(const float* targets, const float* row_weights, S* selected,    \
                                                       float* weights, size_t rows, size_t n_targets, size_t first,    \
                                                       size_t len, float factor, u32 log2_lanes) {                     \
        select_targets(targets, row_weights, selected, weights, rows, n_targets, first, len, factor, log2_lanes);      \
    }
SELECT_TARGETS(f32, float)
SELECT_TARGETS(int64, i64)
