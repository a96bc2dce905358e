// moments.cu: the moments of LAMB; walk and launch are those of update.cuh.
// maths   g = scale*grad;  m <- b1*m + (1-b1)*g;  v <- b2*v + (1-b2)*g*g
// state   w: m; s0: v
// moved   20 B/element in f32 (read m v g, write m v): memory-bound

// MomentsParams in moments.rs.
struct Params {
    double beta1, beta2, scale;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) { scale = inputs.scale; }
};

template <class T> struct Formula {
    static const int n_state = 1;
    T b1, one_minus_b1, b2, one_minus_b2, scale;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        return r;
    }
    __device__ __forceinline__ T operator()(T m, T g, T* v, size_t) const {
        T grad = g * scale;
        *v = b2 * *v + one_minus_b2 * grad * grad;
        return b1 * m + one_minus_b1 * grad;
    }
};

UPDATES(moments)
