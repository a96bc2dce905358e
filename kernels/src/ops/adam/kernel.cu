// adam.cu: one step of Adam or AdamW on a flat range of parameters, in place.
// maths   lr = lr_scale*lr;  g = scale*grad (+ wd*w if coupled);  m <- b1*m + (1-b1)*g;  v <- b2*v + (1-b2)*g*g
//         w <- (1 - lr*wd if decoupled)*w - lr/c1 * m / (sqrt(v)/sqrt(c2) + eps),  ci = 1 - bi^step
// shapes  w, g, m, v: T[n]; copy: C[n] or null, w rounded: bf16 or f16; scalars: f64[8] or null; sums: f32[16]; sum_of_squares:
//         f64[1] or null
// launch  grid-stride over n, 16 bytes an access where the pointers allow it, block 256; any n
// moved   28 B/element in f32 (read w m v g, write w m v), 30 with the copy: memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs beside this file, step_sums.rs for what is read with scalars

struct Config {
    double lr, lr_scale, beta1, beta2, eps, weight_decay, scale, max_norm;
    u64 step;
    int coupled;
};
template <class M> struct Numbers {
    M b1, one_minus_b1, b2, one_minus_b2, scale, coupled, keep, step_size, root_scale, eps;
    bool is_finite;
};

// b^n by squaring, in the order of multiplications of the host's powi.
__device__ __forceinline__ double power(double b, u32 n) {
    double r = 1;
    for (;;) {
        if (n & 1) r *= b;
        n >>= 1;
        if (n == 0) return r;
        b *= b;
    }
}

template <class M>
__device__ __forceinline__ Numbers<M> numbers_of(Config c, const double* scalars, const float* sums,
                                                 const double* sum_of_squares) {
    bool is_finite = true;
    if (scalars) {
        UpdateInputs inputs = update_inputs(scalars, sums, sum_of_squares, c.max_norm);
        c.lr = inputs.lr;
        c.step = (u64)inputs.step;
        c.scale = inputs.scale;
        is_finite = inputs.is_finite;
    }
    c.lr *= c.lr_scale;
    u32 exponent = c.step < 0x7fffffffu ? (u32)c.step : 0x7fffffffu;
    double c1 = 1 - power(c.beta1, exponent), c2 = 1 - power(c.beta2, exponent);
    Numbers<M> r;
    r.b1 = c.beta1;
    r.one_minus_b1 = 1 - c.beta1;
    r.b2 = c.beta2;
    r.one_minus_b2 = 1 - c.beta2;
    r.scale = c.scale;
    r.coupled = c.coupled ? c.weight_decay : 0.0;
    r.keep = 1 - c.lr * (c.coupled ? 0.0 : c.weight_decay);
    r.step_size = c.lr / c1;
    r.root_scale = 1 / sqrt(c2);
    r.eps = c.eps;
    r.is_finite = is_finite;
    return r;
}

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// N elements an access.
template <int N, class T, class C>
__device__ __forceinline__ void part(const Numbers<T>& u, T* w, const T* g, T* m, T* v, C* copy, size_t n) {
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> pw = load_pack<N>(w, i), pg = load_pack<N>(g, i), pm = load_pack<N>(m, i), pv = load_pack<N>(v, i);
        Pack<C, N> pc;
#pragma unroll
        for (int j = 0; j < N; j++) {
            T grad = pg.v[j] * u.scale + u.coupled * pw.v[j];
            pm.v[j] = u.b1 * pm.v[j] + u.one_minus_b1 * grad;
            pv.v[j] = u.b2 * pv.v[j] + u.one_minus_b2 * grad * grad;
            pw.v[j] = u.keep * pw.v[j] - u.step_size * pm.v[j] / (root(pv.v[j]) * u.root_scale + u.eps);
            pc.v[j] = Format<C>::from((float)pw.v[j]);
        }
        store_pack(w, i, pw);
        store_pack(m, i, pm);
        store_pack(v, i, pv);
        if (copy) store_pack(copy, i, pc);
    }
}

template <class T, class C>
__device__ __forceinline__ void adam(T* w, const T* g, T* m, T* v, C* copy, size_t n, const Config& config,
                                     const double* scalars, const float* sums, const double* sum_of_squares) {
    __shared__ Numbers<T> shared;
    if (threadIdx.x == 0) shared = numbers_of<T>(config, scalars, sums, sum_of_squares);
    __syncthreads();
    Numbers<T> u = shared;
    if (!u.is_finite) return;
    const int per_pack = Pack<T>::size;
    size_t packed = are_packed(w, g, m, v) && ((size_t)copy & (sizeof(C) * per_pack - 1)) == 0 ? n - n % per_pack : 0;
    part<per_pack>(u, w, g, m, v, copy, packed);
    part<1>(u, w + packed, g + packed, m + packed, v + packed, copy ? copy + packed : copy, n - packed);
}

#define ADAM(suffix, T, C)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) adam_##suffix(                                                     \
        T* w, const T* g, T* m, T* v, C* copy, size_t n, double lr, double lr_scale, double beta1, double beta2, double eps,          \
        double weight_decay, int coupled, u64 step, double scale, const double* scalars, const float* sums,            \
        const double* sum_of_squares, double max_norm) {                                                               \
        Config config = {lr, lr_scale, beta1, beta2, eps, weight_decay, scale, max_norm, step, coupled};                          \
        adam(w, g, m, v, copy, n, config, scalars, sums, sum_of_squares);                                              \
    }
// Without a copy its type means nothing.
ADAM(f32, float, float)
ADAM(f64, double, float)
ADAM(f32_bf16, float, bf16)
ADAM(f64_bf16, double, bf16)
ADAM(f32_f16, float, f16)
ADAM(f64_f16, double, f16)
