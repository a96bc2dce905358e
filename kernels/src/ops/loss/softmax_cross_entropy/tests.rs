use half::{bf16, f16};

use super::*;
use crate::ops::loss::sums::LossSums;
use crate::ops::loss::testing::sums_after;
use crate::ops::testing::{
    assert_close, assert_gradient, devices, random, rounded, rounding_of, tensor, traffic,
};
use crate::{Device, Element, Tensor};

/// A case: logits of `n_classes`, labels, class weights in their dtype, row weights, smoothing.
#[derive(Clone, Copy)]
struct Case<'a, T> {
    n_classes: usize,
    logits: &'a [T],
    labels: &'a [i64],
    weights: Option<&'a [f64]>,
    row_weights: Option<&'a [f32]>,
    smoothing: f64,
}

/// The result of [`run`] by the formula.
fn plain(case: &Case<'_, f64>) -> (LossSums, Vec<f64>) {
    let n = case.n_classes;
    let class_weight = |c: usize| case.weights.map_or(1.0, |w| w[c]);
    let (mut sums, mut d) = (LossSums::default(), Vec::new());
    for (row, (logits, &label)) in case.logits.chunks_exact(n).zip(case.labels).enumerate() {
        if label == -100 {
            d.extend(std::iter::repeat_n(0.0, n));
            continue;
        }
        let label = label as usize;
        let row_weight = case.row_weights.map_or(1.0, |w| f64::from(w[row]));
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = logits.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max;
        let target = |c: usize| {
            let hit = if c == label { 1.0 - case.smoothing } else { 0.0 };
            row_weight * class_weight(label) * (hit + case.smoothing / n as f64)
        };
        let mass: f64 = (0..n).map(target).sum();
        sums.loss += (0..n).map(|c| target(c) * (log_sum - logits[c])).sum::<f64>();
        sums.weight += row_weight * class_weight(label);
        d.extend((0..n).map(|c| 0.5 * (mass * (logits[c] - log_sum).exp() - target(c))));
    }
    (sums, d)
}

/// Sums and gradient, times 0.5.
fn run<T: Element>(
    case: &Case<'_, T>,
    gradient: Option<DType>,
    device: Device,
) -> Result<(LossSums, Option<Tensor>)> {
    let dims = [case.labels.len(), case.n_classes];
    let (logits, labels) = (tensor(case.logits, &dims, device), tensor(case.labels, &dims[..1], device));
    let weights = case.weights.map(|w| match T::DTYPE {
        DType::F64 => tensor(w, &dims[1..], device),
        _ => tensor(&rounded::<f64, f32>(w), &dims[1..], device),
    });
    let row_weights = case.row_weights.map(|w| tensor(w, &dims[..1], device));
    let config = CrossEntropyConfig {
        label_smoothing: case.smoothing,
        class_weights: weights.as_ref().map(Tensor::view),
        row_weights: row_weights.as_ref().map(Tensor::view),
        ..Default::default()
    };
    let mut d = gradient.map(|dtype| Tensor::full(&dims, f64::NAN, dtype, device).unwrap());
    let sums = sums_after(device, None, |sums| {
        softmax_cross_entropy(
            logits.view(),
            labels.view(),
            &config,
            0.5,
            d.as_mut().map(Tensor::view_mut),
            sums,
        )
    })?;
    Ok((sums, d))
}

/// Labels spread over the classes, the third one ignored.
fn labels(rows: usize, n_classes: usize) -> Vec<i64> {
    let mut labels: Vec<i64> = (0..rows as i64).map(|r| (r * 7) % n_classes as i64).collect();
    labels[2] = -100;
    labels
}

/// Various weights, that of the second row 0.
fn row_weights(rows: usize) -> Vec<f32> {
    let mut weights: Vec<f32> = random::<f32>(rows, 3).iter().map(|v| 2.0 * v + 2.5).collect();
    weights[1] = 0.0;
    weights
}

#[test]
fn gradient_matches_central_differences_in_every_mode() {
    for (rows, n_classes) in [(6, 1), (6, 3), (37, 10), (6, 64), (6, 65), (6, 100)] {
        let logits: Vec<f64> = random::<f64>(rows * n_classes, 1).iter().map(|v| 5.0 * v).collect();
        let labels = labels(rows, n_classes);
        let weights: Vec<f64> = random::<f64>(n_classes, 2).iter().map(|v| v + 1.5).collect();
        let row_weights = row_weights(rows);
        for device in devices() {
            for smoothing in [0.0, 0.1] {
                for (weights, row_weights) in [
                    (None, None),
                    (Some(&weights[..]), None),
                    (None, Some(&row_weights[..])),
                    (Some(&weights[..]), Some(&row_weights[..])),
                ] {
                    let case =
                        Case { n_classes, logits: &logits, labels: &labels, weights, row_weights, smoothing };
                    let d = run(&case, Some(DType::F64), device).unwrap().1.unwrap().to_vec::<f64>().unwrap();
                    // Row by row, since 48 bits of the whole sum in the tail are too few for a difference quotient.
                    let loss_of_row = |(row, logits): (usize, &[f64])| {
                        let (labels, row_weights) =
                            (&labels[row..][..1], row_weights.map(|w| &w[row..][..1]));
                        let case = Case { n_classes, logits, labels, weights, row_weights, smoothing };
                        0.5 * run(&case, None, Device::Cpu).unwrap().0.loss
                    };
                    assert_gradient(&logits, &d, |logits| {
                        logits.chunks_exact(n_classes).enumerate().map(loss_of_row).sum()
                    });
                    let row = |row: usize| &d[row * n_classes..][..n_classes];
                    assert!(row(2).iter().all(|&v| v == 0.0), "the ignored row has no gradient");
                    if row_weights.is_some() {
                        assert!(row(1).iter().all(|&v| v == 0.0), "nor has the row of weight 0");
                    }
                }
            }
        }
    }
}

/// Sums and gradient in f64, on which two methods agree.
fn reference<T: Element>(case: &Case<'_, T>) -> (LossSums, Vec<f64>) {
    let Case { n_classes, labels, weights, row_weights, smoothing, .. } = *case;
    let logits = rounded::<T, f64>(case.logits);
    let case = Case { n_classes, logits: &logits, labels, weights, row_weights, smoothing };
    let (sums, d) = run(&case, Some(DType::F64), Device::Cpu).unwrap();
    let d = d.unwrap().to_vec::<f64>().unwrap();
    let (plain_sums, plain_d) = plain(&case);
    // Logits that cancel, and terms of either sign.
    assert_close(&[sums.loss, sums.weight], &[plain_sums.loss, plain_sums.weight], 0.0, 1e-12);
    assert_close(&d, &plain_d, 1e-14, 1e-12);
    (sums, d)
}

/// A row's loss is a few roundings of numbers up to 15 in f32; the class weights are rounded too.
#[track_caller]
fn assert_sums_close(got: LossSums, want: LossSums) {
    assert_close(&[got.loss, got.weight], &[want.loss, want.weight], 0.0, 2e-6);
}

/// A gradient in `S` of f32 logits, and logits in `S`; `sums` are those in f32, `want_d` is the gradient in f64.
fn check_short<S: Element>(
    case: &Case<'_, f32>,
    (sums, want_d): (LossSums, &[f64]),
    atol: f64,
    device: Device,
) {
    // One rounding of the f32 result.
    let (same, d) = run(case, Some(S::DTYPE), device).unwrap();
    assert_eq!(same, sums);
    assert_close(&rounded::<S, f64>(&d.unwrap().to_vec().unwrap()), want_d, atol, rounding_of::<S>());
    let Case { n_classes, labels, weights, row_weights, smoothing, .. } = *case;
    let logits = rounded::<f32, S>(case.logits);
    let case = Case { n_classes, logits: &logits, labels, weights, row_weights, smoothing };
    let (want_sums, want_d) = reference(&case);
    let (sums, d) = run(&case, Some(S::DTYPE), device).unwrap();
    assert_sums_close(sums, want_sums);
    assert_close(&rounded::<S, f64>(&d.unwrap().to_vec().unwrap()), &want_d, atol, rounding_of::<S>());
}

#[test]
fn every_form_and_dtype_agrees_with_f64() {
    // Few, some and many classes, aligned and unaligned rows, several rows per warp and per block.
    for (rows, n_classes) in [
        (300, 10),
        (70, 32),
        (70, 33),
        (20, 1000),
        (20, 1001),
        (20, 1024),
        (9, 1025),
        (9, 4099),
        (5, 4104),
        (4, 16_384),
        (4, 16_385),
    ] {
        let logits: Vec<f32> = random::<f32>(rows * n_classes, 1).iter().map(|v| 5.0 * v).collect();
        let labels = labels(rows, n_classes);
        let weights: Vec<f64> = random::<f64>(n_classes, 2).iter().map(|v| v + 1.5).collect();
        let row_weights = row_weights(rows);
        for (smoothing, weights, row_weights) in [
            (0.0, None, None),
            (0.1, None, None),
            (0.1, Some(&weights[..]), None),
            (0.0, None, Some(&row_weights[..])),
            (0.1, Some(&weights[..]), Some(&row_weights[..])),
        ] {
            // Row weights scale the bounds below.
            let atol = 5e-7 * if row_weights.is_some() { 4.5 } else { 1.0 };
            let case = Case { n_classes, logits: &logits, labels: &labels, weights, row_weights, smoothing };
            let (want_sums, want_d) = reference(&case);
            for device in devices() {
                if device == Device::Cpu && smoothing > 0.0 && n_classes > 5000 {
                    // Its sum of so many terms in f32, one after the other, is less exact than the bounds below.
                    continue;
                }
                let (sums, d) = run(&case, Some(DType::F32), device).unwrap();
                assert_sums_close(sums, want_sums);
                let d = rounded::<f32, f64>(&d.unwrap().to_vec().unwrap());
                // p, at most 1.25, to a few units of 2^-24, before the target is subtracted.
                assert_close(&d, &want_d, atol, 1e-6);
                assert_eq!(run(&case, None, device).unwrap().0, sums, "the gradient changes nothing");
                let wide = Case {
                    n_classes,
                    logits: &rounded::<f32, f64>(&logits),
                    labels: &labels,
                    weights,
                    row_weights,
                    smoothing,
                };
                let (wide_sums, wide_d) = run(&wide, Some(DType::F64), device).unwrap();
                assert_close(
                    &[wide_sums.loss, wide_sums.weight],
                    &[want_sums.loss, want_sums.weight],
                    0.0,
                    1e-12,
                );
                assert_close(&wide_d.unwrap().to_vec::<f64>().unwrap(), &want_d, 1e-14, 1e-12);
                check_short::<bf16>(&case, (sums, &want_d), atol, device);
                check_short::<f16>(&case, (sums, &want_d), atol, device);
            }
        }
    }
}

#[test]
fn logits_are_read_once_and_only_very_long_rows_twice() {
    fn moved<T: Element>(rows: usize, n_classes: usize, device: Device) -> Option<[f64; 2]> {
        let dims = [rows, n_classes];
        let logits = tensor(&random::<T>(rows * n_classes, 1), &dims, device);
        let labels = tensor(&labels(rows, n_classes), &dims[..1], device);
        let mut d = Tensor::zeros(&dims, T::DTYPE, device).unwrap();
        let before = [traffic(&logits)?, traffic(&d)?];
        let config = CrossEntropyConfig::default();
        sums_after(device, None, |sums| {
            let d = Some(d.view_mut());
            softmax_cross_entropy(logits.view(), labels.view(), &config, 1.0, d, sums)
        })
        .unwrap();
        let bytes = (rows * n_classes * size_of::<T>()) as f64;
        let (read, written) = (traffic(&logits)?[0] - before[0][0], traffic(&d)?[1] - before[1][1]);
        Some([read as f64 / bytes, written as f64 / bytes])
    }
    for device in devices() {
        for (rows, n_classes, want) in [
            (40, 10, 1.0),
            (8, 33, 1.0),
            (8, 1000, 1.0),
            (8, 1001, 1.0),
            (5, 1025, 1.0),
            (5, 4099, 1.0),
            (3, 16_384, 1.0),
            (3, 16_383, 1.0),
            (3, 16_386, 2.0),
        ] {
            let all = [
                moved::<f32>(rows, n_classes, device),
                moved::<bf16>(rows, n_classes, device),
                moved::<f64>(rows, n_classes / 2, device),
            ];
            for [read, written] in all.into_iter().flatten() {
                assert_eq!(written, 1.0, "{n_classes} classes");
                // And the label's logit of each row; a long row that is ignored is read once.
                let (least, most) = (want - 0.35 * (want - 1.0), want + 2.0 / n_classes as f64);
                assert!((least..=most).contains(&read), "{n_classes} classes are read {read} times");
            }
        }
    }
}

#[test]
fn weights_of_one_change_no_bit_and_a_row_of_weight_0_nothing() {
    for (rows, n_classes) in [(37, 10), (20, 33), (20, 128), (9, 1025)] {
        let logits: Vec<f32> = random::<f32>(rows * n_classes, 1).iter().map(|v| 5.0 * v).collect();
        let labels = labels(rows, n_classes);
        let weights: Vec<f64> = random::<f64>(n_classes, 2).iter().map(|v| v + 1.5).collect();
        let ones = vec![1.0; rows];
        // Any contents of an ignored row.
        let (mut but_one, mut with_nan) = (ones.clone(), logits.clone());
        but_one[1] = 0.0;
        with_nan[n_classes..2 * n_classes].fill(f32::NAN);
        for device in devices() {
            let run_labels = |labels: &[i64], logits: &[f32], row_weights| {
                let weights = Some(&weights[..]);
                let case = Case { n_classes, logits, labels, weights, row_weights, smoothing: 0.1 };
                let (sums, d) = run(&case, Some(DType::F32), device).unwrap();
                (sums, d.unwrap().to_vec::<f32>().unwrap())
            };
            let run = |logits, row_weights| run_labels(&labels, logits, row_weights);
            let unweighted = run(&logits, None);
            assert_eq!(run(&logits, Some(&ones)), unweighted, "{n_classes} classes on {device}");
            let (sums, mut d) = run(&with_nan, Some(&but_one));
            let mut labels_but_one = labels.clone();
            labels_but_one[1] = n_classes as i64 + 7;
            assert_eq!(run_labels(&labels_but_one, &with_nan, Some(&but_one)), (sums, d.clone()));
            let label_weight = f64::from(weights[labels[1] as usize] as f32);
            assert_close(&[sums.weight], &[unweighted.0.weight - label_weight], 0.0, 1e-12);
            assert!(sums.loss < unweighted.0.loss);
            let row = n_classes..2 * n_classes;
            assert!(d[row.clone()].iter().all(|&v| v == 0.0));
            d[row.clone()].copy_from_slice(&unweighted.1[row]);
            assert_eq!(d, unweighted.1, "the other rows' gradients");
        }
    }
}

/// The sum of the losses of rows and its gradient, times 0.5, by the formula of the focal loss in f64.
fn focal(case: &Case<'_, f64>, gamma: f64) -> (f64, Vec<f64>) {
    let n = case.n_classes;
    let (mut sum, mut d) = (0.0, Vec::new());
    for row in 0..case.labels.len() {
        let row_weights = case.row_weights.map(|w| &w[row..][..1]);
        let (logits, labels) = (&case.logits[row * n..][..n], &case.labels[row..][..1]);
        let (sums, plain_d) = plain(&Case { logits, labels, row_weights, ..*case });
        let Ok(label) = usize::try_from(labels[0]) else {
            d.extend(plain_d);
            continue;
        };
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exp_sum: f64 = logits.iter().map(|v| (v - max).exp()).sum();
        let p = |c: usize| (logits[c] - max).exp() / exp_sum;
        let missing: f64 = (0..n).filter(|&c| c != label).map(p).sum();
        sum += missing.powf(gamma) * sums.loss;
        let growth = gamma * missing.powf(gamma - 1.0) * sums.loss * p(label);
        let direction = |c: usize| p(c) - f64::from(u8::from(c == label));
        d.extend((0..n).map(|c| missing.powf(gamma) * plain_d[c] + 0.5 * growth * direction(c)));
    }
    (sum, d)
}

/// Sums and gradient of the focal loss, times 0.5.
fn run_focal<T: Element>(case: &Case<'_, T>, gamma: f64, device: Device) -> (LossSums, Vec<f64>) {
    let dims = [case.labels.len(), case.n_classes];
    let (logits, labels) = (tensor(case.logits, &dims, device), tensor(case.labels, &dims[..1], device));
    let weights = case.weights.map(|w| tensor(w, &dims[1..], device).to_dtype(T::DTYPE).unwrap());
    let row_weights = case.row_weights.map(|w| tensor(w, &dims[..1], device));
    let config = CrossEntropyConfig {
        label_smoothing: case.smoothing,
        class_weights: weights.as_ref().map(Tensor::view),
        row_weights: row_weights.as_ref().map(Tensor::view),
        focal_gamma: gamma,
        ..Default::default()
    };
    let mut d = Tensor::full(&dims, f64::NAN, T::DTYPE, device).unwrap();
    let sums = sums_after(device, None, |sums| {
        let d = Some(d.view_mut());
        softmax_cross_entropy(logits.view(), labels.view(), &config, 0.5, d, sums)
    });
    (sums.unwrap(), d.to_vec::<T>().unwrap().into_iter().map(|v| v.to_f64()).collect())
}

#[test]
fn the_focal_loss_follows_its_formula_in_every_form() {
    for (rows, n_classes) in [(37, 10), (6, 65), (20, 1000), (5, 4104), (3, 16_386)] {
        let logits: Vec<f32> = random::<f32>(rows * n_classes, 1).iter().map(|v| 5.0 * v).collect();
        let (single, logits) = (&logits, rounded::<f32, f64>(&logits));
        let labels = labels(rows, n_classes);
        let class_weights: Vec<f64> =
            random::<f32>(n_classes, 2).iter().map(|v| f64::from(v + 1.5)).collect();
        let row_weights = row_weights(rows);
        for gamma in [0.5, 1.0, 2.0] {
            for (smoothing, weights, row_weights) in
                [(0.0, None, None), (0.1, Some(&class_weights[..]), Some(&row_weights[..]))]
            {
                let case =
                    Case { n_classes, logits: &logits, labels: &labels, weights, row_weights, smoothing };
                let (want, want_d) = focal(&case, gamma);
                for device in devices() {
                    let (sums, d) = run_focal(&case, gamma, device);
                    assert_close(&[sums.loss], &[want], 0.0, 1e-10);
                    assert_close(&d, &want_d, 1e-12, 1e-10);
                    if device == Device::Cpu && smoothing > 0.0 && n_classes > 5000 {
                        // As in `every_form_and_dtype_agrees_with_f64`.
                        continue;
                    }
                    let case =
                        Case { n_classes, logits: single, labels: &labels, weights, row_weights, smoothing };
                    let (sums, d) = run_focal(&case, gamma, device);
                    assert_close(&[sums.loss], &[want], 0.0, 2e-6);
                    // Losses up to about 20, and their weights up to 11, multiply roundings of the probabilities.
                    assert_close(&d, &want_d, 2e-5, 1e-5);
                }
            }
            if n_classes == 10 {
                let case = Case {
                    n_classes,
                    logits: &logits,
                    labels: &labels,
                    weights: None,
                    row_weights: None,
                    smoothing: 0.0,
                };
                assert_gradient(&logits, &focal(&case, gamma).1, |logits| {
                    0.5 * focal(&Case { logits, ..case }, gamma).0
                });
            }
        }
    }
}

#[test]
fn wrong_row_weights_are_named() {
    let (x, labels, mut tail) = ([0.0f32; 6], [0i64; 2], [0.0f32; 16]);
    let (short, wide) = ([1.0f32], [1.0f64; 2]);
    let views = [TensorRef::from_slice(&short, &[1]), TensorRef::from_slice(&wide, &[2])];
    let errors = views.map(|weights| {
        let config = CrossEntropyConfig { row_weights: Some(weights.unwrap()), ..Default::default() };
        let (x, labels) = (TensorRef::from_slice(&x, &[2, 3]), TensorRef::from_slice(&labels, &[2]));
        let tail = TensorMut::from_slice(&mut tail, &[16]).unwrap();
        let sums = SumsOutput { tail, accumulate: false, extra: None };
        softmax_cross_entropy(x.unwrap(), labels.unwrap(), &config, 1.0, None, sums).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "softmax_cross_entropy: row_weights [1] f32 on cpu should be [2]");
    assert!(errors[1].contains("row_weights [2] f64 on cpu"), "{}", errors[1]);
}

#[test]
fn large_and_infinite_logits_do_not_overflow() {
    for device in devices() {
        for n_classes in [2, 40, 1100] {
            // Minus infinity in all but the first two classes, as for masked classes.
            let mut logits = vec![f32::NEG_INFINITY; 2 * n_classes];
            (logits[0], logits[1]) = (1000.0, 0.0);
            (logits[n_classes], logits[n_classes + 1]) = (-1000.0, 1000.0);
            let case = Case {
                n_classes,
                logits: &logits,
                labels: &[0, 0],
                weights: None,
                row_weights: None,
                smoothing: 0.0,
            };
            let (sums, d) = run(&case, Some(DType::F32), device).unwrap();
            assert_eq!((sums.loss, sums.weight), (2000.0, 2.0));
            let d = d.unwrap().to_vec::<f32>().unwrap();
            assert_eq!((d[n_classes], d[n_classes + 1]), (-0.5, 0.5));
            assert!(d.iter().enumerate().all(|(i, &v)| i == n_classes || i == n_classes + 1 || v == 0.0));
            logits[n_classes] = f32::NAN;
            let case = Case {
                n_classes,
                logits: &logits,
                labels: &[0, 0],
                weights: None,
                row_weights: None,
                smoothing: 0.0,
            };
            assert!(run(&case, None, device).unwrap().0.loss.is_nan());
        }
    }
}

#[test]
fn a_label_out_of_range_names_its_row() {
    for device in devices() {
        for n_classes in [3, 40, 1100] {
            for label in [n_classes as i64, -1, i64::MIN, i64::MAX] {
                let logits = vec![0.0f32; 2 * n_classes];
                let case = Case {
                    n_classes,
                    logits: &logits,
                    labels: &[1, label],
                    weights: None,
                    row_weights: None,
                    smoothing: 0.0,
                };
                let got = run(&case, Some(DType::F32), device);
                if device == Device::Cpu {
                    assert_eq!(got.unwrap_err(), KernelError::Label { op: OP, row: 1, label, n_classes });
                    continue;
                }
                let (sums, d) = got.unwrap();
                assert!(sums.loss.is_nan());
                let d = d.unwrap().to_vec::<f32>().unwrap();
                assert!(
                    d[..n_classes].iter().all(|v| v.is_finite()) && d[n_classes..].iter().all(|&v| v == 0.0)
                );
            }
        }
    }
}

#[test]
fn sums_are_added_to_and_batches_can_be_empty() {
    for device in devices() {
        for n_classes in [3, 40, 1100] {
            let none = Case::<f32> {
                n_classes,
                logits: &[],
                labels: &[],
                weights: None,
                row_weights: None,
                smoothing: 0.0,
            };
            assert_eq!(run(&none, Some(DType::F32), device).unwrap().0, LossSums::default());
            let (x, labels) = (vec![0.0f32; n_classes], tensor(&[1i64], &[1], device));
            let x = tensor(&x, &[1, n_classes], device);
            let before = LossSums { loss: 2.0, weight: 3.0 };
            let sums = sums_after(device, Some(before), |sums| {
                softmax_cross_entropy(
                    x.view(),
                    labels.view(),
                    &CrossEntropyConfig::default(),
                    1.0,
                    None,
                    sums,
                )
            });
            let sums = sums.unwrap();
            assert_eq!(sums.weight, 4.0);
            assert_close(&[sums.loss], &[2.0 + (n_classes as f64).ln()], 0.0, 1e-6);
        }
    }
}
