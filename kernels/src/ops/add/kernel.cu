// add.cu: elementwise addition in place.
// math   y <- y + x; bf16 and f16 in f32, rounded once
// shapes  x, y: T[n]
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// moved   3 values per element (read x, read and write y): memory-bound
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

template <class T> __device__ __forceinline__ T sum_of(T y, T x) { return Format<T>::from(to_float(y) + to_float(x)); }

template <class T> __device__ void add_assign(const T* __restrict__ x, T* __restrict__ y, size_t n) {
    const int per_pack = Pack<T>::size;
    size_t packs = are_packed(x, y) ? n / per_pack : 0;
    for (size_t i = first_element(); i < packs; i += grid_stride()) {
        Pack<T> a = load_pack(x, i), v = load_pack(y, i);
#pragma unroll
        for (int j = 0; j < per_pack; j++) v.v[j] = sum_of(v.v[j], a.v[j]);
        store_pack(y, i, v);
    }
    for (size_t i = packs * per_pack + first_element(); i < n; i += grid_stride()) y[i] = sum_of(y[i], x[i]);
}
#define ADD_ASSIGN(name, T) \
    extern "C" __global__ void add_assign_##name(const T* x, T* y, size_t n) { add_assign(x, y, n); }
ADD_ASSIGN(f32, float)
ADD_ASSIGN(f64, double)
ADD_ASSIGN(bf16, bf16)
ADD_ASSIGN(f16, f16)
