// lamb.cu: the norm of LAMB's direction, and its step; walk, launch and copy of the step are those of update.cuh.
// math   u = m/c1 / (sqrt(v)/sqrt(c2) + eps) + wd*w,  ci = 1 - poweri, poweri = bi^step
//         lamb_norms: sums[0] <- sum_i w_i^2, sums[1] <- sum_i u_i^2 (+ what is there if accumulate)
//         lamb:      w <- w - lr_scale*lr * r*u,  r = sqrt(sums[0]/sums[1]), or 1 if one of these sums is 0   (arXiv:1904.00962)
// state   g: m; s0: v
// moved   lamb_norms 12 B/element in f32 (read w m v); lamb 20 (read w m v, write w v), 22 with the copy: memory-bound
// order   lamb_norms: squares in T's precision, sums in f64; the elements of each thread and block depend on n only

// LambParams in lamb.rs; sums: f64[2], null in lamb_norms.
struct Params {
    double lr, lr_scale, power1, power2, eps, weight_decay;
    const double* sums;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) {
        lr = inputs.lr;
        power1 = inputs.power1;
        power2 = inputs.power2;
    }
    __device__ __forceinline__ void set_segment(const Segments&, u32) {}
};

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

template <class T> struct Formula {
    static const int n_state = 1;
    T m_scale, root_scale, eps, weight_decay, step_size;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        bool has_ratio = p.sums && p.sums[0] > 0 && p.sums[1] > 0;
        Formula r;
        r.m_scale = 1 / (1 - p.power1);
        r.root_scale = 1 / sqrt(1 - p.power2);
        r.eps = p.eps;
        r.weight_decay = p.weight_decay;
        r.step_size = p.lr_scale * p.lr * (has_ratio ? sqrt(p.sums[0] / p.sums[1]) : 1.0);
        return r;
    }
    __device__ __forceinline__ T direction(T w, T m, T v) const {
        return m * m_scale / (root(v) * root_scale + eps) + weight_decay * w;
    }
    __device__ __forceinline__ T operator()(T w, T m, T* v) const { return w - step_size * direction(w, m, *v); }
};

UPDATES(lamb)

template <class T> struct Squares {
    const Formula<T> formula;
    double of_weights, of_directions;

    __device__ __forceinline__ void add(T w, T m, T v) {
        T u = formula.direction(w, m, v);
        of_weights += (double)(w * w);
        of_directions += (double)(u * u);
    }
    template <bool packed> __device__ __forceinline__ void add_all(const T* w, const T* m, const T* v, size_t n) {
        const int per_pack = Pack<T>::size;
        for (size_t i = first_element(); i < n / per_pack; i += grid_stride()) {
            Pack<T> pw = load_elements<packed>(w, i), pm = load_elements<packed>(m, i), pv = load_elements<packed>(v, i);
#pragma unroll
            for (int j = 0; j < per_pack; j++) add(pw.v[j], pm.v[j], pv.v[j]);
        }
        // Fewer elements than threads are left.
        size_t i = n / per_pack * per_pack + first_element();
        if (i < n) add(w[i], m[i], v[i]);
    }
};
// `counters`: two; `partials`: two per block.
template <class T>
__device__ void lamb_norms(const T* w, const T* m, const T* v, size_t n, Params params, const double* scalars, double* sums,
                           int accumulate, u32* counters, double* partials) {
    if (scalars) {
        params.power1 = scalars[8];
        params.power2 = scalars[9];
    }
    Squares<T> squares = {Formula<T>::of(params, true), 0, 0};
    if (are_packed(w, m, v))
        squares.template add_all<true>(w, m, v, n);
    else
        squares.template add_all<false>(w, m, v, n);
    double total;
    if (grid_sum(squares.of_weights, &total, counters, partials) && threadIdx.x == 0)
        sums[0] = accumulate ? sums[0] + total : total;
    if (grid_sum(squares.of_directions, &total, counters + 1, partials + gridDim.x) && threadIdx.x == 0)
        sums[1] = accumulate ? sums[1] + total : total;
}
#define LAMB_NORMS(suffix, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) lamb_norms_##suffix(                                               \
        const T* w, const T* m, const T* v, size_t n, Params params, const double* scalars, double* sums,                \
        int accumulate, u32* counters, double* partials) {                                                               \
        lamb_norms(w, m, v, n, params, scalars, sums, accumulate, counters, partials);                                   \
    }
LAMB_NORMS(f32, float)
LAMB_NORMS(f64, double)
