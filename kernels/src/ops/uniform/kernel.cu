// uniform.cu: uniform random numbers as a function of key, stream and element index.
// math   x[i] <- u * range + low, u = (word i mod 4 of philox(seed; i / 4, stream) >> 8) * 2^-24; in f32, each operation
//         rounded separately, as in the twin
// shapes  x: T[n]
// launch  grid-stride over blocks of four elements, block 256; any n
// moved   1 value written per element
// order   elementwise: the same bits on every device
// twin    the functions `_cpu` in mod.rs next to this file

// Written with operators, multiplication and addition would be contracted to an FMA with a single rounding.
__device__ __forceinline__ float place(u32 word, float low, float range) {
    float unit = (float)(word >> 8) * (1.0f / 16777216.0f);
    return __fadd_rn(__fmul_rn(unit, range), low);
}

template <class T> __device__ void uniform(T* x, size_t n, float low, float range, u64 seed, u32 stream0, u32 stream1) {
    const int per_pack = sizeof(T) == 8 ? 2 : 4;
    size_t whole = are_packed(x) ? n / 4 : 0, blocks = (n + 3) / 4;
    for (size_t b = first_element(); b < blocks; b += grid_stride()) {
        Words words = philox(seed, (u32)b, (u32)(b >> 32), stream0, stream1);
        if (b < whole) {
#pragma unroll
            for (int p = 0; p < 4 / per_pack; p++) {
                Pack<T, per_pack> v;
#pragma unroll
                for (int j = 0; j < per_pack; j++) v.v[j] = Format<T>::from(place(words.w[p * per_pack + j], low, range));
                store_pack(x, b * (4 / per_pack) + p, v);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (4 * b + j < n) x[4 * b + j] = Format<T>::from(place(words.w[j], low, range));
        }
    }
}
#define UNIFORM(suffix, T)                                                                                             \
    extern "C" __global__ void uniform_##suffix(T* x, size_t n, float low, float range, u64 seed, u32 stream0,         \
                                                u32 stream1) {                                                         \
        uniform(x, n, low, range, seed, stream0, stream1);                                                             \
    }
UNIFORM(f32, float)
UNIFORM(f64, double)
UNIFORM(bf16, bf16)
UNIFORM(f16, f16)
