// ema.cu: the moving average of the weights after a step; walk and launch are those of update.cuh.
// maths   ema <- ema + (1-decay)*(w - ema), or w - (w - ema)*decay if decay <= 0.5 (torch.lerp); ema <- w in step 1
// state   none; the updated tensor is the average, the other one the weights
// moved   12 B/element in f32 (read ema w, write ema): memory-bound

// EmaParams in mod.rs.
struct Params {
    double decay;
    u64 step;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) { step = (u64)inputs.step; }
};

template <class T> struct Formula {
    static const int n_state = 0;
    T weight, rest;
    bool is_first, is_near;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        Formula r;
        r.weight = 1 - p.decay;
        r.rest = (T)1 - r.weight;
        r.is_first = p.step == 1;
        r.is_near = 1 - p.decay < 0.5;
        return r;
    }
    __device__ __forceinline__ T operator()(T ema, T w, T*) const {
        T d = w - ema;
        return is_first ? w : is_near ? ema + weight * d : w - d * rest;
    }
};

UPDATE(ema, f32, float, float)
UPDATE(ema, f64, double, float)
