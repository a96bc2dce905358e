// begin_step.cu: the scalars of a step, the numbers of its rows and the sums of their mixes.
// math   to[k] <- scalars[k]; numbers[i] <- order(first + i), a Feistel network over 2^(high_bits + low_bits) with cycle walking;
//         the identity if both are 0; with runs, the row at place origin + that number: of the last run k with starts[k] <= place,
//         run_rows[k] + place - starts[k]; sums[0] += rows, sums[1 + k] += word k of the mix of each row
// shapes  to: f64[11] or null; numbers: i64[rows]; starts, run_rows: i64[runs]; sums: u64[5], unused without rows
// launch  grid-stride over rows, block 256; any number of rows
// moved   8 bytes written per row
// order   sums of integers: the same bits in any order; four atomics per block, and one
// twin    begin_cpu and mix_row in mod.rs next to this file, permutation.rs

struct Scalars {
    double v[11];
};
// DeviceOrder in mod.rs.
struct Order {
    u64 n;
    u64 keys[6];
    u32 high_bits, low_bits;
};

__device__ __forceinline__ u64 feistel_round(u64 x, u64 key) {
    u64 z = (x ^ key) * 0xbf58476d1ce4e5b9ull;
    z ^= z >> 32;
    return z * 0x94d049bb133111ebull >> 32;
}
__device__ __forceinline__ u64 encrypt(const Order& order, u64 x) {
    u64 low_mask = ((u64)1 << order.low_bits) - 1, high_mask = ((u64)1 << order.high_bits) - 1;
    u64 high = x >> order.low_bits, low = x & low_mask;
#pragma unroll
    for (int k = 0; k < 6; k += 2) {
        high ^= feistel_round(low, order.keys[k]) & high_mask;
        low ^= feistel_round(high, order.keys[k + 1]) & low_mask;
    }
    return high << order.low_bits | low;
}
__device__ __forceinline__ u64 row_at(const Order& order, u64 position) {
    if (order.low_bits == 0) return position;
    u64 x = encrypt(order, position);
    while (x >= order.n) x = encrypt(order, x);
    return x;
}

__device__ __forceinline__ u64 row_of(const i64* starts, const i64* run_rows, size_t runs, u64 place) {
    size_t low = 0, high = runs;  // starts[low] <= place < starts[high]
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if ((u64)starts[middle] <= place) low = middle;
        else high = middle;
    }
    return (u64)run_rows[low] + place - (u64)starts[low];
}

extern "C" __global__ void begin_step(Scalars scalars, double* to, Order order, u64 first, size_t rows, const i64* starts,
                                      const i64* run_rows, size_t runs, u64 origin, i64* numbers, u64* sums) {
    __shared__ u64 scratch[WARP];
    if (to && blockIdx.x == 0 && threadIdx.x < 11) to[threadIdx.x] = scalars.v[threadIdx.x];
    if (rows == 0) return;
    u64 words[4] = {0, 0, 0, 0};
    for (size_t i = first_element(); i < rows; i += grid_stride()) {
        u64 row = row_at(order, first + i);
        if (runs) row = row_of(starts, run_rows, runs, origin + row);
        numbers[i] = (i64)row;
        u64 a = row + 0x9e3779b97f4a7c15ull;
        a = (a ^ a >> 30) * 0xbf58476d1ce4e5b9ull;
        a = (a ^ a >> 27) * 0x94d049bb133111ebull;
        a ^= a >> 31;
        u64 b = row ^ 0xd1b54a32d192ed03ull;
        b = (b ^ b >> 33) * 0xff51afd7ed558ccdull;
        b = (b ^ b >> 33) * 0xc4ceb9fe1a85ec53ull;
        b ^= b >> 33;
        words[0] += (u32)b;
        words[1] += b >> 32;
        words[2] += (u32)a;
        words[3] += a >> 32;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 sum = block_sum(words[k], scratch);
        if (threadIdx.x == 0) atomicAdd(sums + 1 + k, sum);
    }
    if (first_element() == 0) atomicAdd(sums, (u64)rows);
}
