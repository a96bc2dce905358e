// load_rows.cu: gathers stored rows, casts them to f32 and normalizes them; the result is f32 or rounded to bf16 or f16.
// math   out[n, c] <- (x[indices[n], c] - shift[c]) * scale[c] in f64, rounded to f32; without shift and scale the
//         exact value; without indices row n; for an index outside 0..n_rows NaN
// shapes  x: T[n_rows, items * N], out: O[rows, items * N], indices: i64[rows], shift, scale: f64[items * N]; T is u8, f16,
//         bf16 or f32, O is f32, bf16 or f16, N is 1 or 4
// launch  row_walk: rows over blocks in x, a row's items over 2^log2_width threads and over blocks in y; block 256; any shape
// moved   1 row of T and 1 of O written per index: memory-bound (the two rows of shift and scale stay in the cache)
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

__device__ __forceinline__ float to_float(u8 x) { return (float)x; }

template <class O, int N> __device__ __forceinline__ void store(O* to, size_t i, Pack<float, N> r) {
    Pack<O, N> rounded;
#pragma unroll
    for (int j = 0; j < N; j++) rounded.v[j] = Format<O>::from(r.v[j]);
    store_pack(to, i, rounded);
}

template <class T, class O, int N>
__device__ void load(const T* __restrict__ x, const i64* __restrict__ indices, const double* __restrict__ shift,
                     const double* __restrict__ scale, O* __restrict__ out, size_t n_rows, size_t rows, size_t items,
                     u32 log2_width) {
    RowWalk at = row_walk(log2_width);
    for (size_t row = at.row; row < rows; row += at.row_stride) {
        size_t index = indices ? (size_t)indices[row] : row;  // a negative one becomes too large
        O* to = out + row * items * N;
        if (index < n_rows) {
            const T* from = x + index * items * N;
            // Several packs at a time, so that their loads overlap.
            const int batch = 4;
            for (size_t first = at.item; first < items; first += batch * at.item_stride) {
                Pack<T, N> v[batch];
#pragma unroll
                for (int k = 0; k < batch; k++)
                    if (first + k * at.item_stride < items) v[k] = load_pack<N>(from, first + k * at.item_stride);
#pragma unroll
                for (int k = 0; k < batch; k++) {
                    size_t i = first + k * at.item_stride;
                    if (i >= items) break;
                    Pack<float, N> r;
#pragma unroll
                    for (int j = 0; j < N; j++) r.v[j] = to_float(v[k].v[j]);
                    if (shift) {
                        Pack<double, N> less = load_pack<N>(shift, i), times = load_pack<N>(scale, i);
#pragma unroll
                        for (int j = 0; j < N; j++)
                            r.v[j] = (float)(((double)r.v[j] - less.v[j]) * times.v[j]);
                    }
                    store(to, i, r);
                }
            }
        } else {
            Pack<float, N> missing;
#pragma unroll
            for (int j = 0; j < N; j++) missing.v[j] = __uint_as_float(0x7fffffffu);
            for (size_t i = at.item; i < items; i += at.item_stride) store(to, i, missing);
        }
    }
}
#define LOAD(name, T, O, N)                                                                                           \
    extern "C" __global__ void load_rows_##name(const T* x, const i64* indices, const double* shift,                  \
                                                const double* scale, O* out, size_t n_rows, size_t rows,              \
                                                size_t items, u32 log2_width) {                                       \
        load<T, O, N>(x, indices, shift, scale, out, n_rows, rows, items, log2_width);                                \
    }
LOAD(u8_f32, u8, float, 1)
LOAD(u8_f32_by_4, u8, float, 4)
LOAD(u8_bf16, u8, bf16, 1)
LOAD(u8_bf16_by_4, u8, bf16, 4)
LOAD(u8_f16, u8, f16, 1)
LOAD(u8_f16_by_4, u8, f16, 4)
LOAD(f16_f32, f16, float, 1)
LOAD(f16_f32_by_4, f16, float, 4)
LOAD(f16_bf16, f16, bf16, 1)
LOAD(f16_bf16_by_4, f16, bf16, 4)
LOAD(f16_f16, f16, f16, 1)
LOAD(f16_f16_by_4, f16, f16, 4)
LOAD(bf16_f32, bf16, float, 1)
LOAD(bf16_f32_by_4, bf16, float, 4)
LOAD(bf16_bf16, bf16, bf16, 1)
LOAD(bf16_bf16_by_4, bf16, bf16, 4)
LOAD(bf16_f16, bf16, f16, 1)
LOAD(bf16_f16_by_4, bf16, f16, 4)
LOAD(f32_f32, float, float, 1)
LOAD(f32_f32_by_4, float, float, 4)
LOAD(f32_bf16, float, bf16, 1)
LOAD(f32_bf16_by_4, float, bf16, 4)
LOAD(f32_f16, float, f16, 1)
LOAD(f32_f16_by_4, float, f16, 4)
