// permute.cu: copies with the dimensions in another order, or of elements at other regular distances.
// math   out[i0, i1, i2, i3, i4] <- x[i0*s0 + i1*s1 + i2*s2 + i3*s3 + i4*s4]
// shapes  out: n = d0*d1*d2*d3*d4 elements, contiguous; s: strides of x
// launch  grid-stride over n in the order of out, block 256; any n
// moved   1 value read, 1 written per element
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class W>
__device__ void permute(const W* x, W* out, size_t n, size_t d1, size_t d2, size_t d3, size_t d4, size_t s0, size_t s1,
                        size_t s2, size_t s3, size_t s4) {
    for (size_t e = first_element(); e < n; e += grid_stride()) {
        size_t i4 = e % d4, rest = e / d4;
        size_t i3 = rest % d3;
        rest /= d3;
        size_t i2 = rest % d2;
        rest /= d2;
        out[e] = x[rest / d1 * s0 + rest % d1 * s1 + i2 * s2 + i3 * s3 + i4 * s4];
    }
}
#define PERMUTE(name, W)                                                                                                   \
    extern "C" __global__ void permute_##name(const W* x, W* out, size_t n, size_t d1, size_t d2, size_t d3, size_t d4,    \
                                              size_t s0, size_t s1, size_t s2, size_t s3, size_t s4) {                     \
        permute(x, out, n, d1, d2, d3, d4, s0, s1, s2, s3, s4);                                                            \
    }
PERMUTE(int8, u8)
PERMUTE(int16, u16)
PERMUTE(int32, u32)
PERMUTE(int64, u64)
