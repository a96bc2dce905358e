// fill.cu: elements as functions of their index.
// math   kind 0: start + i * step; 1: from start to end, word numbers; 2: identity matrix of size word; 3: standard normal
//         numbers under the key word (Box-Muller on philox, pair by pair); 4: step whole numbers from start on, at random under the
//         key word; in double
// shapes  x: T[n]
// launch  grid-stride over n, block 256; any n
// moved   1 value written per element
// order   elementwise: bit-identical between runs
// twin    the functions `_cpu` in mod.rs next to this file

__device__ __forceinline__ double fraction(u32 high, u32 low) {
    return (double)(((u64)high << 32 | low) >> 11) * (1.0 / 9007199254740992.0);
}
__device__ double normal(u64 seed, size_t i) {
    Words words = philox(seed, (u32)(i / 2), (u32)(i / 2 >> 32), 0, 0);
    double first = fraction(words.w[0], words.w[1]), second = fraction(words.w[2], words.w[3]);
    // 1 - u lies in (0, 1], so the logarithm is finite.
    double radius = sqrt(-2.0 * log(1.0 - first)), angle = 6.283185307179586 * second;
    return radius * (i % 2 ? sin(angle) : cos(angle));
}
__device__ double integer(u64 seed, size_t i, double low, double n) {
    Words words = philox(seed, (u32)(i / 2), (u32)(i / 2 >> 32), 1, 0);
    double unit = i % 2 ? fraction(words.w[2], words.w[3]) : fraction(words.w[0], words.w[1]);
    double place = floor(__dmul_rn(unit, n));
    return low + (place < n - 1 ? place : n - 1);
}
// Rounded separately, as in the twin: no FMA.
__device__ __forceinline__ double on_line(double start, double i, double step) { return __dadd_rn(start, __dmul_rn(i, step)); }

template <class T>
__device__ void fill(T* x, size_t n, int kind, double start, double step, double end, u64 word) {
    for (size_t i = first_element(); i < n; i += grid_stride()) {
        double v;
        if (kind == 0) v = on_line(start, (double)i, step);
        else if (kind == 1) v = 2 * i < word ? on_line(start, (double)i, step) : on_line(end, -(double)(word - 1 - i), step);
        else if (kind == 2) v = i % (word + 1) == 0 ? 1.0 : 0.0;
        else if (kind == 3) v = normal(word, i);
        else v = integer(word, i, start, step);
        x[i] = Number<T>::of(v);
    }
}
#define FILL(name, T)                                                                                              \
    extern "C" __global__ void fill_##name(T* x, size_t n, int kind, double start, double step, double end, u64 word) { \
        fill(x, n, kind, start, step, end, word);                                                                  \
    }
FILL(f32, float)
FILL(f64, double)
FILL(bf16, bf16)
FILL(f16, f16)
FILL(int64, i64)
FILL(int32, int)
FILL(int8, u8)
FILL(int1, truth)
