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

/// The first pass, if there is one, on elements `from..`; returns its norms.
fn first_pass(
    (kind, params): (OptimizerKind, OptimizerParams),
    weights: &Tensor,
    grads: TensorRef<'_>,
    state: &mut [Tensor],
    from: usize,
    inputs: Option<&UpdateInputs<'_>>,
) -> Tensor {
    let n = weights.numel();
    let mut norms = Tensor::full(&[2], f64::NAN, DType::F64, weights.device()).unwrap();
    let [m, v] = state else { return norms };
    let tensors = FirstPassTensors {
        master_weights: weights.view().range(from, n).unwrap(),
        grads,
        state: [m.view_mut().range(from, n).unwrap(), v.view_mut().range(from, n).unwrap()],
        norms: Some(norms.view_mut()),
        accumulate: false,
    };
    optimizer_first_pass(kind, &params, tensors, inputs).unwrap();
    norms
}

/// A step on elements `from..` of buffers of `n`: from 1 on, no wide access is aligned.
fn step<T: Element, C: Element>(
    (kind, params): (OptimizerKind, OptimizerParams),
    (n, from): (usize, usize),
    inputs: Option<&UpdateInputs<'_>>,
    device: Device,
) -> Stepped<T, C> {
    let (mut w, g) = (tensor(&random::<T>(n, 1), &[n], device), tensor(&random::<T>(n, 2), &[n], device));
    let n_state = kind.state_names(&params).len();
    let mut buffers: Vec<_> = (0..n_state).map(|i| tensor(&state::<T>(n, i), &[n], device)).collect();
    let mut copy = Tensor::full(&[n], 7.0, C::DTYPE, device).unwrap();
    let grads = g.view().range(from, n).unwrap();
    let norms = first_pass((kind, params), &w, grads, &mut buffers, from, inputs);
    let mut views = buffers.iter_mut().map(|buffer| buffer.view_mut().range(from, n).unwrap());
    let tensors = OptimizerTensors {
        master_weights: w.view_mut().range(from, n).unwrap(),
        grads,
        state: std::array::from_fn(|_| views.next()),
        average: None,
        compute_weights: Some(copy.view_mut().range(from, n).unwrap()),
        norms: Some(norms.view()),
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

/// The state of elements without gradients becomes zero on the CPU, which computes slowly with subnormal numbers and their products.
#[test]
fn state_does_not_stay_subnormal() {
    for (kind, params) in variants() {
        let n_state = kind.state_names(&params).len();
        let new = |value: f32| tensor(&[value; 64], &[64], Device::Cpu);
        let (mut w, g, mut state) = (new(0.0), new(0.0), Vec::new());
        state.resize_with(n_state, || new(f32::MIN_POSITIVE * 1e6));
        let norms = first_pass((kind, params), &w, g.view(), &mut state, 0, None);
        let mut views = state.iter_mut().map(|state| state.view_mut());
        let tensors = OptimizerTensors {
            master_weights: w.view_mut(),
            grads: g.view(),
            state: std::array::from_fn(|_| views.next()),
            average: None,
            compute_weights: None,
            norms: Some(norms.view()),
        };
        optimizer_step(kind, &params, tensors, None).unwrap();
        drop(views);
        // Muon's second tensor is its direction.
        assert!(state[..n_state.min(1)].iter().all(|s| s.to_vec::<f32>().unwrap() == [0.0; 64]), "{kind}");
    }
}

/// One step over segments has the bits of a step for each of them, wherever they end.
#[test]
fn a_step_by_segment_is_a_step_for_each() {
    const N: usize = 5000;
    for (device, (kind, params)) in
        devices().into_iter().flat_map(|device| variants().into_iter().map(move |variant| (device, variant)))
    {
        if !kind.takes_segments() {
            continue;
        }
        for ends in [&[16, 48, 4000, N][..], &[3, 5, 4999, N], &[N]] {
            let settings = |k: usize| (0.5 + k as f64, 0.1 * k as f64);
            let segments: Vec<_> = ends
                .iter()
                .enumerate()
                .map(|(k, &end)| {
                    let (lr_scale, weight_decay) = settings(k);
                    UpdateSegment { end, lr_scale, weight_decay }
                })
                .collect();
            let stepped = |is_one: bool| {
                let new = |seed| tensor(&random::<f32>(N, seed), &[N], device);
                let (mut w, g) = (new(1), new(2));
                let n_state = kind.state_names(&params).len();
                let mut state: Vec<_> =
                    (0..n_state).map(|i| tensor(&state::<f32>(N, i), &[N], device)).collect();
                let mut step = |range: std::ops::Range<usize>, params, segments: &[UpdateSegment]| {
                    let mut views =
                        state.iter_mut().map(|s| s.view_mut().range(range.start, range.end).unwrap());
                    let tensors = OptimizerTensors {
                        master_weights: w.view_mut().range(range.start, range.end).unwrap(),
                        grads: g.view().range(range.start, range.end).unwrap(),
                        state: std::array::from_fn(|_| views.next()),
                        average: None,
                        compute_weights: None,
                        norms: None,
                    };
                    optimizer_step_by_segment(kind, &params, segments, tensors, None).unwrap();
                };
                if is_one {
                    step(0..N, params, &segments);
                } else {
                    let mut start = 0;
                    for UpdateSegment { end, lr_scale, weight_decay } in segments.iter().copied() {
                        step(start..end, OptimizerParams { lr_scale, weight_decay, ..params }, &[]);
                        start = end;
                    }
                }
                let state: Vec<Vec<f32>> = state.iter().map(|s| s.to_vec().unwrap()).collect();
                (w.to_vec::<f32>().unwrap(), state)
            };
            assert_eq!(stepped(true), stepped(false), "{kind} on {device}, segments to {ends:?}");
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
                    let n_state = kind.state_names(&params).len();
                    let mut state: Vec<_> =
                        (0..n_state).map(|i| tensor(&state::<f32>(N, i), &[N], device)).collect();
                    let mut copy = copy.map(|dtype| Tensor::zeros(&[N], dtype, device).unwrap());
                    let before = traffic(&grads);
                    let own_grads = grads.view().range(from, N).unwrap();
                    let norms = first_pass((kind, params), &w, own_grads, &mut state, from, None);
                    let mut views = state.iter_mut().map(|state| state.view_mut().range(from, N).unwrap());
                    let tensors = OptimizerTensors {
                        master_weights: w.view_mut().range(from, N).unwrap(),
                        grads: own_grads,
                        state: std::array::from_fn(|_| views.next()),
                        average: None,
                        compute_weights: copy.as_mut().map(|copy| copy.view_mut().range(from, N).unwrap()),
                        norms: Some(norms.view()),
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
                    let n = (N - from) as u64;
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
        norms: None,
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
                norms: Some(norms.view()),
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

/// A second moment that overflows would divide all later steps of its weight by infinity: the weight becomes NaN instead, which the
/// next loss shows.
#[test]
fn a_second_moment_that_overflows_is_not_silent() {
    // The CPU looks for it every 64 steps.
    let params = OptimizerParams { step: 64, ..PARAMS };
    for device in devices() {
        for kind in [OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lamb] {
            let grads = tensor(&[3e21_f32, 1.0], &[2], device);
            let mut weights = tensor(&[1.0_f32, 1.0], &[2], device);
            let mut state = [tensor(&[0.0_f32; 2], &[2], device), tensor(&[0.0_f32; 2], &[2], device)];
            let norms = first_pass((kind, params), &weights, grads.view(), &mut state, 0, None);
            let [m, v] = &mut state;
            let tensors = OptimizerTensors {
                master_weights: weights.view_mut(),
                grads: grads.view(),
                state: [Some(m.view_mut()), Some(v.view_mut())],
                average: None,
                compute_weights: None,
                norms: Some(norms.view()),
            };
            optimizer_step(kind, &params, tensors, None).unwrap();
            let weights = weights.to_vec::<f32>().unwrap();
            assert!(weights[0].is_nan(), "{kind:?} on {device}: {weights:?}");
        }
    }
}

/// The size of the steps of Adam does not depend on the size of the gradients, above `eps`.
#[test]
fn small_gradients_with_a_small_eps_make_steps_of_the_learning_rate() {
    for device in devices() {
        for kind in [OptimizerKind::Adam, OptimizerKind::AdamW] {
            for (gradient, eps) in [(1e-14_f32, 1e-20), (1e-16, 1e-22), (1.0, 1e-8)] {
                let params = OptimizerParams { step: 1, lr_scale: 1.0, weight_decay: 0.0, eps, ..PARAMS };
                let grads = tensor(&[gradient], &[1], device);
                let mut weights = tensor(&[1.0_f32], &[1], device);
                let mut state = [tensor(&[0.0_f32], &[1], device), tensor(&[0.0_f32], &[1], device)];
                let [m, v] = &mut state;
                let tensors = OptimizerTensors {
                    master_weights: weights.view_mut(),
                    grads: grads.view(),
                    state: [Some(m.view_mut()), Some(v.view_mut())],
                    average: None,
                    compute_weights: None,
                    norms: None,
                };
                optimizer_step(kind, &params, tensors, None).unwrap();
                let step = 1.0 - weights.to_vec::<f32>().unwrap()[0];
                assert!((step / 1e-2 - 1.0).abs() < 1e-3, "{kind} of {gradient} on {device}: {step}");
            }
        }
    }
}
