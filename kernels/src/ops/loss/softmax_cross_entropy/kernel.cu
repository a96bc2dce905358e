// softmax_cross_entropy.cu: softmax, cross-entropy, its gradient and its sums in one launch.
// math   p = softmax(x[row]); y the row's label; v its weight, w class weights (1 without); e the smoothing
//         loss <- v*w[y] * (-(1 - e)*ln p[y] - e/C * sum_c ln p[c]), weight v*w[y];   tail <- their sums over the rows
//         d[c] <- scale * v*w[y] * (p[c] - (c == y)*(1 - e) - e/C)
//         if FOCAL is 1, the loss times (1 - p[y])^gamma, and its gradient
//         an ignored row or one of weight 0 adds nothing, and d = 0; a label outside 0..C: loss NaN, and d = 0
// shapes  logits: T[rows, C]; labels: i64[rows]; weights: M[C] or null; row_weights: f32[rows], used if ROW_WEIGHTS is 1;
//         d: D[rows, C] or null; tail: f32[16]; extra: f64[1] or null, copied after the sums
// launch  few   C <= 32:    8 lanes per row, block 256, a row in registers
//         some  C <= 1024:  a warp per row, block 256, a row in registers; not in f64
//         many              a block per row: of as few threads, at least 64, as hold it in 32 registers each; of 512, which read it
//                           twice, if C > 16384, in f64 8192
//         16 bytes per access in some and many if the rows are aligned, else one value
//         all: grid-stride over rows, at most as many blocks as there are partial sums
// moved   2 values per element (read x, write d): memory-bound; longer rows are read twice, the second time partly from L2
// order   sums over a row by lanes, over rows in f64 by thread, block and then blocks in order: bit-identical between
//         runs; one atomic per block
// twin    cpu.rs next to this file

#ifndef ROW_WEIGHTS
#define ROW_WEIGHTS 0
#endif
#ifndef FOCAL
#define FOCAL 0
#endif
// Most threads of a block that processes one row, and bytes of it that each holds, the same constants as in cuda.rs.
#define MANY_THREADS 512
#define HELD_BYTES 128
// Lanes of a row: the threads of its block.
#define BLOCK_WIDE (2 * WARP)

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
// Less than every logit except minus infinity, and finite, so that it can be subtracted.
template <class M> struct Lowest;
template <> struct Lowest<float> {
    static __device__ __forceinline__ float value() { return -3.4028234663852886e38f; }
};
template <> struct Lowest<double> {
    static __device__ __forceinline__ double value() { return -1.7976931348623157e308; }
};
__device__ __forceinline__ double not_a_number() { return (double)__uint_as_float(0x7fc00000u); }

// Numbers shared by all rows.
template <class M> struct Rule {
    const M* weights;
    const float* row_weights;
    i64 ignore_index;
    M smoothing, scale;
    M spread;     // share of a smoothed target per class
    M n_classes;
    M gamma;      // used if FOCAL is 1
};
template <class M>
__device__ __forceinline__ Rule<M> rule_of(const M* weights, const float* row_weights, size_t n, i64 ignore_index,
                                           double smoothing, double gamma, double scale) {
    Rule<M> rule = {weights, row_weights, ignore_index, (M)smoothing, (M)scale, (M)smoothing / (M)n, (M)n, (M)gamma};
    return rule;
}

// Target of a row.
template <class M> struct Target {
    bool counts;
    size_t label;
    M weight, hit;
    M spread;  // the rule's, times the weight
};
// Adds NaN to `loss` for an invalid label of a row that counts.
template <class M>
__device__ __forceinline__ Target<M> target_of(const Rule<M>& rule, const i64* labels, size_t row, size_t n, double& loss) {
    i64 label = labels[row];
    bool is_class = label >= 0 && (u64)label < n;
    M row_weight = !ROW_WEIGHTS || (FOCAL && !rule.row_weights) ? (M)1 : (M)rule.row_weights[row];
    bool counts = label != rule.ignore_index && row_weight != 0;
    Target<M> t = {is_class && counts, is_class ? (size_t)label : 0, 0, 0, rule.spread};
    if (t.counts) {
        t.weight = rule.weights ? rule.weights[t.label] : (M)1;
        if (ROW_WEIGHTS) t.weight *= row_weight;
        t.hit = (1 - rule.smoothing) * t.weight;
        t.spread *= t.weight;
    } else if (counts) {
        loss += not_a_number();
    }
    return t;
}
// The focal loss of a row with loss `loss` and probability p of the label; t becomes the target that gives its gradient: with
// m = 1 - p it is m^gamma * d(loss) + gamma*m^(gamma-1)*loss*p * (softmax - label).
template <class M> __device__ __forceinline__ M focused(const Rule<M>& rule, Target<M>& t, M loss, M p) {
    M missing = 1 - p;
    // 0 also for a NaN, which the exponentials show.
    M factor = missing > 0 ? exponential(rule.gamma * logarithm(missing)) : (M)0;
    t.hit = t.hit * factor + (missing > 0 ? rule.gamma * factor / missing * p * loss : (M)0);
    t.spread *= factor;
    return loss * factor;
}
// A row's gradient from some element on.
template <class M> struct Gradient {
    i64 label;  // relative to that element
    M mass, hit, spread;
    bool counts;
    // The gradient of element i; p: exponential of its logit.
    __device__ __forceinline__ M at(i64 i, M p) const {
        if (!counts) return 0;
        M d = p * mass;
        if (i == label) d -= hit;
        if (spread != 0) d -= spread;
        return d;
    }
};
template <class M>
__device__ __forceinline__ Gradient<M> gradient_of(const Rule<M>& rule, const Target<M>& t, M exp_sum, i64 label) {
    Gradient<M> g = {label, (t.hit + t.spread * rule.n_classes) * rule.scale / exp_sum, t.hit * rule.scale,
                     t.spread * rule.scale, t.counts};
    return g;
}

template <int LANES, class M> __device__ __forceinline__ M lanes_sum(M v) {
    for (int o = LANES / 2; o; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}
template <int LANES, class M> __device__ __forceinline__ M lanes_max(M v) {
    for (int o = LANES / 2; o; o >>= 1) {
        M w = __shfl_xor_sync(ALL_LANES, v, o);
        v = w > v ? w : v;
    }
    return v;
}
// Over the lanes of a row: part of a warp, or a whole block, which needs scratch memory.
template <int LANES, class M> __device__ __forceinline__ M row_sum(M v, M* scratch) {
    if constexpr (LANES > WARP) return block_sum(v, scratch);
    else return lanes_sum<LANES>(v);
}
template <int LANES, class M> __device__ __forceinline__ M row_max(M v, M* scratch) {
    if constexpr (LANES > WARP) return block_max(v, scratch);
    else return lanes_max<LANES>(v);
}

// Rows of at most LANES * HELD elements, LANES lanes each, or all lanes of a block if BLOCK_WIDE, N elements per access. All lanes of a
// warp, or of a block if that is a row's, iterate together. Indices within a row are ints relative to the lane's first element, which costs one register for all of
// them.
template <int LANES, int HELD, int N, class T, class D>
__device__ __forceinline__ void rows_in_registers(const T* logits, const i64* labels, D* d, size_t rows, size_t n,
                                                  const Rule<MATH(T)>& rule, MATH(T)* scratch, double& loss_sum,
                                                  double& weight_sum) {
    typedef MATH(T) M;
    const int lanes = LANES == BLOCK_WIDE ? blockDim.x : LANES, step = lanes * N;
    const int start = threadIdx.x % lanes * N, left = (int)n - start;
    const size_t per_block = blockDim.x / lanes;
    const size_t in_warp = threadIdx.x % WARP / lanes;
    for (size_t first = (size_t)blockIdx.x * per_block + threadIdx.x / WARP * (WARP / lanes); first < rows;
         first += (size_t)gridDim.x * per_block) {
        size_t row = first + in_warp;
        bool is_row = row < rows;
        if (!is_row) row = rows - 1;
        const T* x = logits + row * n;
        M v[HELD];
        M max = Lowest<M>::value();
#pragma unroll
        for (int k = 0; k < HELD / N; k++) {
            if (k * step >= (int)n) break;
            if (k * step >= left) continue;
            Pack<T, N> pack = load_pack<N>(x + start + k * step, 0);
#pragma unroll
            for (int j = 0; j < N; j++) {
                M value = to_float(pack.v[j]);
                v[k * N + j] = value;
                // A NaN may be skipped here; it reappears in the sum of exponentials.
                max = value > max ? value : max;
            }
        }
        // A block holds one row at a time, and its registers leave room for few blocks: the next row is on its way meanwhile.
        if (LANES == BLOCK_WIDE && row + gridDim.x < rows) {
            for (int c = start; c < (int)n; c += step) prefetch(x + (size_t)gridDim.x * n + c);
        }
        max = row_max<LANES>(max, scratch);
        M exp_sum = 0, smooth = 0;
#pragma unroll
        for (int k = 0; k < HELD / N; k++) {
            if (k * step >= (int)n) break;
            if (k * step >= left) continue;
#pragma unroll
            for (int j = 0; j < N; j++) {
                M shifted = v[k * N + j] - max;
                if (rule.spread != 0) smooth += shifted;
                v[k * N + j] = exponential(shifted);
                exp_sum += v[k * N + j];
            }
        }
        exp_sum = row_sum<LANES>(exp_sum, scratch);
        if (rule.spread != 0) smooth = row_sum<LANES>(smooth, scratch);
        double bad = 0;
        Target<M> t = target_of(rule, labels, row, n, bad);
        // All lanes need the focal loss for the gradient.
        if ((is_row && start == 0) || FOCAL) {
            M loss = 0;
            if (t.counts) {
                M log_sum = logarithm(exp_sum);
                M shifted = to_float(x[t.label]) - max;
                loss = t.hit * (log_sum - shifted);
                if (rule.spread != 0) loss += t.spread * (rule.n_classes * log_sum - smooth);
                if (FOCAL) loss = focused(rule, t, loss, exponential(shifted) / exp_sum);
            }
            if (is_row && start == 0) {
                loss_sum += bad;
                if (t.counts) {
                    loss_sum += loss;
                    weight_sum += t.weight;
                }
            }
        }
        if (!d || !is_row) continue;
        Gradient<M> gradient = gradient_of(rule, t, exp_sum, (int)t.label - start);
        D* out = d + row * n + start;
#pragma unroll
        for (int k = 0; k < HELD / N; k++) {
            if (k * step >= (int)n) break;
            if (k * step >= left) continue;
            Pack<D, N> pack;
#pragma unroll
            for (int j = 0; j < N; j++) pack.v[j] = Format<D>::from(gradient.at(k * step + j, v[k * N + j]));
            store_pack(out + k * step, 0, pack);
        }
    }
}

template <class T, class D>
__device__ __forceinline__ void few(const T* logits, const i64* labels, const MATH(T)* weights, const float* row_weights, D* d, size_t rows, size_t n,
                                    i64 ignore_index, double smoothing, double gamma, double scale, float* tail, int accumulate,
                                    const double* extra, u32* counter, double* partials) {
    typedef MATH(T) M;
    Rule<M> rule = rule_of<M>(weights, row_weights, n, ignore_index, smoothing, gamma, scale);
    double loss = 0, weight = 0;
    rows_in_registers<8, 4, 1>(logits, labels, d, rows, n, rule, (M*)0, loss, weight);
    leave_sums(loss, weight, counter, partials, tail, accumulate, extra);
}

// The running maximum, the sum of exponentials relative to it, and the sum for smoothing.
template <class M> struct Seen {
    M max, exp_sum;
    double smooth;
};
template <int N, class T>
__device__ __forceinline__ void see(Seen<MATH(T)>& seen, const Rule<MATH(T)>& rule, const T* x, size_t c) {
    typedef MATH(T) M;
    Pack<T, N> pack = load_pack<N>(x + c, 0);
    M max = seen.max;
#pragma unroll
    for (int j = 0; j < N; j++) {
        M value = to_float(pack.v[j]);
        max = value > max ? value : max;
    }
    M sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) sum += exponential(to_float(pack.v[j]) - max);
    if (max != seen.max) seen.exp_sum *= exponential(seen.max - max);
    seen.exp_sum += sum;
    seen.max = max;
    if (rule.spread != 0) {
#pragma unroll
        for (int j = 0; j < N; j++) seen.smooth += (double)to_float(pack.v[j]);
    }
}
template <int N, class T, class D>
__device__ __forceinline__ void leave(const Gradient<MATH(T)>& gradient, MATH(T) max, const T* x, D* d, size_t c) {
    Pack<T, N> in = load_pack<N>(x + c, 0);
    Pack<D, N> out;
#pragma unroll
    for (int j = 0; j < N; j++)
        out.v[j] = Format<D>::from(gradient.at(c + j, exponential(to_float(in.v[j]) - max)));
    store_pack(d + c, 0, out);
}

// Rows of any length, a block each, read twice.
template <class T, class D>
__device__ __forceinline__ void rows_from_memory(const T* logits, const i64* labels, D* d, size_t rows, size_t n,
                                                 const Rule<MATH(T)>& rule, MATH(T)* scratch, double* wide_scratch,
                                                 double& loss_sum, double& weight_sum) {
    typedef MATH(T) M;
    const int N = Pack<T>::size;
    const size_t rank = threadIdx.x, size = blockDim.x;
    bool aligned = are_packed(logits, d);
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* x = logits + row * n;
        // The row's elements before the first aligned one, the packs, and the tail.
        size_t head = aligned ? (N - row * n % N) % N : n;
        if (head > n) head = n;
        size_t end = head + (n - head) / N * N;
        double bad = 0;
        Target<M> t = target_of(rule, labels, row, n, bad);
        Seen<M> seen = {Lowest<M>::value(), 0, 0};
        if (t.counts) {
            for (size_t c = rank; c < head; c += size) see<1>(seen, rule, x, c);
            for (size_t c = head + rank * N; c < end; c += size * N) see<N>(seen, rule, x, c);
            for (size_t c = end + rank; c < n; c += size) see<1>(seen, rule, x, c);
        }
        M max = block_max(seen.max, scratch);
        M exp_sum = block_sum(seen.exp_sum * exponential(seen.max - max), scratch);
        double smooth = rule.spread != 0 ? block_sum(seen.smooth, wide_scratch) : 0.0;
        if (rank == 0 || FOCAL) {
            double loss = 0;
            if (t.counts) {
                M log_sum = logarithm(exp_sum);
                M shifted = to_float(x[t.label]) - max;
                loss = t.hit * (log_sum - shifted);
                if (rule.spread != 0)
                    loss += (double)t.spread * ((double)rule.n_classes * ((double)log_sum + (double)max) - smooth);
                if (FOCAL) loss = focused(rule, t, (M)loss, exponential(shifted) / exp_sum);
            }
            if (rank == 0) {
                loss_sum += bad;
                if (t.counts) {
                    loss_sum += loss;
                    weight_sum += t.weight;
                }
            }
        }
        if (!d) continue;
        D* d_row = d + row * n;
        Gradient<M> gradient = gradient_of(rule, t, exp_sum, (i64)t.label);
        for (size_t c = rank; c < head; c += size) leave<1>(gradient, max, x, d_row, c);
        for (size_t c = head + rank * N; c < end; c += size * N) leave<N>(gradient, max, x, d_row, c);
        for (size_t c = end + rank; c < n; c += size) leave<1>(gradient, max, x, d_row, c);
    }
}

template <class T, class D>
__device__ __forceinline__ void some(const T* logits, const i64* labels, const MATH(T)* weights, const float* row_weights, D* d, size_t rows, size_t n,
                                     i64 ignore_index, double smoothing, double gamma, double scale, float* tail, int accumulate,
                                     const double* extra, u32* counter, double* partials) {
    typedef MATH(T) M;
    Rule<M> rule = rule_of<M>(weights, row_weights, n, ignore_index, smoothing, gamma, scale);
    double loss = 0, weight = 0;
    const int per_pack = Pack<T>::size;
    if (n % per_pack == 0 && are_packed(logits, d))
        rows_in_registers<WARP, 32, per_pack>(logits, labels, d, rows, n, rule, (M*)0, loss, weight);
    else
        rows_in_registers<WARP, 32, 1>(logits, labels, d, rows, n, rule, (M*)0, loss, weight);
    leave_sums(loss, weight, counter, partials, tail, accumulate, extra);
}

template <class T, class D>
__device__ __forceinline__ void many(const T* logits, const i64* labels, const MATH(T)* weights, const float* row_weights, D* d, size_t rows, size_t n,
                                     i64 ignore_index, double smoothing, double gamma, double scale, float* tail, int accumulate,
                                     const double* extra, u32* counter, double* partials) {
    typedef MATH(T) M;
    __shared__ M scratch[WARP];
    __shared__ double wide_scratch[WARP];
    Rule<M> rule = rule_of<M>(weights, row_weights, n, ignore_index, smoothing, gamma, scale);
    double loss = 0, weight = 0;
    const int held = HELD_BYTES / sizeof(M), per_pack = Pack<T>::size;
    if (n > (size_t)blockDim.x * held)
        rows_from_memory(logits, labels, d, rows, n, rule, scratch, wide_scratch, loss, weight);
    else if (n % per_pack == 0 && are_packed(logits, d))
        rows_in_registers<BLOCK_WIDE, held, per_pack>(logits, labels, d, rows, n, rule, scratch, loss, weight);
    else
        rows_in_registers<BLOCK_WIDE, held, 1>(logits, labels, d, rows, n, rule, scratch, loss, weight);
    leave_sums(loss, weight, counter, partials, tail, accumulate, extra);
}

#define CROSS_ENTROPY(form, threads, suffix, T, D)                                                                             \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) softmax_cross_entropy_##form##_##suffix(              \
        const T* logits, const i64* labels, const MATH(T)* weights, const float* row_weights, D* d, size_t rows, size_t n,     \
        i64 ignore_index, double smoothing, double gamma, double scale, float* tail, int accumulate, const double* extra, u32* counter,      \
        double* partials) {                                                                                                    \
        form(logits, labels, weights, row_weights, d, rows, n, ignore_index, smoothing, gamma, scale, tail, accumulate, extra, counter,\
             partials);                                                                                                        \
    }
CROSS_ENTROPY(few, 256, f32, float, float)
CROSS_ENTROPY(few, 256, bf16, bf16, bf16)
CROSS_ENTROPY(few, 256, f16, f16, f16)
CROSS_ENTROPY(few, 256, f32_bf16, float, bf16)
CROSS_ENTROPY(few, 256, f32_f16, float, f16)
CROSS_ENTROPY(some, 256, f32, float, float)
CROSS_ENTROPY(some, 256, bf16, bf16, bf16)
CROSS_ENTROPY(some, 256, f16, f16, f16)
CROSS_ENTROPY(some, 256, f32_bf16, float, bf16)
CROSS_ENTROPY(some, 256, f32_f16, float, f16)
CROSS_ENTROPY(many, MANY_THREADS, f32, float, float)
CROSS_ENTROPY(many, MANY_THREADS, bf16, bf16, bf16)
CROSS_ENTROPY(many, MANY_THREADS, f16, f16, f16)
CROSS_ENTROPY(many, MANY_THREADS, f32_bf16, float, bf16)
CROSS_ENTROPY(many, MANY_THREADS, f32_f16, float, f16)
CROSS_ENTROPY(few, 256, f64, double, double)
CROSS_ENTROPY(many, MANY_THREADS, f64, double, double)
