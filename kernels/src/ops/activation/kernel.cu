// activation.cu: activation functions and their derivatives.
// maths   forward y <- f(x); backward d <- d * f'(saved), where saved is f's input or output, see cpu.rs
// shapes  x, y, d, saved: T[n]
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// moved   forward 2 values per element (read x, write y), backward 3 (read saved, read and write d): memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

struct Relu {
    template <class M> static __device__ M value(M x) { return x > 0 || x != x ? x : (M)0; }
    template <class M> static __device__ M derivative(M y) { return y > 0 ? (M)1 : (M)0; }
};
struct Tanh {
    static __device__ float value(float x) { return tanhf(x); }
    static __device__ double value(double x) { return tanh(x); }
    template <class M> static __device__ M derivative(M y) { return 1 - y * y; }
};
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
template <class M> __device__ __forceinline__ M sigmoid(M x) { return 1 / (1 + exponential(-x)); }
struct Sigmoid {
    template <class M> static __device__ M value(M x) { return sigmoid(x); }
    template <class M> static __device__ M derivative(M y) { return y * (1 - y); }
};
struct Silu {
    template <class M> static __device__ M value(M x) { return x * sigmoid(x); }
    template <class M> static __device__ M derivative(M x) {
        M s = sigmoid(x);
        return s * (1 + x * (1 - s));
    }
};
__device__ __forceinline__ float error_function(float x) { return erff(x); }
__device__ __forceinline__ double error_function(double x) { return erf(x); }
struct Gelu {
    template <class M> static __device__ M cdf(M x) { return (M)0.5 * (1 + error_function(x * (M)0.7071067811865475244)); }
    template <class M> static __device__ M value(M x) { return x * cdf(x); }
    template <class M> static __device__ M derivative(M x) {
        return cdf(x) + x * exponential((M)-0.5 * x * x) * (M)0.3989422804014327;
    }
};
struct GeluTanh {
    template <class M> static __device__ M inner(M x) { return (M)0.7978845608028654 * (x + (M)0.044715 * x * x * x); }
    template <class M> static __device__ M value(M x) { return (M)0.5 * x * (1 + Tanh::value(inner(x))); }
    template <class M> static __device__ M derivative(M x) {
        M t = Tanh::value(inner(x));
        M d_inner = (M)0.7978845608028654 * (1 + (M)0.134145 * x * x);
        return (M)0.5 * (1 + t) + (M)0.5 * x * (1 - t * t) * d_inner;
    }
};

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
