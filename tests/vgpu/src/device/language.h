// language.h: the CUDA language, as far as kernels of dense networks need it. More is accepted than NVRTC accepts
// (INFINITY, NAN and the integer types of stdint.h are there without a header), and numerics are those of the host:
// `__expf` and its like are exact here.
#define VGPU_LINE unsigned line = __builtin_LINE()

// ---- barriers and warps ----
VGPU_HOT void __syncthreads(VGPU_LINE) { vgpu::block_wait(0, line); }
VGPU_HOT int __syncthreads_or(int p, VGPU_LINE) { vgpu::block_wait(p, line); return vgpu::result_or; }
VGPU_HOT int __syncthreads_and(int p, VGPU_LINE) { vgpu::block_wait(p, line); return vgpu::result_and; }
VGPU_HOT int __syncthreads_count(int p, VGPU_LINE) { vgpu::block_wait(p, line); return vgpu::result_count; }
VGPU_HOT void __syncwarp(unsigned mask = ~0u, VGPU_LINE) { vgpu::warp_wait(mask, 0, line); }
VGPU_HOT void __threadfence() {}
VGPU_HOT void __threadfence_block() {}
VGPU_HOT void __threadfence_system() {}

namespace vgpu {
template <class T> VGPU_PART uint64_t to_bits(T v) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof v);
  return bits;
}
template <class T> VGPU_PART T from_bits(uint64_t bits) {
  T v;
  memcpy((void *)&v, &bits, sizeof v);
  return v;
}
// The value of lane `from`, or the own one where `from` is out of the segment.
template <class T> VGPU_PART T shuffle(unsigned mask, T v, int from, bool inside, unsigned line) {
  unsigned base = cur & ~31u;
  warp_wait(mask, to_bits(v), line);
  if (!inside) return v;
  if (!(mask >> from & 1)) die("line %u: shuffle reads lane %d, which the mask %08x leaves out", line, from, mask);
  return from_bits<T>(snap[base + from]);
}
VGPU_PART int lane() { return cur & 31; }
}  // namespace vgpu

template <class T> VGPU_HOT T __shfl_sync(unsigned mask, T v, int from, int width = 32, VGPU_LINE) {
  int segment = vgpu::lane() & ~(width - 1);
  return vgpu::shuffle(mask, v, segment | (from & (width - 1)), true, line);
}
template <class T> VGPU_HOT T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, VGPU_LINE) {
  int from = vgpu::lane() ^ x;
  return vgpu::shuffle(mask, v, from, from < (vgpu::lane() & ~(width - 1)) + width, line);
}
template <class T> VGPU_HOT T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, VGPU_LINE) {
  return vgpu::shuffle(mask, v, vgpu::lane() + d, (vgpu::lane() & (width - 1)) + (int)d < width, line);
}
template <class T> VGPU_HOT T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, VGPU_LINE) {
  return vgpu::shuffle(mask, v, vgpu::lane() - d, (vgpu::lane() & (width - 1)) - (int)d >= 0, line);
}
VGPU_HOT unsigned __ballot_sync(unsigned mask, int p, VGPU_LINE) {
  unsigned base = vgpu::cur & ~31u, result = 0;
  vgpu::warp_wait(mask, !!p, line);
  for (uint32_t r = vgpu::took_part[vgpu::cur]; r; r &= r - 1) {
    unsigned lane = __builtin_ctz(r);
    result |= (unsigned)(vgpu::snap[base + lane] & 1) << lane;
  }
  return result;
}
VGPU_HOT int __any_sync(unsigned mask, int p, VGPU_LINE) { return __ballot_sync(mask, p, line) != 0; }
VGPU_HOT int __all_sync(unsigned mask, int p, VGPU_LINE) { return __ballot_sync(mask, !p, line) == 0; }
VGPU_HOT unsigned __activemask() { return vgpu::alive[vgpu::cur >> 5]; }

// ---- atomics ----
namespace vgpu {
// Blocks of one module run one after the other, but other streams and devices may work on the same memory.
template <class T, class F> VGPU_HOT T update(T *p, F f) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  using B = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  atomic_access((void *)p, sizeof(T));
  B old = __atomic_load_n((B *)p, __ATOMIC_RELAXED), next;
  do {
    next = (B)to_bits<T>(f(from_bits<T>(old)));
  } while (!__atomic_compare_exchange_n((B *)p, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return from_bits<T>(old);
}
}  // namespace vgpu
#define VGPU_ATOMIC(NAME, EXPR) \
  template <class T, class U> VGPU_HOT T NAME(T *p, U u) { T v = (T)u; return vgpu::update(p, [v](T o) -> T { return EXPR; }); }
VGPU_ATOMIC(atomicAdd, o + v)
VGPU_ATOMIC(atomicSub, o - v)
VGPU_ATOMIC(atomicMax, o > v ? o : v)
VGPU_ATOMIC(atomicMin, o < v ? o : v)
VGPU_ATOMIC(atomicExch, v)
VGPU_ATOMIC(atomicAnd, o & v)
VGPU_ATOMIC(atomicOr, o | v)
VGPU_ATOMIC(atomicXor, o ^ v)
VGPU_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
VGPU_ATOMIC(atomicDec, o == 0 || o > v ? v : o - 1)
template <class T, class U, class V> VGPU_HOT T atomicCAS(T *p, U expected, V value) {
  T e = (T)expected, v = (T)value;
  return vgpu::update(p, [e, v](T o) -> T { return o == e ? v : o; });
}

// ---- vectors ----
#define VGPU_VECTOR(T, NAME, A2, A4)                                                             \
  struct NAME##1 { T x; };                                                                       \
  struct alignas(A2) NAME##2 { T x, y; };                                                        \
  struct NAME##3 { T x, y, z; };                                                                 \
  struct alignas(A4) NAME##4 { T x, y, z, w; };                                                  \
  VGPU_HOT NAME##1 make_##NAME##1(T x) { return {x}; }                                           \
  VGPU_HOT NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                   \
  VGPU_HOT NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                           \
  VGPU_HOT NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 vgpu_uint3  // the built-in one is above
VGPU_VECTOR(signed char, char, 2, 4) VGPU_VECTOR(unsigned char, uchar, 2, 4)
VGPU_VECTOR(short, short, 4, 8) VGPU_VECTOR(unsigned short, ushort, 4, 8)
VGPU_VECTOR(int, int, 8, 16) VGPU_VECTOR(unsigned, uint, 8, 16)
VGPU_VECTOR(float, float, 8, 16) VGPU_VECTOR(double, double, 16, 16)
VGPU_VECTOR(long long, longlong, 16, 16) VGPU_VECTOR(unsigned long long, ulonglong, 16, 16)
#undef uint3

// ---- arithmetic ----
// glibc declares some of these itself, so they are macros.
// What the prelude of the kernels has in the assembler of NVIDIA's devices. A NaN becomes the canonical one.
// griddepcontrol.wait.
VGPU_HOT void follow_kernels() {
  if (!vgpu::th[vgpu::cur].follows) vgpu::L->n_waits++;
  vgpu::th[vgpu::cur].follows = true;
}
inline void prefetch(const void*) {}
inline unsigned thread_anew() { return threadIdx.x; }
inline unsigned short bf16_bits(float x) {
    unsigned u = __builtin_bit_cast(unsigned, x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned short f16_bits(float x) {
    return x != x ? 0x7fff : __builtin_bit_cast(unsigned short, (_Float16)x);
}
inline float float_of_f16_bits(unsigned short bits) { return (float)__builtin_bit_cast(_Float16, bits); }

#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
#define __exp10f(x) exp10f(x)
VGPU_HOT float rsqrtf(float x) { return 1.0f / sqrtf(x); }
VGPU_HOT double rsqrt(double x) { return 1.0 / sqrt(x); }
VGPU_HOT float rsqrt(float x) { return 1.0f / sqrtf(x); }
VGPU_HOT float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
VGPU_HOT float __frcp_rn(float x) { return 1.0f / x; }
VGPU_HOT float __fdividef(float a, float b) { return a / b; }
VGPU_HOT float fdividef(float a, float b) { return a / b; }
VGPU_HOT float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
VGPU_HOT double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
VGPU_HOT float __saturatef(float x) { return x > 1 ? 1 : x > 0 ? x : 0; }
VGPU_HOT float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
// Rounded by themselves: a product and a sum that the compiler must not fuse.
#define VGPU_ROUNDED(NAME, T, OP) \
  VGPU_HOT __attribute__((optimize("fp-contract=off"), noinline)) T NAME(T a, T b) { return a OP b; }
VGPU_ROUNDED(__fadd_rn, float, +) VGPU_ROUNDED(__fsub_rn, float, -)
VGPU_ROUNDED(__fmul_rn, float, *) VGPU_ROUNDED(__fdiv_rn, float, /)
VGPU_ROUNDED(__dadd_rn, double, +) VGPU_ROUNDED(__dsub_rn, double, -)
VGPU_ROUNDED(__dmul_rn, double, *) VGPU_ROUNDED(__ddiv_rn, double, /)
VGPU_HOT float __fsqrt_rn(float x) { return sqrtf(x); }
VGPU_HOT double __dsqrt_rn(double x) { return sqrt(x); }
VGPU_HOT int __popc(unsigned x) { return __builtin_popcount(x); }
VGPU_HOT int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
VGPU_HOT int __clz(int x) { return x ? __builtin_clz(x) : 32; }
VGPU_HOT int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
VGPU_HOT int __ffs(int x) { return __builtin_ffs(x); }
VGPU_HOT unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
VGPU_HOT unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
VGPU_HOT int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
VGPU_HOT unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
VGPU_HOT unsigned __float_as_uint(float x) { return (unsigned)vgpu::to_bits(x); }
VGPU_HOT int __float_as_int(float x) { return (int)vgpu::to_bits(x); }
VGPU_HOT float __uint_as_float(unsigned x) { return vgpu::from_bits<float>(x); }
VGPU_HOT float __int_as_float(int x) { return vgpu::from_bits<float>((unsigned)x); }
VGPU_HOT long long __double_as_longlong(double x) { return (long long)vgpu::to_bits(x); }
VGPU_HOT double __longlong_as_double(long long x) { return vgpu::from_bits<double>((uint64_t)x); }
VGPU_HOT float __uint2float_rn(unsigned x) { return (float)x; }
VGPU_HOT float __int2float_rn(int x) { return (float)x; }
VGPU_HOT int __float2int_rn(float x) { return (int)rintf(x); }
VGPU_HOT int __float2int_rd(float x) { return (int)floorf(x); }
VGPU_HOT int __float2int_rz(float x) { return (int)x; }
VGPU_HOT float __double2float_rn(double x) { return (float)x; }
template <class T> VGPU_HOT T __ldg(const T *p) {
#ifdef VGPU_CHECK
  vgpu::access(p, sizeof(T), false);
#endif
  return *p;
}
#define __ldcs(p) __ldg(p)
#define __ldcg(p) __ldg(p)
template <class T> VGPU_HOT void __stcs(T *p, T v) {
#ifdef VGPU_CHECK
  vgpu::access(p, sizeof(T), true);
#endif
  *p = v;
}
template <class A, class B> static constexpr auto min(A a, B b) -> std::common_type_t<A, B> { return b < a ? b : a; }
template <class A, class B> static constexpr auto max(A a, B b) -> std::common_type_t<A, B> { return a < b ? b : a; }
VGPU_HOT long long clock64() { return 0; }

// ---- the rest ----
#undef assert
#define assert(e) ((e) ? (void)0 : vgpu::die("line %d: assertion failed: %s", __LINE__, #e))
#define __trap() vgpu::die("line %d: __trap()", __LINE__)
#define printf(...) fprintf(stderr, __VA_ARGS__)
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("vgpu_shared"), aligned(16)))
