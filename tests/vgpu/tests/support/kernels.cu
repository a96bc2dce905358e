// Kernels of the tests of the virtual GPU.
#define KERNEL extern "C" __global__ void

KERNEL fill(float *p, float v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = v;
}

KERNEL add(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

KERNEL __launch_bounds__(64) bounded(float *p) { p[threadIdx.x] = 1.f; }
KERNEL __launch_bounds__(1024) bounded_wide(float *p) { p[threadIdx.x] = 1.f; }

KERNEL block_sum(const float *x, float *y, int barrier) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  s[t] = x[t];
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (barrier) __syncthreads();
    if (t < k) s[t] += s[t + k];
  }
  if (t == 0) *y = s[0];
}

// Static shared memory: 40 KiB, 1 KiB of a function and 16 bytes, none. What nothing reads counts for nothing.
static __device__ __noinline__ float reversed(float v) {
  __shared__ float part[256];
  part[threadIdx.x] = v;
  __syncthreads();
  return part[blockDim.x - 1 - threadIdx.x];
}
template <int N> static __device__ __forceinline__ float folded(float v) {
  __shared__ float tile[N];
  tile[(threadIdx.x * 7) % N] = v;
  __syncthreads();
  return tile[(N - 1 - threadIdx.x) % N];
}
KERNEL static_40k(float *p) { p[threadIdx.x] = folded<10240>(p[threadIdx.x]); }
KERNEL static_1k(float *p) {
  __shared__ float first[4];
  if (threadIdx.x < 4) first[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = reversed(p[threadIdx.x]) + first[threadIdx.x & 3];
}
KERNEL static_none(float *p) {
  if (p == nullptr && blockDim.x == 0) p[0] = 1;
  else p[threadIdx.x] += 1;
}

template <class T> static __device__ T neighbor(T v) {
  __shared__ T part[64];
  part[threadIdx.x] = v;
  return part[threadIdx.x ^ 32];
}
KERNEL template_race(float *p) { p[threadIdx.x] = neighbor(p[threadIdx.x]); }

KERNEL misaligned(float *p) { *(double *)(p + 1) = 1; }

// Lane 0 waits for the block, the other lanes of its warp wait for lane 0.
KERNEL divergent(float *p) {
  if (threadIdx.x == 0) __syncthreads();
  else __shfl_sync(0xffffffffu, 1.f, 0);
  p[threadIdx.x] = 0;
}

struct Table { float *p[3]; int n; };
KERNEL by_value(Table t) {
  for (int k = 0; k < 3; k++)
    if (threadIdx.x < t.n) t.p[k][threadIdx.x] = k + 1;
}

// ---- the language ----
static __device__ __forceinline__ float bf16_to_float(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
static __device__ __noinline__ float square(float x) { return x * x; }
__constant__ float WEIGHTS[4] = {1, 2, 3, 4};

template <class T> static __device__ T warp_sum(T v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
template <class T> static __device__ T block_max(T v) {
  __shared__ T part[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int o = 16; o; o >>= 1) v = max(v, __shfl_down_sync(0xffffffffu, v, o));
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = part[0];
  for (int i = 1; i < (blockDim.x + 31) / 32; i++) v = max(v, part[i]);
  __syncthreads();
  return v;
}

// 64 threads; each writes what the host checks in out[0..16].
KERNEL language(float *out, unsigned *counter, unsigned long long *wide, double *total, const unsigned short *bf16) {
  __shared__ int hits;
  __shared__ float4 tile[16];
  int t = threadIdx.x;
  if (t == 0) hits = 0;
  if (t < 16) tile[t] = make_float4(t, t + 1, t + 2, t + 3);
  __syncthreads();
  atomicAdd(&hits, 1);
  atomicAdd(counter, 2u);
  atomicMax(counter + 1, (unsigned)t);
  atomicAdd(wide, 1ull << 33);
  atomicAdd(total, 0.5);
  atomicMin((int *)counter + 2, -t);
  atomicCAS(counter + 3, 7u, 9u);
  atomicInc(counter + 4, 9u);
  float s = warp_sum((float)t);
  double d = warp_sum((double)t);
  long long l = warp_sum((long long)t << 32);
  float m = block_max((float)(t ^ 21));
  int im = block_max(t ^ 21);
  unsigned even = __ballot_sync(0xffffffffu, t % 2 == 0);
  float up = __shfl_up_sync(0xffffffffu, (float)t, 1);
  int any = __any_sync(0xffffffffu, t == 40), all = __all_sync(0xffffffffu, t >= 0);
  __syncthreads();
  volatile float *v = out;
  if (t == 33) {
    v[0] = hits;
    v[1] = s;
    v[2] = (float)d;
    v[3] = (float)(l >> 32);
    v[4] = m + im;
    v[5] = even == 0x55555555u;
    v[6] = up;
    v[7] = any * 10 + all;
    v[8] = bf16_to_float(bf16[0]) + __ldg(bf16 + 1);
    v[9] = __fmaf_rn(2, 3, 4) + fdividef(1, 2) + __expf(0) + rsqrtf(4) + square(3);
    v[10] = __umulhi(0x80000000u, 6u) + __popc(255u) + __clz(1) + min(3, 4u) + fmaxf(1, 2);
    v[11] = WEIGHTS[2] + tile[5].w;
    v[12] = erff(0.5f) + tanhf(0.5f);
    v[13] = __float_as_uint(1.0f) == 0x3f800000u && isinf(INFINITY) && isnan(NAN);
    v[14] = warpSize + gridDim.x + blockDim.x;
    ushort4 u = make_ushort4(1, 2, 3, 4);
    uint2 w = make_uint2(5, 6);
    double2 z = make_double2(7, 8);
    v[15] = u.w + w.y + z.y + sizeof(size_t);
    assert(hits == 64);
    printf("language %d\n", t);
  }
}
