//! Helpers of the operations' tests: random numbers, tolerances, gradient checks.

use crate::cpu::Float;
use crate::cuda::Gpu;
use crate::cuda::library::{self, Library};
use crate::{DType, Device, Element, Philox, Tensor};

/// Devices that a test runs on: the CPU, and up to two GPUs, real or virtual, if available.
///
/// With `REQUIRE_GPUS=N`, fewer than N GPUs fail the test.
pub(crate) fn devices() -> Vec<Device> {
    let n_gpus = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse().unwrap());
    assert!(n_gpus >= required, "needs {required} GPUs, found {n_gpus}");
    std::iter::once(Device::Cpu).chain((0..n_gpus.min(2) as u32).map(Device::Cuda)).collect()
}

/// A tensor with these values on `device`.
pub(crate) fn tensor<T: Element>(values: &[T], dims: &[usize], device: Device) -> Tensor {
    Tensor::from_slice(values, dims, device).unwrap()
}

/// Bytes read and written so far in the memory of `tensor`; None where nothing counts them: only a virtual GPU with checks does.
pub(crate) fn traffic(tensor: &Tensor) -> Option<[u64; 2]> {
    let Device::Cuda(index) = tensor.device() else { return None };
    let gpu = Gpu::get(index).unwrap();
    gpu.synchronize().unwrap();
    let driver = library::open(Library::Driver, 0).unwrap();
    // SAFETY: the type of that function in tests/vgpu; NVIDIA's driver has none of this name.
    let ask =
        unsafe { driver.symbol::<unsafe extern "C" fn(u64, *mut u64, *mut u64) -> i32>("vgpuTraffic") }?;
    let [mut read, mut written] = [0; 2];
    // SAFETY: both pointers are valid for one result.
    let status = unsafe { ask(tensor.view().cuda().unwrap().ptr(), &raw mut read, &raw mut written) };
    (status == 0).then_some([read, written])
}

/// Rounds values to another type.
pub(crate) fn rounded<T: Element, U: Element>(values: &[T]) -> Vec<U> {
    values.iter().map(|v| U::from_f64(v.to_f64())).collect()
}

/// Relative error bound of rounding to a 16-bit format: half a unit in the last place, and a margin for earlier roundings.
pub(crate) fn rounding_of<S: Element>() -> f64 {
    match S::DTYPE {
        DType::BF16 => 0.004,
        DType::F16 => 0.0005,
        other => panic!("{other} is not a 16-bit format"),
    }
}

/// Uniform numbers in -1..1, the same for the same seed.
pub(crate) fn random<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let philox = Philox::new(seed);
    (0..n as u64).map(|i| T::from_f64(2.0 * f64::from(philox.uniform_f32(i)) - 1.0)).collect()
}

/// `|got - want| <= atol + rtol·|want|` everywhere; NaN never passes.
#[track_caller]
pub(crate) fn assert_close<T: Element>(got: &[T], want: &[T], atol: f64, rtol: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let (g, w) = (g.to_f64(), w.to_f64());
        let ok = (g - w).abs() <= atol + rtol * w.abs();
        assert!(ok || g == w, "element {i}: got {g:e}, want {w:e}");
    }
}

/// Compares `d_x` with central differences of `loss` around `x`, all in f64.
///
/// The step 1e-5 balances truncation (1e-10 times the third derivative) and rounding (1e-11): so 1e-8 is a sound bound.
#[track_caller]
pub(crate) fn assert_gradient(x: &[f64], d_x: &[f64], mut loss: impl FnMut(&[f64]) -> f64) {
    const STEP: f64 = 1e-5;
    let mut moved = x.to_vec();
    for i in 0..x.len() {
        moved[i] = x[i] + STEP;
        let above = loss(&moved);
        moved[i] = x[i] - STEP;
        let below = loss(&moved);
        moved[i] = x[i];
        let want = (above - below) / (2.0 * STEP);
        assert!((d_x[i] - want).abs() <= 1e-8 + 1e-7 * want.abs(), "element {i}: {} against {want}", d_x[i]);
    }
}

/// `Σ a·b`: with random `b` a scalar loss whose gradient with respect to `a` is `b`.
pub(crate) fn dot<T: Float>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}
