//! Devices agree, and gradients are those of difference quotients.

use super::*;
use crate::ops::testing::{assert_close, devices, random, tensor};
use crate::{DType, Device, Tensor};

const ROWS: usize = 7;
const DIMS: [usize; 3] = [3, 5, 2];

/// Output, then the gradients of frequencies, phases, weight, bias and input for a gradient of the output, after what is there.
fn run<T: Element>(inputs: &[Vec<f64>; 6], accumulate: bool, device: Device) -> Vec<Vec<f64>> {
    run_shape::<T>(ROWS, DIMS, inputs, accumulate, device)
}

fn run_shape<T: Element>(
    rows: usize,
    [f, k, e]: [usize; 3],
    inputs: &[Vec<f64>; 6],
    accumulate: bool,
    device: Device,
) -> Vec<Vec<f64>> {
    let make = |index: usize, dims: &[usize]| {
        let values: Vec<T> = inputs[index].iter().map(|&v| T::from_f64(v)).collect();
        tensor(&values, &[values.len()], device).reshape(dims).unwrap()
    };
    // Parameters of bf16 and f16 columns are f32.
    let dtype = if T::DTYPE == DType::F64 { DType::F64 } else { DType::F32 };
    let param = |index, dims: &[usize]| make(index, dims).to_dtype(dtype).unwrap();
    let (x, w, b) = (make(0, &[rows, f]), param(1, &[f, k]), param(2, &[f, k]));
    let (weight, bias, d) = (param(3, &[f, k, e]), param(4, &[f, e]), make(5, &[rows, f * (1 + e)]));
    let params = NumericEmbedding {
        frequencies: w.view(),
        phases: b.view(),
        weight: weight.view(),
        bias: bias.view(),
    };
    let mut y = d.zeros_like().unwrap();
    numeric_embedding_forward(x.view(), params, y.view_mut()).unwrap();
    let ones = |like: &Tensor| Tensor::full(like.dims(), 1.0, like.dtype(), device).unwrap();
    let [mut d_w, mut d_b, mut d_weight, mut d_bias, mut d_x] = [&w, &b, &weight, &bias, &x].map(ones);
    let grads = NumericEmbeddingGrads {
        frequencies: (d_w.view_mut(), accumulate),
        phases: (d_b.view_mut(), accumulate),
        weight: (d_weight.view_mut(), accumulate),
        bias: (d_bias.view_mut(), accumulate),
    };
    numeric_embedding_backward(x.view(), params, d.view(), grads).unwrap();
    numeric_embedding_backward_input(x.view(), params, d.view(), d_x.view_mut(), accumulate).unwrap();
    let all = [y, d_w, d_b, d_weight, d_bias, d_x];
    all.iter().map(|tensor| tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()).collect()
}

fn inputs() -> [Vec<f64>; 6] {
    inputs_of(ROWS, DIMS)
}

fn inputs_of(rows: usize, [f, k, e]: [usize; 3]) -> [Vec<f64>; 6] {
    let lens = [rows * f, f * k, f * k, f * k * e, f * e, rows * f * (1 + e)];
    std::array::from_fn(|index| random::<f64>(lens[index], 1 + index as u64))
}

#[test]
fn devices_agree() {
    let inputs = inputs();
    for device in devices() {
        for accumulate in [false, true] {
            let want = run::<f64>(&inputs, accumulate, Device::Cpu);
            for (got, want) in run::<f64>(&inputs, accumulate, device).iter().zip(&want) {
                assert_close(got, want, 1e-12, 1e-12);
            }
            for (got, want) in run::<f32>(&inputs, accumulate, device).iter().zip(&want) {
                // Sums of at most 35 terms below 10.
                assert_close(got, want, 2e-5, 2e-5);
            }
        }
    }
}

/// More columns, cosines, outputs and rows than a block of a GPU takes at a time, and 1 + 3 numbers per column, which one access moves.
#[test]
fn devices_agree_on_other_shapes() {
    for (rows, dims) in
        [(70, [40, 18, 3]), (45, [9, 70, 5]), (2100, [2, 4, 3]), (3, [1, 0, 1]), (3, [1, 2, 0])]
    {
        let inputs = inputs_of(rows, dims);
        let want = run_shape::<f64>(rows, dims, &inputs, true, Device::Cpu);
        for device in devices() {
            for (got, want) in run_shape::<f64>(rows, dims, &inputs, true, device).iter().zip(&want) {
                assert_close(got, want, 1e-11, 1e-11);
            }
            let first = run_shape::<f32>(rows, dims, &inputs, true, device);
            for (got, want) in first.iter().zip(&want) {
                // Sums of at most 6,300 terms below 10, whose errors mostly cancel.
                assert_close(got, want, 2e-4, 2e-5);
            }
            assert!(
                first == run_shape::<f32>(rows, dims, &inputs, true, device),
                "the same bits on {device}"
            );
            let short = run_shape::<half::bf16>(rows, dims, &inputs, true, device);
            for (got, want) in short.iter().zip(&want) {
                // bf16 has 8 bits: inputs err by 2^-9, angles near 10 and outputs accordingly.
                assert!(
                    got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 2.0 + 0.05 * want.abs())
                );
            }
        }
    }
}

#[test]
fn large_angles_keep_their_cosines() {
    // The second and third lie beyond the angles of the fast path; rows around them within.
    let xs = [0.5_f32, 3e9, -1e12, 1.0];
    let [x, one] = [tensor(&xs, &[4, 1], Device::Cpu), tensor(&[1.0_f32], &[1, 1], Device::Cpu)];
    let zero = one.zeros_like().unwrap();
    let weight = one.reshape(&[1, 1, 1]).unwrap();
    let params = NumericEmbedding {
        frequencies: one.view(),
        phases: zero.view(),
        weight: weight.view(),
        bias: zero.view(),
    };
    let mut y = Tensor::zeros(&[4, 2], DType::F32, Device::Cpu).unwrap();
    numeric_embedding_forward(x.view(), params, y.view_mut()).unwrap();
    for (y, x) in y.to_vec::<f32>().unwrap().chunks(2).zip(xs) {
        let angle = std::f32::consts::TAU * x;
        assert_eq!(y, [x, f64::from(angle).cos() as f32]);
    }
}

/// For these angles the fast path and the sine of f64 round to different numbers.
#[test]
fn a_large_angle_changes_no_bit_of_the_rows_around() {
    for device in devices() {
        let rows = |x: &[f64]| {
            let one = |value| vec![value];
            let d = [0.0, 1.0].repeat(x.len());
            let inputs = [x.to_vec(), one(1.0), one(0.0), one(1.0), one(0.0), d];
            let [y, .., d_x] = &run_shape::<f32>(x.len(), [1; 3], &inputs, false, device)[..] else {
                panic!()
            };
            (y[..6].to_vec(), d_x[..3].to_vec())
        };
        let [a, b, c] = [72.619_36, 1_158.875_4, 1_195_513.1];
        assert_eq!(rows(&[a, b, c, 3e9]), rows(&[a, b, c]), "{device}");
    }
}

#[test]
fn gradients_are_those_of_difference_quotients() {
    let inputs = inputs();
    let grads = run::<f64>(&inputs, false, Device::Cpu);
    let added = run::<f64>(&inputs, true, Device::Cpu);
    for (input, grad) in [(1, 1), (2, 2), (3, 3), (4, 4), (0, 5)] {
        let plus_one: Vec<f64> = grads[grad].iter().map(|g| g + 1.0).collect();
        assert_close(&added[grad], &plus_one, 1e-12, 1e-12);
        for at in 0..inputs[input].len() {
            let loss = |step: f64| {
                let mut moved = inputs.clone();
                moved[input][at] += step;
                let y = &run::<f64>(&moved, false, Device::Cpu)[0];
                y.iter().zip(&inputs[5]).map(|(y, d)| y * d).sum::<f64>()
            };
            let quotient = (loss(1e-5) - loss(-1e-5)) / 2e-5;
            assert_close(&[grads[grad][at]], &[quotient], 1e-6, 1e-6);
        }
    }
}
