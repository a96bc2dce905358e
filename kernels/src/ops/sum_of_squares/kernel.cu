// sum_of_squares.cu: the sum of squares of a buffer, for norms.
// math   out[0] <- sum_i x[i]^2 (+ out[0] if accumulate)
// shapes  x: T[n]; out: f64[1]
// launch  one-dimensional grid of at most 512 blocks, block 256, 16 bytes per access if the pointer allows it; any n
// moved   1 value per element: memory-bound
// order   the elements of 16 bytes are summed in T's precision (bf16, f16: f32), everything else in f64; the elements of each
//         thread and block, and so the bits, depend on n only: not on the run, the device or the address
// twin    the functions `_cpu` in mod.rs next to this file

template <class T> __device__ __forceinline__ double squares(Pack<T> v) {
    MATH(T) sum = 0;
#pragma unroll
    for (int j = 0; j < Pack<T>::size; j++) sum = fused(to_float(v.v[j]), to_float(v.v[j]), sum);
    return (double)sum;
}
template <class T, bool packed> __device__ __forceinline__ double sum_of(const T* x, size_t n) {
    const size_t packs = n / Pack<T>::size, stride = grid_stride();
    double sum = 0;
    size_t i = first_element();
    for (; i + 3 * stride < packs; i += 4 * stride) {
        Pack<T> a = load_elements<packed>(x, i), b = load_elements<packed>(x, i + stride);
        Pack<T> c = load_elements<packed>(x, i + 2 * stride), d = load_elements<packed>(x, i + 3 * stride);
        sum += squares(a) + squares(b) + (squares(c) + squares(d));
    }
    for (; i < packs; i += stride) sum += squares(load_elements<packed>(x, i));
    // Fewer elements than threads are left.
    i = packs * Pack<T>::size + first_element();
    if (i < n) sum += (double)(to_float(x[i]) * to_float(x[i]));
    return sum;
}

template <class T>
__device__ void sum_of_squares(const T* x, size_t n, double* out, int accumulate, u32* counter, double* partials) {
    double sum = are_packed(x) ? sum_of<T, true>(x, n) : sum_of<T, false>(x, n);
    double total;
    if (grid_sum(sum, &total, counter, partials) && threadIdx.x == 0) out[0] = accumulate ? out[0] + total : total;
}
#define SUM_OF_SQUARES(suffix, T)                                                                                      \
    extern "C" __global__ void sum_of_squares_##suffix(const T* x, size_t n, double* out, int accumulate, u32* counter, \
                                                       double* partials) {                                             \
        sum_of_squares(x, n, out, accumulate, counter, partials);                                                      \
    }
SUM_OF_SQUARES(f32, float)
SUM_OF_SQUARES(f64, double)
SUM_OF_SQUARES(bf16, bf16)
SUM_OF_SQUARES(f16, f16)
