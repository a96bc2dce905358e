//! Errors of split factors beside f32 and TF32, and the numbers at the ends of their range.

use super::*;
use crate::cuda::blas::Epilogue;
use crate::ops::addmm_with;
use crate::ops::testing::{assert_close, devices, random, tensor};
use crate::{Device, Element};

/// The product in one mode, of f32 factors on `device`.
fn product(
    mode: MatmulMode,
    device: Device,
    [m, n, k]: [usize; 3],
    [ta, tb]: [bool; 2],
    (alpha, beta): (f64, f64),
    [a, b, c]: [&[f32]; 3],
) -> Vec<f64> {
    let dims = |t: bool, rows: usize, cols: usize| if t { [cols, rows] } else { [rows, cols] };
    let (a, b) = (tensor(a, &dims(ta, m, k), device), tensor(b, &dims(tb, k, n), device));
    let mut c = tensor(c, &[m, n], device);
    let mut scratch = Tensor::full(&[split_factors_len(m, n, k)], f64::NAN, DType::F32, device).unwrap();
    let (a, b, out) = (a.view(), b.view(), c.view_mut());
    match mode {
        MatmulMode::F32x3 => addmm_f32x3(alpha, a, ta, b, tb, beta, out, scratch.view_mut()).unwrap(),
        _ => addmm_with(mode, alpha, a, ta, b, tb, beta, out).unwrap(),
    }
    c.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

/// The product in f64, on the CPU.
fn exact([m, n, k]: [usize; 3], [a, b]: [&[f32]; 2]) -> Vec<f64> {
    let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    let (a, b, mut c) = (wide(a), wide(b), vec![0.0; m * n]);
    let (a, b) = (TensorRef::from_slice(&a, &[m, k]).unwrap(), TensorRef::from_slice(&b, &[k, n]).unwrap());
    addmm(1.0, a, false, b, false, 0.0, TensorMut::from_slice(&mut c, &[m, n]).unwrap()).unwrap();
    c
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// The table of docs/precision.md, which `--nocapture` prints.
#[test]
#[allow(clippy::print_stdout)]
fn errors_are_near_those_of_f32() {
    for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
        for (what, lowest) in [("-1..1", -1.0), ("0..1", 0.0)] {
            for k in [64, 512, 4096] {
                let sizes @ [m, n, _] = [24, 32, k];
                let numbers = |len: usize, seed| -> Vec<f32> {
                    random::<f32>(len, seed)
                        .into_iter()
                        .map(|v| if lowest < 0.0 { v } else { v.abs() })
                        .collect()
                };
                let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), vec![f32::NAN; m * n]);
                let want = exact(sizes, [&a, &b]);
                let size = norm(want.iter().copied());
                let error = |mode| {
                    let got = product(mode, device, sizes, [false, false], (1.0, 0.0), [&a, &b, &c]);
                    norm(got.iter().zip(&want).map(|(got, want)| got - want)) / size
                };
                let [f32, split, tf32] = [MatmulMode::Strict, MatmulMode::F32x3, MatmulMode::Tf32].map(error);
                println!("| {what} | {k} | {f32:.1e} | {split:.1e} | {tf32:.1e} |");
                // The three sums of the split factors are rounded as often as that of f32, and the terms by 2^-22 instead of none.
                assert!(split < 2.0 * f32 + 2e-7, "{what}, {k} terms: {split:e} beside {f32:e}");
                assert!(tf32 > 30.0 * split || k == 4096, "{what}, {k} terms: {tf32:e} beside {split:e}");
            }
        }
    }
}

#[test]
fn agrees_with_f32_for_every_transpose_and_scale() {
    for device in devices() {
        for sizes @ [m, n, k] in
            [[1, 1, 1], [3, 5, 7], [33, 10, 64], [8, 16, 12], [64, 100, 1], [4, 3, 0], [0, 3, 4]]
        {
            for transposes in [[false, false], [true, false], [false, true], [true, true]] {
                for scales in [(1.0, 0.0), (0.5, 1.0), (-2.0, 0.25)] {
                    let (a, b, c) =
                        (random::<f32>(m * k, 1), random::<f32>(k * n, 2), random::<f32>(m * n, 3));
                    let run = |mode, device| product(mode, device, sizes, transposes, scales, [&a, &b, &c]);
                    let want = run(MatmulMode::Strict, Device::Cpu);
                    // Sums of up to 64 products, each off by 2^-22.
                    assert_close(&run(MatmulMode::F32x3, device), &want, 1e-5, 1e-5);
                }
            }
        }
    }
}

/// Each number times 1, so that its parts are added up again.
#[test]
fn the_parts_of_a_number_make_it_up() {
    let mut values: Vec<f32> = vec![0.0, 1.0, -1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-30, 3.0e38];
    values.extend((0..40).map(|bit| 1.0 + f32::powi(2.0, -bit)));
    values.extend([1.0 + 3.0 * f32::EPSILON, 2.0 - f32::EPSILON, 1.0 + 4095.0 * f32::EPSILON]);
    values.extend(random::<f32>(1000, 4).into_iter().map(|v| v * 1e5));
    let n = values.len();
    for device in devices() {
        for flipped in [false, true] {
            let sizes = if flipped { [1, n, 1] } else { [n, 1, 1] };
            let (a, b): (&[f32], &[f32]) = if flipped { (&[1.0], &values) } else { (&values, &[1.0]) };
            let c = vec![0.0; n];
            let got = product(MatmulMode::F32x3, device, sizes, [false, false], (1.0, 0.0), [a, b, &c]);
            for (got, &x) in got.iter().zip(&values) {
                let share = if x.abs() >= 3.4e38 { 2f64.powi(-21) } else { 2f64.powi(-23) };
                let x = x.to_f64();
                assert!((got - x).abs() <= share * x.abs(), "{x:e} became {got:e} on {device}");
            }
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(0x7f80_0001)] {
            let got =
                product(MatmulMode::F32x3, device, [1, 1, 1], [false; 2], (1.0, 0.0), [&[x], &[2.0], &[0.0]]);
            assert!(!got[0].is_finite(), "{x} became {}", got[0]);
        }
    }
}

#[test]
fn small_products_and_gpus_with_slow_tf32_are_left_alone() {
    let product = |m, n, k| Matmul {
        batch: 1,
        m,
        n,
        k,
        transpose_a: false,
        transpose_b: true,
        inputs: DType::F32,
        output: DType::F32,
        mode: MatmulMode::F32x3,
        epilogue: Epilogue::None,
    };
    assert!(pays_off(true, &product(8192, 4096, 4096)) && pays_off(true, &product(1024, 1024, 8192)));
    assert!(!pays_off(false, &product(8192, 4096, 4096)));
    for [m, n, k] in [[1024, 1024, 1024], [8192, 10, 4096], [1 << 20, 64, 1024], [0, 4096, 4096]] {
        assert!(!pays_off(true, &product(m, n, k)), "{m} {n} {k}");
    }
}
