// sgd.cu: one step of stochastic gradient descent on a flat range of parameters, in place.
// maths   lr = lr_scale*lr;  g = scale*grad + wd*w;  v <- momentum*v + g;  w <- w - lr*(nesterov ? g + momentum*v : v); without v w - lr*g
// shapes  w, g, v: T[n], v may be null; copy: C[n] or null, w rounded: bf16 or f16; scalars: f64[8] or null; sums: f32[16];
//         sum_of_squares: f64[1] or null
// launch  grid-stride over n, 16 bytes an access where the pointers allow it, block 256; any n
// moved   20 B/element in f32 (read w v g, write w v), 12 without v, 2 more with the copy: memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs beside this file, step_sums.rs for what is read with scalars

struct Config {
    double lr, lr_scale, momentum, weight_decay, scale, max_norm;
    int nesterov;
};
template <class M> struct Numbers {
    M lr, momentum, decay, scale;
    bool is_finite;
};
template <class M>
__device__ __forceinline__ Numbers<M> numbers_of(const Config& c, const double* scalars, const float* sums,
                                                 const double* sum_of_squares) {
    Numbers<M> r = {(M)(c.lr_scale * c.lr), (M)c.momentum, (M)c.weight_decay, (M)c.scale, true};
    if (scalars) {
        UpdateInputs inputs = update_inputs(scalars, sums, sum_of_squares, c.max_norm);
        r.lr = c.lr_scale * inputs.lr;
        r.scale = inputs.scale;
        r.is_finite = inputs.is_finite;
    }
    return r;
}

// N elements an access.
template <int N, class T, class C>
__device__ __forceinline__ void part(const Numbers<T>& u, bool nesterov, T* w, const T* g, T* v, C* copy, size_t n) {
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> pw = load_pack<N>(w, i), pg = load_pack<N>(g, i), pv;
        if (v) pv = load_pack<N>(v, i);
        Pack<C, N> pc;
#pragma unroll
        for (int j = 0; j < N; j++) {
            T grad = pg.v[j] * u.scale + u.decay * pw.v[j], step = grad;
            if (v) {
                pv.v[j] = u.momentum * pv.v[j] + grad;
                step = nesterov ? grad + u.momentum * pv.v[j] : pv.v[j];
            }
            pw.v[j] -= u.lr * step;
            pc.v[j] = Format<C>::from((float)pw.v[j]);
        }
        store_pack(w, i, pw);
        if (v) store_pack(v, i, pv);
        if (copy) store_pack(copy, i, pc);
    }
}

template <class T, class C>
__device__ __forceinline__ void sgd(T* w, const T* g, T* v, C* copy, size_t n, const Config& config, const double* scalars,
                                    const float* sums, const double* sum_of_squares) {
    __shared__ Numbers<T> shared;
    if (threadIdx.x == 0) shared = numbers_of<T>(config, scalars, sums, sum_of_squares);
    __syncthreads();
    Numbers<T> u = shared;
    if (!u.is_finite) return;
    const int per_pack = Pack<T>::size;
    size_t packed = are_packed(w, g, v) && ((size_t)copy & (sizeof(C) * per_pack - 1)) == 0 ? n - n % per_pack : 0;
    part<per_pack>(u, config.nesterov, w, g, v, copy, packed);
    part<1>(u, config.nesterov, w + packed, g + packed, v ? v + packed : v, copy ? copy + packed : copy, n - packed);
}

#define SGD(suffix, T, C)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) sgd_##suffix(                                                      \
        T* w, const T* g, T* v, C* copy, size_t n, double lr, double lr_scale, double momentum, double weight_decay, int nesterov,     \
        double scale, const double* scalars, const float* sums, const double* sum_of_squares, double max_norm) {        \
        Config config = {lr, lr_scale, momentum, weight_decay, scale, max_norm, nesterov};                                         \
        sgd(w, g, v, copy, n, config, scalars, sums, sum_of_squares);                                                   \
    }
// Without a copy its type means nothing.
SGD(f32, float, float)
SGD(f64, double, float)
SGD(f32_bf16, float, bf16)
SGD(f64_bf16, double, bf16)
SGD(f32_f16, float, f16)
SGD(f64_f16, double, f16)
