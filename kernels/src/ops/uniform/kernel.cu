// uniform.cu: uniform random numbers as a function of key, stream and element index.
// math   x[i] <- u * range + low, u = ((word i mod 4 of philox(seed; i / 4, stream) & digits) >> 8) * 2^-24; in f32, each operation
//         rounded separately, as in the twin
// shapes  x: T[n]
// launch  grid-stride over items of 4 elements (8 in bf16 and f16, so that 16 bytes are written at a time), block 256; any n
// moved   1 value written per element
// order   elementwise: the same bits on every device
// twin    the functions `_cpu` in mod.rs next to this file

// Written with operators, multiplication and addition would be contracted to an FMA with a single rounding.
__device__ __forceinline__ float place(u32 word, float low, float range) {
    float unit = (float)(word >> 8) * (1.0f / 16777216.0f);
    return __fadd_rn(__fmul_rn(unit, range), low);
}

template <class T> __device__ void uniform(T* x, size_t n, float low, float range, u32 digits, u64 seed, u32 stream0, u32 stream1) {
    const int item = sizeof(T) == 2 ? 8 : 4, per_pack = Pack<T>::size, packs = item / per_pack;
    size_t whole = are_packed(x) ? n / item : 0, items = (n + item - 1) / item;
    for (size_t i = first_element(); i < items; i += grid_stride()) {
        Pack<T> v[packs];
#pragma unroll
        for (int q = 0; q < item / 4; q++) {
            size_t block = i * (item / 4) + q;
            Words words = philox(seed, (u32)block, (u32)(block >> 32), stream0, stream1);
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[(4 * q + j) / per_pack].v[(4 * q + j) % per_pack] = Format<T>::from(place(words.w[j] & digits, low, range));
        }
        if (i < whole) {
#pragma unroll
            for (int k = 0; k < packs; k++) store_pack(x, i * packs + k, v[k]);
        } else {
#pragma unroll
            for (int j = 0; j < item; j++)
                if (i * item + j < n) x[i * item + j] = v[j / per_pack].v[j % per_pack];
        }
    }
}
#define UNIFORM(suffix, T)                                                                                             \
    extern "C" __global__ void uniform_##suffix(T* x, size_t n, float low, float range, u32 digits, u64 seed,          \
                                                u32 stream0, u32 stream1) {                                            \
        uniform(x, n, low, range, digits, seed, stream0, stream1);                                                     \
    }
UNIFORM(f32, float)
UNIFORM(f64, double)
UNIFORM(bf16, bf16)
UNIFORM(f16, f16)
