//! Every optimizer on every device.

use half::{bf16, f16};

use super::*;
use crate::ops::LossSums;
use crate::ops::testing::{assert_close, devices, random, tensor, traffic};
use crate::ops::update::testing::{Case, Inputs, cases};
use crate::{DType, Device, Element, Tensor, TensorMut, TensorRef};

const PARAMS: OptimizerParams = OptimizerParams {
    lr: 1e-2,
    lr_scale: 0.5,
    betas: [0.9, 0.999],
    eps: 1e-8,
    eps2: 1e-3,
    beta2_decay: -0.8,
    clip_threshold: 1.5,
    momentum: 0.9,
    nesterov: false,
    weight_decay: 0.1,
    direction_scale: 0.5,
    step: 5,
    grad_scale: 1.0,
};

/// Every optimizer, in the forms that its parameters give it.
fn variants() -> Vec<(OptimizerKind, OptimizerParams)> {
    let mut variants: Vec<_> = OptimizerKind::ALL.iter().map(|kind| (*kind, PARAMS)).collect();
    variants.push((OptimizerKind::Sgd, OptimizerParams { momentum: 0.0, ..PARAMS }));
    variants.push((OptimizerKind::Sgd, OptimizerParams { nesterov: true, ..PARAMS }));
    variants
}

/// Buffers after a step.
#[derive(Debug, PartialEq)]
struct Stepped<T, C> {
    weights: Vec<T>,
    state: Vec<Vec<T>>,
    copy: Vec<C>,
}

/// Numbers that any state tensor may hold: moments and their squares.
fn state<T: Element>(n: usize, i: usize) -> Vec<T> {
    let squares = random::<T>(n, 3 + i as u64).into_iter().map(|v| v.to_f64() * v.to_f64());
    squares.map(|v| T::from_f64(v)).collect()
}

/// Numbers of a parameter from the passes before the step.
enum Passed {
    Norms(Tensor),
    /// Shape, factors and norm.
    Factors(FactoredShape, Tensor, Tensor),
}

impl Passed {
    /// Operands of the step on elements `start..`.
    fn view(&self, start: usize) -> WholeNumbers<'_> {
        match self {
            Passed::Norms(norms) => WholeNumbers::Norms(norms.view()),
            Passed::Factors(shape, factors, norm) => {
                let (factors, norm) = (factors.view(), norm.view());
                WholeNumbers::Adafactor(AdafactorFactors { shape: *shape, start, factors, norm })
            }
        }
    }
}

/// A matrix of `n` elements, if there is one with more than a row and a column.
fn factored(n: usize) -> FactoredShape {
    let rows = (2..n).find(|rows| rows * rows <= n && n.is_multiple_of(*rows));
    rows.map_or(FactoredShape::new(&[n]), |rows| FactoredShape::new(&[rows, n / rows]))
}

/// Adafactor's passes before the step on elements `from..` of a parameter; `moments` move. Sums are completed by those of the other
/// elements.
fn adafactor_passes(
    params: &OptimizerParams,
    weights: &Tensor,
    grads: TensorRef<'_>,
    moments: &mut Tensor,
    from: usize,
    inputs: Option<&UpdateInputs<'_>>,
) -> Passed {
    let (n, device) = (weights.numel(), weights.device());
    let shape = factored(n);
    let zeros = |n| Tensor::zeros(&[n], DType::F64, device).unwrap();
    let (mut sums, mut norm) = (zeros(1 + shape.n_moments()), zeros(1));
    let own = weights.view().range(from, n).unwrap();
    adafactor_sums(shape, from, own, grads, sums.view_mut()).unwrap();
    adafactor_factors(shape, params, moments.view_mut(), sums.view_mut(), inputs).unwrap();
    adafactor_norm(shape, from, params.eps, grads, sums.view(), norm.view_mut()).unwrap();
    Passed::Factors(shape, sums, norm)
}

/// Elements of each tensor of state for a parameter of `n`.
fn state_lens(kind: OptimizerKind, params: &OptimizerParams, n: usize) -> Vec<usize> {
    match kind {
        OptimizerKind::Adafactor => vec![factored(n).n_moments()],
        _ => vec![n; kind.state_names(params).len()],
    }
}

/// The first pass, if there is one, on elements `from..`; returns its norms.
fn first_pass(
    (kind, params): (OptimizerKind, OptimizerParams),
    weights: &Tensor,
    grads: TensorRef<'_>,
    state: &mut [Tensor],
    from: usize,
    inputs: Option<&UpdateInputs<'_>>,
) -> Passed {
    let n = weights.numel();
    if kind == OptimizerKind::Adafactor {
        return adafactor_passes(&params, weights, grads, &mut state[0], from, inputs);
    }
    let mut norms = Tensor::full(&[2], f64::NAN, DType::F64, weights.device()).unwrap();
    let [m, v] = state else { return Passed::Norms(norms) };
    let tensors = FirstPassTensors {
        master_weights: weights.view().range(from, n).unwrap(),
        grads,
        state: [m.view_mut().range(from, n).unwrap(), v.view_mut().range(from, n).unwrap()],
        norms: Some(norms.view_mut()),
        accumulate: false,
    };
    optimizer_first_pass(kind, &params, tensors, inputs).unwrap();
    Passed::Norms(norms)
}

/// A step on elements `from..` of buffers of `n`: from 1 on, no wide access is aligned.
fn step<T: Element, C: Element>(
    (kind, params): (OptimizerKind, OptimizerParams),
    (n, from): (usize, usize),
    inputs: Option<&UpdateInputs<'_>>,
    device: Device,
) -> Stepped<T, C> {
    let (mut w, g) = (tensor(&random::<T>(n, 1), &[n], device), tensor(&random::<T>(n, 2), &[n], device));
    let lens = state_lens(kind, &params, n);
    let mut buffers: Vec<_> =
        lens.iter().enumerate().map(|(i, &n)| tensor(&state::<T>(n, i), &[n], device)).collect();
    let mut copy = Tensor::full(&[n], 7.0, C::DTYPE, device).unwrap();
    let grads = g.view().range(from, n).unwrap();
    let passed = first_pass((kind, params), &w, grads, &mut buffers, from, inputs);
    let per_element = buffers.iter_mut().filter(|_| kind != OptimizerKind::Adafactor);
    let mut views = per_element.map(|buffer| buffer.view_mut().range(from, n).unwrap());
    let tensors = OptimizerTensors {
        master_weights: w.view_mut().range(from, n).unwrap(),
        grads,
        state: std::array::from_fn(|_| views.next()),
        average: None,
        compute_weights: Some(copy.view_mut().range(from, n).unwrap()),
        whole: Some(passed.view(from)),
    };
    optimizer_step(kind, &params, tensors, inputs).unwrap();
    Stepped {
        weights: w.to_vec().unwrap(),
        state: buffers.iter().map(|buffer| buffer.to_vec().unwrap()).collect(),
        copy: copy.to_vec().unwrap(),
    }
}

fn check_device<T: Element, C: Element>(device: Device, tolerance: f64) {
    for (kind, params) in variants() {
        for (n, from) in [(1, 0), (1003, 0), (1003, 1), (5000, 4)] {
            let variant = (kind, OptimizerParams { grad_scale: 0.5, ..params });
            let got = step::<T, C>(variant, (n, from), None, device);
            let want = step::<T, C>(variant, (n, from), None, Device::Cpu);
            // The kernel contracts to FMAs: values differ by a rounding or two of numbers up to 2.
            assert_close(&got.weights, &want.weights, tolerance, tolerance);
            for (got, want) in got.state.iter().zip(&want.state) {
                assert_close(got, want, tolerance, tolerance);
            }
            // The copy is of this device's weights, in every bit.
            let rounded: Vec<C> =
                got.weights[from..].iter().map(|w| C::from_f64(f64::from(w.to_f64() as f32))).collect();
            assert_eq!(got.copy[from..], rounded, "{kind}");
            let before = &got.copy[..from];
            assert!(before.iter().all(|v| v.to_f64() == 7.0), "nothing is written before the range");
        }
    }
}

#[test]
fn devices_agree_and_the_copy_is_the_rounded_weights() {
    for device in devices() {
        check_device::<f32, bf16>(device, 5e-7);
        check_device::<f64, bf16>(device, 1e-14);
        check_device::<f32, f16>(device, 5e-7);
        check_device::<f64, f16>(device, 1e-14);
    }
}

#[test]
fn numbers_from_device_memory_do_the_same_as_numbers_by_value() {
    for device in devices() {
        for (kind, params) in variants() {
            for Case { expected_weight, unscale, sums, clip, factor } in cases() {
                // These fields are ignored.
                let other = OptimizerParams { lr: 5.0, step: 9, grad_scale: 3.0, ..params };
                for step_number in [1, 2, 1000, 1 << 40] {
                    let inputs =
                        Inputs::new(params.lr, step_number, (expected_weight, unscale), sums, clip, device);
                    let by_value = OptimizerParams { step: step_number, grad_scale: factor, ..params };
                    let got = step::<f32, bf16>((kind, other), (1003, 0), Some(&inputs.view()), device);
                    assert_eq!(got, step((kind, by_value), (1003, 0), None, device), "{kind}");
                    let got = step::<f64, bf16>((kind, other), (1003, 0), Some(&inputs.view()), device);
                    assert_eq!(got, step((kind, by_value), (1003, 0), None, device), "{kind}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_written_where_the_loss_is_not_finite_or_above_its_limit() {
    let (any, none) = (f64::INFINITY, f64::NEG_INFINITY);
    for device in devices() {
        for variant in variants() {
            // A sum of 3.0 over a weight of 2.0 is a mean of 1.5.
            let bad =
                [(f64::NAN, any), (f64::INFINITY, any), (f64::NEG_INFINITY, any), (3.0, 1.25), (3.0, none)];
            let new = |loss, limit| {
                let sums = LossSums { loss, weight: 2.0 };
                Inputs::new(1e-2, 5, (0.0, 1.0), sums, Some((1.0, 1.0)), device).with_loss_limit(limit)
            };
            let at_limit = step::<f32, bf16>(variant, (1003, 0), Some(&new(3.0, 1.5).view()), device);
            assert_ne!(at_limit.weights, random::<f32>(1003, 1), "the limit itself is allowed");
            for (loss, limit) in bad {
                let inputs = new(loss, limit);
                let got = step::<f32, bf16>(variant, (1003, 0), Some(&inputs.view()), device);
                assert_eq!(got.weights, random::<f32>(1003, 1));
                for (i, buffer) in got.state.iter().enumerate() {
                    assert_eq!(*buffer, state::<f32>(buffer.len(), i));
                }
                assert!(got.copy.iter().all(|v| v.to_f64() == 7.0));
            }
        }
    }
}

/// Gradients in bf16 give every bit that the same numbers in f32 give, and half their bytes are read.
#[test]
fn gradients_in_bf16_are_read_as_they_are() {
    const N: usize = 5003;
    for device in devices() {
        for (kind, params) in variants() {
            for (copy, from) in [(None, 0), (Some(DType::BF16), 0), (Some(DType::F16), 1)] {
                let short: Vec<bf16> = random::<f32>(N, 2).into_iter().map(bf16::from_f32).collect();
                let wide: Vec<f32> = short.iter().map(|g| g.to_f32()).collect();
                let stepped = |grads: Tensor| {
                    let mut w = tensor(&random::<f32>(N, 1), &[N], device);
                    let lens = state_lens(kind, &params, N).into_iter().enumerate();
                    let mut state: Vec<_> =
                        lens.map(|(i, n)| tensor(&state::<f32>(n, i), &[n], device)).collect();
                    let mut copy = copy.map(|dtype| Tensor::zeros(&[N], dtype, device).unwrap());
                    let before = traffic(&grads);
                    let own_grads = grads.view().range(from, N).unwrap();
                    let passed = first_pass((kind, params), &w, own_grads, &mut state, from, None);
                    let per_element = state.iter_mut().filter(|_| kind != OptimizerKind::Adafactor);
                    let mut views = per_element.map(|state| state.view_mut().range(from, N).unwrap());
                    let tensors = OptimizerTensors {
                        master_weights: w.view_mut().range(from, N).unwrap(),
                        grads: own_grads,
                        state: std::array::from_fn(|_| views.next()),
                        average: None,
                        compute_weights: copy.as_mut().map(|copy| copy.view_mut().range(from, N).unwrap()),
                        whole: Some(passed.view(from)),
                    };
                    optimizer_step(kind, &params, tensors, None).unwrap();
                    let read = before.zip(traffic(&grads)).map(|(before, after)| after[0] - before[0]);
                    drop(views);
                    let state: Vec<Vec<f32>> = state.iter().map(|state| state.to_vec().unwrap()).collect();
                    (w.to_vec::<f32>().unwrap(), state, copy.map(|copy| copy.to(Device::Cpu).unwrap()), read)
                };
                let got = stepped(tensor(&short, &[N], device));
                let want = stepped(tensor(&wide, &[N], device));
                assert_eq!((&got.0, &got.1), (&want.0, &want.1), "{kind} on {device}");
                let bytes = |copy: &Option<Tensor>| {
                    copy.as_ref().map(|copy| copy.view().as_bytes("test", "copy").unwrap().to_vec())
                };
                assert_eq!(bytes(&got.2), bytes(&want.2), "{kind} on {device}");
                if let Some((short, wide)) = got.3.zip(want.3) {
                    // Adafactor reads them for the sums, the norm and the step.
                    let n_reads = if kind == OptimizerKind::Adafactor { 3 } else { 1 };
                    let n = n_reads * (N - from) as u64;
                    assert_eq!((short, wide), (2 * n, 4 * n));
                }
            }
        }
    }
}

/// [`OptimizerKind::name`] looks names up by the kind's place.
#[test]
fn kinds_and_names_are_in_one_order() {
    assert_eq!(OptimizerKind::ALL.len(), OptimizerKind::NAMES.len());
    assert!(OptimizerKind::ALL.iter().enumerate().all(|(i, kind)| *kind as usize == i));
    assert_eq!(OptimizerKind::AdamW.to_string(), "adamw");
}

#[test]
fn wrong_copies_and_inputs_are_named() {
    let inputs = Inputs::new(1e-2, 5, (0.0, 1.0), LossSums::default(), None, Device::Cpu);
    let mut buffers = [[0.0f32; 4]; 5];
    let [w, g, m, v, copy] = &mut buffers;
    let view = |v| TensorMut::from_slice(v, &[4]).unwrap();
    let tensors = OptimizerTensors {
        master_weights: view(w),
        grads: TensorRef::from_slice(g, &[4]).unwrap(),
        state: [Some(view(m)), Some(view(v))],
        average: None,
        compute_weights: Some(view(copy)),
        whole: None,
    };
    let error = optimizer_step(OptimizerKind::AdamW, &PARAMS, tensors, Some(&inputs.view())).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("compute_weights [4] f32 on cpu") && error.contains("bf16"), "{error}");
}

/// A parameter in two ranges: their sums are added, as where two shards hold it.
#[test]
fn the_norms_of_ranges_add_up_to_those_of_the_whole() {
    const N: usize = 1003;
    for device in devices() {
        let norms = |cuts: &[usize]| {
            let (w, g) =
                (tensor(&random::<f64>(N, 1), &[N], device), tensor(&random::<f64>(N, 2), &[N], device));
            let mut norms = Tensor::full(&[2], 7.0, DType::F64, device).unwrap();
            let [mut m, mut v] = [0, 1].map(|i| tensor(&state::<f64>(N, i), &[N], device));
            let mut start = 0;
            for &end in cuts {
                let tensors = FirstPassTensors {
                    master_weights: w.view().range(start, end).unwrap(),
                    grads: g.view().range(start, end).unwrap(),
                    state: [m.view_mut().range(start, end).unwrap(), v.view_mut().range(start, end).unwrap()],
                    norms: Some(norms.view_mut()),
                    accumulate: start > 0,
                };
                optimizer_first_pass(OptimizerKind::Lamb, &PARAMS, tensors, None).unwrap();
                start = end;
            }
            norms.to_vec::<f64>().unwrap()
        };
        let (whole, parts) = (norms(&[N]), norms(&[1, 500, N]));
        // Sums of a thousand terms in f64.
        assert_close(&parts, &whole, 0.0, 1e-12);
        let squares: f64 = random::<f64>(N, 1).iter().map(|w| w * w).sum();
        assert_close(&whole[..1], &[squares], 0.0, 1e-12);
    }
}

/// With a weight or a direction of zeros the step has the length of Adam's.
#[test]
fn the_trust_ratio_of_a_zero_norm_is_1() {
    for device in devices() {
        let stepped = |norms: [f64; 2]| {
            let [mut w, mut m, mut v] = [1, 2, 3].map(|seed| {
                let values: Vec<f64> = random::<f64>(9, seed).iter().map(|v| v * v).collect();
                tensor(&values, &[9], device)
            });
            let norms = tensor(&norms, &[2], device);
            let grads = m.zeros_like().unwrap();
            let tensors = OptimizerTensors {
                master_weights: w.view_mut(),
                grads: grads.view(),
                state: [Some(m.view_mut()), Some(v.view_mut())],
                average: None,
                compute_weights: None,
                whole: Some(WholeNumbers::Norms(norms.view())),
            };
            optimizer_step(OptimizerKind::Lamb, &PARAMS, tensors, None).unwrap();
            w.to_vec::<f64>().unwrap()
        };
        let plain = stepped([1.0, 1.0]);
        assert_eq!(stepped([0.0, 4.0]), plain);
        assert_eq!(stepped([4.0, 0.0]), plain);
        assert_ne!(stepped([4.0, 1.0]), plain);
    }
}

/// A parameter in ranges that end within rows: sums, factors and norm are those of the whole, and so is the step.
#[test]
fn ranges_of_a_factored_parameter_add_up() {
    let (shape, n) = (FactoredShape::new(&[17, 59]), 1003);
    let params = OptimizerParams { grad_scale: 0.5, ..PARAMS };
    for device in devices() {
        let stepped = |cuts: &[usize]| {
            let (mut w, g) =
                (tensor(&random::<f64>(n, 1), &[n], device), tensor(&random::<f64>(n, 2), &[n], device));
            let mut moments = tensor(&state::<f64>(17 + 59, 0), &[17 + 59], device);
            let [mut sums, mut norm] = [77, 1].map(|n| Tensor::zeros(&[n], DType::F64, device).unwrap());
            let starts = || std::iter::once(0).chain(cuts.iter().copied()).zip(cuts.iter().copied());
            for (start, end) in starts() {
                let [w, g] = [&w, &g].map(|x| x.view().range(start, end).unwrap());
                adafactor_sums(shape, start, w, g, sums.view_mut()).unwrap();
            }
            let of_whole = sums.to_vec::<f64>().unwrap();
            adafactor_factors(shape, &params, moments.view_mut(), sums.view_mut(), None).unwrap();
            for (start, end) in starts() {
                let g = g.view().range(start, end).unwrap();
                adafactor_norm(shape, start, params.eps, g, sums.view(), norm.view_mut()).unwrap();
            }
            for (start, end) in starts() {
                let (factors, norm) = (sums.view(), norm.view());
                let tensors = OptimizerTensors {
                    master_weights: w.view_mut().range(start, end).unwrap(),
                    grads: g.view().range(start, end).unwrap(),
                    state: [None, None],
                    average: None,
                    compute_weights: None,
                    whole: Some(WholeNumbers::Adafactor(AdafactorFactors { shape, start, factors, norm })),
                };
                optimizer_step(OptimizerKind::Adafactor, &params, tensors, None).unwrap();
            }
            [of_whole, moments.to_vec().unwrap(), norm.to_vec().unwrap(), w.to_vec().unwrap()]
        };
        let (whole, parts) = (stepped(&[n]), stepped(&[1, 60, 500, 501, n]));
        for (parts, whole) in parts.iter().zip(&whole) {
            // Sums of a thousand terms in f64.
            assert_close(parts, whole, 1e-14, 1e-12);
        }
        let g = random::<f64>(n, 2);
        let row: f64 = g[59..118].iter().map(|g| g * g).sum();
        let col: f64 = g.iter().skip(3).step_by(59).map(|g| g * g).sum();
        assert_close(&[whole[0][2], whole[0][1 + 17 + 3]], &[row, col], 0.0, 1e-12);
    }
}
