// gather_rows.cu: gathers rows of a matrix by index.
// math   out[n, :] <- x[indices[n], :]; for an index outside 0..n_rows `missing` (NaN, or 0 for integers)
// shapes  x: W[n_rows, items], out: W[rows, items], indices: i64[rows]; W is a word of 1, 2, 4, 8 or 16 bytes, or f32
//         that becomes bf16 or f16, one or four at a time
// launch  row_walk: rows over blocks in x, a row's items over 2^log2_width threads and over blocks in y; block 256; any shape
// moved   1 row read and 1 written per index: memory-bound
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class W> __device__ __forceinline__ W filled(u32 byte) {
    W w;
    for (int i = 0; i < (int)sizeof(W); i++) reinterpret_cast<u8*>(&w)[i] = (u8)byte;
    return w;
}
template <class W> struct Same {
    static __device__ __forceinline__ W of(W x) { return x; }
};
template <class T> struct Narrow {
    static __device__ __forceinline__ T of(float x) { return Format<T>::from(x); }
    static __device__ __forceinline__ Pack<T, 4> of(Pack<float> x) {
        Pack<T, 4> r;
#pragma unroll
        for (int j = 0; j < 4; j++) r.v[j] = Format<T>::from(x.v[j]);
        return r;
    }
};

template <class Convert, class W, class V>
__device__ void gather(const W* __restrict__ x, const i64* __restrict__ indices, V* __restrict__ out, size_t n_rows, size_t rows,
                       size_t items, u32 missing, u32 log2_width) {
    RowWalk at = row_walk(log2_width);
    for (size_t row = at.row; row < rows; row += at.row_stride) {
        size_t index = (size_t)indices[row];  // a negative one becomes too large
        V* to = out + row * items;
        if (index < n_rows) {
            const W* from = x + index * items;
            // Several words at a time, so that their loads overlap.
            const int batch = 4;
            for (size_t i = at.item; i < items; i += batch * at.item_stride) {
                W v[batch];
#pragma unroll
                for (int k = 0; k < batch; k++)
                    if (i + k * at.item_stride < items) v[k] = from[i + k * at.item_stride];
#pragma unroll
                for (int k = 0; k < batch; k++)
                    if (i + k * at.item_stride < items) to[i + k * at.item_stride] = Convert::of(v[k]);
            }
        } else {
            V fill = filled<V>(missing);
            for (size_t i = at.item; i < items; i += at.item_stride) to[i] = fill;
        }
    }
}
#define GATHER(name, Convert, W, V)                                                                                  \
    extern "C" __global__ void gather_rows_##name(const W* x, const i64* indices, V* out, size_t n_rows, size_t rows, \
                                                  size_t items, u32 missing, u32 log2_width) {                       \
        gather<Convert>(x, indices, out, n_rows, rows, items, missing, log2_width);                                  \
    }
typedef Pack<u32> u128;
typedef Pack<float> f32x4;
typedef Pack<bf16, 4> bf16x4;
typedef Pack<f16, 4> f16x4;
GATHER(1, Same<u8>, u8, u8)
GATHER(2, Same<u16>, u16, u16)
GATHER(4, Same<u32>, u32, u32)
GATHER(8, Same<u64>, u64, u64)
GATHER(16, Same<u128>, u128, u128)
GATHER(f32_bf16, Narrow<bf16>, float, bf16)
GATHER(f32_bf16_by_4, Narrow<bf16>, f32x4, bf16x4)
GATHER(f32_f16, Narrow<f16>, float, f16)
GATHER(f32_f16_by_4, Narrow<f16>, f32x4, f16x4)
