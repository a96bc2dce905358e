// functions.cuh: activation functions and their derivatives, each from the function's input or its output, see cpu.rs. It
// precedes the text of each kernel file that applies them.

struct Relu {
    template <class M> static __device__ M value(M x) { return x > 0 || x != x ? x : (M)0; }
    template <class M> static __device__ M derivative(M y) { return y > 0 ? (M)1 : (M)0; }
};
struct Tanh {
    static __device__ float value(float x) { return tanhf(x); }
    static __device__ double value(double x) { return tanh(x); }
    template <class M> static __device__ M derivative(M y) { return fused(-y, y, (M)1); }
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
        return s * fused(x, 1 - s, (M)1);
    }
};
__device__ __forceinline__ float error_function(float x) { return erff(x); }
__device__ __forceinline__ double error_function(double x) { return erf(x); }
struct Gelu {
    template <class M> static __device__ M cdf(M x) { return (M)0.5 * (1 + error_function(x * (M)0.7071067811865475244)); }
    template <class M> static __device__ M value(M x) { return x * cdf(x); }
    template <class M> static __device__ M derivative(M x) {
        return fused(x * exponential((M)-0.5 * x * x), (M)0.3989422804014327, cdf(x));
    }
};
struct GeluTanh {
    template <class M> static __device__ M inner(M x) { return (M)0.7978845608028654 * fused((M)0.044715 * x * x, x, x); }
    template <class M> static __device__ M value(M x) { return (M)0.5 * x * (1 + Tanh::value(inner(x))); }
    template <class M> static __device__ M derivative(M x) {
        M t = Tanh::value(inner(x));
        M d_inner = (M)0.7978845608028654 * fused((M)0.134145 * x, x, (M)1);
        return fused((M)0.5 * x * fused(-t, t, (M)1), d_inner, (M)0.5 * (1 + t));
    }
};
__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
struct SmoothClip {
    // x / 3, limited to what has a square.
    template <class M> static __device__ M third(M x) {
        M q = x / 3, limit = (M)1e9;
        return q > limit ? limit : q < -limit ? -limit : q;
    }
    template <class M> static __device__ M value(M x) {
        M q = third(x);
        return 3 * q / square_root(1 + q * q);
    }
    template <class M> static __device__ M derivative(M x) {
        M q = third(x), r = 1 / square_root(1 + q * q);
        return r * r * r;
    }
};
