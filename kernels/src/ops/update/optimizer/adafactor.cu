// adafactor.cu: the sums, factors and norm of a parameter's second moments, and the step of Adafactor; walk, launch and copy of the
// step are those of update.cuh.
// maths   sums:    sums[r] <- sums[r] + sum_c g[r,c]^2,  sums[rows+c] <- sums[rows+c] + sum_r g[r,c]^2, over the elements of a range
//         factors: m <- lerp(m, scale^2*sums/n, step^decay);  sums <- m, those of the rows divided by max(mean(m of rows), eps)
//         norm:    norm[0] <- norm[0] + sum_i g_i^2 / max(V_i, eps^2),  V[r,c] = factors[r]*factors[rows+c]
//         adafactor: w <- (1 - lr*wd)*w - a/max(1, scale*sqrt(norm/N)/clip) * scale*g/sqrt(max(V, eps^2)),
//                    a = max(eps2, sqrt(sum w^2 / N)) * min(lr, 1/sqrt(step))   (torch.optim.Adafactor, arXiv:1804.04235)
// shapes  g: G[n], elements start.. of a parameter [rows,cols], or [cols] if rows = 0; factors and sums: f64[rows+cols]
// moved   sums 8 B/element in f32 (4 of a vector), norm 4, adafactor 12 (read w g, write w), 14 with the copy: memory-bound
// order   fixed by start, n and the shape: bit-identical between runs

// AdafactorParams in adafactor.rs; factors: sum of w^2 in front.
struct Params {
    double lr, lr_scale, step, scale, weight_decay, eps, eps2, clip_threshold;
    size_t rows, cols, start;
    const double *factors, *norm;
    __device__ __forceinline__ void set(const UpdateInputs& inputs) {
        lr = inputs.lr;
        step = inputs.step;
        scale = inputs.scale;
    }
};

// The estimate of the second moment of element i.
template <class T>
__device__ __forceinline__ T estimate(const double* factors, size_t rows, size_t cols, size_t i) {
    if (rows == 0) return (T)factors[i];
    size_t row = i / cols;
    return (T)factors[row] * (T)factors[rows + i - row * cols];
}

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

template <class T> struct Formula {
    static const int n_state = 0;
    T keep, step_size, floor;
    size_t rows, cols, start;
    const double* factors;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr_scale * p.lr, n = (double)((p.rows ? p.rows : 1) * p.cols);
        double alpha = fmax(sqrt(p.factors[0] / n), p.eps2) * fmin(lr, 1 / sqrt(p.step));
        double clip = fmax(p.scale * sqrt(p.norm[0] / n) / p.clip_threshold, 1.0);
        Formula r;
        r.keep = 1 - lr * p.weight_decay;
        r.step_size = alpha / clip * p.scale;
        r.floor = p.eps * p.eps;
        r.rows = p.rows;
        r.cols = p.cols;
        r.start = p.start;
        r.factors = p.factors + 1;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T*, size_t i) const {
        T v = estimate<T>(factors, rows, cols, start + i);
        v = v < floor ? floor : v;
        return keep * w - step_size * g / root(v);
    }
};

UPDATES(adafactor)

// Block b < row_blocks: a warp per row; the other blocks: a tile of `width` columns each, their rows over 256 / width threads.
template <class G>
__device__ void adafactor_sums(const G* g, size_t start, size_t n, size_t rows, size_t cols, size_t row_blocks, size_t width, double* sums) {
    __shared__ double parts[256];
    size_t end = start + n, first_row = start / cols, last_row = (end - 1) / cols;
    if (blockIdx.x < row_blocks) {
        size_t row = first_row + blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
        double sum = 0;
        if (row <= last_row) {
            size_t from = row * cols, to = from + cols;
            from = from < start ? start : from;
            to = to > end ? end : to;
            for (size_t i = from + threadIdx.x % WARP; i < to; i += WARP) {
                double x = (double)to_float(g[i - start]);
                sum += x * x;
            }
        }
        sum = warp_sum(sum);
        if (row <= last_row && threadIdx.x % WARP == 0) sums[row] += sum;
        return;
    }
    size_t col = (blockIdx.x - row_blocks) * width + threadIdx.x % width, step = blockDim.x / width;
    double sum = 0;
    if (col < cols) {
        for (size_t row = first_row + threadIdx.x / width; row <= last_row; row += step) {
            size_t i = row * cols + col;
            if (i < start || i >= end) continue;
            double x = (double)to_float(g[i - start]);
            sum += x * x;
        }
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= width || col >= cols) return;
    for (size_t k = 1; k < step; k++) sum += parts[k * width + threadIdx.x];
    sums[rows + col] += sum;
}
#define SUMS(suffix, G)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) adafactor_sums_##suffix(const G* g, size_t start, size_t n, size_t rows, \
                                                                    size_t cols, size_t row_blocks, size_t width,    \
                                                                    double* out) {                                   \
        adafactor_sums(g, start, n, rows, cols, row_blocks, width, out);                                                       \
    }
SUMS(f32, float)
SUMS(f64, double)
SUMS(bf16, bf16)

// One block.
template <class T>
__device__ void adafactor_factors(T* moments, double* sums, size_t rows, size_t cols, double step, double scale, double decay, double eps,
                        const double* scalars, const float* step_sums, const double* sum_of_squares, double max_norm) {
    __shared__ double scratch[WARP];
    __shared__ UpdateInputs inputs;
    if (scalars) {
        if (threadIdx.x == 0) inputs = update_inputs(scalars, step_sums, sum_of_squares, max_norm);
        __syncthreads();
        if (!inputs.applies) return;
        step = inputs.step;
        scale = inputs.scale;
    }
    double weight = pow(step, decay), of_rows = 0;
    for (size_t k = threadIdx.x; k < rows + cols; k += blockDim.x) {
        double n = k < rows ? (double)cols : rows ? (double)rows : 1.0;
        double mean = sums[k] * scale * scale / n, old = moments[k], d = mean - old;
        T moment = weight < 0.5 ? old + weight * d : mean - d * (1 - weight);
        moments[k] = moment;
        sums[k] = moment;
        if (k < rows) of_rows += (double)moment;
    }
    double mean = fmax(block_sum(of_rows, scratch) / (double)rows, eps);
    for (size_t k = threadIdx.x; k < rows; k += blockDim.x) sums[k] /= mean;
}
#define FACTORS(suffix, T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) adafactor_factors_##suffix(                                                        \
        T* moments, double* sums, size_t rows, size_t cols, double step, double scale, double decay, double eps,               \
        const double* scalars, const float* step_sums, const double* sum_of_squares, double max_norm) {                        \
        adafactor_factors(moments, sums, rows, cols, step, scale, decay, eps, scalars, step_sums, sum_of_squares, max_norm);             \
    }
FACTORS(f32, float)
FACTORS(f64, double)

template <class G>
__device__ void adafactor_norm(const G* g, size_t start, size_t n, size_t rows, size_t cols, double eps, const double* factors, double* norm,
                     u32* counter, double* partials) {
    double of_thread = 0, total, floor = eps * eps;
    for (size_t i = first_element(); i < n; i += grid_stride()) {
        double x = (double)to_float(g[i]), v = estimate<double>(factors + 1, rows, cols, start + i);
        of_thread += x * x / (v < floor ? floor : v);
    }
    if (grid_sum(of_thread, &total, counter, partials) && threadIdx.x == 0) norm[0] += total;
}
#define NORM(suffix, G)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) adafactor_norm_##suffix(const G* g, size_t start, size_t n, size_t rows, \
                                                                    size_t cols, double eps, const double* factors,  \
                                                                    double* out, u32* counter, double* partials) {   \
        adafactor_norm(g, start, n, rows, cols, eps, factors, out, counter, partials);                                         \
    }
NORM(f32, float)
NORM(f64, double)
NORM(bf16, bf16)
