// update.cuh: the skeleton of an update of a flat range of parameters, in place. It precedes the text of each update, which has
//   struct Params      hyper-parameters, as the host passes them; set(inputs) takes those that a step reads from device memory,
//                      set_segment(segments, k) those of part k of the range
//   Formula<T>         the numbers of one step; n_state: number of state tensors;
//                      of(params, has_state) computes them, once per block and segment, in double;
//                      formula(w, g, s): the new w; s: the state of the element, in place
//   UPDATES(op)        its kernels
// math   ema <- ema + (1-decay)*(w - ema), or w - (w - ema)*decay if decay <= 0.5 (torch.lerp); ema <- w in step 1; w is the new one;
//         with a warm-up decay is at most step / (step + 9)
// shapes  w, s0, s1, ema: T[n], state and ema may be null; g: G[n]; copy: C[n] or null, w rounded: bf16 or f16; scalars: f64[10] or null;
//         sums: f32[16], whose last one becomes NaN if a new weight is not a number; sum_of_squares: f64[1] or null; report: null, or mapped host memory of f32[16], which receives sums, and f64,
//         which receives *reported_squares unless that is null; gate: null, or u64[3] (gate.rs): whether it is closed, and the steps of
//         the last update that was applied and of the first one that found it closed
// moved   what the formula reads and writes, once, and 8 B/element in f32 for ema
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// order   elementwise: bit-identical between runs
// twin    cpu.rs and decision.rs next to this file

struct Params;
template <class T> struct Formula;

// Consecutive parts of the range with settings of their own; n = 0: all elements have those of Params.
#define MAX_SEGMENTS 16
struct Segments {
    u64 n, ends[MAX_SEGMENTS];
    double lr_scale[MAX_SEGMENTS], weight_decay[MAX_SEGMENTS];
};

// The moving average of the weights.
template <class T> struct Average {
    T weight, rest;
    bool is_first, is_near;

    static __device__ __forceinline__ Average of(double decay, bool warms_up, u64 step) {
        Average r;
        double limit = (double)step / ((double)step + 9);
        if (warms_up && limit < decay) decay = limit;
        r.weight = 1 - decay;
        r.rest = (T)1 - r.weight;
        r.is_first = step == 1;
        r.is_near = 1 - decay < 0.5;
        return r;
    }
    __device__ __forceinline__ T operator()(T ema, T w) const {
        T d = w - ema;
        return is_first ? w : is_near ? ema + weight * d : w - d * rest;
    }
};

// N elements per access, of the range's elements from `first` on; an access lies in one segment.
template <int N, class T, class G, class C>
__device__ __forceinline__ void walk(const Formula<T>* formulas, const Segments& segments, size_t first, const Average<T>& average,
                                     T* w, const G* g, T* s0, T* s1, T* ema, C* copy, size_t n, bool& is_bad) {
    const int n_state = Formula<T>::n_state;
    u32 segment = 0;
    Formula<T> formula = formulas[0];
    size_t end = segments.n ? segments.ends[0] : first + n;
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        if (first + i * N >= end) {
            while (first + i * N >= segments.ends[segment]) segment++;
            formula = formulas[segment];
            end = segments.ends[segment];
        }
        Pack<G, N> pg = load_pack<N>(g, i);
        Pack<T, N> pw = load_pack<N>(w, i), p0 = {}, p1 = {}, pe = {};
        if (n_state > 0 && s0) p0 = load_pack<N>(s0, i);
        if (n_state > 1) p1 = load_pack<N>(s1, i);
        if (ema) pe = load_pack<N>(ema, i);
        Pack<C, N> pc;
#pragma unroll
        for (int j = 0; j < N; j++) {
            T s[2] = {p0.v[j], p1.v[j]};
            pw.v[j] = formula(pw.v[j], to_float(pg.v[j]), s);
            p0.v[j] = s[0];
            p1.v[j] = s[1];
            is_bad |= !(pw.v[j] - pw.v[j] == 0);
            pe.v[j] = average(pe.v[j], pw.v[j]);
            pc.v[j] = Format<C>::from((float)pw.v[j]);
        }
        store_pack(w, i, pw);
        if (n_state > 0 && s0) store_pack(s0, i, p0);
        if (n_state > 1) store_pack(s1, i, p1);
        if (ema) store_pack(ema, i, pe);
        if (copy) store_pack(copy, i, pc);
    }
}

template <class T, class G, class C, class P>
__device__ __forceinline__ void update(T* w, const G* g, T* s0, T* s1, T* ema, C* copy, size_t n, P params,
                                       const Segments& segments, double decay, int warms_up, u64 step, const double* scalars,
                                       float* sums, const double* sum_of_squares, double max_norm, float* report,
                                       const double* reported_squares, u64* gate) {
    __shared__ Formula<T> formulas[MAX_SEGMENTS];
    __shared__ Average<T> shared_average;
    __shared__ bool applies;
    if (report && blockIdx.x == 0) {
        const int n_sums = 16;
        if (threadIdx.x < n_sums) report[threadIdx.x] = sums[threadIdx.x];
        if (threadIdx.x == n_sums && reported_squares) *(double*)(report + n_sums) = *reported_squares;
    }
    if (threadIdx.x == 0 || threadIdx.x < segments.n) {
        bool is_first = threadIdx.x == 0, withheld = false;
        if (scalars) {
            UpdateInputs inputs = update_inputs(scalars, sums, sum_of_squares, max_norm);
            params.set(inputs);
            withheld = !inputs.applies;
            step = (u64)inputs.step;
        }
        if (segments.n) params.set_segment(segments, threadIdx.x);
        formulas[threadIdx.x] = Formula<T>::of(params, s0 != 0);
        if (is_first) {
            // Every block, so that a gate that closes meanwhile is seen in both numbers.
            if (gate) {
                bool is_closed = *(volatile u64*)gate;
                if (is_closed)
                    atomicCAS(gate + 2, (u64)0, step);
                else if (!withheld)
                    atomicMax(gate + 1, step);
                withheld |= is_closed;
            }
            applies = !withheld;
            shared_average = Average<T>::of(decay, warms_up, step);
        }
    }
    __syncthreads();
    if (!applies) return;
    Average<T> average = shared_average;
    const int per_pack = Pack<T>::size;
    bool is_packed = are_packed(w, s0, s1, ema) && ((size_t)g & (sizeof(G) * per_pack - 1)) == 0 &&
                     ((size_t)copy & (sizeof(C) * per_pack - 1)) == 0;
    // The last segment ends with the range.
    for (u32 k = 0; k + 1 < segments.n; k++) is_packed &= segments.ends[k] % per_pack == 0;
    size_t packed = is_packed ? n - n % per_pack : 0;
    bool is_bad = false;
    walk<per_pack>(formulas, segments, 0, average, w, g, s0, s1, ema, copy, packed, is_bad);
    walk<1>(formulas, segments, packed, average, w + packed, g + packed, s0 ? s0 + packed : s0, s1 ? s1 + packed : s1,
            ema ? ema + packed : ema, copy ? copy + packed : copy, n - packed, is_bad);
    // leave_sums reads it in the next step. In this launch the report copies it, whose last element nobody reads.
    if (is_bad && scalars) sums[15] = __uint_as_float(0x7fffffffu);
}

// Without a copy its type has no effect. The second bound, of blocks per SM, lets the compiler use 64 registers (128 in f64): left to
// itself it aims at more blocks and spills. Half the threads of an SM, with 16 bytes per access, keep its memory busy.
#define UPDATE(op, suffix, T, G, C)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 4 ? 4 : 2) op##_##suffix(                          \
        T* w, const G* g, T* s0, T* s1, T* ema, C* copy, size_t n, Params params, Segments segments, double decay,     \
        int warms_up, u64 step, const double* scalars, float* sums, const double* sum_of_squares,                      \
        double max_norm, float* report, const double* reported_squares, u64* gate) {                                   \
        update(w, g, s0, s1, ema, copy, n, params, segments, decay, warms_up, step, scalars, sums, sum_of_squares,     \
               max_norm, report, reported_squares, gate);                                                              \
    }
// All kernels of one update; grads_bf16: with gradients that were reduced in bf16.
#define UPDATES(op)                                              \
    ONLY_F32(UPDATE(op, f32, float, float, float))               \
    ONLY_F64(UPDATE(op, f64, double, double, float))             \
    ONLY_BF16(UPDATE(op, f32_bf16, float, float, bf16))          \
    ONLY_BF16(UPDATE(op, f64_bf16, double, double, bf16))        \
    ONLY_BF16(UPDATE(op, f32_grads_bf16, float, bf16, float))    \
    ONLY_BF16(UPDATE(op, f32_bf16_grads_bf16, float, bf16, bf16)) \
    ONLY_BF16(UPDATE(op, f32_f16_grads_bf16, float, bf16, f16))  \
    ONLY_F16(UPDATE(op, f32_f16, float, float, f16))             \
    ONLY_F16(UPDATE(op, f64_f16, double, double, f16))
