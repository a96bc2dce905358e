// elementwise.cu: elementwise operations, comparisons and selection.
// math   out[i] <- op(a[i], b[i]); the numbers of op are the variants of MapOp and CompareOp in mod.rs
// shapes  out: T[n]; a, b: element place(i) of T[len * outer_len], or one value; computed in float, double or i64
// launch  grid-stride over n, 16 bytes per access if pointers and broadcasting allow it, block 256; any n
// moved   1 or 2 values read, 1 written per element: memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

// The scalar in the type of the third argument.
__device__ __forceinline__ float of_scalar(double real, i64, float) { return (float)real; }
__device__ __forceinline__ double of_scalar(double real, i64, double) { return real; }
__device__ __forceinline__ i64 of_scalar(double, i64 whole, i64) { return whole; }

// The element of a broadcast operand for element i of n, see Cycle in broadcast.rs.
__device__ __forceinline__ size_t place(size_t i, size_t n, size_t div, size_t len, size_t outer_div, size_t outer_len) {
    size_t inner = len == n ? i : len == 1 ? 0 : (div == 1 ? i : i / div) % len;
    return outer_len == 1 ? inner : inner + i / outer_div % outer_len * len;
}
// Elements at a time. Bytes are computed as i64, of which 16 would take too many registers.
template <class T> struct PerAccess {
    static const int n = sizeof(T) == 1 ? 4 : 16 / sizeof(T);
};
// Where the elements of a broadcast operand are. N adjacent elements of the result, from a multiple of N on, read N adjacent
// elements, or the same one N times, or (if !is_packed) are to be read one by one.
struct Cycle {
    size_t div, len, outer_div, outer_len;

    __device__ __forceinline__ size_t at(size_t i, size_t n) const { return place(i, n, div, len, outer_div, outer_len); }
    template <int N> __device__ __forceinline__ bool repeats() const {
        return N == 1 || div % N == 0 || (len == 1 && outer_len == 1);
    }
    template <int N, class T> __device__ __forceinline__ bool is_packed(const T* x) const {
        return repeats<N>() || (div == 1 && len % N == 0 && (size_t)x % sizeof(Pack<T, N>) == 0);
    }
    // Elements i to i + N - 1 of the result's n.
    template <int N, class T> __device__ __forceinline__ Pack<T, N> load(const T* x, size_t i, size_t n) const {
        Pack<T, N> v;
        if (!repeats<N>()) return load_pack<N>(x + at(i, n), 0);
        T one = x[at(i, n)];
#pragma unroll
        for (int j = 0; j < N; j++) v.v[j] = one;
        return v;
    }
};
template <class T> struct Operand {
    typedef typename Number<T>::math M;
    const T* x;
    Cycle cycle;
    M value;

    template <int N> __device__ __forceinline__ bool is_packed() const { return !x || cycle.is_packed<N>(x); }
    template <int N> __device__ __forceinline__ Pack<T, N> load(size_t i, size_t n) const {
        return x ? cycle.load<N>(x, i, n) : Pack<T, N>{};
    }
    // The number of what `load` returned.
    __device__ __forceinline__ M number(T loaded) const { return x ? Number<T>::get(loaded) : value; }
};
template <class T>
__device__ __forceinline__ Operand<T> operand(const T* x, size_t div, size_t len, size_t outer_div, size_t outer_len,
                                              double real, i64 whole) {
    Operand<T> o = {x, {div, len, outer_div, outer_len}, of_scalar(real, whole, (typename Number<T>::math)0)};
    return o;
}

// Long, and inlined for each element of an access they would be most of the code.
__device__ __noinline__ float power(float a, float b) { return powf(a, b); }
__device__ __noinline__ double power(double a, double b) { return pow(a, b); }
__device__ __noinline__ float sine(float a) { return sinf(a); }
__device__ __noinline__ double sine(double a) { return sin(a); }
__device__ __noinline__ float cosine(float a) { return cosf(a); }
__device__ __noinline__ double cosine(double a) { return cos(a); }
__device__ __noinline__ float log_1p(float a) { return log1pf(a); }
__device__ __noinline__ double log_1p(double a) { return log1p(a); }

// The operation is chosen once for all N elements; the results replace x.
#define EACH(value)                                     \
    {                                                   \
        _Pragma("unroll") for (int j = 0; j < N; j++) { \
            auto a = x[j], b = y[j];                    \
            (void)b;                                    \
            x[j] = value;                               \
        }                                               \
        break;                                          \
    }
template <int N, class M> __device__ __forceinline__ void apply(int op, M* x, const M* y) {
    switch (op) {
        case 0: EACH(-a)
        case 1: EACH(exp(a))
        case 2: EACH(log(a))
        case 3: EACH(sqrt(a))
        case 4: EACH(fabs(a))
        case 5: EACH(a + b)
        case 6: EACH(a - b)
        case 7: EACH(a * b)
        case 8: EACH(a / b)
        case 9: EACH(power(a, b))
        case 10: EACH(a > b || a != a ? a : b)
        case 11: EACH(a < b || a != a ? a : b)
        case 12: EACH(sine(a))
        case 13: EACH(cosine(a))
        case 14: EACH(floor(a))
        case 15: EACH(ceil(a))
        case 16: EACH(rint(a))
        default: EACH(log_1p(a))
    }
}
// Unsigned arithmetic wraps.
template <int N> __device__ __forceinline__ void apply(int op, i64* x, const i64* y) {
    switch (op) {
        case 0: EACH((i64)(0 - (u64)a))
        case 4: EACH(a < 0 ? (i64)(0 - (u64)a) : a)
        case 5: EACH((i64)((u64)a + (u64)b))
        case 6: EACH((i64)((u64)a - (u64)b))
        case 7: EACH((i64)((u64)a * (u64)b))
        case 10: EACH(a > b ? a : b)
        case 11: EACH(a < b ? a : b)
        default: break;  // floor, ceil, round
    }
}
template <class M> __device__ __forceinline__ u8 holds(int op, M a, M b) {
    bool less = a < b, equal = a == b, greater = a > b;
    switch (op) {
        case 0: return equal;
        case 1: return less;
        case 2: return greater;
        case 3: return !equal;
        case 4: return less || equal;
        default: return greater || equal;
    }
}

// N at a time, from element `begin` up to but not including `end`, of n.
template <int N, class T>
__device__ __forceinline__ void map(int op, const Operand<T>& a, const Operand<T>& b, T* out, size_t begin, size_t end, size_t n) {
    for (size_t i = begin + N * first_element(); i < end; i += N * grid_stride()) {
        Pack<T, N> v = a.template load<N>(i, n), w = b.template load<N>(i, n);
        typename Number<T>::math x[N], y[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            x[j] = a.number(v.v[j]);
            y[j] = b.number(w.v[j]);
        }
        apply<N>(op, x, y);
#pragma unroll
        for (int j = 0; j < N; j++) v.v[j] = Number<T>::put(x[j]);
        store_pack(out + i, 0, v);
    }
}
template <int N, class T>
__device__ __forceinline__ void compare(int op, const Operand<T>& a, const Operand<T>& b, u8* out, size_t begin, size_t end,
                                        size_t n) {
    for (size_t i = begin + N * first_element(); i < end; i += N * grid_stride()) {
        Pack<T, N> x = a.template load<N>(i, n), y = b.template load<N>(i, n);
        Pack<u8, N> v;
#pragma unroll
        for (int j = 0; j < N; j++) v.v[j] = holds(op, a.number(x.v[j]), b.number(y.v[j]));
        store_pack(out + i, 0, v);
    }
}
template <int N, class T>
__device__ __forceinline__ void select(const u8* condition, const Cycle& cycle, const Operand<T>& a, const Operand<T>& b, T* out,
                                       size_t begin, size_t end, size_t n) {
    for (size_t i = begin + N * first_element(); i < end; i += N * grid_stride()) {
        Pack<u8, N> is_a = cycle.load<N>(condition, i, n);
        Pack<T, N> x = a.template load<N>(i, n), y = b.template load<N>(i, n), v;
#pragma unroll
        for (int j = 0; j < N; j++) v.v[j] = Number<T>::put(is_a.v[j] ? a.number(x.v[j]) : b.number(y.v[j]));
        store_pack(out + i, 0, v);
    }
}
// The end of the elements that are accessed N at a time.
template <int N, class T, class O>
__device__ __forceinline__ size_t packed_end(const Operand<T>& a, const Operand<T>& b, const O* out, size_t n) {
    bool is_packed = a.template is_packed<N>() && b.template is_packed<N>() && (size_t)out % sizeof(Pack<O, N>) == 0;
    return is_packed ? n - n % N : 0;
}

#define OPERAND(T, x) \
    const T *x, size_t x##_div, size_t x##_len, size_t x##_outer_div, size_t x##_outer_len, double x##_real, i64 x##_whole
#define GIVEN(x) operand(x, x##_div, x##_len, x##_outer_div, x##_outer_len, x##_real, x##_whole)
#define ELEMENTWISE(name, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 8 ? 4 : 6)                                           \
        map_##name(int op, OPERAND(T, a), OPERAND(T, b), T* out, size_t n) {                                            \
        const int per_access = PerAccess<T>::n;                                                                         \
        const Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                    \
        size_t end = packed_end<per_access>(x, y, out, n);                                                              \
        map<per_access>(op, x, y, out, 0, end, n);                                                                      \
        map<1>(op, x, y, out, end, n, n);                                                                               \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 6)                                                                \
        compare_##name(int op, OPERAND(T, a), OPERAND(T, b), u8* out, size_t n) {                                       \
        const int per_access = PerAccess<T>::n;                                                                         \
        const Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                    \
        size_t end = packed_end<per_access>(x, y, out, n);                                                              \
        compare<per_access>(op, x, y, out, 0, end, n);                                                                  \
        compare<1>(op, x, y, out, end, n, n);                                                                           \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 2 ? 5 : 6)                                           \
        select_##name(const u8* condition, size_t div, size_t len, size_t outer_div, size_t outer_len, OPERAND(T, a),   \
                      OPERAND(T, b), T* out, size_t n) {                                                                \
        const int per_access = PerAccess<T>::n;                                                                         \
        const Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                    \
        const Cycle cycle = {div, len, outer_div, outer_len};                                                           \
        size_t end = cycle.is_packed<per_access>(condition) ? packed_end<per_access>(x, y, out, n) : 0;                 \
        select<per_access>(condition, cycle, x, y, out, 0, end, n);                                                     \
        select<1>(condition, cycle, x, y, out, end, n, n);                                                              \
    }
ELEMENTWISE(f32, float)
ELEMENTWISE(f64, double)
ELEMENTWISE(bf16, bf16)
ELEMENTWISE(f16, f16)
ELEMENTWISE(int64, i64)
ELEMENTWISE(int32, int)
ELEMENTWISE(int8, u8)
ELEMENTWISE(int1, truth)
