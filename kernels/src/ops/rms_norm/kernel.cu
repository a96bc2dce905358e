// rms_norm.cu: root mean square normalization and its gradients, by row_norm/rows.cuh.
// math   forward  y[n,c] <- x[n,c]*rstd[n]*gamma[c], rstd = 1/sqrt(mean_c(x^2) + eps)
//         backward, with g = d*gamma and h = x*rstd: d <- rstd*(g - h*mean_c(g*h)); d_gamma <- sum_n d*h, of the incoming d
//         (+= if accumulate)
// twin    the functions `_cpu` in mod.rs next to this file

// fwd_blocks, bwd_blocks: blocks of 512 per multiprocessor that registers must suffice for.
#define ROWS(form, WHOLE, suffix, T, fwd_blocks, bwd_blocks)                                                           \
    extern "C" __global__ void __launch_bounds__(512, fwd_blocks) rms_norm_fwd_##form##_##suffix(                      \
        const T* x, const MATH(T)* gamma, double eps, T* y, MATH(T)* rstd, size_t rows, size_t n) {                    \
        forward_rows<false, WHOLE>(x, gamma, (const MATH(T)*)0, eps, y, (MATH(T)*)0, rstd, rows, n);                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, bwd_blocks) rms_norm_bwd_##form##_##suffix(                      \
        const T* x, const MATH(T)* gamma, const MATH(T)* rstd, T* d, MATH(T)* d_gamma, size_t stride, size_t rows,     \
        size_t n, size_t chunk_rows, int accumulate) {                                                                 \
        backward_rows<false, WHOLE>(x, gamma, (const MATH(T)*)0, rstd, d, d_gamma, (MATH(T)*)0, stride, rows, n,       \
                                    chunk_rows, accumulate);                                                           \
    }
#define RMS_NORM(suffix, T, fwd_blocks, bwd_blocks)                                                                    \
    ROWS(whole, true, suffix, T, fwd_blocks, bwd_blocks)                                                               \
    ROWS(any, false, suffix, T, 1, 1)                                                                                  \
    extern "C" __global__ void __launch_bounds__(512) rms_norm_bwd_parameters_##suffix(                                \
        const MATH(T)* partials, MATH(T)* d_gamma, size_t chunks, size_t n, int accumulate) {                          \
        add_chunks(partials, d_gamma, (MATH(T)*)0, chunks, n, accumulate);                                             \
    }
RMS_NORM(f32, float, 2, 1)
RMS_NORM(f64, double, 1, 1)
RMS_NORM(bf16, bf16, 2, 2)
RMS_NORM(f16, f16, 2, 2)
