// adam.cu: one step of Adam or AdamW; walk, launch and copy are those of update.cuh.
// maths   lr = lr_scale*lr;  g = scale*grad (+ wd*w if coupled);  m <- b1*m + (1-b1)*g;  v <- b2*v + (1-b2)*g*g
//         w <- (1 - lr*wd if decoupled)*w - lr/c1 * m / (sqrt(v)/sqrt(c2) + eps),  ci = 1 - poweri, poweri = bi^step
// state   s0: m; s1: v
// moved   28 B/element in f32 (read w m v g, write w m v), 30 with the copy: memory-bound

// AdamParams in adam.rs.
struct Params {
    double lr, lr_scale, beta1, beta2, power1, power2, eps, weight_decay, scale;
    u64 coupled;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) {
        lr = inputs.lr;
        power1 = inputs.power1;
        power2 = inputs.power2;
        scale = inputs.scale;
    }
};

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

template <class T> struct Formula {
    static const int n_state = 2;
    T b1, one_minus_b1, b2, one_minus_b2, scale, coupled, keep, step_size, root_scale, eps;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        double c1 = 1 - p.power1, c2 = 1 - p.power2;
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        r.coupled = p.coupled ? p.weight_decay : 0.0;
        r.keep = 1 - lr * (p.coupled ? 0.0 : p.weight_decay);
        r.step_size = lr / c1;
        r.root_scale = 1 / sqrt(c2);
        r.eps = p.eps;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* s, size_t) const {
        T grad = g * scale + coupled * w;
        s[0] = b1 * s[0] + one_minus_b1 * grad;
        s[1] = b2 * s[1] + one_minus_b2 * grad * grad;
        return keep * w - step_size * s[0] / (root(s[1]) * root_scale + eps);
    }
};

UPDATES(adam)
