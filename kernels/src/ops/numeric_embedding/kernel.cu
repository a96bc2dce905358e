// numeric_embedding.cu: periodic embeddings of columns, and their gradients.
// math   angle[n,f,k] = 2*pi*w[f,k]*x[n,f] + b[f,k]
//         fwd        y[n,f,0] <- x[n,f];  y[n,f,1+e] <- sum_k W[f,k,e]*cos(angle) + B[f,e]
//         bwd        a = -sin(angle) * sum_e d[n,f,1+e]*W[f,k,e];  d_w <- sum_n 2*pi*x*a, d_b <- sum_n a,
//                    d_W <- sum_n d[n,f,1+e]*cos(angle), d_B <- sum_n d[n,f,1+e]   (+ what is there if accumulate)
//         bwd_input  d_x <- d[n,f,0] + sum_k 2*pi*w*a   (+ d_x if accumulate)
// shapes  x, d_x: T[rows,F]; y, d: T[rows,F,1+E]; w, b: M[F,K]; W: M[F,K,E]; B: M[F,E]; any E, in groups of 3: 1 + E = 4 numbers
//         per column are the usual case, and are then accessed at once
// launch  2^log2_lanes adjacent threads take adjacent columns, other threads other rows.
//         fwd, bwd_input: tiles of columns in x, shares of the rows in y; block 256, parameters in shared memory.
//         bwd: tiles of columns in x, shares of the rows in y, cosines in z; a thread takes 4 cosines of its column, and a warp those of
//         index (warp mod 2^log2_groups); block 512
// moved   x and y; the parameters stay in the cache: bound by memory in f32, by the cosines (forward and bwd_input also by memory) in bf16
// order   bwd: sums over the rows of a thread, lanes, warps and shares in a fixed order that depends on the shape only: bit-identical
//         between runs. One atomic per block, a counter that decides which block is the last.
// twin    cpu.rs next to this file

#define TWO_PI 6.283185307179586
// Outputs at a time, and rows per thread at a time: each parameter that is read serves all of these rows, which are the most that fit
// into 80 registers on every architecture.
#define GROUP 3
#define ROWS 5
// Logarithm of the number of threads of a block, and their number in bwd.
#define LOG2_BLOCK 8
#define BACKWARD_BLOCK 512
// Cosines whose parameters are in shared memory.
#define CHUNK 16

// The angle less whole turns: near zero, the fast functions err by at most 2^-21. Adding 1.5 * 2^23 rounds to a whole number.
__device__ __forceinline__ float within_a_turn(float angle) {
    float turns = fused(angle, (float)(1 / TWO_PI), 12582912.0f);
    return fused(12582912.0f - turns, (float)TWO_PI, angle);
}
// Cosine and sine of an angle; the compiler drops what is not used.
template <class M> struct Wave;
template <> struct Wave<float> {
    float cosine, sine;
    __device__ __forceinline__ explicit Wave(float angle) : cosine(__cosf(within_a_turn(angle))), sine(__sinf(within_a_turn(angle))) {}
};
template <> struct Wave<double> {
    double cosine, sine;
    __device__ __forceinline__ explicit Wave(double angle) { sincos(angle, &sine, &cosine); }
};

template <class M> struct Params {
    const M *w, *b, *weight, *bias;
    size_t F, K, E;
};

// Element 0 and outputs e to e + GROUP - 1 of one column of a row, zero beyond E; WHOLE: there are no others, and addresses allow one
// access.
template <bool WHOLE, class T> __device__ __forceinline__ Pack<T, 1 + GROUP> load_outputs(const T* of_column, size_t e, size_t E) {
    if constexpr (WHOLE) {
        return load_pack<1 + GROUP>(of_column, 0);
    } else {
        Pack<T, 1 + GROUP> v;
        v.v[0] = of_column[0];
#pragma unroll
        for (int j = 0; j < GROUP; j++) v.v[1 + j] = e + j < E ? of_column[1 + e + j] : Format<T>::from(0);
        return v;
    }
}
template <bool WHOLE, class T>
__device__ __forceinline__ void store_outputs(T* of_column, Pack<T, 1 + GROUP> v, size_t e, size_t E) {
    if constexpr (WHOLE) {
        store_pack(of_column, 0, v);
    } else {
        if (e == 0) of_column[0] = v.v[0];
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            if (e + j < E) of_column[1 + e + j] = v.v[1 + j];
    }
}
template <class T> __device__ __forceinline__ bool is_whole(const T* outputs, size_t E) {
    return E == GROUP && (size_t)outputs % sizeof(Pack<T, 1 + GROUP>) == 0;
}

// Parameters of a tile of columns for CHUNK cosines and GROUP outputs, zero beyond E; w times 2*pi.
template <class M> struct Chunk {
    M w[CHUNK][WARP], b[CHUNK][WARP], weight[CHUNK][GROUP][WARP], bias[GROUP][WARP];

    __device__ __forceinline__ void load(const Params<M>& p, size_t first_column, u32 lanes, size_t first_k, size_t e) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < lanes * CHUNK; i += blockDim.x) {
            u32 lane = i / CHUNK, k = i % CHUNK;
            size_t f = first_column + lane, at = f * p.K + first_k + k;
            if (f >= p.F || first_k + k >= p.K) continue;
            w[k][lane] = (M)TWO_PI * p.w[at];
            b[k][lane] = p.b[at];
#pragma unroll
            for (int j = 0; j < GROUP; j++) weight[k][j][lane] = e + j < p.E ? p.weight[at * p.E + e + j] : (M)0;
        }
        for (u32 i = threadIdx.x; i < lanes * GROUP; i += blockDim.x) {
            size_t f = first_column + i / GROUP, output = e + i % GROUP;
            bias[i % GROUP][i / GROUP] = f < p.F && output < p.E ? p.bias[f * p.E + output] : (M)0;
        }
        __syncthreads();
    }
};

// A thread's column of a tile, and its rows: ROWS from `row` on, row_lanes apart, of those from `first_row` on that the block takes
// together, and so on after `step` rows.
struct Place {
    u32 lanes, lane, log2_row_lanes;
    size_t first_column, column, row, first_row, step;
    bool is_column;

    __device__ __forceinline__ Place(size_t F, u32 log2_lanes) {
        lanes = 1u << log2_lanes;
        lane = threadIdx.x & (lanes - 1);
        log2_row_lanes = LOG2_BLOCK - log2_lanes;
        first_column = (size_t)blockIdx.x << log2_lanes;
        column = first_column + lane;
        is_column = column < F;
        first_row = ((size_t)blockIdx.y * ROWS) << log2_row_lanes;
        row = first_row + (threadIdx.x >> log2_lanes);
        step = ((size_t)gridDim.y * ROWS) << log2_row_lanes;
    }
    __device__ __forceinline__ size_t row_lanes() const { return (size_t)1 << log2_row_lanes; }
    // How many of the next ROWS rows there are.
    __device__ __forceinline__ int n_rows(size_t rows) const {
        if (!is_column || row >= rows) return 0;
        size_t n = (rows - row - 1 >> log2_row_lanes) + 1;
        return n < ROWS ? n : ROWS;
    }
};

template <bool WHOLE, class T>
__device__ __forceinline__ void forward(const T* x, const Params<MATH(T)>& p, T* y, size_t rows, u32 log2_lanes,
                                        Chunk<MATH(T)>& chunk) {
    typedef MATH(T) M;
    Place at(p.F, log2_lanes);
    const size_t stride = at.row_lanes() * p.F, wide_stride = stride * (1 + p.E);
    bool has_chunk = false;
    // All threads of a block go through all tiles of rows, since they load parameters together.
    for (; at.first_row < rows; at.first_row += at.step, at.row += at.step) {
        const size_t i = at.row * p.F + at.column;
        const T* first_x = x + i;
        T* of_first = y + i * (1 + p.E);
        const int n_rows = at.n_rows(rows);
        T in[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) in[r] = r < n_rows ? first_x[r * stride] : Format<T>::from(0);
        for (size_t e = 0; e == 0 || e < p.E; e += GROUP) {
            M sum[ROWS][GROUP];
            for (size_t first_k = 0; first_k == 0 || first_k < p.K; first_k += CHUNK) {
                if (!has_chunk) chunk.load(p, at.first_column, at.lanes, first_k, e);
                has_chunk = p.K <= CHUNK && p.E <= GROUP;
                if (first_k == 0) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
#pragma unroll
                        for (int j = 0; j < GROUP; j++) sum[r][j] = chunk.bias[j][at.lane];
                }
                const u32 n = p.K - first_k < CHUNK ? p.K - first_k : CHUNK;
#pragma unroll 2
                for (u32 k = 0; k < n; k++) {
                    M w = chunk.w[k][at.lane], b = chunk.b[k][at.lane];
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        M c = Wave<M>(fused(w, (M)to_float(in[r]), b)).cosine;
#pragma unroll
                        for (int j = 0; j < GROUP; j++) sum[r][j] = fused(chunk.weight[k][j][at.lane], c, sum[r][j]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= n_rows) continue;
                Pack<T, 1 + GROUP> v;
                v.v[0] = in[r];
#pragma unroll
                for (int j = 0; j < GROUP; j++) v.v[1 + j] = Format<T>::from(sum[r][j]);
                store_outputs<WHOLE>(of_first + r * wide_stride, v, e, p.E);
            }
        }
    }
}

template <bool WHOLE, class T>
__device__ __forceinline__ void backward_input(const T* x, const Params<MATH(T)>& p, const T* d, T* d_x, size_t rows, int accumulate,
                                               u32 log2_lanes, Chunk<MATH(T)>& chunk) {
    typedef MATH(T) M;
    Place at(p.F, log2_lanes);
    const size_t stride = at.row_lanes() * p.F, wide_stride = stride * (1 + p.E);
    bool has_chunk = false;
    for (; at.first_row < rows; at.first_row += at.step, at.row += at.step) {
        const size_t i = at.row * p.F + at.column;
        const T *first_x = x + i, *of_first = d + i * (1 + p.E);
        T* first_d_x = d_x + i;
        const int n_rows = at.n_rows(rows);
        T in[ROWS];
        M sum[ROWS];
        for (size_t e = 0; e == 0 || e < p.E; e += GROUP) {
            Pack<T, 1 + GROUP> of_column[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                of_column[r] = Pack<T, 1 + GROUP>{};
                if (r < n_rows) of_column[r] = load_outputs<WHOLE>(of_first + r * wide_stride, e, p.E);
            }
            if (e == 0) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    in[r] = r < n_rows ? first_x[r * stride] : Format<T>::from(0);
                    sum[r] = to_float(of_column[r].v[0]);
                    if (accumulate && r < n_rows) sum[r] += to_float(first_d_x[r * stride]);
                }
            }
            for (size_t first_k = 0; first_k < p.K; first_k += CHUNK) {
                if (!has_chunk) chunk.load(p, at.first_column, at.lanes, first_k, e);
                has_chunk = p.K <= CHUNK && p.E <= GROUP;
                const u32 n = p.K - first_k < CHUNK ? p.K - first_k : CHUNK;
#pragma unroll 2
                for (u32 k = 0; k < n; k++) {
                    M w = chunk.w[k][at.lane], b = chunk.b[k][at.lane];
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        M of_cosine = 0;
#pragma unroll
                        for (int j = 0; j < GROUP; j++)
                            of_cosine = fused((M)to_float(of_column[r].v[1 + j]), w * chunk.weight[k][j][at.lane], of_cosine);
                        sum[r] = fused(-of_cosine, Wave<M>(fused(w, (M)to_float(in[r]), b)).sine, sum[r]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < n_rows) first_d_x[r * stride] = Format<T>::from(sum[r]);
    }
}

// Cosines of a thread in bwd, and the widest tile of columns.
#define COSINES 4
#define MAX_LANES 8
// Sums of a thread over its rows: of the gradients of weights, biases, frequencies and phases, in this order.
#define SUMS (COSINES * GROUP + GROUP + 2 * COSINES)

template <class M> struct Grads {
    M *w, *b, *weight, *bias;
    int add_w, add_b, add_weight, add_bias;
};

// The parameter of which a thread has sum v, for cosines from k on and outputs from e on. `place`: among all parameters.
template <class M> struct Target {
    M* to;
    int accumulate;
    size_t place;
    bool is_there;

    __device__ __forceinline__ Target(const Params<M>& p, const Grads<M>& grads, size_t f, size_t k, size_t e, u32 v) {
        const u32 n_weights = COSINES * GROUP;
        if (v < n_weights) {
            size_t i = f * p.K + k + v / GROUP, output = e + v % GROUP;
            set(grads.weight, grads.add_weight, i * p.E + output, 2 * p.F * p.K, k + v / GROUP < p.K && output < p.E);
        } else if (v < n_weights + GROUP) {
            size_t output = e + (v - n_weights);
            set(grads.bias, grads.add_bias, f * p.E + output, p.F * p.K * (2 + p.E), k == 0 && output < p.E);
        } else {
            // Complete after the last group of outputs.
            u32 c = (v - n_weights - GROUP) % COSINES;
            bool is_w = v - n_weights - GROUP < COSINES, is_own = k + c < p.K && e + GROUP >= p.E;
            set(is_w ? grads.w : grads.b, is_w ? grads.add_w : grads.add_b, f * p.K + k + c, is_w ? 0 : p.F * p.K, is_own);
        }
        is_there = is_there && f < p.F;
    }
    __device__ __forceinline__ void set(M* of, int add, size_t i, size_t before, bool is_own) {
        to = of + i;
        accumulate = add;
        place = before + i;
        is_there = is_own;
    }
    __device__ __forceinline__ void leave(M sum) const { *to = accumulate ? *to + sum : sum; }
};

// `partials`: a sum for each parameter and share of the rows, if there are several; `counters`: one per tile and index in z.
template <bool WHOLE, class T>
__device__ __forceinline__ void backward(const T* x, const Params<MATH(T)>& p, const T* d, size_t rows,
                                         const Grads<MATH(T)>& grads, u32 log2_lanes, u32 log2_groups, u32* counters,
                                         MATH(T)* partials, MATH(T) (*part)[BACKWARD_BLOCK / WARP][MAX_LANES]) {
    typedef MATH(T) M;
    // Rows whose loads overlap.
    const int batch = sizeof(M) == 4 ? 4 : 1;
    // A warp has lanes for columns, then for rows; the warps are groups of cosines, then rows.
    const u32 lanes = 1u << log2_lanes, lane = threadIdx.x & (lanes - 1), warp = threadIdx.x / WARP, groups = 1u << log2_groups;
    const u32 row_lane = (warp >> log2_groups) * (WARP >> log2_lanes) + (threadIdx.x % WARP >> log2_lanes);
    const u32 row_lanes = BACKWARD_BLOCK >> (log2_lanes + log2_groups), n_totals = SUMS << (log2_lanes + log2_groups);
    const size_t first_f = (size_t)blockIdx.x << log2_lanes, f = first_f + lane, first_k = (size_t)blockIdx.z * groups * COSINES;
    const size_t k = first_k + (warp & (groups - 1)) * COSINES, n_params = p.F * (p.K * (2 + p.E) + p.E);
    const size_t stride = (size_t)gridDim.y * row_lanes;
    M of_w[COSINES] = {}, of_b[COSINES] = {};
    for (size_t e = 0; e == 0 || e < p.E; e += GROUP) {
        M w[COSINES], b[COSINES], weight[COSINES][GROUP], of_weight[COSINES][GROUP] = {}, of_bias[GROUP] = {};
#pragma unroll
        for (int c = 0; c < COSINES; c++) {
            const size_t i = f * p.K + k + c;
            bool is_there = f < p.F && k + c < p.K;
            w[c] = is_there ? (M)TWO_PI * p.w[i] : (M)0;
            b[c] = is_there ? p.b[i] : (M)0;
#pragma unroll
            for (int j = 0; j < GROUP; j++) weight[c][j] = is_there && e + j < p.E ? p.weight[i * p.E + e + j] : (M)0;
        }
        for (size_t n = blockIdx.y * row_lanes + row_lane; n < rows && f < p.F; n += batch * stride) {
            T in[batch];
            Pack<T, 1 + GROUP> of_column[batch];
            // A row past the end has gradients of zero, which add nothing.
#pragma unroll
            for (int r = 0; r < batch; r++) {
                const size_t i = (n + r * stride) * p.F + f;
                bool is_there = n + r * stride < rows;
                in[r] = is_there ? x[i] : Format<T>::from(0);
                of_column[r] = is_there ? load_outputs<WHOLE>(d + i * (1 + p.E), e, p.E) : Pack<T, 1 + GROUP>{};
            }
#pragma unroll
            for (int r = 0; r < batch; r++) {
                M value = to_float(in[r]), of_output[GROUP];
#pragma unroll
                for (int j = 0; j < GROUP; j++) {
                    of_output[j] = to_float(of_column[r].v[1 + j]);
                    of_bias[j] += of_output[j];
                }
#pragma unroll
                for (int c = 0; c < COSINES; c++) {
                    const Wave<M> wave(fused(w[c], value, b[c]));
                    M of_cosine = 0;
#pragma unroll
                    for (int j = 0; j < GROUP; j++) {
                        of_cosine = fused(of_output[j], weight[c][j], of_cosine);
                        of_weight[c][j] = fused(of_output[j], wave.cosine, of_weight[c][j]);
                    }
                    of_b[c] = fused(of_cosine, wave.sine, of_b[c]);
                    of_w[c] = fused(value, of_cosine * wave.sine, of_w[c]);
                }
            }
        }
        // Over the lanes of a warp that hold other rows, then over warps.
        __syncthreads();
#pragma unroll
        for (int v = 0; v < SUMS; v++) {
            const int c = (v - COSINES * GROUP - GROUP) % COSINES;
            M sum = v < COSINES * GROUP                     ? of_weight[v / GROUP % COSINES][v % GROUP]
                    : v < COSINES * GROUP + GROUP           ? of_bias[v % GROUP]
                    : v < COSINES * GROUP + GROUP + COSINES ? (M)-TWO_PI * of_w[c < 0 ? 0 : c]
                                                            : -of_b[c < 0 ? 0 : c];
            for (u32 o = lanes; o < WARP; o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
            if (threadIdx.x % WARP < lanes) part[v][warp][lane] = sum;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n_totals; i += BACKWARD_BLOCK) {
            const u32 column = i & (lanes - 1), group = i >> log2_lanes & (groups - 1), v = i >> (log2_lanes + log2_groups);
            M total = 0;
            for (u32 of = group; of < BACKWARD_BLOCK / WARP; of += groups) total += part[v][of][column];
            const Target<M> target(p, grads, first_f + column, first_k + group * COSINES, e, v);
            if (!target.is_there) continue;
            if (gridDim.y > 1)
                partials[blockIdx.y * n_params + target.place] = total;
            else
                target.leave(total);
        }
    }
    if (gridDim.y == 1 || !is_last_block(counters + (blockIdx.z * gridDim.x + blockIdx.x), gridDim.y)) return;
    for (size_t e = 0; e == 0 || e < p.E; e += GROUP) {
        for (u32 i = threadIdx.x; i < n_totals; i += BACKWARD_BLOCK) {
            const u32 column = i & (lanes - 1), group = i >> log2_lanes & (groups - 1), v = i >> (log2_lanes + log2_groups);
            const Target<M> target(p, grads, first_f + column, first_k + group * COSINES, e, v);
            if (!target.is_there) continue;
            M total = 0;
            for (u32 share = 0; share < gridDim.y; share++) total += partials[share * n_params + target.place];
            target.leave(total);
        }
    }
}

template <class T>
__device__ __forceinline__ void forward_rows(const T* x, const Params<MATH(T)>& p, T* y, size_t rows, u32 log2_lanes) {
    __shared__ Chunk<MATH(T)> chunk;
    if (is_whole(y, p.E))
        forward<true>(x, p, y, rows, log2_lanes, chunk);
    else
        forward<false>(x, p, y, rows, log2_lanes, chunk);
}
template <class T>
__device__ __forceinline__ void backward_rows(const T* x, const Params<MATH(T)>& p, const T* d, T* d_x, size_t rows, int accumulate,
                                              u32 log2_lanes) {
    __shared__ Chunk<MATH(T)> chunk;
    if (is_whole(d, p.E))
        backward_input<true>(x, p, d, d_x, rows, accumulate, log2_lanes, chunk);
    else
        backward_input<false>(x, p, d, d_x, rows, accumulate, log2_lanes, chunk);
}
template <class T>
__device__ __forceinline__ void backward_columns(const T* x, const Params<MATH(T)>& p, const T* d, size_t rows,
                                                 const Grads<MATH(T)>& grads, u32 log2_lanes, u32 log2_groups, u32* counters,
                                                 MATH(T)* partials) {
    __shared__ MATH(T) part[SUMS][BACKWARD_BLOCK / WARP][MAX_LANES];
    if (is_whole(d, p.E))
        backward<true>(x, p, d, rows, grads, log2_lanes, log2_groups, counters, partials, part);
    else
        backward<false>(x, p, d, rows, grads, log2_lanes, log2_groups, counters, partials, part);
}

// The second bound, of blocks per SM, keeps the compiler from spilling for the sake of more blocks.
#define PARAMETERS(T) const MATH(T) *w, const MATH(T) *b, const MATH(T) *weight, const MATH(T) *bias, size_t F, size_t K, size_t E
#define NUMERIC_EMBEDDING(suffix, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, sizeof(MATH(T)) == 4 ? 3 : 2)                                       \
        numeric_embedding_fwd_##suffix(const T* x, PARAMETERS(T), T* y, size_t rows, u32 log2_lanes) {                    \
        forward_rows(x, {w, b, weight, bias, F, K, E}, y, rows, log2_lanes);                                              \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(512, 1)            numeric_embedding_bwd_##suffix(                       \
        const T* x, PARAMETERS(T), const T* d, size_t rows, MATH(T)* d_w, int add_w, MATH(T)* d_b, int add_b,             \
        MATH(T)* d_weight, int add_weight, MATH(T)* d_bias, int add_bias, u32 log2_lanes, u32 log2_groups, u32* counters, \
        MATH(T)* partials) {                                                                                              \
        const Grads<MATH(T)> grads = {d_w, d_b, d_weight, d_bias, add_w, add_b, add_weight, add_bias};                    \
        backward_columns(x, {w, b, weight, bias, F, K, E}, d, rows, grads, log2_lanes, log2_groups, counters, partials);  \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, sizeof(MATH(T)) == 4 ? 3 : 2)                                       \
        numeric_embedding_bwd_input_##suffix(const T* x, PARAMETERS(T), const T* d, T* d_x, size_t rows, int accumulate,  \
                                             u32 log2_lanes) {                                                            \
        backward_rows(x, {w, b, weight, bias, F, K, E}, d, d_x, rows, accumulate, log2_lanes);                            \
    }
NUMERIC_EMBEDDING(f32, float)
NUMERIC_EMBEDDING(f64, double)
NUMERIC_EMBEDDING(bf16, bf16)
NUMERIC_EMBEDDING(f16, f16)
