// launch.h: from `void **args` to a call of the kernel, for every thread of every block.
namespace vgpu {
template <class... A, size_t... I> VGPU_HOT void call(void (*f)(A...), void **p, std::index_sequence<I...>) {
  f(*(std::remove_const_t<std::remove_reference_t<A>> *)p[I]...);
}

// Runs `thread` for every thread of every block. 0 when all is well, 1 with a message in l->error.
VGPU_HOT int run(VgpuLaunch *l, void (*thread)(void *)) {
  L = l;
  begin_check();
  rng = l->seed;
  n_threads = l->block[0] * l->block[1] * l->block[2];
  blockDim = dim3(l->block[0], l->block[1], l->block[2]);
  gridDim = dim3(l->grid[0], l->grid[1], l->grid[2]);
  unsigned t = 0;
  for (unsigned z = 0; z < l->block[2]; z++)
    for (unsigned y = 0; y < l->block[1]; y++)
      for (unsigned x = 0; x < l->block[0]; x++) th[t++].idx = {x, y, z};
  body = thread;
  body_arg = l->args;
  n_idle = n_fibers = 0;
  if (setjmp(fault)) return 1;
  const uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
  const uint64_t prime = 2654435761;  // i * prime mod blocks is a permutation unless it divides `blocks`
  for (uint64_t i = 0; i < blocks; i++) {
    uint64_t b = rng && blocks % prime ? (i * prime + l->seed) % blocks : i;
    blockIdx = {(unsigned)(b % l->grid[0]), (unsigned)(b / l->grid[0] % l->grid[1]),
                (unsigned)(b / ((uint64_t)l->grid[0] * l->grid[1]))};
    poison_shared();
    reset_check();
    if (L->is_dependent)
      for (t = 0; t < n_threads; t++) th[t].follows = false;
    run_block();
  }
  return 0;
}

// What the Rust side wants to know of a kernel comes from the type of its function.
template <auto F> struct Kernel;
template <class... A, void (*F)(A...)> struct Kernel<F> {
  static constexpr unsigned n = sizeof...(A);
  static constexpr unsigned size[n + 1] = {sizeof(A)..., 0};
  // 0 no pointer, 1 to elements, 2 to constants.
  static constexpr unsigned pointer[n + 1] = {
      (std::is_pointer_v<A> ? 1u + std::is_const_v<std::remove_pointer_t<A>> : 0u)..., 0};

  VGPU_NOSAN static void thread(void *p) { call(F, (void **)p, std::make_index_sequence<n>{}); }

  VGPU_NOSAN static int run(VgpuLaunch *l) { return vgpu::run(l, thread); }
};

struct KernelInfo {
  const char *name;
  int (*run)(VgpuLaunch *);
  unsigned n_params;
  const unsigned *size, *pointer;
  unsigned most_threads;
};
}  // namespace vgpu

// One line for each kernel, appended by nvrtc/source.rs; nvrtc/static_shared.rs adds `vgpu_static_F`. MOST is what __launch_bounds__ says, or 0.
#define VGPU_KERNEL(F, MOST)                                                                    \
  extern "C" __attribute__((visibility("default"))) const vgpu::KernelInfo vgpu_kernel_##F = {  \
      #F, vgpu::Kernel<&F>::run, vgpu::Kernel<&F>::n, vgpu::Kernel<&F>::size,                   \
      vgpu::Kernel<&F>::pointer, MOST};

// Called by the signal handler when the running kernel has faulted.
extern "C" __attribute__((visibility("default"))) VGPU_NOSAN void vgpu_fault(const char *message) {
  vgpu::die("%s", message);
}
