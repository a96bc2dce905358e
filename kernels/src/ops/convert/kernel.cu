// convert.cu: conversion between integers, truth values and floats.
// math   to <- from: Number<T>::of in prelude.cuh
// shapes  from: A[n], to: T[n]; kind names A
// launch  grid-stride over n, block 256; any n
// moved   1 value read, 1 written per element: memory-bound
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class A, class T> __device__ void each(const A* from, T* to, size_t n) {
    for (size_t i = first_element(); i < n; i += grid_stride())
        to[i] = Number<T>::of((typename Number<A>::wide)Number<A>::get(from[i]));
}
template <class T> __device__ void convert(int kind, const void* from, T* to, size_t n) {
    switch (kind) {
        case 0: return each((const float*)from, to, n);
        case 1: return each((const double*)from, to, n);
        case 2: return each((const bf16*)from, to, n);
        case 3: return each((const f16*)from, to, n);
        case 4: return each((const i64*)from, to, n);
        case 5: return each((const int*)from, to, n);
        case 6: return each((const u8*)from, to, n);
        default: return each((const truth*)from, to, n);
    }
}
#define CONVERT(name, T) \
    extern "C" __global__ void convert_##name(int kind, const void* from, T* to, size_t n) { convert(kind, from, to, n); }
CONVERT(f32, float)
CONVERT(f64, double)
CONVERT(bf16, bf16)
CONVERT(f16, f16)
CONVERT(int64, i64)
CONVERT(int32, int)
CONVERT(int8, u8)
CONVERT(int1, truth)
