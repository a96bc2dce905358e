// rows.cuh: the kernels of layer_norm.cu (CENTERED) and rms_norm.cu, which has neither mean nor beta.
// math   forward  y[n,c] <- h[n,c]*gamma[c] + beta[c], h = (x - mean[n])*rstd[n]
//         backward, with g = d*gamma: d <- rstd*(g - mean_c(g) - h*mean_c(g*h)); column sums of d*h and d, of the incoming d
// shapes  x, y, d: T[rows, n]; gamma, beta, d_gamma, d_beta: M[n]; mean, rstd: M[rows]; M is double for double, else float;
//         partials: M[chunks, K*n], K the number of gradients of parameters: 2, or 1 without beta
// launch  fwd: a block of 32 to 512 per row, 32 elements of it in the registers of each thread (8 in f64); grid-stride
//         bwd: a block of 32 to 512 per chunk of rows, one row at a time, 8 columns of it in the registers of each thread (4 in f64)
//         bwd_parameters: a block of 512 = 8 columns x 64 lanes of chunks; after bwd, if there are several chunks
//         Forms `whole`: aligned rows in 16 bytes per access, all of which registers hold. Forms `any`: elements that they do not hold
//         are read again from cache, and the sums of their columns stay in memory.
// moved   forward 2 values per element, backward 3 (read x d, write d), and the partials twice in cache: memory-bound
// order   a row by threads; a column by the rows of a chunk, then chunks by lanes: depends on the shape and on whether addresses are
//         multiples of 16; without atomics

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// 16 bytes as words, to be unpacked where they are used: the compiler unpacks halves of words, and waits for them, right after the
// load, before it issues the next one.
typedef Pack<u32> Raw;
template <class T> __device__ __forceinline__ Raw load_raw(const T* p) { return *reinterpret_cast<const Raw*>(p); }
template <class T> __device__ __forceinline__ Pack<T> unpacked(Raw raw) {
    union {
        Raw words;
        Pack<T> values;
    } both = {raw};
    return both.values;
}

// N values in accesses of at most 16 bytes.
template <int N, class M> __device__ __forceinline__ void load_values(const M* p, M* out) {
    const int per_pack = N < Pack<M>::size ? N : Pack<M>::size;
#pragma unroll
    for (int k = 0; k < N / per_pack; k++) {
        Pack<M, per_pack> pack = load_pack<per_pack>(p, k);
#pragma unroll
        for (int j = 0; j < per_pack; j++) out[k * per_pack + j] = pack.v[j];
    }
}

// p[j] <- sums[j], or += if accumulate.
template <int N, class M> __device__ __forceinline__ void store_sums(M* p, const M* sums, int accumulate) {
    const int per_pack = N < Pack<M>::size ? N : Pack<M>::size;
#pragma unroll
    for (int k = 0; k < N / per_pack; k++) {
        Pack<M, per_pack> pack = {};
        if (accumulate) pack = load_pack<per_pack>((const M*)p, k);
#pragma unroll
        for (int j = 0; j < per_pack; j++) pack.v[j] += sums[k * per_pack + j];
        store_pack(p, k, pack);
    }
}

// The elements of a row that threads of this block hold, `held` each, in packs: pack k of a thread starts at first + k*step and is
// inside if k*step < left. Threads leave a loop over packs together, where k*step >= end. Elements from `end` on have no thread.
struct Held {
    int end, step, first, left;
};
__device__ __forceinline__ Held held_part(size_t n, int held, int per_pack) {
    int most = (int)blockDim.x * held;
    Held h;
    h.end = n < (size_t)most ? (int)n : most;
    h.step = (int)blockDim.x * per_pack;
    h.first = (int)thread_anew() * per_pack;
    h.left = h.end - h.first;
    return h;
}

template <bool CENTERED, bool WHOLE, int N, class T>
__device__ __forceinline__ void forward_row(const T* x, const MATH(T)* gamma, const MATH(T)* beta, MATH(T) eps, T* y,
                                            MATH(T)* mean, MATH(T)* rstd, size_t n, MATH(T)* scratch) {
    typedef MATH(T) M;
    // Unaligned rows are rare: they are read again from cache.
    const int held = N == 1 ? 0 : sizeof(T) == 8 ? 8 : 32, packs = held / N;
    Held at = held_part(n, held, N);
    const size_t rest = at.end + threadIdx.x;
    // Without branches, so that all loads are in flight together. One more, as there are no arrays of 0.
    M v[held + 1], m = 0, sum = 0;
#pragma unroll
    for (int k = 0; k < packs; k++) {
        Raw raw = {};
        if (k * at.step < at.left) raw = load_raw(x + at.first + k * at.step);
#pragma unroll
        for (int j = 0; j < N; j++) sum += v[k * N + j] = to_float(unpacked<T>(raw).v[j]);
    }
    if constexpr (CENTERED) {
        // The mean first, so that the variance does not cancel.
#pragma unroll 2
        for (size_t c = rest; !WHOLE && c < n; c += blockDim.x) sum += to_float(x[c]);
        m = block_sum(sum, scratch) / (M)n;
    }
    // Computed anew, so that it occupies no registers while the threads wait for each other.
    at = held_part(n, held, N);
    M squares = 0;
#pragma unroll
    for (int k = 0; k < packs; k++) {
        const M counts = k * at.step < at.left ? 1 : 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            v[k * N + j] -= m;
            squares = fused(counts * v[k * N + j], v[k * N + j], squares);
        }
    }
#pragma unroll 2
    for (size_t c = rest; !WHOLE && c < n; c += blockDim.x) {
        const M from_mean = to_float(x[c]) - m;
        squares = fused(from_mean, from_mean, squares);
    }
    M r = 1 / root(block_sum(squares, scratch) / (M)n + eps);

    at = held_part(n, held, N);
#pragma unroll
    for (int k = 0; k < packs; k++) {
        if (k * at.step >= at.end) break;
        if (k * at.step >= at.left) continue;
        const int c = at.first + k * at.step;
        M scale[N], shift[N];
        load_values<N>(gamma + c, scale);
        if constexpr (CENTERED) load_values<N>(beta + c, shift);
        Pack<T, N> pack;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const M one = v[k * N + j] * r;
            pack.v[j] = Format<T>::from(CENTERED ? fused(one, scale[j], shift[j]) : one * scale[j]);
        }
        store_pack(y + c, 0, pack);
    }
#pragma unroll 2
    for (size_t c = rest; !WHOLE && c < n; c += blockDim.x) {
        const M one = (to_float(x[c]) - m) * r;
        y[c] = Format<T>::from(CENTERED ? fused(one, gamma[c], beta[c]) : one * gamma[c]);
    }
    if (threadIdx.x == 0) {
        if (CENTERED) *mean = m;
        *rstd = r;
    }
}

// WHOLE: all rows are aligned and fit in the registers of a block.
template <bool CENTERED, bool WHOLE, class T>
__device__ __forceinline__ void forward_rows(const T* x, const MATH(T)* gamma, const MATH(T)* beta, double eps, T* y,
                                             MATH(T)* mean, MATH(T)* rstd, size_t rows, size_t n) {
    typedef MATH(T) M;
    __shared__ M scratch[WARP];
    const int per_pack = Pack<T>::size;
    const bool packed = WHOLE || (n % per_pack == 0 && are_packed(x, y, gamma, beta));
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* in = x + row * n;
        T* out = y + row * n;
        if (packed)
            forward_row<CENTERED, WHOLE, per_pack>(in, gamma, beta, (M)eps, out, mean + row, rstd + row, n, scratch);
        else
            forward_row<CENTERED, false, 1>(in, gamma, beta, (M)eps, out, mean + row, rstd + row, n, scratch);
    }
}

// Sums K values over the block in one exchange; every thread gets the sums. Two calls in a row take different scratch.
template <int K, class M> __device__ __forceinline__ void block_sums(M (&v)[K], M (*scratch)[WARP]) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = warp_sum(v[k]);
    if (warps == 1) return;
#pragma unroll
    for (int k = 0; k < K; k++)
        if (lane == 0) scratch[k][warp] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = warp_sum(lane < warps ? scratch[k][lane] : (M)0);
}

// Rows begin to end, one after the other. d_gamma and d_beta: where their sums of these rows go (+= if accumulate).
template <bool CENTERED, bool WHOLE, int N, class T>
__device__ __forceinline__ void backward_chunk(const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d,
                                               MATH(T)* d_gamma, MATH(T)* d_beta, size_t begin, size_t end, size_t n,
                                               int accumulate) {
    typedef MATH(T) M;
    const int K = CENTERED ? 2 : 1, held = N == 1 ? 0 : sizeof(T) == 8 ? 4 : 8, packs = held / N;
    __shared__ M scratch[2][K][WARP];
    const Held at = held_part(n, held, N);
    const size_t rest = at.end + threadIdx.x;

    const M per_column = 1 / (M)n;
    M column[K][held + 1] = {};
    // The next row, loaded while this one is summed and written.
    Raw next_x[packs + 1], next_d[packs + 1];
    auto load = [&](size_t row) {
#pragma unroll
        for (int k = 0; k < packs; k++) {
            if (k * at.step >= at.left) continue;
            next_x[k] = load_raw(x + row * n + at.first + k * at.step);
            next_d[k] = load_raw(d + row * n + at.first + k * at.step);
        }
    };
    if (begin < end) load(begin);
    for (size_t row = begin; row < end; row++) {
        const T* row_x = x + row * n;
        T* row_d = d + row * n;
        const M m = CENTERED ? mean[row] : 0, r = rstd[row];
        M h[held + 1], g[held + 1], of_row[K] = {};
#pragma unroll
        for (int k = 0; k < packs; k++) {
            if (k * at.step >= at.left) continue;
            M weight[N];
            load_values<N>(gamma + at.first + k * at.step, weight);
#pragma unroll
            for (int j = 0; j < N; j++) {
                const int i = k * N + j;
                const M one = to_float(unpacked<T>(next_d[k]).v[j]);
                h[i] = (to_float(unpacked<T>(next_x[k]).v[j]) - m) * r;
                g[i] = one * weight[j];
                of_row[0] = fused(g[i], h[i], of_row[0]);
                column[0][i] = fused(one, h[i], column[0][i]);
                if (CENTERED) {
                    of_row[K - 1] += g[i];
                    column[K - 1][i] += one;
                }
            }
        }
        if (row + 1 < end) load(row + 1);
#pragma unroll 2
        for (size_t c = rest; !WHOLE && c < n; c += blockDim.x) {
            const M one = to_float(row_d[c]), one_h = (to_float(row_x[c]) - m) * r;
            of_row[0] = fused(one * gamma[c], one_h, of_row[0]);
            d_gamma[c] = fused(one, one_h, row > begin || accumulate ? d_gamma[c] : 0);
            if (CENTERED) {
                of_row[K - 1] += one * gamma[c];
                d_beta[c] = (row > begin || accumulate ? d_beta[c] : 0) + one;
            }
        }
        block_sums(of_row, scratch[row & 1]);
        const M mean_gh = of_row[0] * per_column, mean_g = CENTERED ? of_row[K - 1] * per_column : 0;
#pragma unroll
        for (int k = 0; k < packs; k++) {
            if (k * at.step >= at.left) continue;
            Pack<T, N> pack;
#pragma unroll
            for (int j = 0; j < N; j++) pack.v[j] = Format<T>::from(r * fused(-h[k * N + j], mean_gh, g[k * N + j] - mean_g));
            store_pack(row_d + at.first + k * at.step, 0, pack);
        }
#pragma unroll 2
        for (size_t c = rest; !WHOLE && c < n; c += blockDim.x) {
            const M one_h = (to_float(row_x[c]) - m) * r;
            row_d[c] = Format<T>::from(r * fused(-one_h, mean_gh, to_float(row_d[c]) * gamma[c] - mean_g));
        }
    }
#pragma unroll
    for (int k = 0; k < packs; k++) {
        if (k * at.step >= at.left) continue;
        store_sums<N>(d_gamma + at.first + k * at.step, column[0] + k * N, accumulate);
        if constexpr (CENTERED) store_sums<N>(d_beta + at.first + k * at.step, column[K - 1] + k * N, accumulate);
    }
}

// A chunk of rows per block; WHOLE as in `forward_rows`. d_gamma and d_beta of the next chunk are `stride` elements further on.
template <bool CENTERED, bool WHOLE, class T>
__device__ __forceinline__ void backward_rows(const T* x, const MATH(T)* gamma, const MATH(T)* mean, const MATH(T)* rstd, T* d,
                                              MATH(T)* d_gamma, MATH(T)* d_beta, size_t stride, size_t rows, size_t n,
                                              size_t chunk_rows, int accumulate) {
    const int per_pack = Pack<T>::size;
    const size_t begin = blockIdx.x * chunk_rows, end = rows < begin + chunk_rows ? rows : begin + chunk_rows;
    d_gamma += blockIdx.x * stride;
    if (CENTERED) d_beta += blockIdx.x * stride;
    if (WHOLE || (n % per_pack == 0 && are_packed(x, d, gamma, d_gamma) && are_packed(d_beta)))
        backward_chunk<CENTERED, WHOLE, per_pack>(x, gamma, mean, rstd, d, d_gamma, d_beta, begin, end, n, accumulate);
    else
        backward_chunk<CENTERED, false, 1>(x, gamma, mean, rstd, d, d_gamma, d_beta, begin, end, n, accumulate);
}

// Adds up the chunks, whose sums for d_gamma and d_beta follow each other; d_beta is null if there is none.
template <class M>
__device__ __forceinline__ void add_chunks(const M* partials, M* d_gamma, M* d_beta, size_t chunks, size_t n, int accumulate) {
    const int columns = 8, lanes = 512 / columns;
    __shared__ M part[512 / WARP][columns];
    const size_t width = d_beta ? 2 * n : n, i = (size_t)blockIdx.x * columns + threadIdx.x % columns;
    M sum = 0;
    if (i < width) {
#pragma unroll 8
        for (size_t chunk = threadIdx.x / columns; chunk < chunks; chunk += lanes) sum += partials[chunk * width + i];
    }
    for (int o = columns; o < WARP; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    if (threadIdx.x % WARP < columns) part[threadIdx.x / WARP][threadIdx.x % WARP] = sum;
    __syncthreads();
    if (threadIdx.x >= columns || i >= width) return;
    sum = 0;
    for (int warp = 0; warp < 512 / WARP; warp++) sum += part[warp][threadIdx.x];
    M* out = i < n ? d_gamma + i : d_beta + (i - n);
    *out = accumulate ? *out + sum : sum;
}
