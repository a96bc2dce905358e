// sgd.cu: one step of stochastic gradient descent; walk, launch and copy are those of update.cuh.
// maths   lr = lr_scale*lr;  g = scale*grad + wd*w;  v <- momentum*v + g;  w <- w - lr*(nesterov ? g + momentum*v : v); without v w - lr*g
// state   s0: v, or null
// moved   20 B/element in f32 (read w v g, write w v), 12 without v, 2 more with the copy: memory-bound

// SgdParams in sgd.rs.
struct Params {
    double lr, lr_scale, momentum, weight_decay, scale;
    u64 nesterov;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) {
        lr = inputs.lr;
        scale = inputs.scale;
    }
};

template <class T> struct Formula {
    static const int n_state = 1;
    T lr, momentum, decay, scale;
    bool nesterov, has_velocity;

    static __device__ __forceinline__ Formula of(const Params& p, bool has_state) {
        Formula r = {(T)(p.lr_scale * p.lr), (T)p.momentum, (T)p.weight_decay, (T)p.scale, p.nesterov != 0, has_state};
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* v, size_t) const {
        T grad = g * scale + decay * w, step = grad;
        if (has_velocity) {
            *v = momentum * *v + grad;
            step = nesterov ? grad + momentum * *v : *v;
        }
        return w - lr * step;
    }
};

UPDATES(sgd)
