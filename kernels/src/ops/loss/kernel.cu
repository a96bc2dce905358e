// loss.cu: losses of one predicted and one true value, their sum and their gradient.
// maths   tail <- (sum value(x, t), n); d <- scale * derivative(x, t), where d is given
//         bce    max(x, 0) - x*t + ln(1 + e^-|x|);             sigmoid(x) - t
//         mse    (x - t)^2;                                    2*(x - t)
//         huber  e^2/2 or parameter*(|e| - parameter/2), e = x - t;  e within -parameter..parameter
// shapes  x, target: T[n]; d: D[n] or null; tail: f32[16]
// launch  grid-stride over n, 16 bytes an access where the pointers allow it, block 256; any n
// moved   3 values an element (read x and t, write d): memory-bound
// order   sums in f64, by thread, block and then blocks in order: bit-identical between runs; one atomic a block
// twin    cpu.rs beside this file, with the formulas of bce_with_logits, mse and huber

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float ln_1p(float x) { return log1pf(x); }
__device__ __forceinline__ double ln_1p(double x) { return log1p(x); }

struct Bce {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M) {
        return (x < 0 ? (M)0 : x) - x * t + ln_1p(exponential(x < 0 ? x : -x));
    }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M) { return 1 / (1 + exponential(-x)) - t; }
};
struct Mse {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M) { return (x - t) * (x - t); }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M) { return 2 * (x - t); }
};
struct Huber {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M delta) {
        M e = x < t ? t - x : x - t;
        return e > delta ? delta * (e - (M)0.5 * delta) : (M)0.5 * e * e;
    }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M delta) {
        M e = x - t;
        e = e > delta ? delta : e;
        return e < -delta ? -delta : e;
    }
};

// N elements an access; returns the sum of this thread's losses.
template <class F, int N, class T, class D>
__device__ __forceinline__ double part(const T* x, const T* target, D* d, size_t n, MATH(T) parameter, MATH(T) scale) {
    double sum = 0;
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> a = load_pack<N>(x, i), b = load_pack<N>(target, i);
        Pack<D, N> g;
#pragma unroll
        for (int j = 0; j < N; j++) {
            MATH(T) v = to_float(a.v[j]), t = to_float(b.v[j]);
            sum += F::value(v, t, parameter);
            g.v[j] = Format<D>::from(scale * F::derivative(v, t, parameter));
        }
        if (d) store_pack(d, i, g);
    }
    return sum;
}

template <class F, class T, class D>
__device__ __forceinline__ void loss(const T* x, const T* target, D* d, size_t n, double parameter, double scale, float* tail,
                                     int accumulate, u32* counter, double* partials) {
    const int per_pack = Pack<T>::size;
    MATH(T) p = parameter, s = scale;
    size_t packed = are_packed(x, target, d) ? n - n % per_pack : 0;
    double sum = part<F, per_pack>(x, target, d, packed, p, s);
    sum += part<F, 1>(x + packed, target + packed, d ? d + packed : d, n - packed, p, s);
    leave_sums(sum, first_element() == 0 ? (double)n : 0.0, counter, partials, tail, accumulate);
}

#define LOSS(name, F, T, D)                                                                                           \
    extern "C" __global__ void                                                                                        \
        name(const T* x, const T* target, D* d, size_t n, double parameter, double scale, float* tail, int accumulate, \
             u32* counter, double* partials) {                                                                        \
        loss<F>(x, target, d, n, parameter, scale, tail, accumulate, counter, partials);                              \
    }
LOSS(bce_with_logits_f32, Bce, float, float)
LOSS(bce_with_logits_f64, Bce, double, double)
LOSS(bce_with_logits_bf16, Bce, bf16, bf16)
LOSS(bce_with_logits_f32_bf16, Bce, float, bf16)
LOSS(mse_f32, Mse, float, float)
LOSS(mse_f64, Mse, double, double)
LOSS(mse_bf16, Mse, bf16, bf16)
LOSS(mse_f32_bf16, Mse, float, bf16)
LOSS(huber_f32, Huber, float, float)
LOSS(huber_f64, Huber, double, double)
LOSS(huber_bf16, Huber, bf16, bf16)
LOSS(huber_f32_bf16, Huber, float, bf16)
