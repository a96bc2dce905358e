// dropout.cu: dropout whose mask is a function of seed, step, layer and global row.
// math   x[n, c] <- 0 if word c mod 4 of philox(seed; c / 4, row, step, layer and row's upper bits) < threshold,
//         row = first_row + n; else x[n, c] * keep
// shapes  x: T[rows, cols]; scalars: StepScalars as f64[8] (ops/step_scalars.rs) or null; null: seed, step and first_row are the
//         arguments; else seed and step - 1 come from scalars, and its first_row is added to the argument
// launch  row_walk over items of 4 columns (8 in bf16, so that 16 bytes are moved at a time); block 256; any shape
// moved   2 values per element (read and write x): memory-bound
// order   elementwise: bit-identical between runs, the mask between devices too
// twin    the functions `_cpu` in mod.rs next to this file

template <class T>
__device__ void dropout(T* x, size_t rows, size_t cols, u32 threshold, MATH(T) keep, u64 seed, u64 step, u32 layer,
                        u64 first_row, const double* scalars, u32 log2_width) {
    const int item = sizeof(T) == 2 ? 8 : 4, per_pack = Pack<T>::size, packs = item / per_pack;
    if (scalars) {
        step = (u64)scalars[1] - 1;
        seed = (u64)scalars[2] | (u64)scalars[3] << 32;
        first_row += (u64)scalars[4];
    }
    bool whole = are_packed(x) && cols % item == 0;
    RowWalk at = row_walk(log2_width);
    for (size_t n = at.row; n < rows; n += at.row_stride) {
        u64 row = first_row + n;
        u32 tag = layer | (u32)(row >> 32) << 16;
        for (size_t i = at.item; i * item < cols; i += at.item_stride) {
            T* p = x + n * cols + i * item;
            Pack<T> v[packs];
            size_t here = cols - i * item < item ? cols - i * item : item;
            if (whole) {
#pragma unroll
                for (int k = 0; k < packs; k++) v[k] = load_pack(p, k);
            } else {
#pragma unroll
                for (int j = 0; j < item; j++)
                    if (j < here) v[j / per_pack].v[j % per_pack] = p[j];
            }
#pragma unroll
            for (int q = 0; q < item / 4; q++) {
                Words words = philox(seed, (u32)(i * (item / 4) + q), (u32)row, (u32)step, tag);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    T& e = v[(4 * q + j) / per_pack].v[(4 * q + j) % per_pack];
                    e = words.w[j] < threshold ? Format<T>::from(0) : Format<T>::from(to_float(e) * keep);
                }
            }
            if (whole) {
#pragma unroll
                for (int k = 0; k < packs; k++) store_pack(p, k, v[k]);
            } else {
#pragma unroll
                for (int j = 0; j < item; j++)
                    if (j < here) p[j] = v[j / per_pack].v[j % per_pack];
            }
        }
    }
}
#define DROPOUT(suffix, T)                                                                                             \
    extern "C" __global__ void dropout_##suffix(T* x, size_t rows, size_t cols, u32 threshold, double keep, u64 seed,  \
                                                u64 step, u32 layer, u64 first_row, const double* scalars,             \
                                                u32 log2_width) {                                                      \
        dropout(x, rows, cols, threshold, (MATH(T))keep, seed, step, layer, first_row, scalars, log2_width);           \
    }
DROPOUT(f32, float)
DROPOUT(f64, double)
DROPOUT(bf16, bf16)
DROPOUT(f16, f16)
