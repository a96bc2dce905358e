//! Checks of losses on every device: gradients by central differences, row weights, dtypes.

use std::f64::consts::LN_2;

use half::{bf16, f16};

use super::element::{ElementLoss, element_loss, sum_losses};
use super::sums::{LossSums, STEP_SUMS_EXTRA, STEP_SUMS_LEN, SumsOutput};
use crate::ops::testing::{assert_close, assert_gradient, devices, random, rounded, rounding_of, tensor};
use crate::{DType, Device, Element, Result, Tensor, TensorMut, TensorRef};

/// Calls `op` with a tail on `device` that holds `before`, and returns the sums in it afterward. Without sums before, the loss
/// also copies a number after them.
pub(super) fn sums_after(
    device: Device,
    before: Option<LossSums>,
    op: impl FnOnce(SumsOutput<'_>) -> Result<()>,
) -> Result<LossSums> {
    let mut tail = [f32::NAN; STEP_SUMS_LEN];
    match before {
        Some(before) => before.store(&mut tail),
        // Weights are finite.
        None => tail[STEP_SUMS_LEN - 1] = 0.0,
    }
    let mut tail = tensor(&tail, &[STEP_SUMS_LEN], device);
    let extra = tensor(&[1_048_577.0], &[1], device);
    let extra = before.is_none().then(|| extra.view());
    op(SumsOutput { tail: tail.view_mut(), accumulate: before.is_some(), extra })?;
    let mut tail = tail.to_vec::<f32>().unwrap();
    if extra.is_some() {
        assert_eq!(std::mem::replace(&mut tail[STEP_SUMS_EXTRA], f32::NAN), 1_048_577.0);
        assert_eq!(std::mem::replace(&mut tail[STEP_SUMS_LEN - 1], f32::NAN), 0.0);
    }
    assert!(tail[STEP_SUMS_EXTRA..].iter().all(|v| v.is_nan()), "a loss writes nothing else after its sums");
    Ok(LossSums::load(&tail))
}

/// Signature of an elementwise loss.
pub(super) trait Op:
    Fn(
    TensorRef<'_>,
    TensorRef<'_>,
    Option<TensorRef<'_>>,
    f64,
    Option<TensorMut<'_>>,
    SumsOutput<'_>,
) -> Result<()>
{
}
impl<F> Op for F where
    F: Fn(
        TensorRef<'_>,
        TensorRef<'_>,
        Option<TensorRef<'_>>,
        f64,
        Option<TensorMut<'_>>,
        SumsOutput<'_>,
    ) -> Result<()>
{
}

/// Sums and gradient, times 0.25, of rows of seven.
fn run<T: Element>(
    op: &impl Op,
    (x, t): (&[T], &[T]),
    weights: Option<&[f32]>,
    gradient: Option<DType>,
    device: Device,
) -> (LossSums, Option<Tensor>) {
    let dims = [x.len() / 7, 7];
    let (x, t) = (tensor(x, &dims, device), tensor(t, &dims, device));
    let weights = weights.map(|w| tensor(w, &dims[..1], device));
    let mut d = gradient.map(|dtype| Tensor::full(&dims, f64::NAN, dtype, device).unwrap());
    let sums = sums_after(device, None, |sums| {
        let weights = weights.as_ref().map(Tensor::view);
        op(x.view(), t.view(), weights, 0.25, d.as_mut().map(Tensor::view_mut), sums)
    });
    (sums.unwrap(), d)
}

/// Row weights, the second 0.
fn row_weights(n_rows: usize) -> Vec<f32> {
    let mut weights: Vec<f32> = random::<f32>(n_rows, 3).iter().map(|v| 2.0 * v + 2.5).collect();
    weights[1] = 0.0;
    weights
}

/// Checks a loss at random points in `range` times -1..1 with targets from `target`: its gradient in f64, row weights, then other
/// dtypes and devices.
pub(super) fn assert_loss(op: impl Op, range: f64, target: impl Fn(f64) -> f64) {
    let points = |n: usize| -> (Vec<f64>, Vec<f64>) {
        let x = random::<f64>(n, 1).iter().map(|v| range * v).collect();
        (x, random::<f64>(n, 2).into_iter().map(&target).collect())
    };
    let (x, t) = points(35);
    let weights = row_weights(5);
    for device in devices() {
        let (sums, d) = run(&op, (&x, &t), None, Some(DType::F64), device);
        assert_eq!(sums.weight, 35.0);
        let d = d.unwrap().to_vec::<f64>().unwrap();
        // Row by row, since 48 bits of the whole sum in the tail are too few for a difference quotient.
        let loss_of_row = |(x, t): (&[f64], &[f64])| 0.25 * run(&op, (x, t), None, None, Device::Cpu).0.loss;
        assert_gradient(&x, &d, |x| x.chunks_exact(7).zip(t.chunks_exact(7)).map(loss_of_row).sum());
        let (weighted, weighted_d) = run(&op, (&x, &t), Some(&weights), Some(DType::F64), device);
        let weighted_d = weighted_d.unwrap().to_vec::<f64>().unwrap();
        assert_gradient(&x, &weighted_d, |x| {
            let rows = x.chunks_exact(7).zip(t.chunks_exact(7)).zip(&weights);
            rows.map(|(row, &weight)| f64::from(weight) * loss_of_row(row)).sum()
        });
        let total = 7.0 * weights.iter().map(|&w| f64::from(w)).sum::<f64>();
        assert_close(&[weighted.weight], &[total], 0.0, 1e-13);
        let before = LossSums { loss: 3.0, weight: 5.0 };
        let again = sums_after(device, Some(before), |sums| {
            let (x, t) = (tensor(&x, &[5, 7], device), tensor(&t, &[5, 7], device));
            op(x.view(), t.view(), None, 0.25, None, sums)
        });
        let again = again.unwrap();
        assert_eq!(again.weight, 40.0);
        // The tail holds 48 bits.
        assert_close(&[again.loss], &[sums.loss + 3.0], 0.0, 1e-13);
        for weights in [None, Some(&[][..])] {
            let nothing = run::<f64>(&op, (&[], &[]), weights, Some(DType::F64), device).0;
            assert_eq!(nothing, LossSums::default(), "a batch without rows");
        }
    }

    // Enough for several blocks, and not a multiple of a pack.
    let (x, t) = points(7 * 1501);
    let (x32, t32) = (rounded::<f64, f32>(&x), rounded::<f64, f32>(&t));
    let weights = row_weights(1501);
    for (device, weights) in devices().into_iter().flat_map(|d| [(d, None), (d, Some(&weights[..]))]) {
        // The unweighted loss in f64, times the weights.
        let f64_of = |x: &[f64], t: &[f64]| {
            let (sums, d) = run(&op, (x, t), None, Some(DType::F64), Device::Cpu);
            let mut d = d.unwrap().to_vec::<f64>().unwrap();
            let Some(weights) = weights else { return (sums, d) };
            let mut sums = LossSums::default();
            for (row, &weight) in weights.iter().enumerate() {
                let (elements, weight) = (7 * row..7 * (row + 1), f64::from(weight));
                d[elements.clone()].iter_mut().for_each(|d| *d *= weight);
                let of_row = run(&op, (&x[elements.clone()], &t[elements]), None, None, Device::Cpu).0;
                sums += LossSums { loss: weight * of_row.loss, weight: weight * of_row.weight };
            }
            (sums, d)
        };
        // Row weights scale the bounds below.
        let atol = 1e-7 * range.max(1.0) * if weights.is_some() { 4.5 } else { 1.0 };
        let (want, want_d) = f64_of(&rounded(&x32), &rounded(&t32));
        let (sums, d) = run(&op, (&x32, &t32), weights, Some(DType::F32), device);
        // Each term is a few roundings in f32, in random directions; they are summed in f64.
        assert_close(&[sums.loss, sums.weight], &[want.loss, want.weight], 0.0, 1e-6);
        // e and sigmoid near 0 are differences of numbers up to `range`.
        let d = rounded::<f32, f64>(&d.unwrap().to_vec().unwrap());
        assert_close(&d, &want_d, atol, 1e-6);
        assert_eq!(run(&op, (&x32, &t32), weights, None, device).0, sums, "the gradient changes nothing");
        if weights.is_none() {
            assert_weights_of_one_and_zero(&op, (&x32, &t32), (sums, &d), device);
        }
        check_short::<bf16>(&op, (&x, &t), (&x32, &t32), weights, (sums, &want_d), (atol, &f64_of), device);
        check_short::<f16>(&op, (&x, &t), (&x32, &t32), weights, (sums, &want_d), (atol, &f64_of), device);
    }
}

/// Sums and gradient of these operands in f64.
type Reference<'a> = dyn Fn(&[f64], &[f64]) -> (LossSums, Vec<f64>) + 'a;

/// A gradient in `S` of f32 operands, and operands in `S`; `sums` are those in f32, `want_d` is the gradient in f64.
#[allow(clippy::too_many_arguments)] // Results that the caller has already.
fn check_short<S: Element>(
    op: &impl Op,
    (x, t): (&[f64], &[f64]),
    (x32, t32): (&[f32], &[f32]),
    weights: Option<&[f32]>,
    (sums, want_d): (LossSums, &[f64]),
    (atol, f64_of): (f64, &Reference<'_>),
    device: Device,
) {
    // One rounding of the f32 result.
    let (same, d) = run(op, (x32, t32), weights, Some(S::DTYPE), device);
    assert_eq!(same, sums);
    let d = rounded::<S, f64>(&d.unwrap().to_vec().unwrap());
    assert_close(&d, want_d, atol, rounding_of::<S>());
    let (x, t): (Vec<S>, Vec<S>) = (rounded(x), rounded(t));
    let (want, want_d) = f64_of(&rounded(&x), &rounded(&t));
    let (sums, d) = run(op, (&x, &t), weights, Some(S::DTYPE), device);
    assert_close(&[sums.loss, sums.weight], &[want.loss, want.weight], 0.0, 1e-6);
    let d = rounded::<S, f64>(&d.unwrap().to_vec().unwrap());
    assert_close(&d, &want_d, atol, rounding_of::<S>());
}

/// Weights of 1 change no bit of `unweighted`, and a row of weight 0 is ignored, whatever it contains.
fn assert_weights_of_one_and_zero(
    op: &impl Op,
    (x, t): (&[f32], &[f32]),
    (unweighted, unweighted_d): (LossSums, &[f64]),
    device: Device,
) {
    let mut weights = vec![1.0; x.len() / 7];
    let (sums, d) = run(op, (x, t), Some(&weights), Some(DType::F32), device);
    let d = rounded::<f32, f64>(&d.unwrap().to_vec().unwrap());
    assert_eq!((sums.weight, &d[..]), (unweighted.weight, unweighted_d));
    assert_eq!(sums.loss, unweighted.loss);
    weights[3] = 0.0;
    let mut x = x.to_vec();
    x[21..28].fill(f32::NAN);
    let (sums, d) = run(op, (&x, t), Some(&weights), Some(DType::F32), device);
    assert_eq!(sums.weight, unweighted.weight - 7.0);
    assert!(sums.loss < unweighted.loss);
    let d = rounded::<f32, f64>(&d.unwrap().to_vec().unwrap());
    assert_eq!((&d[..21], &d[28..]), (&unweighted_d[..21], &unweighted_d[28..]));
    assert!(d[21..28].iter().all(|&d| d == 0.0));
}

#[test]
fn a_wrong_tail_or_gradient_is_named() {
    let (x, mut d) = ([0.0f32; 4], [0.0f64; 4]);
    let x = TensorRef::from_slice(&x, &[2, 2]).unwrap();
    let mse = |d: Option<TensorMut<'_>>| {
        let mut short = [0.0f32; 4];
        let tail = TensorMut::from_slice(&mut short, &[4]).unwrap();
        let sums = SumsOutput { tail, accumulate: false, extra: None };
        element_loss(ElementLoss::Mse, x, x, None, 1.0, d, sums).unwrap_err().to_string()
    };
    assert_eq!(mse(None), "mse: sums [4] f32 on cpu should be [16]");
    let error = mse(Some(TensorMut::from_slice(&mut d, &[2, 2]).unwrap()));
    assert!(error.contains("gradient [2, 2] f64 on cpu"), "{error}");
}

/// The operation of one loss.
fn of(loss: ElementLoss) -> impl Op {
    move |x: TensorRef<'_>,
          t: TensorRef<'_>,
          weights: Option<TensorRef<'_>>,
          scale: f64,
          d: Option<TensorMut<'_>>,
          sums: SumsOutput<'_>| element_loss(loss, x, t, weights, scale, d, sums)
}

#[test]
fn gradients_match_central_differences_and_dtypes_agree() {
    assert_loss(of(ElementLoss::Bce), 10.0, |v| 0.5 * (v + 1.0));
    for gamma in [0.0, 0.5, 2.0] {
        assert_loss(of(ElementLoss::Focal { gamma }), 4.0, |v| f64::from(v > 0.0));
    }
    assert_loss(of(ElementLoss::Mse), 2.0, |v| v);
    for delta in [0.3, 1.0] {
        assert_loss(of(ElementLoss::Huber { delta }), 2.0, |v| v);
    }
    assert_loss(of(ElementLoss::LogCosh), 2.0, |v| v);
    for quantile in [0.1, 0.5, 0.9] {
        assert_loss(of(ElementLoss::Quantile { quantile }), 2.0, |v| v);
    }
    // Counts from 0 to 6; the sum stays away from 0.
    assert_loss(of(ElementLoss::Poisson), 2.0, |v| (3.0 * v + 3.0).floor());
}

#[test]
fn large_logits_do_not_overflow() {
    for device in devices() {
        let (x, t) = (tensor(&[200.0f32, -200.0], &[1, 2], device), tensor(&[0.0f32; 2], &[1, 2], device));
        let sums = sums_after(device, None, |sums| {
            element_loss(ElementLoss::Bce, x.view(), t.view(), None, 1.0, None, sums)
        });
        assert_eq!(sums.unwrap().loss, 200.0);
    }
}

#[test]
fn log_cosh_of_small_and_large_errors_keeps_its_digits() {
    for device in devices() {
        for e in [0.0, 1e-12, 1e-6, -3e-4, 0.01, -0.1, 0.3, 0.99, 1.0, -1.01, 3.0, 50.0, 1e30_f64] {
            // ln(1 + 2 sinh²(e/2)), where that does not overflow.
            let want = if e.abs() < 9.0 { (2.0 * (e / 2.0).sinh().powi(2)).ln_1p() } else { e - LN_2 };
            let (e32, zero) = ([e as f32; 7], [0.0; 7]);
            let got = run(&of(ElementLoss::LogCosh), (&e32, &zero), None, None, device).0.loss / 7.0;
            assert_close(&[got], &[want], 1e-30, 1e-6);
            let got = run(&of(ElementLoss::LogCosh), (&[e; 7], &[0.0; 7]), None, None, device).0.loss / 7.0;
            // The tail holds 48 bits.
            assert_close(&[got], &[want], 1e-30, 1e-13);
        }
    }
}

#[test]
fn losses_that_were_computed_before_are_added_with_the_weights_of_their_rows() {
    for device in devices() {
        let losses = tensor(&[1.5f32, -2.0, f32::NAN, 4.0], &[4], device);
        let weights = tensor(&[1.0f32, 0.5, 0.0, 2.0], &[4], device);
        for d_format in [DType::F32, DType::BF16, DType::F16] {
            let mut d = Tensor::full(&[4], 9.0, d_format, device).unwrap();
            let sums = sums_after(device, None, |sums| {
                sum_losses(losses.view(), Some(weights.view()), 0.25, Some(d.view_mut()), sums)
            });
            assert_eq!(sums.unwrap(), LossSums { loss: 8.5, weight: 3.5 }, "{device}");
            assert_eq!(d.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [0.25, 0.125, 0.0, 0.5]);
        }
        let before = Some(LossSums { loss: 1.0, weight: 2.0 });
        let unweighted = sums_after(device, before, |sums| {
            sum_losses(losses.view().range(0, 2).unwrap(), None, 1.0, None, sums)
        });
        assert_eq!(unweighted.unwrap(), LossSums { loss: 0.5, weight: 4.0 }, "{device}");
    }
}
