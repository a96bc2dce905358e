// addmm.cu: a matmul whose inner dimension is empty.
// math   c <- beta * c; with beta = 0, zero
// shapes  c: T[n]
// launch  grid-stride over n, block 256; any n
// order   elementwise: bit-identical between runs
template <class T> __device__ void scale(double beta, T* c, size_t n) {
    for (size_t i = first_element(); i < n; i += grid_stride())
        c[i] = Format<T>::from(beta == 0.0 ? (MATH(T))0 : (MATH(T))(beta * to_float(c[i])));
}
#define SCALE(name, T) \
    extern "C" __global__ void scale_##name(double beta, T* c, size_t n) { scale(beta, c, n); }
SCALE(f32, float)
SCALE(f64, double)
SCALE(bf16, bf16)
SCALE(f16, f16)
