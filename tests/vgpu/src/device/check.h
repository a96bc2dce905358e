// check.h: shared memory, and what is checked of memory accesses.
//
// `__shared__` variables live in a section of their own (those of templates by nvrtc/static_shared.rs), so that they can be poisoned before
// each block and measured.
// With VGPU_CHECK the module is compiled with -fsanitize=thread, whose callbacks (`__tsan_*`) are ours: every access to
// device memory is checked against the allocations that the kernel was given, its range noted for the order between
// streams, and every access to shared memory checked for a race with other threads since the last barrier.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_vgpu_shared[], __stop_vgpu_shared[];

namespace vgpu {
VGPU_PART size_t static_smem() { return __start_vgpu_shared ? __stop_vgpu_shared - __start_vgpu_shared : 0; }

// Shared memory holds nothing from before: NaN shows who reads what nobody wrote.
VGPU_HOT void poison_shared() {
  if (static_smem()) memset(__start_vgpu_shared, 0xFF, static_smem());
  memset(dyn_smem_buf, 0xFF, L->dyn_smem + 256);
}

template <class T> VGPU_HOT T *dyn_smem() { return (T *)dyn_smem_buf; }

#ifndef VGPU_CHECK
VGPU_HOT void begin_check() {}
VGPU_HOT void reset_check() {}
VGPU_PART void atomic_access(void *, unsigned) {}
#else
// The latest write and read of a word of shared memory: thread + 1 (0: none), and the barriers it had passed.
struct Cell { uint32_t w_block, w_warp, r_block, r_warp; uint16_t writer, reader; };
static Cell *cells;
static unsigned n_cells;
// Whether the kernel was given pinned host memory: most were not.
static bool has_host_ranges;

VGPU_HOT void begin_check() {
  has_host_ranges = false;
  for (unsigned i = 0; i < L->n_ranges; i++) has_host_ranges |= L->ranges[i].base >> 44 != 3;
}

VGPU_HOT void reset_check() {
  unsigned want = (static_smem() + sizeof dyn_smem_buf) / 4 + 2;
  if (n_cells < want) {
    cells = (Cell *)realloc(cells, want * sizeof(Cell));
    n_cells = want;
  }
  memset(cells, 0, (static_smem() + L->dyn_smem + 11) / 4 * sizeof(Cell));
}

VGPU_HOT void race(const char *what, unsigned other, const void *at) {
  long offset = (uintptr_t)at - (uintptr_t)dyn_smem_buf < sizeof dyn_smem_buf
                    ? (const unsigned char *)at - dyn_smem_buf
                    : (const unsigned char *)at - __start_vgpu_shared;
  die("race in shared memory (offset %ld): %s of thread %u conflicts with thread %u, no barrier between", offset, what,
      cur, other);
}

[[noreturn]] VGPU_HOT void illegal(uintptr_t a, unsigned n, bool write) {
  die("illegal %s of %u bytes at %#lx, in no allocation whose pointer the kernel was given", write ? "write" : "read",
      n, (unsigned long)(a - 0x200000000000));
}

// Notes an access to device memory. False where `a` is something else. Most accesses of a kernel end here, so it is part of each callback.
VGPU_PART bool device_access(uintptr_t a, unsigned n, bool write, bool aligned) {
  if (a >> 44 != 3) return false;  // the bytes of the devices: see mem/mod.rs
  if (L->is_dependent && !th[cur].follows)
    die("%s of device memory before the thread waits for the kernel before this one, as a dependent launch must", write ? "write" : "read");
  if (aligned && n <= 16 && !(n & (n - 1)) && a % n)
    die("misaligned %s of %u bytes at %#lx", write ? "write" : "read", n, (unsigned long)(a - 0x200000000000));
  for (unsigned i = 0; i < L->n_ranges; i++) {
    VgpuRange &r = L->ranges[i];
    if (a - r.base >= r.end - r.base) continue;
    if (a + n > r.end) break;
    uint64_t &lo = write ? r.write_lo : r.read_lo, &hi = write ? r.write_hi : r.read_hi;
    if (a < lo) lo = a;
    if (a + n > hi) hi = a + n;
    (write ? r.n_written : r.n_read) += n;
    return true;
  }
  illegal(a, n, write);
}

// Refuses an access beyond pinned host memory that the kernel was given, up to the end of its last page.
VGPU_HOT void host_access(uintptr_t a, unsigned n, bool write) {
  for (unsigned i = 0; i < L->n_ranges; i++) {
    VgpuRange &r = L->ranges[i];
    if (r.base >> 44 == 3 || a < r.base || a + n <= r.end || a >= ((r.end + 4095) & ~4095ull)) continue;
    die("illegal %s of %u bytes, %ld bytes past the end of pinned host memory", write ? "write" : "read", n,
        (long)(a - r.end));
  }
}

// The first cell of an access to shared memory; -1 where `a` is something else.
VGPU_PART long shared_cell(uintptr_t a, unsigned n) {
  uintptr_t fixed = a - (uintptr_t)__start_vgpu_shared, dynamic = a - (uintptr_t)dyn_smem_buf;
  if (fixed < static_smem()) return fixed / 4;
  if (dynamic >= sizeof dyn_smem_buf) return -1;
  if (dynamic + n > L->dyn_smem)
    die("out of bounds of dynamic shared memory: offset %lu of %u", (unsigned long)dynamic, L->dyn_smem);
  return (static_smem() + dynamic) / 4;
}

VGPU_PART bool concurrent(unsigned other, uint32_t block, uint32_t warp) {
  unsigned me = cur + 1, w = cur >> 5;
  if (!other || other == me || block != block_epoch + 1) return false;
  return (other - 1) >> 5 != w || warp == warp_epoch[w] + 1;
}

VGPU_HOT void other_access(const void *p, unsigned n, bool write) {
  long first = shared_cell((uintptr_t)p, n);
  if (first < 0) {  // the thread's stack, constants
    if (has_host_ranges) host_access((uintptr_t)p, n, write);
    return;
  }
  unsigned me = cur + 1;
  uint32_t block = block_epoch + 1, warp = warp_epoch[cur >> 5] + 1;
  for (unsigned k = 0; k < (n + 3) / 4; k++) {
    Cell &c = cells[first + k];
    if (concurrent(c.writer, c.w_block, c.w_warp)) race(write ? "write" : "read", c.writer - 1, p);
    if (write) {
      if (concurrent(c.reader, c.r_block, c.r_warp)) race("write", c.reader - 1, p);
      c.writer = me, c.w_block = block, c.w_warp = warp;
    } else {
      c.reader = me, c.r_block = block, c.r_warp = warp;
    }
  }
}

VGPU_PART void access(const void *p, unsigned n, bool write) {
  if (!device_access((uintptr_t)p, n, write, true)) other_access(p, n, write);
}

// The same at any address. It is seldom called, so it is compiled once.
VGPU_HOT void unaligned_access(const void *p, unsigned n, bool write) {
  if (!device_access((uintptr_t)p, n, write, false)) other_access(p, n, write);
}

// Atomic operations don't race with each other; their range counts for the order between streams.
VGPU_HOT void atomic_access(void *p, unsigned n) {
  if (device_access((uintptr_t)p, n, false, true)) device_access((uintptr_t)p, n, true, true);
  else shared_cell((uintptr_t)p, n);
}
#endif
}  // namespace vgpu

#ifdef VGPU_CHECK
#define VGPU_ACCESS(N)                                                                          \
  VGPU_NOSAN void __tsan_read##N(void *a) { vgpu::access(a, N, false); }                        \
  VGPU_NOSAN void __tsan_write##N(void *a) { vgpu::access(a, N, true); }                        \
  void __tsan_volatile_read##N(void *) __attribute__((alias("__tsan_read" #N)));                \
  void __tsan_volatile_write##N(void *) __attribute__((alias("__tsan_write" #N)));              \
  VGPU_NOSAN void __tsan_unaligned_read##N(void *a) { vgpu::unaligned_access(a, N, false); }    \
  VGPU_NOSAN void __tsan_unaligned_write##N(void *a) { vgpu::unaligned_access(a, N, true); }
extern "C" {
VGPU_ACCESS(1) VGPU_ACCESS(2) VGPU_ACCESS(4) VGPU_ACCESS(8) VGPU_ACCESS(16)
VGPU_NOSAN void __tsan_read_range(void *a, long n) { vgpu::unaligned_access(a, n, false); }
VGPU_NOSAN void __tsan_write_range(void *a, long n) { vgpu::unaligned_access(a, n, true); }
VGPU_NOSAN void __tsan_init() {}
VGPU_NOSAN void __tsan_func_entry(void *) {}
VGPU_NOSAN void __tsan_func_exit(void *) {}
VGPU_NOSAN void __tsan_vptr_update(void *, void *) {}
VGPU_NOSAN void __tsan_vptr_read(void *) {}
}
#endif
