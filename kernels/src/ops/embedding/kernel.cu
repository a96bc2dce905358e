// embedding.cu: concatenation of numbers and table rows, and the gradient of the tables.
// math   forward  out[n, :] <- numbers of x[n, :], then row x[n, N + t] of each table t; NaN for an invalid code
//         backward d_table[code, :] += sum of d_out[n, columns of t] over the rows n of that code
// shapes  x: T[rows, N + E], its last E columns codes; out, d_out: [rows, cols], cols = N + sum of dims; weights, d_weights:
//         the buffer of all tables; tables: i64[E][4], see Table, followed by the table of each column of out
//         from N on; pairs: u64[2][E][rows]
// launch  forward  row_walk: rows over blocks in x, columns over threads and blocks in y; block 256
//         sort     a block of 512 per table
//         backward tiles of 64 sorted rows in x, tables in parts of 32 columns in y; block 256; any shape
// moved   forward 2 values per element; sort 32 bytes per code for each 4 bits of it; backward 1 value per element of d_out and
//         2 per element of each table row used
// order   forward elementwise. Backward: a table's codes are sorted with their rows (radix sort, least digit first, stable),
//         and a warp, or for more than 64 rows per block, sums a code's rows. The rows of a thread depend on the number of rows of
//         that code and on dim: bit-identical between runs and devices. No atomics.
// twin    the functions `_cpu` in mod.rs next to this file

struct Table {
    size_t start, n_codes, dim, column;  // `column`: its first one of out, minus N
};
__device__ __forceinline__ Table table_of(const i64* tables, size_t t) {
    Table r = {(size_t)tables[4 * t], (size_t)tables[4 * t + 1], (size_t)tables[4 * t + 2], (size_t)tables[4 * t + 3]};
    return r;
}
// n_codes for an invalid code. At most 2^24, so that f32 holds each of them.
template <class T> __device__ __forceinline__ u32 code_of(T x, size_t n_codes) {
    if (!(x >= 0 && x < (T)n_codes)) return (u32)n_codes;
    u32 code = (u32)x;
    return (T)code == x ? code : (u32)n_codes;
}

// ---- forward ------------------------------------------------------------------------------------------------------
template <class T, class V>
__device__ void embed(const T* __restrict__ x, const T* __restrict__ weights, V* __restrict__ out,
                      const i64* __restrict__ tables, size_t rows, size_t n_numbers, size_t n_tables, size_t cols,
                      u32 log2_width) {
    RowWalk at = row_walk(log2_width);
    const size_t x_cols = n_numbers + n_tables;
    const int batch = 4;  // rows at a time, so that their loads overlap
    for (size_t c = at.item; c < cols; c += at.item_stride) {
        const bool is_number = c < n_numbers;
        size_t t = is_number ? 0 : (size_t)tables[4 * n_tables + c - n_numbers];
        Table table = is_number ? Table{} : table_of(tables, t);
        const T* from_x = x + (is_number ? c : n_numbers + t);
        const T* from = weights + table.start + (is_number ? 0 : c - n_numbers - table.column);
        for (size_t n = at.row; n < rows; n += batch * at.row_stride) {
            T v[batch];
#pragma unroll
            for (int k = 0; k < batch; k++)
                if (n + k * at.row_stride < rows) v[k] = from_x[(n + k * at.row_stride) * x_cols];
            if (!is_number) {
#pragma unroll
                for (int k = 0; k < batch; k++) {
                    if (n + k * at.row_stride >= rows) continue;
                    u32 code = code_of(v[k], table.n_codes);
                    v[k] = code < table.n_codes ? from[code * table.dim] : (T)__uint_as_float(0x7fc00000u);
                }
            }
#pragma unroll
            for (int k = 0; k < batch; k++)
                if (n + k * at.row_stride < rows) out[(n + k * at.row_stride) * cols + c] = Format<V>::from(v[k]);
        }
    }
}
#define EMBED(suffix, T, V)                                                                                            \
    extern "C" __global__ void embedding_fwd_##suffix(const T* x, const T* weights, V* out, const i64* tables,         \
                                                      size_t rows, size_t n_numbers, size_t n_tables, size_t cols,     \
                                                      u32 log2_width) {                                                \
        embed<T, V>(x, weights, out, tables, rows, n_numbers, n_tables, cols, log2_width);                             \
    }
EMBED(f32, float, float)
EMBED(f64, double, double)
EMBED(f32_bf16, float, bf16)
EMBED(f32_f16, float, f16)

// ---- rows in the order of their codes -----------------------------------------------------------------------------
#define SORT_BLOCK 512
#define DIGIT_BITS 4
#define DIGITS (1 << DIGIT_BITS)

// Passes for keys 0..=n_codes.
__device__ __forceinline__ u32 n_passes(size_t n_codes) {
    u32 n = 1;
    while (n_codes >> (DIGIT_BITS * n)) n++;
    return n;
}
// A code in the upper half, its row in the lower. Output of the last pass.
__device__ __forceinline__ const u64* sorted_pairs(const u64* pairs, size_t n_codes, size_t t, size_t n_tables, size_t rows) {
    return pairs + (((n_passes(n_codes) - 1) & 1) * n_tables + t) * rows;
}

// Each thread takes consecutive rows, so the sort is stable.
template <class T>
__device__ void sort_codes(const T* x, const i64* tables, u64* pairs, size_t rows, size_t n_numbers, size_t n_tables) {
    __shared__ u32 places[DIGITS * SORT_BLOCK];
    __shared__ u32 warp_sums[SORT_BLOCK / WARP];
    const u32 thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const size_t per_thread = (rows + SORT_BLOCK - 1) / SORT_BLOCK;
    const size_t first = per_thread * thread < rows ? per_thread * thread : rows;
    const size_t last = first + per_thread < rows ? first + per_thread : rows;
    for (size_t t = blockIdx.x; t < n_tables; t += gridDim.x) {
        const size_t n_codes = table_of(tables, t).n_codes;
        u64 *a = pairs + t * rows, *b = pairs + (n_tables + t) * rows;
        for (size_t n = thread; n < rows; n += SORT_BLOCK)
            b[n] = (u64)code_of(x[n * (n_numbers + n_tables) + n_numbers + t], n_codes) << 32 | n;
        const u32 passes = n_passes(n_codes);
        for (u32 pass = 0; pass < passes; pass++) {
            const u64* from = pass % 2 ? a : b;
            u64* to = pass % 2 ? b : a;
            const u32 shift = 32 + DIGIT_BITS * pass;
            for (u32 d = 0; d < DIGITS; d++) places[d * SORT_BLOCK + thread] = 0;
            __syncthreads();
            for (size_t i = first; i < last; i++) places[(from[i] >> shift) % DIGITS * SORT_BLOCK + thread]++;
            __syncthreads();
            // Counts of digits become positions of each thread's first row with that digit: an exclusive prefix sum.
            u32 sum = 0;
            for (u32 j = 0; j < DIGITS; j++) sum += places[thread * DIGITS + j];
            u32 before = sum;
            for (u32 o = 1; o < WARP; o <<= 1) {
                u32 v = __shfl_up_sync(ALL_LANES, before, o);
                if (lane >= o) before += v;
            }
            if (lane == WARP - 1) warp_sums[warp] = before;
            __syncthreads();
            before -= sum;
            for (u32 w = 0; w < warp; w++) before += warp_sums[w];
            for (u32 j = 0; j < DIGITS; j++) {
                u32 n = places[thread * DIGITS + j];
                places[thread * DIGITS + j] = before;
                before += n;
            }
            __syncthreads();
            for (size_t i = first; i < last; i++) {
                u64 pair = from[i];
                to[places[(pair >> shift) % DIGITS * SORT_BLOCK + thread]++] = pair;
            }
            __syncthreads();
        }
    }
}
#define SORT(suffix, T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SORT_BLOCK, 1)                                                        \
        embedding_sort_##suffix(const T* x, const i64* tables, u64* pairs, size_t rows, size_t n_numbers,              \
                                size_t n_tables) {                                                                     \
        sort_codes(x, tables, pairs, rows, n_numbers, n_tables);                                                       \
    }
SORT(f32, float)
SORT(f64, double)

// ---- gradient -----------------------------------------------------------------------------------------------------
#define SUM_BLOCK 256
#define SUM_WARPS (SUM_BLOCK / WARP)
#define TILE 64

// One column of d_out summed over every `step`-th sorted row from `k` on with this code.
template <class M, class T>
__device__ __forceinline__ M run_sum(const u64* sorted, size_t rows, size_t k, size_t step, u32 code, const T* from,
                                     size_t cols) {
    const int batch = 4;
    M sum = 0;
    bool goes_on = true;
    for (; goes_on; k += batch * step) {
        M v[batch];
#pragma unroll
        for (int j = 0; j < batch; j++) {
            u64 pair = k + j * step < rows ? sorted[k + j * step] : ~(u64)0;
            goes_on = (u32)(pair >> 32) == code;
            v[j] = goes_on ? (M)to_float(from[(u32)pair * cols]) : (M)0;
        }
#pragma unroll
        for (int j = 0; j < batch; j++) sum += v[j];
    }
    return sum;
}

template <class T, class D>
__device__ void add_runs(const u64* pairs, const i64* tables, const T* d_out, D* d_weights, size_t rows, size_t n_numbers,
                         size_t n_tables, size_t cols, size_t parts) {
    typedef MATH(T) M;
    __shared__ M part[SUM_WARPS][WARP];
    __shared__ size_t long_run;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (size_t y = blockIdx.y; y < n_tables * parts; y += gridDim.y) {
        const size_t t = y / parts, first = y % parts * WARP;
        const Table table = table_of(tables, t);
        if (first >= table.dim) continue;
        const u32 width = table.dim - first < WARP ? (u32)(table.dim - first) : WARP;
        u32 lanes = 1;
        while (lanes < width) lanes <<= 1;
        const u32 c = lane % lanes, row_lane = lane / lanes, row_lanes = WARP / lanes;
        const u64* sorted = sorted_pairs(pairs, table.n_codes, t, n_tables, rows);
        const T* from = d_out + n_numbers + table.column + first + c;
        D* to = d_weights + table.start + first + c;
        for (size_t tile = (size_t)blockIdx.x * TILE; tile < rows; tile += (size_t)gridDim.x * TILE) {
            if (threadIdx.x == 0) long_run = rows;
            __syncthreads();
            for (size_t i = tile + warp; i < rows && i < tile + TILE; i += SUM_WARPS) {
                const u32 code = (u32)(sorted[i] >> 32);
                if (code >= table.n_codes || (i > 0 && (u32)(sorted[i - 1] >> 32) == code)) continue;
                // It extends past the tile, so no other one of this tile does.
                if (i + TILE < rows && (u32)(sorted[i + TILE] >> 32) == code) {
                    if (lane == 0) long_run = i;
                    continue;
                }
                M sum = c < width ? run_sum<M>(sorted, rows, i + row_lane, row_lanes, code, from, cols) : (M)0;
                for (u32 o = lanes; o < WARP; o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
                if (lane < width) to[code * table.dim] += sum;
            }
            __syncthreads();
            const size_t run = long_run;
            if (run < rows) {
                const u32 code = (u32)(sorted[run] >> 32);
                const size_t k = run + warp * row_lanes + row_lane;
                M sum = c < width ? run_sum<M>(sorted, rows, k, SUM_WARPS * row_lanes, code, from, cols) : (M)0;
                for (u32 o = lanes; o < WARP; o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
                if (lane < lanes) part[warp][lane] = sum;
                __syncthreads();
                if (threadIdx.x < width) {
                    M total = part[0][lane];
                    for (u32 w = 1; w < SUM_WARPS; w++) total += part[w][lane];
                    to[code * table.dim] += total;
                }
            }
            __syncthreads();
        }
    }
}
#define ADD_RUNS(suffix, T, D)                                                                                         \
    extern "C" __global__ void __launch_bounds__(SUM_BLOCK, 4)                                                         \
        embedding_bwd_##suffix(const u64* pairs, const i64* tables, const T* d_out, D* d_weights, size_t rows,         \
                               size_t n_numbers, size_t n_tables, size_t cols, size_t parts) {                         \
        add_runs<T, D>(pairs, tables, d_out, d_weights, rows, n_numbers, n_tables, cols, parts);                       \
    }
ADD_RUNS(f32, float, float)
ADD_RUNS(f64, double, double)
ADD_RUNS(bf16_f32, bf16, float)
ADD_RUNS(f16_f32, f16, float)
