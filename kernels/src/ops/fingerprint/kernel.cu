// fingerprint.cu: an integer hash of the bits of a buffer.
// math   out[0] <- sum_i mix(bits(x[i]), i) mod 2^64; mix is the finalizer of SplitMix64, a bijection of the bits for each i
// shapes  x: f32[n], read as u32; out: u64[1]
// launch  one-dimensional grid of at most 512 blocks, block 256; any n
// moved   4 B/element; two 64-bit multiplications per element
// order   integer sums wrap, so that any order gives the same bits as the CPU
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ u64 mix(u32 bits, size_t index) {
    u64 z = (u64)index * 0x9e3779b97f4a7c15ull ^ bits;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

extern "C" __global__ void fingerprint(const u32* x, size_t n, u64* out, u32* counter, u64* partials) {
    const size_t stride = grid_stride();
    u64 sum = 0;
    size_t i = first_element();
    // Several at a time, so that their loads overlap.
    for (; i + 3 * stride < n; i += 4 * stride) {
        u32 a = x[i], b = x[i + stride], c = x[i + 2 * stride], d = x[i + 3 * stride];
        sum += mix(a, i) + mix(b, i + stride) + mix(c, i + 2 * stride) + mix(d, i + 3 * stride);
    }
    for (; i < n; i += stride) sum += mix(x[i], i);
    u64 total;
    if (grid_sum(sum, &total, counter, partials) && threadIdx.x == 0) out[0] = total;
}
