// numeric_embedding.cu: periodic embeddings of columns, and their gradients.
// math   angle[n,f,k] = 2*pi*w[f,k]*x[n,f] + b[f,k]
//         fwd        y[n,f,0] <- x[n,f];  y[n,f,1+e] <- sum_k W[f,k,e]*cos(angle) + B[f,e]
//         bwd        a = -sin(angle) * sum_e d[n,f,1+e]*W[f,k,e];  d_w <- sum_n 2*pi*x*a, d_b <- sum_n a,
//                    d_W <- sum_n d[n,f,1+e]*cos(angle), d_B <- sum_n d[n,f,1+e]   (+ what is there if accumulate)
//         bwd_input  d_x <- d[n,f,0] + sum_k 2*pi*w*a   (+ d_x if accumulate)
// shapes  x, d_x: T[rows,F]; y, d: T[rows,F,1+E]; w, b: M[F,K]; W: M[F,K,E]; B: M[F,E]
// launch  fwd, bwd_input: grid-stride; bwd: block f*K + k for a cosine, then block f*E + e for a bias; block 256
// moved   x and y; the parameters stay in the cache: bound by the cosines
// order   bwd: sums over the threads of a block in a fixed order: bit-identical between runs
// twin    cpu.rs next to this file

#define TWO_PI 6.283185307179586

__device__ __forceinline__ float cosine(float x) { return cosf(x); }
__device__ __forceinline__ double cosine(double x) { return cos(x); }
__device__ __forceinline__ float sine(float x) { return sinf(x); }
__device__ __forceinline__ double sine(double x) { return sin(x); }

template <class T> struct Embedding {
    typedef MATH(T) M;
    const M *w, *b, *weight, *bias;
    size_t F, K, E;

    __device__ __forceinline__ M angle(size_t k, M x) const { return (M)TWO_PI * w[k] * x + b[k]; }
    // Gradient of the angle; d: those of the E outputs.
    __device__ __forceinline__ M of_angle(size_t k, M x, const T* d) const {
        M sum = 0;
        for (size_t e = 0; e < E; e++) sum += (M)to_float(d[e]) * weight[k * E + e];
        return -sum * sine(angle(k, x));
    }
};

template <class T> __device__ void forward(const T* x, Embedding<T> p, T* y, size_t n) {
    typedef MATH(T) M;
    size_t width = 1 + p.E;
    for (size_t i = first_element(); i < n; i += grid_stride()) {
        size_t at = i / width, j = i % width, f = at % p.F;
        if (j == 0) {
            y[i] = x[at];
            continue;
        }
        M value = to_float(x[at]), sum = p.bias[f * p.E + j - 1];
        for (size_t k = f * p.K; k < (f + 1) * p.K; k++) sum += p.weight[k * p.E + j - 1] * cosine(p.angle(k, value));
        y[i] = Format<T>::from(sum);
    }
}

template <class M> __device__ __forceinline__ void leave(M* to, M sum, int accumulate) {
    if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
}

template <class T>
__device__ void backward(const T* x, Embedding<T> p, const T* d, size_t rows, MATH(T)* d_w, int add_w, MATH(T)* d_b, int add_b,
                         MATH(T)* d_weight, int add_weight, MATH(T)* d_bias, int add_bias) {
    typedef MATH(T) M;
    __shared__ M scratch[WARP];
    size_t width = 1 + p.E;
    if (blockIdx.x >= p.F * p.K) {
        size_t i = blockIdx.x - p.F * p.K, f = i / p.E, e = i % p.E;
        M sum = 0;
        for (size_t n = threadIdx.x; n < rows; n += blockDim.x) sum += (M)to_float(d[(n * p.F + f) * width + 1 + e]);
        leave(d_bias + i, block_sum(sum, scratch), add_bias);
        return;
    }
    size_t k = blockIdx.x, f = k / p.K;
    M of_w = 0, of_b = 0;
    for (size_t n = threadIdx.x; n < rows; n += blockDim.x) {
        size_t at = n * p.F + f;
        M value = to_float(x[at]), a = p.of_angle(k, value, d + at * width + 1);
        of_w += (M)TWO_PI * value * a;
        of_b += a;
    }
    leave(d_w + k, block_sum(of_w, scratch), add_w);
    leave(d_b + k, block_sum(of_b, scratch), add_b);
    for (size_t e = 0; e < p.E; e++) {
        M sum = 0;
        for (size_t n = threadIdx.x; n < rows; n += blockDim.x) {
            size_t at = n * p.F + f;
            sum += (M)to_float(d[at * width + 1 + e]) * cosine(p.angle(k, (M)to_float(x[at])));
        }
        leave(d_weight + k * p.E + e, block_sum(sum, scratch), add_weight);
    }
}

template <class T> __device__ void backward_input(const T* x, Embedding<T> p, const T* d, T* d_x, size_t n, int accumulate) {
    typedef MATH(T) M;
    for (size_t i = first_element(); i < n; i += grid_stride()) {
        size_t f = i % p.F;
        const T* of_x = d + i * (1 + p.E);
        M value = to_float(x[i]), sum = to_float(of_x[0]);
        if (accumulate) sum += (M)to_float(d_x[i]);
        for (size_t k = f * p.K; k < (f + 1) * p.K; k++) sum += (M)TWO_PI * p.w[k] * p.of_angle(k, value, of_x + 1);
        d_x[i] = Format<T>::from(sum);
    }
}

// The second bound, of blocks per SM, lets the compiler use 64 registers (128 in f64): left to itself, that of CUDA 12 spills on sm_100.
#define NUMERIC_EMBEDDING(suffix, T)                                                                                     \
    extern "C" __global__ void numeric_embedding_fwd_##suffix(const T* x, const MATH(T)* w, const MATH(T)* b,             \
                                                              const MATH(T)* weight, const MATH(T)* bias, size_t F,      \
                                                              size_t K, size_t E, T* y, size_t n) {                      \
        Embedding<T> p = {w, b, weight, bias, F, K, E};                                                                  \
        forward<T>(x, p, y, n);                                                                                          \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, sizeof(MATH(T)) == 4 ? 4 : 2) numeric_embedding_bwd_##suffix(       \
        const T* x, const MATH(T)* w, const MATH(T)* b, const MATH(T)* weight, const MATH(T)* bias, size_t F, size_t K,  \
        size_t E, const T* d, size_t rows, MATH(T)* d_w, int add_w, MATH(T)* d_b, int add_b, MATH(T)* d_weight,          \
        int add_weight, MATH(T)* d_bias, int add_bias) {                                                                 \
        Embedding<T> p = {w, b, weight, bias, F, K, E};                                                                  \
        backward<T>(x, p, d, rows, d_w, add_w, d_b, add_b, d_weight, add_weight, d_bias, add_bias);                      \
    }                                                                                                                    \
    extern "C" __global__ void numeric_embedding_bwd_input_##suffix(                                                     \
        const T* x, const MATH(T)* w, const MATH(T)* b, const MATH(T)* weight, const MATH(T)* bias, size_t F, size_t K,  \
        size_t E, const T* d, T* d_x, size_t n, int accumulate) {                                                        \
        Embedding<T> p = {w, b, weight, bias, F, K, E};                                                                  \
        backward_input<T>(x, p, d, d_x, n, accumulate);                                                                  \
    }
NUMERIC_EMBEDDING(f32, float)
NUMERIC_EMBEDDING(f64, double)
NUMERIC_EMBEDDING(bf16, bf16)
NUMERIC_EMBEDDING(f16, f16)
