// strided_copy.cu: copies between places of different layouts.
// math   to[i, j, k] <- from[i, index[j], k]; index null: j
// shapes  n = n0 * n1 * n2 elements; f and t are the strides of from and to
// launch  grid-stride over n in the order of to's dimensions, block 256; any n
// moved   1 value read, 1 written per element; a transposition reads whole lines for single values
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class W>
__device__ void strided_copy(const W* from, const i64* index, W* to, size_t n, size_t n1, size_t n2, size_t f0, size_t f1,
                             size_t f2, size_t t0, size_t t1, size_t t2) {
    for (size_t e = first_element(); e < n; e += grid_stride()) {
        size_t k = e % n2, j = e / n2 % n1, i = e / n2 / n1;
        to[i * t0 + j * t1 + k * t2] = from[i * f0 + (index ? (size_t)index[j] : j) * f1 + k * f2];
    }
}
#define STRIDED_COPY(name, W)                                                                                                \
    extern "C" __global__ void strided_copy_##name(const W* from, const i64* index, W* to, size_t n, size_t n1, size_t n2,   \
                                                   size_t f0, size_t f1, size_t f2, size_t t0, size_t t1, size_t t2) {       \
        strided_copy(from, index, to, n, n1, n2, f0, f1, f2, t0, t1, t2);                                                    \
    }
STRIDED_COPY(int8, u8)
STRIDED_COPY(int16, u16)
STRIDED_COPY(int32, u32)
STRIDED_COPY(int64, u64)
