// muon.cu: one step of Muon by its orthogonalised direction; walk, launch and copy are those of update.cuh.
// maths   lr = lr_scale*lr;  w <- (1 - lr*wd)*w - lr*direction_scale*d
// state   g: d
// moved   12 B/element in f32 (read w d, write w), 14 with the copy: memory-bound

// MuonParams in muon.rs.
struct Params {
    double lr, lr_scale, weight_decay, direction_scale;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) { lr = inputs.lr; }
};

template <class T> struct Formula {
    static const int n_state = 0;
    T keep, step_size;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        Formula r;
        r.keep = 1 - lr * p.weight_decay;
        r.step_size = lr * p.direction_scale;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T d, T*, size_t) const { return keep * w - step_size * d; }
};

UPDATES(muon)
