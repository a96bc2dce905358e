// split.cu: the f32 factors of a matmul as sums of two TF32 numbers, side by side along the inner dimension.
// math   hi <- x rounded to TF32 (11 bits), to nearest, ties to even; lo <- x - hi, rounded likewise
//        to[r] <- (lo, hi, hi) if lo_first, else (hi, lo, hi), each of them `cols` numbers
//        |x - hi - lo| <= 2^-23 |x|, but for subnormal numbers; 2^-22 |x| from 3.4e38 on, which is cut off rather than rounded
// shapes  from: f32[rows, cols], to: f32[rows, 3 * cols]
// launch  grid of RowTiles, block 256; `packed` 16 bytes per access: cols a multiple of 4, both pointers aligned to 16 bytes
// moved   4 bytes read, 12 written per element: memory-bound
// order   elementwise: bit-identical between runs

// What would round to infinity is cut off, both its parts. NaN keeps a bit that TF32 has.
__device__ __forceinline__ void split_one(float x, float* hi, float* lo) {
    u32 u = __float_as_uint(x), magnitude = u & 0x7fffffffu;
    bool is_cut = magnitude >= 0x7f7ff000u;
    if (magnitude > 0x7f800000u) u = 0x7fc00000u;
    *hi = __uint_as_float((is_cut ? u : u + 0x0fffu + (u >> 13 & 1u)) & 0xffffe000u);
    u = __float_as_uint(x - *hi);
    *lo = __uint_as_float((is_cut ? u : u + 0x0fffu + (u >> 13 & 1u)) & 0xffffe000u);
}

template <int N>
__device__ void split(const float* from, float* to, size_t rows, size_t cols, int lo_first, u32 log2_width) {
    RowWalk w = row_walk(log2_width);
    for (size_t r = w.row; r < rows; r += w.row_stride) {
        const float* x = from + r * cols;
        float* out = to + 3 * r * cols;
        for (size_t i = w.item; i < cols / N; i += w.item_stride) {
            Pack<float, N> whole = load_pack<N>(x, i), hi, lo;
#pragma unroll
            for (int j = 0; j < N; j++) split_one(whole.v[j], &hi.v[j], &lo.v[j]);
            store_pack(out, i, lo_first ? lo : hi);
            store_pack(out + cols, i, lo_first ? hi : lo);
            store_pack(out + 2 * cols, i, hi);
        }
    }
}
#define SPLIT(name, N)                                                                                                        \
    extern "C" __global__ void split_##name(const float* from, float* to, size_t rows, size_t cols, int lo_first, u32 width) { \
        split<N>(from, to, rows, cols, lo_first, width);                                                                      \
    }
SPLIT(f32, 1)
SPLIT(packed_f32, 4)
