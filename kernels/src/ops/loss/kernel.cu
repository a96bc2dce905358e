// loss.cu: losses of one predicted and one true value, their sum and their gradient.
// math   tail <- (sum w*value(x, t), sum w), and extra if given; d <- scale * w * derivative(x, t) if d is given; w is the row's weight, default 1;
//         an element of weight 0 is ignored, whatever it holds
//         bce    max(x, 0) - x*t + ln(1 + e^-|x|);             sigmoid(x) - t
//         mse    (x - t)^2;                                    2*(x - t)
//         huber  e^2/2 or parameter*(|e| - parameter/2), e = x - t;  e within -parameter..parameter
//         log_cosh  ln(1 + h^2/(1 - h^2))/2 or |e| + ln(1 + e^(-2|e|)) - ln 2, e = x - t, h = tanh(e);  h
//         quantile  parameter*e or (parameter - 1)*e, e = t - x;  -parameter, 0 or 1 - parameter
//         poisson  e^x - t*x;                                   e^x - t
//         given  x;                                            1
//         focal  m^parameter * bce, m = t*(1 - s) + (1 - t)*s, s = sigmoid(x);  m^parameter * (s - t + parameter * (1 - 2t)*s*(1 - s)/m * bce)
//         ordinal  bce with the target label > column
// shapes  x, target: T[n]; labels of ordinal: i64[n / cols]; row_weights: f32[n / cols], used if ROW_WEIGHTS is 1; d: D[n] or null; tail: f32[16]; extra: f64[1] or null
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// moved   3 values per element (read x and t, write d): memory-bound
// order   sums in f64, by thread, block and then blocks in order: bit-identical between runs; one atomic per block
// twin    cpu.rs and formulas.rs next to this file

#ifndef ROW_WEIGHTS
#define ROW_WEIGHTS 0
#endif

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float ln_1p(float x) { return log1pf(x); }
__device__ __forceinline__ double ln_1p(double x) { return log1p(x); }
__device__ __forceinline__ float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ __forceinline__ double hyperbolic_tangent(double x) { return tanh(x); }
// For f32 within 2 units in the last place.
__device__ __forceinline__ float quotient(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double quotient(double a, double b) { return a / b; }
// x^y for x from 0 to 1; for f32 within 2^-21 times 1 + |y*log2(x)|.
__device__ __forceinline__ float power(float x, float y) { return exp2f(y * __log2f(x)); }
__device__ __forceinline__ double power(double x, double y) { return exp(y * log(x)); }
// ln(1 + e) for e in 0..=1, as 2*atanh(z) with z = e / (2 + e): its series, within 2 units in the last place, and shorter than log1pf.
__device__ __forceinline__ float ln_1p_fraction(float e) {
    float z = quotient(e, 2 + e), square = z * z;
    float sum = 1.0f / 13;
    sum = sum * square + 1.0f / 11;
    sum = sum * square + 1.0f / 9;
    sum = sum * square + 1.0f / 7;
    sum = sum * square + 1.0f / 5;
    sum = sum * square + 1.0f / 3;
    return 2 * (sum * square * z + z);
}
__device__ __forceinline__ double ln_1p_fraction(double e) { return log1p(e); }

// The sigmoid of x, its complement, and binary cross-entropy, from one exponential that does not overflow.
template <class M> struct Logit {
    M x, e, inverse;
    __device__ __forceinline__ explicit Logit(M x)
        : x(x), e(exponential(x < 0 ? x : -x)), inverse(quotient(1, 1 + e)) {}
    __device__ __forceinline__ M sigmoid() const { return x < 0 ? e * inverse : inverse; }
    __device__ __forceinline__ M complement() const { return x < 0 ? inverse : e * inverse; }
    __device__ __forceinline__ M cross_entropy(M t) const { return (x < 0 ? (M)0 : x) - x * t + ln_1p_fraction(e); }
};
struct Bce {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M) { return Logit<M>(x).cross_entropy(t); }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M) { return Logit<M>(x).sigmoid() - t; }
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
struct LogCosh {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M) {
        M e = x < t ? t - x : x - t;
        if (!(e < 1)) return e + ln_1p(exponential(-2 * e)) - (M)0.69314718055994530942;
        // That sum would keep no digits of a small result.
        M h = hyperbolic_tangent(x - t), square = h * h;
        return (M)0.5 * ln_1p(square / (1 - square));
    }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M) { return hyperbolic_tangent(x - t); }
};
struct Quantile {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M q) {
        M e = t - x;
        return e > 0 ? q * e : (q - 1) * e;
    }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M q) {
        M e = x - t;
        return e > 0 ? 1 - q : e < 0 ? -q : e;
    }
};
struct Poisson {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M) { return exponential(x) - t * x; }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M) { return exponential(x) - t; }
};
struct Given {
    template <class M> static __device__ __forceinline__ M value(M x, M, M) { return x; }
    template <class M> static __device__ __forceinline__ M derivative(M, M, M) { return 1; }
};
// The missing probability and its power.
template <class M> struct Missing {
    Logit<M> logit;
    M missing, factor;
    __device__ __forceinline__ Missing(M x, M t, M gamma)
        : logit(x), missing(t * logit.complement() + (1 - t) * logit.sigmoid()),
          factor(gamma == 0 ? (M)1 : power(missing, gamma)) {}
};
struct Focal {
    template <class M> static __device__ __forceinline__ M value(M x, M t, M gamma) {
        Missing<M> m(x, t, gamma);
        return m.factor * m.logit.cross_entropy(t);
    }
    template <class M> static __device__ __forceinline__ M derivative(M x, M t, M gamma) {
        Missing<M> m(x, t, gamma);
        M s = m.logit.sigmoid(), slope = (1 - t - t) * s * m.logit.complement();
        M growth = m.missing > 0 ? quotient(slope, m.missing) : (M)0;
        return m.factor * ((s - t) + gamma * growth * m.logit.cross_entropy(t));
    }
};

// N elements per access; returns the sum of this thread's losses.
template <class F, int N, class T, class D>
__device__ __forceinline__ double part(const T* x, const T* target, D* d, size_t n, MATH(T) parameter, MATH(T) scale) {
    double sum = 0;
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> a = load_pack<N>(x, i), b = load_pack<N>(target, i);
        Pack<D, N> g;
#pragma unroll
        for (int j = 0; j < N; j++) {
            MATH(T) v = to_float(a.v[j]), t = to_float(b.v[j]);
            // First, which takes fewer registers.
            g.v[j] = Format<D>::from(scale * F::derivative(v, t, parameter));
            sum += F::value(v, t, parameter);
        }
        if (d) store_pack(d, i, g);
    }
    return sum;
}

// Elements `begin` to `begin + n`, each times the weight of its row; adds to the sums.
template <class F, int N, class T, class D>
__device__ __forceinline__ void weighted_part(const T* x, const T* target, const float* row_weights, D* d, size_t begin,
                                              size_t n, size_t cols, MATH(T) parameter, MATH(T) scale, double& loss_sum,
                                              double& weight_sum) {
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        size_t first = begin + i * N, row = first / cols, left = cols - (first - row * cols);
        Pack<T, N> a = load_pack<N>(x + begin, i), b = load_pack<N>(target + begin, i);
        Pack<D, N> g;
        float weight = row_weights[row];
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (left == 0) {
                weight = row_weights[++row];
                left = cols;
            }
            left--;
            MATH(T) v = to_float(a.v[j]), t = to_float(b.v[j]), derivative = 0;
            if (weight != 0) {
                loss_sum += (double)weight * (double)F::value(v, t, parameter);
                weight_sum += weight;
                derivative = scale * (MATH(T))weight * F::derivative(v, t, parameter);
            }
            g.v[j] = Format<D>::from(derivative);
        }
        if (d) store_pack(d + begin, i, g);
    }
}

template <class F, class T, class D>
__device__ __forceinline__ void loss(const T* x, const T* target, const float* row_weights, D* d, size_t n, size_t cols,
                                     double parameter, double scale, float* tail, int accumulate, const double* extra,
                                     u32* counter, double* partials) {
    const int per_pack = Pack<T>::size;
    MATH(T) p = parameter, s = scale;
    size_t packed = are_packed(x, target, d) ? n - n % per_pack : 0;
    double sum, weight;
    if constexpr (ROW_WEIGHTS) {
        sum = weight = 0;
        weighted_part<F, per_pack>(x, target, row_weights, d, 0, packed, cols, p, s, sum, weight);
        weighted_part<F, 1>(x, target, row_weights, d, packed, n - packed, cols, p, s, sum, weight);
    } else {
        sum = part<F, per_pack>(x, target, d, packed, p, s);
        sum += part<F, 1>(x + packed, target + packed, d ? d + packed : d, n - packed, p, s);
        weight = first_element() == 0 ? (double)n : 0.0;
    }
    leave_sums(sum, weight, counter, partials, tail, accumulate, extra);
}

#define LOSS(name, F, T, D)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 8 ? 3 : 4)                                         \
        name(const T* x, const T* target, const float* row_weights, D* d, size_t n, size_t cols, double parameter,    \
             double scale, float* tail, int accumulate, const double* extra, u32* counter, double* partials) {        \
        loss<F>(x, target, row_weights, d, n, cols, parameter, scale, tail, accumulate, extra, counter, partials);    \
    }
LOSS(bce_with_logits_f32, Bce, float, float)
LOSS(bce_with_logits_f64, Bce, double, double)
LOSS(bce_with_logits_bf16, Bce, bf16, bf16)
LOSS(bce_with_logits_f16, Bce, f16, f16)
LOSS(bce_with_logits_f32_bf16, Bce, float, bf16)
LOSS(bce_with_logits_f32_f16, Bce, float, f16)
LOSS(mse_f32, Mse, float, float)
LOSS(mse_f64, Mse, double, double)
LOSS(mse_bf16, Mse, bf16, bf16)
LOSS(mse_f16, Mse, f16, f16)
LOSS(mse_f32_bf16, Mse, float, bf16)
LOSS(mse_f32_f16, Mse, float, f16)
LOSS(huber_f32, Huber, float, float)
LOSS(huber_f64, Huber, double, double)
LOSS(huber_bf16, Huber, bf16, bf16)
LOSS(huber_f16, Huber, f16, f16)
LOSS(huber_f32_bf16, Huber, float, bf16)
LOSS(huber_f32_f16, Huber, float, f16)
LOSS(log_cosh_f32, LogCosh, float, float)
LOSS(log_cosh_f64, LogCosh, double, double)
LOSS(log_cosh_bf16, LogCosh, bf16, bf16)
LOSS(log_cosh_f16, LogCosh, f16, f16)
LOSS(log_cosh_f32_bf16, LogCosh, float, bf16)
LOSS(log_cosh_f32_f16, LogCosh, float, f16)
LOSS(quantile_f32, Quantile, float, float)
LOSS(quantile_f64, Quantile, double, double)
LOSS(quantile_bf16, Quantile, bf16, bf16)
LOSS(quantile_f16, Quantile, f16, f16)
LOSS(quantile_f32_bf16, Quantile, float, bf16)
LOSS(quantile_f32_f16, Quantile, float, f16)
LOSS(poisson_f32, Poisson, float, float)
LOSS(poisson_f64, Poisson, double, double)
LOSS(poisson_bf16, Poisson, bf16, bf16)
LOSS(poisson_f16, Poisson, f16, f16)
LOSS(poisson_f32_bf16, Poisson, float, bf16)
LOSS(poisson_f32_f16, Poisson, float, f16)
LOSS(given_f32, Given, float, float)
LOSS(given_f64, Given, double, double)
LOSS(given_bf16, Given, bf16, bf16)
LOSS(given_f16, Given, f16, f16)
LOSS(given_f32_bf16, Given, float, bf16)
LOSS(given_f32_f16, Given, float, f16)
LOSS(focal_with_logits_f32, Focal, float, float)
LOSS(focal_with_logits_f64, Focal, double, double)
LOSS(focal_with_logits_bf16, Focal, bf16, bf16)
LOSS(focal_with_logits_f16, Focal, f16, f16)
LOSS(focal_with_logits_f32_bf16, Focal, float, bf16)
LOSS(focal_with_logits_f32_f16, Focal, float, f16)

// Ordinal: element i of a row is bce with the target label > i; a label outside 0..=cols makes the loss NaN, and d 0. N elements of
// one row per access.
template <int N, class T, class D>
__device__ __forceinline__ void ordinal_part(const T* x, const i64* labels, const float* row_weights, D* d, size_t n, size_t cols,
                                             MATH(T) scale, double& loss_sum, double& weight_sum) {
    typedef MATH(T) M;
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> v = load_pack<N>(x, i);
        size_t row = i * N / cols;
        i64 label = labels[row], col = i * N - row * cols;
        float weight = row_weights ? row_weights[row] : 1.0f;
        bool is_class = label >= 0 && label <= (i64)cols;
        Pack<D, N> g;
#pragma unroll
        for (int j = 0; j < N; j++) g.v[j] = Format<D>::from(0);
        if (weight != 0 && !is_class) loss_sum += (double)__uint_as_float(0x7fc00000u);
        if (weight != 0 && is_class) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                M logit = to_float(v.v[j]), t = label > col + j ? (M)1 : (M)0;
                g.v[j] = Format<D>::from(scale * (M)weight * Bce::derivative(logit, t, logit));
                loss_sum += (double)weight * (double)Bce::value(logit, t, logit);
            }
        }
        weight_sum += N * (double)weight;
        if (d) store_pack(d, i, g);
    }
}
template <class T, class D>
__device__ __forceinline__ void ordinal(const T* x, const i64* labels, const float* row_weights, D* d, size_t n, size_t cols,
                                        double scale, float* tail, int accumulate, const double* extra, u32* counter,
                                        double* partials) {
    const int per_pack = Pack<T>::size;
    double loss_sum = 0, weight_sum = 0;
    if (cols % per_pack == 0 && are_packed(x, d))
        ordinal_part<per_pack>(x, labels, row_weights, d, n, cols, (MATH(T))scale, loss_sum, weight_sum);
    else
        ordinal_part<1>(x, labels, row_weights, d, n, cols, (MATH(T))scale, loss_sum, weight_sum);
    leave_sums(loss_sum, weight_sum, counter, partials, tail, accumulate, extra);
}

#define ORDINAL(name, T, D)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 4)                                                              \
        name(const T* x, const i64* labels, const float* row_weights, D* d, size_t n, size_t cols, double scale,      \
             float* tail, int accumulate, const double* extra, u32* counter, double* partials) {                      \
        ordinal(x, labels, row_weights, d, n, cols, scale, tail, accumulate, extra, counter, partials);               \
    }
ORDINAL(ordinal_f32, float, float)
ORDINAL(ordinal_f64, double, double)
ORDINAL(ordinal_bf16, bf16, bf16)
ORDINAL(ordinal_f16, f16, f16)
ORDINAL(ordinal_f32_bf16, float, bf16)
ORDINAL(ordinal_f32_f16, float, f16)
