// momentum.cu: the momentum of Muon and the direction of its step; walk and launch are those of update.cuh.
// maths   g = scale*grad;  m <- mu*m + (1-mu)*g;  d <- mu*m + (1-mu)*g if nesterov, else m
// state   w: m; s0: d
// moved   20 B/element in f32 (read m d g, write m d): memory-bound

// MomentumParams in momentum.rs.
struct Params {
    double momentum, scale;
    u64 nesterov;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) { scale = inputs.scale; }
};

template <class T> struct Formula {
    static const int n_state = 1;
    T mu, one_minus_mu, scale;
    bool nesterov;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        Formula r;
        r.mu = p.momentum;
        r.one_minus_mu = 1 - p.momentum;
        r.scale = p.scale;
        r.nesterov = p.nesterov != 0;
        return r;
    }
    __device__ __forceinline__ T operator()(T m, T g, T* d, size_t) const {
        T grad = g * scale;
        m = mu * m + one_minus_mu * grad;
        *d = nesterov ? mu * m + one_minus_mu * grad : m;
        return m;
    }
};

UPDATES(momentum)
