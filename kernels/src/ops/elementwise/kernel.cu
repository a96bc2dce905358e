// elementwise.cu: elementwise operations, comparisons and selection.
// math   out[i] <- op(a[i], b[i]); the numbers of op are the variants of MapOp and CompareOp in mod.rs
// shapes  out: T[n]; a, b: element place(i) of T[len * outer_len], or one value; computed in float, double or i64
// launch  grid-stride over n, block 256; any n
// moved   1 or 2 values read, 1 written per element: memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

// The scalar in the type of the third argument.
__device__ __forceinline__ float of_scalar(double real, i64, float) { return (float)real; }
__device__ __forceinline__ double of_scalar(double real, i64, double) { return real; }
__device__ __forceinline__ i64 of_scalar(double, i64 whole, i64) { return whole; }

// The element of a broadcast operand for element i of n, see Cycle in broadcast.rs.
__device__ __forceinline__ size_t place(size_t i, size_t n, size_t div, size_t len, size_t outer_div, size_t outer_len) {
    size_t inner = len == n ? i : i / div % len;
    return outer_len == 1 ? inner : inner + i / outer_div % outer_len * len;
}
template <class T> struct Operand {
    const T* x;
    size_t div, len, outer_div, outer_len;
    typename Number<T>::math value;
    __device__ __forceinline__ typename Number<T>::math at(size_t i, size_t n) const {
        if (!x) return value;
        return Number<T>::get(x[place(i, n, div, len, outer_div, outer_len)]);
    }
};
template <class T>
__device__ __forceinline__ Operand<T> operand(const T* x, size_t div, size_t len, size_t outer_div, size_t outer_len,
                                              double real, i64 whole) {
    Operand<T> o = {x, div, len, outer_div, outer_len, of_scalar(real, whole, (typename Number<T>::math)0)};
    return o;
}

template <class M> __device__ __forceinline__ M real_map(int op, M a, M b) {
    switch (op) {
        case 0: return -a;
        case 1: return exp(a);
        case 2: return log(a);
        case 3: return sqrt(a);
        case 4: return fabs(a);
        case 5: return a + b;
        case 6: return a - b;
        case 7: return a * b;
        case 8: return a / b;
        case 9: return pow(a, b);
        case 10: return a > b || a != a ? a : b;
        case 11: return a < b || a != a ? a : b;
        case 12: return sin(a);
        case 13: return cos(a);
        case 14: return floor(a);
        case 15: return ceil(a);
        default: return rint(a);
    }
}
__device__ __forceinline__ float apply(int op, float a, float b) { return real_map(op, a, b); }
__device__ __forceinline__ double apply(int op, double a, double b) { return real_map(op, a, b); }
// Unsigned arithmetic wraps.
__device__ __forceinline__ i64 apply(int op, i64 a, i64 b) {
    switch (op) {
        case 0: return (i64)(0 - (u64)a);
        case 4: return a < 0 ? (i64)(0 - (u64)a) : a;
        case 5: return (i64)((u64)a + (u64)b);
        case 6: return (i64)((u64)a - (u64)b);
        case 7: return (i64)((u64)a * (u64)b);
        case 10: return a > b ? a : b;
        case 11: return a < b ? a : b;
        default: return a;  // floor, ceil, round
    }
}
template <class M> __device__ __forceinline__ u8 holds(int op, M a, M b) {
    switch (op) {
        case 0: return a == b;
        case 1: return a < b;
        case 2: return a > b;
        case 3: return a != b;
        case 4: return a <= b;
        default: return a >= b;
    }
}

#define OPERAND(T, x) \
    const T *x, size_t x##_div, size_t x##_len, size_t x##_outer_div, size_t x##_outer_len, double x##_real, i64 x##_whole
#define GIVEN(x) operand(x, x##_div, x##_len, x##_outer_div, x##_outer_len, x##_real, x##_whole)
#define ELEMENTWISE(name, T)                                                                                            \
    extern "C" __global__ void map_##name(int op, OPERAND(T, a), OPERAND(T, b), T* out, size_t n) {                     \
        Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                          \
        for (size_t i = first_element(); i < n; i += grid_stride())                                                     \
            out[i] = Number<T>::put(apply(op, x.at(i, n), y.at(i, n)));                                                 \
    }                                                                                                                   \
    extern "C" __global__ void compare_##name(int op, OPERAND(T, a), OPERAND(T, b), u8* out, size_t n) {                \
        Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                          \
        for (size_t i = first_element(); i < n; i += grid_stride()) out[i] = holds(op, x.at(i, n), y.at(i, n));         \
    }                                                                                                                   \
    extern "C" __global__ void select_##name(const u8* condition, size_t div, size_t len, size_t outer_div,             \
                                             size_t outer_len, OPERAND(T, a), OPERAND(T, b), T* out, size_t n) {        \
        Operand<T> x = GIVEN(a), y = GIVEN(b);                                                                          \
        for (size_t i = first_element(); i < n; i += grid_stride()) {                                                   \
            bool holds = condition[place(i, n, div, len, outer_div, outer_len)];                                        \
            out[i] = Number<T>::put(holds ? x.at(i, n) : y.at(i, n));                                                   \
        }                                                                                                               \
    }
ELEMENTWISE(f32, float)
ELEMENTWISE(f64, double)
ELEMENTWISE(bf16, bf16)
ELEMENTWISE(f16, f16)
ELEMENTWISE(int64, i64)
ELEMENTWISE(int32, int)
ELEMENTWISE(int8, u8)
ELEMENTWISE(int1, truth)
