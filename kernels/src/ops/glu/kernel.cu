// glu.cu: gated linear units without their matmul, and the gradient; the functions are in activation/functions.cuh.
// math   a = x[n, c], b = x[n, cols + c]
//         forward  y[n, c] <- f(a)*b
//         backward d_x[n, c] <- d[n, c]*b*f'(a), d_x[n, cols + c] <- d[n, c]*f(a)
// shapes  x, d_x: T[rows, 2*cols]; y, d: T[rows, cols]
// launch  row_walk over 16 bytes per access if rows and pointers allow it, else over elements; block 256; any shape
// moved   forward 3 values per element of y, backward 5: memory-bound
// order   elementwise: bit-identical between runs
// twin    cpu.rs next to this file

template <class F, class T, int N>
__device__ void glu_forward(const T* __restrict__ x, T* __restrict__ y, size_t rows, size_t cols, u32 log2_width) {
    RowWalk at = row_walk(log2_width);
    size_t items = cols / N;
    for (size_t row = at.row; row < rows; row += at.row_stride) {
        const T* of_row = x + 2 * row * cols;
        for (size_t i = at.item; i < items; i += at.item_stride) {
            Pack<T, N> a = load_pack<N>(of_row, i), b = load_pack<N>(of_row + cols, i);
#pragma unroll
            for (int j = 0; j < N; j++) a.v[j] = Format<T>::from(F::value(to_float(a.v[j])) * to_float(b.v[j]));
            store_pack(y + row * cols, i, a);
        }
    }
}

template <class F, class T, int N>
__device__ void glu_backward(const T* __restrict__ x, const T* __restrict__ d, T* __restrict__ d_x, size_t rows, size_t cols,
                             u32 log2_width) {
    typedef MATH(T) M;
    RowWalk at = row_walk(log2_width);
    size_t items = cols / N;
    for (size_t row = at.row; row < rows; row += at.row_stride) {
        const T* of_row = x + 2 * row * cols;
        T* d_of_row = d_x + 2 * row * cols;
        for (size_t i = at.item; i < items; i += at.item_stride) {
            Pack<T, N> a = load_pack<N>(of_row, i), b = load_pack<N>(of_row + cols, i), g = load_pack<N>(d + row * cols, i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                M input = to_float(a.v[j]), one = to_float(g.v[j]);
                a.v[j] = Format<T>::from(one * to_float(b.v[j]) * F::derivative(input));
                b.v[j] = Format<T>::from(one * F::value(input));
            }
            store_pack(d_of_row, i, a);
            store_pack(d_of_row + cols, i, b);
        }
    }
}

#define GLU(name, F, suffix, T, N)                                                                                        \
    extern "C" __global__ void name##_fwd_##suffix(const T* x, T* y, size_t rows, size_t cols, u32 log2_width) {          \
        glu_forward<F, T, N>(x, y, rows, cols, log2_width);                                                               \
    }                                                                                                                     \
    extern "C" __global__ void name##_bwd_##suffix(const T* x, const T* d, T* d_x, size_t rows, size_t cols, u32 log2_width) { \
        glu_backward<F, T, N>(x, d, d_x, rows, cols, log2_width);                                                         \
    }
#define GATE(name, F)                                   \
    ONLY_F32(GLU(name, F, f32, float, 1))               \
    ONLY_F32(GLU(name, F, f32_by_16_bytes, float, 4))   \
    ONLY_F64(GLU(name, F, f64, double, 1))              \
    ONLY_F64(GLU(name, F, f64_by_16_bytes, double, 2))  \
    ONLY_BF16(GLU(name, F, bf16, bf16, 1))              \
    ONLY_BF16(GLU(name, F, bf16_by_16_bytes, bf16, 8))  \
    ONLY_F16(GLU(name, F, f16, f16, 1))                 \
    ONLY_F16(GLU(name, F, f16_by_16_bytes, f16, 8))
GATE(swiglu, Silu)
GATE(geglu, Gelu)
GATE(reglu, Relu)
