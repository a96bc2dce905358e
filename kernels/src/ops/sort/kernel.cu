// sort.cu: one step of a bitonic sorting network on the indices of the elements of rows (Batcher, AFIPS 1968).
// math   of each pair of indices that are 2^log2_distance apart, the first in order comes first, or last where bit log2_span of
//         their place in the row is set; the step of span 2 (or of rows of one element) begins with the indices 0, 1, ...
// shapes  index: i64, n in rows of 2^log2_row; x: T, rows of len; indices from len on come last
// launch  grid-stride over the pairs, block 256; any n
// moved   2 indices read and written and 2 elements read per pair
// order   of equal elements the smaller index is first, so all orders are decided: the same on every device
// twin    the functions `_cpu` in mod.rs next to this file

template <class M> __device__ __forceinline__ bool less(M a, M b) { return a < b || (b != b && a == a); }

template <class T> __device__ __forceinline__ bool comes_first(const T* row, size_t len, i64 a, i64 b, int descending) {
    bool a_beyond = (size_t)a >= len, b_beyond = (size_t)b >= len;
    if (a_beyond || b_beyond) return a_beyond == b_beyond ? a < b : b_beyond;
    typename Number<T>::math x = Number<T>::get(row[a]), y = Number<T>::get(row[b]);
    if (less(x, y)) return !descending;
    if (less(y, x)) return descending;
    return a < b;
}

template <class T>
__device__ void sort(const T* x, i64* index, size_t n, size_t len, u32 log2_row, u32 log2_span, u32 log2_distance, int descending) {
    size_t distance = (size_t)1 << log2_distance, in_row = ((size_t)1 << log2_row) - 1;
    if (log2_row == 0) {
        for (size_t i = first_element(); i < n; i += grid_stride()) index[i] = 0;
        return;
    }
    for (size_t pair = first_element(); pair < n / 2; pair += grid_stride()) {
        size_t i = (pair >> log2_distance << (log2_distance + 1)) + (pair & (distance - 1)), j = i + distance;
        const T* row = x + (i >> log2_row) * len;
        bool is_first = log2_span == 1;
        i64 a = is_first ? (i64)(i & in_row) : index[i], b = is_first ? (i64)(j & in_row) : index[j];
        // The last span is the whole row, in which no place has that bit.
        bool is_reversed = (i & in_row) >> log2_span & 1;
        bool swaps = comes_first(row, len, b, a, descending) != is_reversed;
        index[i] = swaps ? b : a;
        index[j] = swaps ? a : b;
    }
}
#define SORT(name, T)                                                                                                      \
    extern "C" __global__ void sort_##name(const T* x, i64* index, size_t n, size_t len, u32 log2_row, u32 log2_span,      \
                                           u32 log2_distance, int descending) {                                            \
        sort(x, index, n, len, log2_row, log2_span, log2_distance, descending);                                            \
    }
SORT(f32, float)
SORT(f64, double)
SORT(bf16, bf16)
SORT(f16, f16)
SORT(int64, i64)
SORT(int32, int)
SORT(int8, u8)
SORT(int1, truth)
