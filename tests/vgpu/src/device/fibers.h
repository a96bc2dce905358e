// fibers.h: how the threads of a block run.
//
// CUDA C is compiled by a host C++ compiler with these four headers in front: fibers.h, check.h, launch.h, language.h.
// One block runs at a time in a module (its state is the module's statics). Its threads are lazy fibers: a thread that
// never waits is a plain call from a loop, and only one that has to wait at a barrier or a warp operation gets the
// next one started on a stack of its own. With a fuzz seed blocks, warps and threads run in a shuffled order.
#pragma once
#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <type_traits>
#include <utility>

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The checker must not check itself, and what is inlined into a kernel is instrumented with it. Kernels call the functions that are
// VGPU_HOT; those that are VGPU_PART are parts of these alone: each call between a barrier and the switch to another fiber costs a
// mispredicted return. Inlined into kernels, waits would double the time to compile them.
#define VGPU_NOSAN __attribute__((no_sanitize("thread")))
#ifdef VGPU_CHECK
#define VGPU_HOT static __attribute__((noinline, unused)) VGPU_NOSAN
#else
#define VGPU_HOT static __attribute__((unused))
#endif
#define VGPU_PART static inline __attribute__((always_inline, unused)) VGPU_NOSAN

// ---- shared with the Rust side (nvrtc/module.rs) ----

// An allocation that the kernel was given, the range that it touched of it, and the bytes of its accesses.
struct VgpuRange { uint64_t base, end, read_lo, read_hi, write_lo, write_hi, n_read, n_written; };

struct VgpuLaunch {
  unsigned grid[3], block[3], dyn_smem;
  uint64_t seed;
  void **args;
  unsigned at_block[3], at_thread[3];  // where a fault happened
  char error[512];
  VgpuRange *ranges;
  unsigned n_ranges;
  void **stacks;  // of fibers, one for each thread of a block; null where none was needed yet
  unsigned is_dependent;  // launched so that it must wait for the kernel before it
  uint64_t n_waits;  // threads that have
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace vgpu {
constexpr unsigned MAX_THREADS = 1024, STACK = 64 << 10, MAX_DYN_SMEM = 232448;

struct Thread { void *sp; uint3 idx; unsigned wait_line; bool follows; };

static Thread th[MAX_THREADS];
static void *idle_fiber[MAX_THREADS];
static void *main_sp;
static unsigned n_idle, n_fibers;
static unsigned cur, n_threads, n_warps, next_thread, n_alive, at_barrier, n_ready, stride, start;
static uint32_t ready[32], alive[32], arrived[32];  // bits of lanes, by warp
static uint32_t wait_mask[MAX_THREADS];
static uint32_t took_part[MAX_THREADS];  // the lanes of a thread's last warp operation; some may have ended since
static uint64_t slot[MAX_THREADS], snap[MAX_THREADS];  // what a lane brings to a warp operation, and what it finds
static unsigned block_epoch, warp_epoch[32];
static int vote_or, vote_and, vote_count, result_or, result_and, result_count;
static VgpuLaunch *L;
static jmp_buf fault;
static uint64_t rng;
static void (*body)(void *);
static void *body_arg;
alignas(256) static unsigned char dyn_smem_buf[MAX_DYN_SMEM + 256];

// Marsaglia's xorshift; only used with a seed, which is not 0.
VGPU_HOT uint64_t rnd() {
  rng ^= rng << 13;
  rng ^= rng >> 7;
  rng ^= rng << 17;
  return rng;
}

// Ends the launch with a message.
[[noreturn]] VGPU_HOT void die(const char *format, ...) {
  va_list a;
  va_start(a, format);
  vsnprintf(L->error, sizeof L->error, format, a);
  va_end(a);
  memcpy(L->at_block, &blockIdx, 12);
  memcpy(L->at_thread, &threadIdx, 12);
  longjmp(fault, 1);
}

// Saves this fiber's stack pointer in *save and goes on with another one. Callee-saved registers are all that lives.
extern "C" void vgpu_switch(void **save, void *to);
asm(R"(.text
.local vgpu_switch
.type vgpu_switch,@function
vgpu_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  pop %rcx
  jmp *%rcx
.size vgpu_switch,.-vgpu_switch
)");

VGPU_PART void enter(unsigned t) {
  cur = t;
  threadIdx = th[t].idx;
}

// A thread that can go on, of the current warp if there is one; -1 if none can.
VGPU_PART int pick() {
  if (!n_ready) return -1;
  unsigned w = rng ? rnd() % n_warps : cur >> 5;
  for (unsigned i = 0; i < n_warps; i++, w = w + 1 == n_warps ? 0 : w + 1) {
    uint32_t r = ready[w];
    if (!r) continue;
    unsigned lane = __builtin_ctz(r);
    if (rng) {
      unsigned k = rnd() & 31;
      uint32_t rotated = (r >> k) | (r << ((32 - k) & 31));
      lane = (__builtin_ctz(rotated) + k) & 31;
    }
    ready[w] &= ~(1u << lane);
    n_ready--;
    return w * 32 + lane;
  }
  return -1;
}

VGPU_HOT void fiber_main();

// The stack pointer of a fiber that begins in fiber_main, or of one that has nothing to do.
VGPU_HOT void *new_fiber() {
  if (n_idle) return idle_fiber[--n_idle];
  if (n_fibers == MAX_THREADS) die("out of fibers");
  unsigned k = n_fibers++;
  void *&stack = L->stacks[k];
  if (!stack) {
    void *fresh = mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) die("no memory mapping is left for the stack of a thread");
    mprotect(fresh, 4096, PROT_NONE);
    stack = fresh;
  }
  // Staggered, so that the stacks don't compete for the same sets of the cache.
  char *top = (char *)stack + STACK + 4096 - 64 * (k % 61) - 64;
  void **sp = (void **)((uintptr_t)top & ~63ull);
  *--sp = nullptr;
  *--sp = (void *)fiber_main;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}

VGPU_HOT __attribute__((noinline)) void deadlock() {
  unsigned at_block = 0, at_warp = 0;
  for (unsigned t = 0; t < n_threads; t++)
    if (alive[t >> 5] >> (t & 31) & 1) (wait_mask[t] ? at_warp : at_block)++;
  die("deadlock: of %u live threads %u wait at __syncthreads and %u at a warp operation (e.g. thread %u at line %u)",
      n_alive, at_block, at_warp, cur, th[cur].wait_line);
}

// Leaves the current thread for one that can go on, else for the next one that has not begun.
VGPU_PART void wait_at(unsigned line) {
  unsigned me = cur;
  th[me].wait_line = line;
  void **save = &th[me].sp;
  int t = pick();
  if (t >= 0) {
    enter(t);
    if ((unsigned)t != me) vgpu_switch(save, th[t].sp);
  } else if (next_thread < n_threads) {
    vgpu_switch(save, new_fiber());
  } else {
    deadlock();
  }
}

VGPU_HOT void release_block() {
  at_barrier = 0;
  block_epoch++;
  result_or = vote_or;
  result_and = vote_and;
  result_count = vote_count;
  vote_or = vote_count = 0;
  vote_and = 1;
  for (unsigned w = 0; w < n_warps; w++) ready[w] = alive[w];
  n_ready = n_alive;
}

// The caller was released and runs on by itself.
VGPU_PART void go_on(unsigned t) {
  ready[t >> 5] &= ~(1u << (t & 31));
  n_ready--;
}

VGPU_HOT void release_warp(unsigned w, uint32_t mask) {
  arrived[w] &= ~mask;
  mask &= alive[w];
  ready[w] |= mask;
  n_ready += __builtin_popcount(mask);
  warp_epoch[w]++;
  for (uint32_t r = mask; r; r &= r - 1) {
    unsigned t = w * 32 + __builtin_ctz(r);
    snap[t] = slot[t];
    took_part[t] = mask;
    wait_mask[t] = 0;
  }
}

// A thread has ended; those that waited only for it go on.
VGPU_HOT void retire(unsigned t) {
  unsigned w = t >> 5;
  alive[w] &= ~(1u << (t & 31));
  n_alive--;
  if (n_alive && at_barrier == n_alive) release_block();
  if (uint32_t a = arrived[w]) {
    uint32_t mask = wait_mask[w * 32 + __builtin_ctz(a)];
    if ((a & mask) == (mask & alive[w])) release_warp(w, mask & alive[w]);
  }
}

// Runs threads one after the other until nothing is left.
VGPU_HOT void fiber_main() {
  for (;;) {
    int t = pick();  // a thread that was released goes before a fresh one
    if (t >= 0) {
      enter(t);
      n_idle++;
      vgpu_switch(&idle_fiber[n_idle - 1], th[t].sp);
    } else if (next_thread < n_threads) {
      unsigned fresh = next_thread++;
      if (rng) fresh = (fresh * stride + start) % n_threads;
      enter(fresh);
      body(body_arg);
      retire(cur);
    } else if (!n_alive) {
      n_idle++;
      vgpu_switch(&idle_fiber[n_idle - 1], main_sp);
    } else {
      deadlock();
    }
  }
}

// All lanes of `mask` bring a value and go on together.
VGPU_PART void warp_wait(uint32_t mask, uint64_t value, unsigned line) {
  unsigned me = cur, w = me >> 5;
  uint32_t bit = 1u << (me & 31);
  if (!(mask & bit)) die("line %u: warp operation whose mask %08x leaves out the calling lane", line, mask);
  slot[me] = value;
  wait_mask[me] = mask;
  arrived[w] |= bit;
  uint32_t need = mask & alive[w];
  if ((arrived[w] & mask) != need) {
    wait_at(line);
    return;
  }
  for (uint32_t r = need; r; r &= r - 1) {
    unsigned t = w * 32 + __builtin_ctz(r);
    if (wait_mask[t] != mask)
      die("line %u: lanes of one warp operation disagree on the mask (%08x and %08x)", line, mask, wait_mask[t]);
  }
  release_warp(w, need);
  go_on(me);
}

// All live threads of the block bring a vote and go on together.
VGPU_PART void block_wait(int vote, unsigned line) {
  vote_or |= !!vote;
  vote_and &= !!vote;
  vote_count += !!vote;
  if (++at_barrier == n_alive) {
    release_block();
    // With a seed the last to arrive isn't the first to go on.
    if (!rng) {
      go_on(cur);
      return;
    }
  }
  wait_at(line);
}

VGPU_HOT void run_block() {
  n_warps = (n_threads + 31) / 32;
  next_thread = 0;
  n_alive = n_threads;
  at_barrier = n_ready = 0;
  vote_or = vote_count = 0;
  vote_and = 1;
  block_epoch = 0;
  if (rng) {
    static const unsigned odd[] = {1, 1021, 1019, 1013};
    stride = odd[rnd() & 3];
    if (n_threads % stride == 0) stride = 1;
    start = rnd() % n_threads;
  }
  for (unsigned w = 0; w < n_warps; w++) {
    unsigned lanes = n_threads - 32 * w;
    alive[w] = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    ready[w] = arrived[w] = 0;
    warp_epoch[w] = 0;
  }
  vgpu_switch(&main_sp, new_fiber());
}
}  // namespace vgpu
