// layer_norm.cu: layer normalization and its gradients, by row_norm/rows.cuh.
// math   forward  y[n,c] <- h[n,c]*gamma[c] + beta[c], h = (x - mean[n])*rstd[n], rstd = 1/sqrt(variance + eps)
//         backward, with g = d*gamma: d <- rstd*(g - mean_c(g) - h*mean_c(g*h))
//                  d_gamma <- sum_n d*h, d_beta <- sum_n d, of the incoming d (+= if accumulate)
// twin    the functions `_cpu` in mod.rs next to this file

// fwd_blocks, bwd_blocks: blocks of 512 per multiprocessor that registers must suffice for.
#define ROWS(form, WHOLE, suffix, T, fwd_blocks, bwd_blocks)                                                           \
    extern "C" __global__ void __launch_bounds__(512, fwd_blocks) layer_norm_fwd_##form##_##suffix(                    \
        const T* x, const MATH(T)* gamma, const MATH(T)* beta, double eps, T* y, MATH(T)* mean, MATH(T)* rstd,         \
        size_t rows, size_t n) {                                                                                       \
        forward_rows<true, WHOLE>(x, gamma, beta, eps, y, mean, rstd, rows, n);                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, bwd_blocks) layer_norm_bwd_##form##_##suffix(                    \
        const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d, MATH(T)* d_gamma,            \
        MATH(T)* d_beta, size_t stride, size_t rows, size_t n, size_t chunk_rows, int accumulate) {                    \
        backward_rows<true, WHOLE>(x, gamma, mean, rstd, d, d_gamma, d_beta, stride, rows, n, chunk_rows, accumulate); \
    }
#define LAYER_NORM(suffix, T, fwd_blocks, bwd_blocks)                                                                  \
    ROWS(whole, true, suffix, T, fwd_blocks, bwd_blocks)                                                               \
    ROWS(any, false, suffix, T, 1, 1)                                                                                  \
    extern "C" __global__ void __launch_bounds__(512) layer_norm_bwd_parameters_##suffix(                              \
        const MATH(T)* partials, MATH(T)* d_gamma, MATH(T)* d_beta, size_t chunks, size_t n, int accumulate) {         \
        add_chunks(partials, d_gamma, d_beta, chunks, n, accumulate);                                                  \
    }
LAYER_NORM(f32, float, 2, 1)
LAYER_NORM(f64, double, 1, 1)
LAYER_NORM(bf16, bf16, 2, 2)
LAYER_NORM(f16, f16, 2, 2)
