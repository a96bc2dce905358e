// ema.cu: the moving average of the weights after a step, in place.
// maths   ema <- ema + (1-decay)*(w - ema), or w - (w - ema)*decay where decay <= 0.5 (torch.lerp); ema <- w in step 1
// shapes  ema, w: T[n]; scalars: f64[8] or null; sums: f32[16]; sum_of_squares: f64[1] or null
// launch  grid-stride over n, 16 bytes an access where the pointers allow it, block 256; any n
// moved   12 B/element in f32 (read ema w, write ema): memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs beside this file, step_sums.rs for what is read with scalars

template <class T> struct Numbers {
    T weight, rest;
    bool is_first, is_near, is_finite;
};

// N elements an access.
template <int N, class T> __device__ __forceinline__ void part(const Numbers<T>& u, T* ema, const T* w, size_t n) {
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> pe = load_pack<N>(ema, i), pw = load_pack<N>(w, i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            T d = pw.v[j] - pe.v[j];
            pe.v[j] = u.is_first ? pw.v[j] : u.is_near ? pe.v[j] + u.weight * d : pw.v[j] - d * u.rest;
        }
        store_pack(ema, i, pe);
    }
}

template <class T>
__device__ __forceinline__ void ema_update(T* ema, const T* w, size_t n, double decay, u64 step, const double* scalars,
                                           const float* sums, const double* sum_of_squares) {
    __shared__ Numbers<T> shared;
    if (threadIdx.x == 0) {
        Numbers<T> u;
        u.is_finite = true;
        if (scalars) {
            // Only whether the weights were updated counts here, and the largest norm has no say in that.
            UpdateInputs inputs = update_inputs(scalars, sums, sum_of_squares, 1.0);
            u.is_finite = inputs.is_finite;
            step = (u64)inputs.step;
        }
        u.weight = 1 - decay;
        u.rest = (T)1 - u.weight;
        u.is_first = step == 1;
        u.is_near = 1 - decay < 0.5;
        shared = u;
    }
    __syncthreads();
    Numbers<T> u = shared;
    if (!u.is_finite) return;
    const int per_pack = Pack<T>::size;
    size_t packed = are_packed(ema, w) ? n - n % per_pack : 0;
    part<per_pack>(u, ema, w, packed);
    part<1>(u, ema + packed, w + packed, n - packed);
}

#define EMA(suffix, T)                                                                                                 \
    extern "C" __global__ void ema_##suffix(T* ema, const T* w, size_t n, double decay, u64 step, const double* scalars, \
                                            const float* sums, const double* sum_of_squares) {                         \
        ema_update(ema, w, n, decay, step, scalars, sums, sum_of_squares);                                             \
    }
EMA(f32, float)
EMA(f64, double)
