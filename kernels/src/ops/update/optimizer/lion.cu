// lion.cu: one step of Lion; walk, launch and copy are those of update.cuh.
// maths   lr = lr_scale*lr;  g = scale*grad;  w <- (1 - lr*wd)*w - lr*sign(b1*m + (1-b1)*g);  m <- b2*m + (1-b2)*g
//         sign(0) = 0, sign(NaN) = NaN   (arXiv:2302.06675)
// state   s0: m
// moved   20 B/element in f32 (read w m g, write w m), 22 with the copy: memory-bound

// LionParams in lion.rs.
struct Params {
    double lr, lr_scale, beta1, beta2, weight_decay, scale;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) {
        lr = inputs.lr;
        scale = inputs.scale;
    }
};

template <class T> struct Formula {
    static const int n_state = 1;
    T b1, one_minus_b1, b2, one_minus_b2, scale, keep, step_size;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        r.keep = 1 - lr * p.weight_decay;
        r.step_size = lr;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* m, size_t) const {
        T grad = g * scale;
        T mixed = b1 * *m + one_minus_b1 * grad;
        T sign = mixed > 0 ? (T)1 : mixed < 0 ? (T)-1 : mixed;
        *m = b2 * *m + one_minus_b2 * grad;
        return keep * w - step_size * sign;
    }
};

UPDATES(lion)
