// cast.cu: conversion between float formats.
// math   to <- from, rounded to nearest, ties to even, once; NaN stays NaN
// shapes  from: A[n], to: B[n]
// launch  grid-stride over n, 16 bytes of the wider type per access if the pointers allow it (so that a warp's accesses
//         are contiguous on both sides), block 256; any n
// moved   1 value read, 1 written per element: memory-bound
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class B> struct To {
    static __device__ __forceinline__ B of(float x) { return Format<B>::from(x); }
    static __device__ __forceinline__ B of(double x) { return Format<B>::from(x); }
    static __device__ __forceinline__ B of(bf16 x) { return Format<B>::from(to_float(x)); }
    static __device__ __forceinline__ B of(f16 x) { return Format<B>::from(to_float(x)); }
};
template <> struct To<bf16> {
    static __device__ __forceinline__ bf16 of(float x) { return bf16_of(x); }
    static __device__ __forceinline__ bf16 of(double x) { return bf16_of(odd_of_double(x)); }
    static __device__ __forceinline__ bf16 of(f16 x) { return bf16_of(to_float(x)); }
};
template <> struct To<f16> {
    static __device__ __forceinline__ f16 of(float x) { return f16_of(x); }
    static __device__ __forceinline__ f16 of(double x) { return f16_of(odd_of_double(x)); }
    static __device__ __forceinline__ f16 of(bf16 x) { return f16_of(to_float(x)); }
};

template <class B, class A, int N> __device__ __forceinline__ Pack<B, N> converted(Pack<A, N> a) {
    Pack<B, N> b;
#pragma unroll
    for (int j = 0; j < N; j++) b.v[j] = To<B>::of(a.v[j]);
    return b;
}

template <class A, class B> __device__ void cast(const A* __restrict__ from, B* __restrict__ to, size_t n) {
    const int per_pack = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
    size_t packs = are_packed(from, to) ? n / per_pack : 0;
    // Two at a time, so that their loads overlap.
    for (size_t i = first_element(); i < packs; i += 2 * grid_stride()) {
        size_t second = i + grid_stride();
        Pack<A, per_pack> a[2];
        a[0] = load_pack<per_pack>(from, i);
        if (second < packs) a[1] = load_pack<per_pack>(from, second);
        store_pack(to, i, converted<B>(a[0]));
        if (second < packs) store_pack(to, second, converted<B>(a[1]));
    }
    for (size_t i = packs * per_pack + first_element(); i < n; i += grid_stride()) to[i] = To<B>::of(from[i]);
}
#define CAST(name, A, B) \
    extern "C" __global__ void cast_##name(const A* from, B* to, size_t n) { cast(from, to, n); }
CAST(f32_f64, float, double)
CAST(f32_bf16, float, bf16)
CAST(f32_f16, float, f16)
CAST(f64_f32, double, float)
CAST(f64_bf16, double, bf16)
CAST(f64_f16, double, f16)
CAST(bf16_f32, bf16, float)
CAST(f16_f32, f16, float)
CAST(bf16_f64, bf16, double)
CAST(f16_f64, f16, double)
CAST(bf16_f16, bf16, f16)
CAST(f16_bf16, f16, bf16)
