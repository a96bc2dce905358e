// activation.cu: activation functions and their derivatives; the functions are in functions.cuh.
// math   forward y <- f(x); backward d <- d * f'(saved), where saved is f's input or output, see cpu.rs
// shapes  x, y, d, saved: T[n]
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// moved   forward 2 values per element (read x, write y), backward 3 (read saved, read and write d): memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

template <class F, class T> __device__ __forceinline__ T forward_one(T x) {
    return Format<T>::from(F::value(to_float(x)));
}
template <class F, class T> __device__ __forceinline__ T backward_one(T saved, T d) {
    return Format<T>::from(to_float(d) * F::derivative(to_float(saved)));
}

// x and y may be the same.
template <class F, class T> __device__ void forward(const T* x, T* y, size_t n) {
    const int per_pack = Pack<T>::size;
    size_t packs = are_packed(x, y) ? n / per_pack : 0;
    for (size_t i = first_element(); i < packs; i += grid_stride()) {
        Pack<T> v = load_pack(x, i);
#pragma unroll
        for (int j = 0; j < per_pack; j++) v.v[j] = forward_one<F>(v.v[j]);
        store_pack(y, i, v);
    }
    for (size_t i = packs * per_pack + first_element(); i < n; i += grid_stride()) y[i] = forward_one<F>(x[i]);
}
template <class F, class T> __device__ void backward(const T* saved, T* d, size_t n) {
    const int per_pack = Pack<T>::size;
    size_t packs = are_packed(saved, d) ? n / per_pack : 0;
    for (size_t i = first_element(); i < packs; i += grid_stride()) {
        Pack<T> s = load_pack(saved, i), v = load_pack(d, i);
#pragma unroll
        for (int j = 0; j < per_pack; j++) v.v[j] = backward_one<F>(s.v[j], v.v[j]);
        store_pack(d, i, v);
    }
    for (size_t i = packs * per_pack + first_element(); i < n; i += grid_stride()) d[i] = backward_one<F>(saved[i], d[i]);
}

#define ACTIVATION(name, F, suffix, T)                                                                             \
    extern "C" __global__ void name##_fwd_##suffix(const T* x, T* y, size_t n) { forward<F>(x, y, n); }             \
    extern "C" __global__ void name##_bwd_##suffix(const T* saved, T* d, size_t n) { backward<F>(saved, d, n); }
ACTIVATION(relu, Relu, f32, float)
ACTIVATION(relu, Relu, f64, double)
ACTIVATION(relu, Relu, bf16, bf16)
ACTIVATION(relu, Relu, f16, f16)
ACTIVATION(gelu, Gelu, f32, float)
ACTIVATION(gelu, Gelu, f64, double)
ACTIVATION(gelu, Gelu, bf16, bf16)
ACTIVATION(gelu, Gelu, f16, f16)
ACTIVATION(gelu_tanh, GeluTanh, f32, float)
ACTIVATION(gelu_tanh, GeluTanh, f64, double)
ACTIVATION(gelu_tanh, GeluTanh, bf16, bf16)
ACTIVATION(gelu_tanh, GeluTanh, f16, f16)
ACTIVATION(silu, Silu, f32, float)
ACTIVATION(silu, Silu, f64, double)
ACTIVATION(silu, Silu, bf16, bf16)
ACTIVATION(silu, Silu, f16, f16)
ACTIVATION(tanh, Tanh, f32, float)
ACTIVATION(tanh, Tanh, f64, double)
ACTIVATION(tanh, Tanh, bf16, bf16)
ACTIVATION(tanh, Tanh, f16, f16)
ACTIVATION(sigmoid, Sigmoid, f32, float)
ACTIVATION(sigmoid, Sigmoid, f64, double)
ACTIVATION(sigmoid, Sigmoid, bf16, bf16)
ACTIVATION(sigmoid, Sigmoid, f16, f16)
ACTIVATION(smooth_clip, SmoothClip, f32, float)
ACTIVATION(smooth_clip, SmoothClip, f64, double)
ACTIVATION(smooth_clip, SmoothClip, bf16, bf16)
ACTIVATION(smooth_clip, SmoothClip, f16, f16)
