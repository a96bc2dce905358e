// argmax.cu: place of the first largest element of each row.
// math   index[n] <- the smallest c with x[n, c] >= x[n, k] for all k; -1 for a row with NaN or without elements
// shapes  x: T[rows, cols]; index: i64[rows]; cols below 2^32
// launch  one-dimensional grid, block 256, a warp per row; any shape
// moved   1 value per element
// order   the result does not depend on any order
// twin    the functions `_cpu` in mod.rs next to this file

template <class T> __device__ void argmax(const T* x, i64* index, size_t rows, size_t cols) {
    u32 lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    // All lanes of a warp iterate together.
    for (size_t row = (size_t)blockIdx.x * warps + threadIdx.x / WARP; row < rows; row += (size_t)gridDim.x * warps) {
        const T* values = x + row * cols;
        // A lane without elements has the place `cols`, which is never taken where another lane has one.
        u32 place = (u32)cols;
        MATH(T) largest = 0;
        int has_nan = 0;
        for (size_t c = lane; c < cols; c += WARP) {
            MATH(T) v = to_float(values[c]);
            has_nan |= v != v;
            if (place == (u32)cols || v > largest) {
                largest = v;
                place = (u32)c;
            }
        }
        for (int o = WARP / 2; o; o >>= 1) {
            MATH(T) other = __shfl_xor_sync(ALL_LANES, largest, o);
            u32 at = __shfl_xor_sync(ALL_LANES, place, o);
            bool takes = at != (u32)cols && (place == (u32)cols || other > largest || (other == largest && at < place));
            largest = takes ? other : largest;
            place = takes ? at : place;
        }
        bool is_none = __ballot_sync(ALL_LANES, has_nan) != 0 || cols == 0;
        if (lane == 0) index[row] = is_none ? -1 : (i64)place;
    }
}
#define ARGMAX(suffix, T)                                                                                              \
    extern "C" __global__ void argmax_##suffix(const T* x, i64* index, size_t rows, size_t cols) {                     \
        argmax(x, index, rows, cols);                                                                                  \
    }
ARGMAX(f32, float)
ARGMAX(f64, double)
ARGMAX(bf16, bf16)
ARGMAX(f16, f16)
