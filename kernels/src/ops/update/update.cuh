// update.cuh: the skeleton of an update of a flat range of parameters, in place. It precedes the text of each update, which has
//   struct Params      hyper-parameters, as the host passes them; set(inputs) takes those that a step reads from device memory
//   Formula<T>         the numbers of one step; n_state: number of state tensors;
//                      of(params, has_state) computes them, once per block, in double;
//                      formula(w, g, s): the new w; s: the element's state, in place
//   UPDATE(op, suffix, T, C)   one line per kernel op_suffix
// shapes  w, g, s0, s1: T[n], the state may be null; copy: C[n] or null, w rounded: bf16 or f16; scalars: f64[10] or null;
//         sums: f32[16]; sum_of_squares: f64[1] or null
// launch  grid-stride over n, 16 bytes per access if the pointers allow it, block 256; any n
// order   elementwise: bit-identical between runs
// twin    cpu.rs and inputs.rs next to this file

struct Params;
template <class T> struct Formula;

// N elements per access.
template <int N, class T, class C>
__device__ __forceinline__ void walk(const Formula<T>& formula, T* w, const T* g, T* s0, T* s1, C* copy, size_t n) {
    const int n_state = Formula<T>::n_state;
    for (size_t i = first_element(); i < n / N; i += grid_stride()) {
        Pack<T, N> pw = load_pack<N>(w, i), pg = load_pack<N>(g, i), p0 = {}, p1 = {};
        if (n_state > 0 && s0) p0 = load_pack<N>(s0, i);
        if (n_state > 1) p1 = load_pack<N>(s1, i);
        Pack<C, N> pc;
#pragma unroll
        for (int j = 0; j < N; j++) {
            T s[2] = {p0.v[j], p1.v[j]};
            pw.v[j] = formula(pw.v[j], pg.v[j], s);
            p0.v[j] = s[0];
            p1.v[j] = s[1];
            pc.v[j] = Format<C>::from((float)pw.v[j]);
        }
        store_pack(w, i, pw);
        if (n_state > 0 && s0) store_pack(s0, i, p0);
        if (n_state > 1) store_pack(s1, i, p1);
        if (copy) store_pack(copy, i, pc);
    }
}

template <class T, class C, class P>
__device__ __forceinline__ void update(T* w, const T* g, T* s0, T* s1, C* copy, size_t n, P params, const double* scalars,
                                       const float* sums, const double* sum_of_squares, double max_norm) {
    __shared__ Formula<T> shared;
    __shared__ bool applies;
    if (threadIdx.x == 0) {
        applies = true;
        if (scalars) {
            UpdateInputs inputs = update_inputs(scalars, sums, sum_of_squares, max_norm);
            params.set(inputs);
            applies = inputs.applies;
        }
        shared = Formula<T>::of(params, s0 != 0);
    }
    __syncthreads();
    if (!applies) return;
    Formula<T> formula = shared;
    const int per_pack = Pack<T>::size;
    size_t packed = are_packed(w, g, s0, s1) && ((size_t)copy & (sizeof(C) * per_pack - 1)) == 0 ? n - n % per_pack : 0;
    walk<per_pack>(formula, w, g, s0, s1, copy, packed);
    walk<1>(formula, w + packed, g + packed, s0 ? s0 + packed : s0, s1 ? s1 + packed : s1, copy ? copy + packed : copy,
            n - packed);
}

// Without a copy its type has no effect.
#define UPDATE(op, suffix, T, C)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) op##_##suffix(                                                  \
        T* w, const T* g, T* s0, T* s1, C* copy, size_t n, Params params, const double* scalars, const float* sums,   \
        const double* sum_of_squares, double max_norm) {                                                              \
        update(w, g, s0, s1, copy, n, params, scalars, sums, sum_of_squares, max_norm);                               \
    }
