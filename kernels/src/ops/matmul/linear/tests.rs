//! Products, epilogues and gradients against plain loops, in all dtypes.

use super::*;
use crate::ops::testing::{
    assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
};
use crate::{Element, Tensor};

/// Rows, inputs, outputs.
type Dims = (usize, usize, usize);
const STRICT: MatmulMode = MatmulMode::Strict;

struct Forward<T> {
    y: Vec<T>,
    pre: Vec<T>,
    /// If it was written.
    mask: Option<Vec<i64>>,
}

/// Scratch of the layer's matmuls, filled with NaN.
fn workspace<T: Element>((b, i, o): Dims, device: Device) -> Tensor {
    let dtype = if check::is_short(T::DTYPE) { DType::F32 } else { T::DTYPE };
    let n = linear_workspace_len(STRICT, b, i, o, T::DTYPE, device);
    Tensor::full(&[n], f64::NAN, dtype, device).unwrap()
}

/// The layer on `device`: with the values before the activation, or with the ReLU mask.
fn forward<T: Element>(
    device: Device,
    sizes @ (b, i, o): Dims,
    (x, w, bias): (&[T], &[T], Option<&[T]>),
    activation: Option<Activation>,
    masked: bool,
) -> Forward<T> {
    let (x, w) = (tensor(x, &[b, i], device), tensor(w, &[o, i], device));
    let bias = bias.map(|bias| tensor(bias, &[o], device));
    let mut y = Tensor::full(&[b, o], f64::NAN, T::DTYPE, device).unwrap();
    let mut pre = y.zeros_like().unwrap();
    let mut mask = Tensor::zeros(&[relu_mask_len(b, o)], DType::I64, device).unwrap();
    let mut workspace = workspace::<T>(sizes, device);
    let output = LinearOutput {
        y: y.view_mut(),
        pre_activation: (!masked).then(|| pre.view_mut()),
        relu_mask: masked.then(|| mask.view_mut()),
        workspace: workspace.view_mut(),
    };
    let bias = bias.as_ref().map(Tensor::view);
    let is_masked = linear_forward(STRICT, x.view(), w.view(), bias, activation, output).unwrap();
    let mask = is_masked.then(|| mask.to_vec().unwrap());
    Forward { y: y.to_vec().unwrap(), pre: pre.to_vec().unwrap(), mask }
}

#[test]
fn all_routes_agree_with_the_definition() {
    // Few and many rows and outputs, several blocks of terms; the third has edges everywhere.
    for sizes @ (b, i, o) in [(5, 7, 3), (64, 512, 512), (33, 515, 517), (1, 600, 600), (64, 1024, 10)] {
        let (x, w, bias) = (random::<f64>(b * i, 1), random::<f64>(o * i, 2), random::<f64>(o, 3));
        let want: Vec<f64> =
            (0..b * o).map(|e| bias[e % o] + dot(&x[e / o * i..][..i], &w[e % o * i..][..i])).collect();
        let relu: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
        for device in devices() {
            let all = (&x[..], &w[..], Some(&bias[..]));
            let got = forward(device, sizes, all, Some(Activation::Relu), false);
            assert_close(&got.pre, &want, 1e-12, 1e-12);
            assert_close(&got.y, &relu, 1e-12, 1e-12);
            let got = forward(device, sizes, (&x, &w, None), None, false);
            let without: Vec<f64> = want.iter().enumerate().map(|(e, v)| v - bias[e % o]).collect();
            assert_close(&got.y, &without, 1e-12, 1e-12);
        }
    }
}

/// `f'` of each activation in a matmul's epilogue or after it, and the ReLU mask, against separate operations.
#[test]
fn fused_forms_agree_with_their_parts() {
    for sizes @ (b, i, o) in [(16, 24, 136), (7, 9, 130), (3, 8, 5)] {
        let (x, w, bias) = (random::<f32>(b * i, 1), random::<f32>(o * i, 2), random::<f32>(o, 3));
        let (next_o, d_y) = (11, random::<f32>(b * 11, 4));
        let next_w = random::<f32>(next_o * o, 5);
        for &activation in Activation::ALL {
            let all = (&x[..], &w[..], Some(&bias[..]));
            let cpu = forward(Device::Cpu, sizes, all, Some(activation), false);
            for device in devices() {
                let masked = activation == Activation::Relu && device != Device::Cpu;
                let got = forward(device, sizes, all, Some(activation), masked);
                // Dot products of up to 24 numbers up to 1, in another order.
                assert_close(&got.y, &cpu.y, 1e-5, 1e-5);
                let saved = match activation.saved_for_backward() {
                    crate::ops::SavedForBackward::Input => &cpu.pre,
                    crate::ops::SavedForBackward::Output => &cpu.y,
                };
                let run = |device: Device, mask: Option<&Tensor>, accumulate: bool| {
                    let (d_y, w) =
                        (tensor(&d_y, &[b, next_o], device), tensor(&next_w, &[next_o, o], device));
                    let saved = tensor(saved, &[b, o], device);
                    let before = if accumulate { 0.75 } else { f64::NAN };
                    let mut d_x = Tensor::full(&[b, o], before, DType::F32, device).unwrap();
                    let through = ThroughActivation {
                        activation,
                        saved: saved.view(),
                        relu_mask: mask.map(Tensor::view),
                        d_bias: None,
                    };
                    let mut none = Tensor::zeros(&[0], DType::F32, device).unwrap();
                    let (d_y, w, none) = (d_y.view(), w.view(), none.view_mut());
                    linear_backward_input(STRICT, d_y, w, d_x.view_mut(), Some(through), accumulate, none)
                        .unwrap();
                    d_x.to_vec::<f32>().unwrap()
                };
                assert!(masked || got.mask.is_none());
                let mask = got.mask.as_ref().map(|mask| tensor(mask, &[mask.len()], device));
                for accumulate in [false, true] {
                    let got = run(device, mask.as_ref(), accumulate);
                    assert_close(&got, &run(Device::Cpu, None, accumulate), 1e-5, 1e-5);
                }
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let sizes @ (b, i, o) = (96, 640, 700);
    let (x, w, bias) = (random::<f32>(b * i, 1), random::<f32>(o * i, 2), random::<f32>(o, 3));
    let run = move |n_threads: usize| {
        let (x, w, bias) = (x.clone(), w.clone(), bias.clone());
        std::thread::spawn(move || {
            crate::cpu::threads::join_pool(n_threads).unwrap();
            let all = (&x[..], &w[..], Some(&bias[..]));
            let got = forward(Device::Cpu, sizes, all, Some(Activation::Gelu), false);
            (got.y, got.pre)
        })
        .join()
        .unwrap()
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn gradients_match_central_differences() {
    let sizes @ (b, i, o) = (4, 6, 5);
    let (x, w, d_y) = (random::<f64>(b * i, 1), random::<f64>(o * i, 2), random::<f64>(b * o, 3));
    let y_of = |x: &[f64], w: &[f64]| forward(Device::Cpu, sizes, (x, w, None), None, false).y;
    for device in devices() {
        for accumulate in [false, true] {
            let start = if accumulate { 1.0 } else { f64::NAN };
            let mut d_w = Tensor::full(&[o, i], start, DType::F64, device).unwrap();
            let mut d_b = Tensor::full(&[o], start, DType::F64, device).unwrap();
            let mut d_x = Tensor::full(&[b, i], f64::NAN, DType::F64, device).unwrap();
            let (d_y_on, x_on) = (tensor(&d_y, &[b, o], device), tensor(&x, &[b, i], device));
            let w_on = tensor(&w, &[o, i], device);
            let (d_w_view, d_b_view) = (d_w.view_mut(), Some(d_b.view_mut()));
            let (d_y_on, x_on, w_on) = (d_y_on.view(), x_on.view(), w_on.view());
            let mut none = Tensor::zeros(&[0], DType::F64, device).unwrap();
            let scratch = none.view_mut();
            linear_backward_weight(STRICT, d_y_on, x_on, d_w_view, d_b_view, accumulate, scratch, None)
                .unwrap();
            if accumulate {
                d_x = Tensor::ones(&[b, i], DType::F64, device).unwrap();
            }
            let scratch = none.view_mut();
            linear_backward_input(STRICT, d_y_on, w_on, d_x.view_mut(), None, accumulate, scratch).unwrap();
            let before = if accumulate { 1.0 } else { 0.0 };
            let less =
                |t: &Tensor| -> Vec<f64> { t.to_vec::<f64>().unwrap().iter().map(|v| v - before).collect() };
            assert_gradient(&w, &less(&d_w), |w| dot(&y_of(&x, w), &d_y));
            assert_gradient(&x, &less(&d_x), |x| dot(&y_of(x, &w), &d_y));
            let want: Vec<f64> = (0..o).map(|c| d_y.iter().skip(c).step_by(o).sum()).collect();
            assert_close(&less(&d_b), &want, 1e-12, 1e-12);
        }
    }
}

/// The layer and its gradients with operands of the 16-bit format `S` against f64.
fn assert_short_factors_have_f32_sums<S: Element>() {
    let unit = rounding_of::<S>();
    // The second one has few outputs, the last edges everywhere.
    for sizes @ (b, i, o) in [(24, 64, 40), (64, 1024, 10), (1, 3, 2), (33, 71, 37)] {
        let (x, w, bias) = (random::<S>(b * i, 1), random::<S>(o * i, 2), random::<S>(o, 3));
        let (d_y, d_x_before) = (random::<S>(b * o, 4), random::<S>(b * i, 5));
        let (x64, w64, bias64) = (rounded(&x), rounded(&w), rounded::<S, f64>(&bias));
        let (d64, before64): (Vec<f64>, Vec<f64>) = (rounded(&d_y), rounded(&d_x_before));
        let want = forward(Device::Cpu, sizes, (&x64, &w64, Some(&bias64)), Some(Activation::Silu), false);
        let matmul =
            |a: &[f64], a_dims: [usize; 2], transpose, b: &[f64], b_dims: [usize; 2], c: &mut [f64]| {
                let (a, b) = (TensorRef::from_slice(a, &a_dims), TensorRef::from_slice(b, &b_dims));
                let rows = a_dims[usize::from(transpose)];
                let c = TensorMut::from_slice(c, &[rows, b_dims[1]]).unwrap();
                addmm(1.0, a.unwrap(), transpose, b.unwrap(), false, 1.0, c).unwrap();
            };
        // Multiplications of 16-bit operands are exact in f32; sums of up to 1024 values below 1 round to 2^-24 of about 20.
        let atol = 1e-7 * (i.max(b) as f64).sqrt().max(10.0);
        for device in devices() {
            let all = (&x[..], &w[..], Some(&bias[..]));
            let got = forward(device, sizes, all, Some(Activation::Silu), false);
            // One rounding; on a GPU, cuBLASLt may round the product before it adds the bias, and the value before the activation is
            // rounded before y, where the slope of SiLU is at most 1.1.
            let largest = want.pre.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let again = if device == Device::Cpu { 0.0 } else { unit * largest };
            assert_close(&rounded::<S, f64>(&got.pre), &want.pre, atol + again, unit);
            let y_atol = atol + 1.1 * (again + unit * largest);
            assert_close(&rounded::<S, f64>(&got.y), &want.y, y_atol, unit);

            let (d_y, x, w) =
                (tensor(&d_y, &[b, o], device), tensor(&x, &[b, i], device), tensor(&w, &[o, i], device));
            for accumulate in [false, true] {
                let start = if accumulate { 2.0 } else { f64::NAN };
                let mut d_w = Tensor::full(&[o, i], start, DType::F32, device).unwrap();
                let mut d_b = Tensor::full(&[o], start, DType::F32, device).unwrap();
                let mut scratch = workspace::<S>(sizes, device);
                let (d_y, d_b_view, scratch) = (d_y.view(), Some(d_b.view_mut()), scratch.view_mut());
                let d_w_view = d_w.view_mut();
                linear_backward_weight(STRICT, d_y, x.view(), d_w_view, d_b_view, accumulate, scratch, None)
                    .unwrap();
                let before = if accumulate { 2.0 } else { 0.0 };
                let mut want = vec![before; o * i];
                matmul(&d64, [b, o], true, &x64, [b, i], &mut want);
                assert_close(&rounded::<f32, f64>(&d_w.to_vec::<f32>().unwrap()), &want, atol, 1e-6);
                let sum = |c: usize| before + d64.iter().skip(c).step_by(o).sum::<f64>();
                let want: Vec<f64> = (0..o).map(sum).collect();
                assert_close(&rounded::<f32, f64>(&d_b.to_vec::<f32>().unwrap()), &want, atol, 1e-6);

                let mut d_x = if accumulate {
                    tensor(&d_x_before, &[b, i], device)
                } else {
                    Tensor::full(&[b, i], f64::NAN, S::DTYPE, device).unwrap()
                };
                let mut scratch = workspace::<S>(sizes, device);
                let (d_x_view, scratch) = (d_x.view_mut(), scratch.view_mut());
                linear_backward_input(STRICT, d_y, w.view(), d_x_view, None, accumulate, scratch).unwrap();
                let mut want = if accumulate { before64.clone() } else { vec![0.0; b * i] };
                matmul(&d64, [b, o], false, &w64, [o, i], &mut want);
                let got = rounded::<S, f64>(&d_x.to_vec::<S>().unwrap());
                // cuBLASLt rounds the product before it adds what was there, as PyTorch does.
                let sum = if accumulate {
                    unit * want.iter().chain(&before64).fold(0.0, |m: f64, v| m.max(v.abs()))
                } else {
                    0.0
                };
                assert_close(&got, &want, atol + sum, unit);
            }
        }
    }
}

#[test]
fn bf16_factors_have_f32_sums() {
    assert_short_factors_have_f32_sums::<half::bf16>();
}

#[test]
fn f16_factors_have_f32_sums() {
    assert_short_factors_have_f32_sums::<half::f16>();
}

/// The last layer: 16-bit operands, outputs in f32; and a workspace that is too small or of another type.
#[test]
fn outputs_of_short_factors_can_be_f32_and_workspaces_are_checked() {
    check_f32_outputs::<half::bf16>();
    check_f32_outputs::<half::f16>();
}

fn check_f32_outputs<S: Element>() {
    let sizes @ (b, i, o) = (5, 33, 9);
    let (x, w, bias) = (random::<S>(b * i, 1), random::<S>(o * i, 2), random::<f32>(o, 3));
    let (x64, w64) = (rounded::<S, f64>(&x), rounded::<S, f64>(&w));
    let want = forward(Device::Cpu, sizes, (&x64, &w64, Some(&rounded(&bias))), None, false).y;
    for device in devices() {
        let (x, w) = (tensor(&x, &[b, i], device), tensor(&w, &[o, i], device));
        let (bias, mut y) =
            (tensor(&bias, &[o], device), Tensor::zeros(&[b, o], DType::F32, device).unwrap());
        let mut run = |workspace: &mut Tensor| {
            let workspace = workspace.view_mut();
            let output = LinearOutput { y: y.view_mut(), pre_activation: None, relu_mask: None, workspace };
            linear_forward(STRICT, x.view(), w.view(), Some(bias.view()), None, output)?;
            y.to_vec::<f32>()
        };
        let got = run(&mut workspace::<S>(sizes, device)).unwrap();
        assert_close(&rounded::<f32, f64>(&got), &want, 1e-6, 1e-6);
        if device == Device::Cpu {
            let n = linear_workspace_len(STRICT, b, i, o, S::DTYPE, device);
            if let Some(fewer) = n.checked_sub(1) {
                let error = run(&mut Tensor::zeros(&[fewer], DType::F32, device).unwrap()).unwrap_err();
                assert!(matches!(error, KernelError::ElementCount { .. }), "{error}");
            }
            let error = run(&mut Tensor::zeros(&[n], S::DTYPE, device).unwrap()).unwrap_err();
            assert!(matches!(error, KernelError::DTypeMismatch { .. }), "{error}");
        }
    }
}

#[test]
fn a_batch_without_rows_gives_zero_gradients() {
    for device in devices() {
        let (d_y, x) = (tensor::<f32>(&[], &[0, 3], device), tensor::<f32>(&[], &[0, 2], device));
        for (accumulate, want) in [(false, 0.0), (true, 7.0)] {
            let mut d_w = Tensor::full(&[3, 2], 7.0, DType::F32, device).unwrap();
            let mut d_b = Tensor::full(&[3], 7.0, DType::F32, device).unwrap();
            let (d_w_view, d_b_view) = (d_w.view_mut(), Some(d_b.view_mut()));
            let (d_y, x, mut none) = (d_y.view(), x.view(), Tensor::zeros(&[0], DType::F32, device).unwrap());
            let scratch = none.view_mut();
            linear_backward_weight(STRICT, d_y, x, d_w_view, d_b_view, accumulate, scratch, None).unwrap();
            assert_eq!(d_w.to_vec::<f32>().unwrap(), [want; 6]);
            assert_eq!(d_b.to_vec::<f32>().unwrap(), [want; 3]);
        }
    }
}

#[test]
fn wrong_operands_are_named() {
    let (x, w, mut y, mut ws) = ([0.0f32; 6], [0.0f32; 8], [0.0f32; 4], [0.0f32; 100]);
    let output = LinearOutput {
        y: TensorMut::from_slice(&mut y, &[2, 2]).unwrap(),
        pre_activation: None,
        relu_mask: None,
        workspace: TensorMut::from_slice(&mut ws, &[100]).unwrap(),
    };
    let x = TensorRef::from_slice(&x, &[2, 3]).unwrap();
    let w = TensorRef::from_slice(&w, &[2, 4]).unwrap();
    let message = linear_forward(STRICT, x, w, None, None, output).unwrap_err().to_string();
    assert_eq!(message, "linear_forward: x [2, 3] f32 on cpu should be [2, 4]");
}
