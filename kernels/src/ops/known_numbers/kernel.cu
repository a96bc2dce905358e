// known_numbers.cu: numbers whose sum over the ranks is known, and the count of elements that differ from it.
// math   h = hash(first + i, round); the owner, rank (h >> 12) mod n_ranks, brings 1 + (h & 63), the next rank 1 + (h >> 6 & 63), the
//         others 0; the sum, at most 128, is exact in each format and in any order
// shapes  x: T[n]; wrong: i64[1], added to
// launch  grid-stride over n, block 256; any n
// moved   1 value per element
// order   elementwise; the count is a sum of integers: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ u32 hash(u64 i, u32 round) {
    u64 z = (i ^ (u64)round << 48) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    return (u32)(z >> 32);
}
__device__ __forceinline__ u32 share(u32 h, u32 rank, u32 n_ranks) {
    u32 owner = (h >> 12) % n_ranks, next = owner + 1 == n_ranks ? 0 : owner + 1;
    return (rank == owner ? 1 + (h & 63) : 0) + (rank == next ? 1 + (h >> 6 & 63) : 0);
}
__device__ __forceinline__ u32 total(u32 h) { return 2 + (h & 63) + (h >> 6 & 63); }

template <class T> __device__ void known_fill(T* x, size_t n, u64 first, u32 rank, u32 n_ranks, u32 round) {
    for (size_t i = first_element(); i < n; i += grid_stride()) {
        u32 h = hash(first + i, round);
        x[i] = Format<T>::from((float)(rank == n_ranks ? total(h) : share(h, rank, n_ranks)));
    }
}
template <class T> __device__ void known_count(const T* x, size_t n, u64 first, u32 round, u64* wrong) {
    u64 count = 0;
    // Written so that NaN is wrong.
    for (size_t i = first_element(); i < n; i += grid_stride())
        if (!(to_float(x[i]) == (float)total(hash(first + i, round)))) count++;
    if (count > 0) atomicAdd((unsigned long long*)wrong, (unsigned long long)count);
}
#define KNOWN(suffix, T)                                                                                               \
    extern "C" __global__ void known_fill_##suffix(T* x, size_t n, u64 first, u32 rank, u32 n_ranks, u32 round) {      \
        known_fill(x, n, first, rank, n_ranks, round);                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void known_count_##suffix(const T* x, size_t n, u64 first, u32 round, u64* wrong) {          \
        known_count(x, n, first, round, wrong);                                                                        \
    }
KNOWN(f32, float)
KNOWN(bf16, bf16)
KNOWN(f16, f16)
