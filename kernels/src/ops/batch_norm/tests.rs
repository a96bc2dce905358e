//! Values by hand, gradients by central differences, and groups of rows against all rows at once.

use half::{bf16, f16};

use super::*;
use crate::ops::testing::{
    assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
};
use crate::{Device, Element, Tensor};

const EPS: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// Results of a forward and a backward pass over the rows of several groups, one group after the other.
#[derive(Debug, Clone, PartialEq)]
struct Passes<T, P> {
    y: Vec<T>,
    d: Vec<T>,
    /// Summed over the groups.
    d_gamma: Vec<f64>,
    d_beta: Vec<f64>,
    /// Mean, rstd, running mean, running variance.
    stats: [Vec<P>; 4],
    count: f64,
}

/// Rows of each group, and the parameters.
struct Inputs<'a, T, P> {
    groups: &'a [usize],
    cols: usize,
    x: &'a [T],
    d_y: &'a [T],
    gamma: &'a [P],
    beta: &'a [P],
}

/// Running statistics before the pass.
const RUNNING: [f64; 2] = [0.5, 2.0];

impl<T: Element, P: Element> Inputs<'_, T, P> {
    fn run(&self, device: Device, is_training: bool) -> Passes<T, P> {
        let &Inputs { groups, cols, x, d_y, gamma, beta } = self;
        let f64s = |dims: &[usize]| Tensor::full(dims, f64::NAN, DType::F64, device).unwrap();
        let column = |value| Tensor::full(&[cols], value, P::DTYPE, device).unwrap();
        let rows_of = |values: &[T], group: usize| {
            let start = groups[..group].iter().sum::<usize>() * cols;
            tensor(&values[start..start + groups[group] * cols], &[groups[group], cols], device)
        };
        let n_groups = groups.len();
        let mut all = f64s(&[n_groups, 2 * cols + 1]);
        for group in 0..n_groups {
            let own = all.view_mut().rows(group, group + 1).unwrap().reshape(&[2 * cols + 1]).unwrap();
            batch_norm_moments(rows_of(x, group).view(), own).unwrap();
        }
        let (mut mean, mut rstd, mut count) = (column(f64::NAN), column(f64::NAN), f64s(&[1]));
        let [mut running_mean, mut running_var] = RUNNING.map(column);
        let stats = BatchNormStats { mean: mean.view_mut(), rstd: rstd.view_mut(), count: count.view_mut() };
        if is_training {
            let running = RunningStats {
                mean: running_mean.view_mut(),
                var: running_var.view_mut(),
                momentum: MOMENTUM,
            };
            batch_norm_statistics(all.view(), EPS, stats, running).unwrap();
        } else {
            batch_norm_frozen(running_mean.view(), running_var.view(), EPS, stats).unwrap();
        }
        let saved = BatchNormSaved { mean: mean.view(), rstd: rstd.view(), count: count.view() };
        let (gamma, beta) = (tensor(gamma, &[cols], device), tensor(beta, &[cols], device));
        let mut sums = f64s(&[n_groups, 2 * cols]);
        let mut y = Vec::new();
        for (group, &n_rows) in groups.iter().enumerate() {
            let (x, d) = (rows_of(x, group), rows_of(d_y, group));
            let mut out = Tensor::full(&[n_rows, cols], f64::NAN, T::DTYPE, device).unwrap();
            batch_norm_forward(x.view(), gamma.view(), beta.view(), saved, out.view_mut()).unwrap();
            y.extend(out.to_vec::<T>().unwrap());
            let own = sums.view_mut().rows(group, group + 1).unwrap().reshape(&[2 * cols]).unwrap();
            batch_norm_backward_sums(x.view(), d.view(), saved, own).unwrap();
        }
        let (mut d_x, mut d_gamma, mut d_beta) = (Vec::new(), vec![0.0; cols], vec![0.0; cols]);
        for group in 0..n_groups {
            let (x, mut d) = (rows_of(x, group), rows_of(d_y, group));
            let mut own = tensor(
                &sums.to_vec::<f64>().unwrap()[group * 2 * cols..(group + 1) * 2 * cols],
                &[2 * cols],
                device,
            );
            // Added to ones.
            let (mut own_gamma, mut own_beta) = (column(1.0), column(1.0));
            let grads = BatchNormGrads {
                d: d.view_mut(),
                d_gamma: own_gamma.view_mut(),
                d_beta: own_beta.view_mut(),
            };
            let sums = BatchNormSums { own: own.view_mut(), all: (n_groups > 1).then(|| sums.view()) };
            batch_norm_backward(x.view(), gamma.view(), saved, sums, grads, true).unwrap();
            d_x.extend(d.to_vec::<T>().unwrap());
            for (sum, own) in [(&mut d_gamma, own_gamma), (&mut d_beta, own_beta)] {
                let own = own.to_vec::<P>().unwrap();
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own.to_f64() - 1.0);
            }
        }
        Passes {
            y,
            d: d_x,
            d_gamma,
            d_beta,
            stats: [mean, rstd, running_mean, running_var].map(|t| t.to_vec().unwrap()),
            count: count.to_vec::<f64>().unwrap()[0],
        }
    }
}

/// Random rows and parameters in f32.
struct Made {
    x: Vec<f32>,
    d_y: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

fn made(rows: usize, cols: usize) -> Made {
    let n = rows * cols;
    Made { x: random(n, 1), d_y: random(n, 4), gamma: random(cols, 2), beta: random(cols, 3) }
}

#[test]
fn values_by_hand() {
    for device in devices() {
        let inputs = Inputs {
            groups: &[2, 0, 1],
            cols: 2,
            x: &[1.0f64, 10.0, 3.0, 10.0, 8.0, 13.0],
            d_y: &[0.0; 6],
            gamma: &[1.0, 2.0],
            beta: &[0.0, 1.0],
        };
        let got = inputs.run(device, true);
        // Means 4 and 11, sums of squares 26 and 6.
        let rstd = [1.0 / (26.0f64 / 3.0 + EPS).sqrt(), 1.0 / (2.0f64 + EPS).sqrt()];
        assert_close(&got.stats[0], &[4.0, 11.0], 1e-14, 0.0);
        assert_close(&got.stats[1], &rstd, 0.0, 1e-14);
        assert_close(&got.stats[2], &[0.9 * 0.5 + 0.4, 0.9 * 0.5 + 1.1], 0.0, 1e-14);
        assert_close(&got.stats[3], &[0.9 * 2.0 + 1.3, 0.9 * 2.0 + 0.3], 0.0, 1e-14);
        assert_eq!(got.count, 3.0);
        let want = [
            -3.0 * rstd[0],
            1.0 - 2.0 * rstd[1],
            -rstd[0],
            1.0 - 2.0 * rstd[1],
            4.0 * rstd[0],
            1.0 + 4.0 * rstd[1],
        ];
        assert_close(&got.y, &want, 0.0, 1e-14);
        let frozen = inputs.run(device, false);
        let scale = 1.0 / (2.0f64 + EPS).sqrt();
        assert_close(&frozen.y[..2], &[0.5 * scale, 19.0 * scale + 1.0], 0.0, 1e-14);
        assert_eq!((frozen.count, &frozen.stats[2..]), (f64::INFINITY, &RUNNING.map(|v| vec![v; 2])[..]));
    }
}

#[test]
fn gradients_match_central_differences() {
    for (groups, cols) in [(&[4][..], 5), (&[7], 33), (&[3, 0, 1, 2], 3), (&[40], 4)] {
        let rows = groups.iter().sum::<usize>();
        let Made { x, d_y, gamma, beta } = made(rows, cols);
        let [x, d_y, gamma, beta] = [x, d_y, gamma, beta].map(|values| rounded::<f32, f64>(&values));
        for is_training in [true, false] {
            let run = |device, x: &[f64], gamma: &[f64], beta: &[f64]| {
                Inputs { groups, cols, x, d_y: &d_y, gamma, beta }.run(device, is_training)
            };
            for device in devices() {
                let got = run(device, &x, &gamma, &beta);
                let loss = |x: &[f64], g: &[f64], b: &[f64]| dot(&run(Device::Cpu, x, g, b).y, &d_y);
                assert_gradient(&x, &got.d, |x| loss(x, &gamma, &beta));
                assert_gradient(&gamma, &got.d_gamma, |g| loss(&x, g, &beta));
                assert_gradient(&beta, &got.d_beta, |b| loss(&x, &gamma, b));
            }
        }
    }
}

#[test]
fn any_division_of_the_rows_gives_the_statistics_of_all_of_them() {
    let (rows, cols) = (50, 7);
    let Made { x, d_y, gamma, beta } = made(rows, cols);
    // Far from zero in one column, by 1e5 deviations.
    let x: Vec<f64> = x
        .iter()
        .enumerate()
        .map(|(i, x)| if i % cols == 2 { 1e5 + f64::from(*x) } else { f64::from(*x) })
        .collect();
    let [d_y, gamma, beta] = [d_y, gamma, beta].map(|values| rounded::<f32, f64>(&values));
    for device in devices() {
        let on = |groups: &[usize]| {
            Inputs { groups, cols, x: &x, d_y: &d_y, gamma: &gamma, beta: &beta }.run(device, true)
        };
        let want = on(&[rows]);
        for groups in [&[25, 25][..], &[49, 1], &[0, 50], &[17, 17, 16], &[1, 0, 48, 1]] {
            let got = on(groups);
            for (got, want) in got.stats.iter().zip(&want.stats) {
                assert_close(got, want, 1e-12, 1e-10);
            }
            assert_close(&got.y, &want.y, 1e-9, 1e-9);
            assert_close(&got.d, &want.d, 1e-9, 1e-9);
            assert_close(&got.d_gamma, &want.d_gamma, 1e-9, 1e-9);
        }
    }
}

/// A single row has no statistics: the running averages take their place, and stay.
#[test]
fn a_single_row_takes_the_running_averages() {
    let cols = 7;
    let Made { x, d_y, gamma, beta } = made(1, cols);
    let [x, d_y, gamma, beta] = [x, d_y, gamma, beta].map(|values| rounded::<f32, f64>(&values));
    for device in devices() {
        let on = |groups: &[usize], training| {
            Inputs { groups, cols, x: &x, d_y: &d_y, gamma: &gamma, beta: &beta }.run(device, training)
        };
        let want = on(&[1], false);
        for groups in [&[1][..], &[0, 1], &[1, 0, 0]] {
            let got = on(groups, true);
            assert_eq!((&got.y, &got.d, &got.d_gamma), (&want.y, &want.d, &want.d_gamma));
            assert_eq!(got.stats, want.stats);
        }
    }
}

fn check_short<S: Element>(device: Device, groups: &[usize], cols: usize, made: &Made) {
    let (x, d_y): (Vec<S>, Vec<S>) = (rounded(&made.x), rounded(&made.d_y));
    let (gamma, beta) = (&made.gamma, &made.beta);
    let got = Inputs { groups, cols, x: &x, d_y: &d_y, gamma, beta }.run(device, true);
    let [x, d_y] = [x, d_y].map(|values| rounded::<S, f64>(&values));
    let [gamma, beta] = [gamma, beta].map(|values| rounded::<f32, f64>(values));
    let want = Inputs { groups, cols, x: &x, d_y: &d_y, gamma: &gamma, beta: &beta }.run(Device::Cpu, true);
    // One rounding of the f32 result; parameters and statistics are not rounded.
    assert_close(&rounded::<S, f64>(&got.y), &want.y, 4e-6, rounding_of::<S>());
    assert_close(&rounded::<S, f64>(&got.d), &want.d, 4e-6, rounding_of::<S>());
    for (got, want) in got.stats.iter().zip(&want.stats) {
        assert_close(&rounded::<f32, f64>(got), want, 1e-6, 1e-6);
    }
}

#[test]
fn every_form_and_dtype_agrees_with_f64() {
    // Rows of whole accesses and others, one chunk of rows and several, more columns than one launch of blocks.
    for (groups, cols) in [
        (&[70][..], 64),
        (&[37], 100),
        (&[300], 129),
        (&[9, 5], 1024),
        (&[40, 0], 1028),
        (&[600], 12),
        (&[1500], 72),
    ] {
        let rows = groups.iter().sum::<usize>();
        let made = made(rows, cols);
        let Made { x, d_y, gamma, beta } = &made;
        let [x64, d64, gamma64, beta64] = [x, d_y, gamma, beta].map(|values| rounded::<f32, f64>(values));
        let in_f64 = Inputs { groups, cols, x: &x64, d_y: &d64, gamma: &gamma64, beta: &beta64 };
        let want = in_f64.run(Device::Cpu, true);
        for device in devices() {
            let inputs = Inputs { groups, cols, x, d_y, gamma, beta };
            let got = inputs.run(device, true);
            // A few roundings of numbers up to 4; statistics are summed in f64.
            assert_close(&rounded::<f32, f64>(&got.y), &want.y, 4e-6, 2e-6);
            assert_close(&rounded::<f32, f64>(&got.d), &want.d, 4e-6, 2e-6);
            assert_close(&got.d_gamma, &want.d_gamma, 2e-5, 1e-6);
            assert_close(&got.d_beta, &want.d_beta, 2e-5, 1e-6);
            for (got, want) in got.stats.iter().zip(&want.stats) {
                assert_close(&rounded::<f32, f64>(got), want, 1e-6, 1e-6);
            }
            assert!(inputs.run(device, true) == got, "the same bits every time");
            let got = in_f64.run(device, true);
            for (got, want) in [(&got.y, &want.y), (&got.d, &want.d), (&got.d_gamma, &want.d_gamma)] {
                assert_close(got, want, 1e-11, 1e-11);
            }
            check_short::<bf16>(device, groups, cols, &made);
            check_short::<f16>(device, groups, cols, &made);
        }
    }
}

/// Sums in f32 that a large mean, or a first row far from the others, would leave few digits of.
#[test]
fn columns_far_from_zero_keep_their_precision() {
    let (rows, cols) = (1500, 8);
    let mut x: Vec<f32> = random::<f32>(rows * cols, 1).iter().map(|x| 1000.0 + x).collect();
    x[..4].fill(1040.0);
    let x64: Vec<f64> = rounded(&x);
    let moments = |x: &Tensor, device| {
        let mut moments = Tensor::full(&[2 * cols + 1], f64::NAN, DType::F64, device).unwrap();
        batch_norm_moments(x.view(), moments.view_mut()).unwrap();
        moments.to_vec::<f64>().unwrap()
    };
    let want = moments(&tensor(&x64, &[rows, cols], Device::Cpu), Device::Cpu);
    for device in devices() {
        let got = moments(&tensor(&x, &[rows, cols], device), device);
        // A rounding of each distance from the mean, and of its square.
        assert_close(&got[..=cols], &want[..=cols], 0.0, 1e-8);
        assert_close(&got[1 + cols..], &want[1 + cols..], 0.0, 1e-6);
    }
}

#[test]
fn running_statistics_never_become_nan() {
    for device in devices() {
        let run = |x: &[f32], rows| {
            let inputs =
                Inputs { groups: &[rows, 0], cols: 2, x, d_y: x, gamma: &[1.0f32; 2], beta: &[0.0; 2] };
            inputs.run(device, true)
        };
        // A column that overflows or holds NaN keeps its averages; the other one moves on.
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let got = run(&[1.0, bad, 3.0, -bad], 2);
            assert_close(&got.stats[2], &[0.65, 0.5], 0.0, 1e-6);
            assert_close(&got.stats[3], &[2.0, 2.0], 0.0, 1e-6);
        }
        // One row has no unbiased variance, and no rows have no mean.
        let unchanged = RUNNING.map(|v| vec![v as f32; 2]);
        assert_eq!(run(&[1.0, 2.0], 1).stats[2..], unchanged);
        let none = run(&[], 0);
        assert_eq!((&none.stats[2..], none.count), (&unchanged[..], 0.0));
        assert_eq!((none.d_gamma, none.d_beta), (vec![0.0; 2], vec![0.0; 2]));
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let x = Tensor::zeros(&[3, 2], DType::F32, Device::Cpu).unwrap();
    let mut short = Tensor::zeros(&[4], DType::F64, Device::Cpu).unwrap();
    let error = batch_norm_moments(x.view(), short.view_mut()).unwrap_err().to_string();
    assert_eq!(error, "batch_norm_moments: moments [4] f64 on cpu should be [5]");
    let mut single = Tensor::zeros(&[5], DType::F32, Device::Cpu).unwrap();
    let error = batch_norm_moments(x.view(), single.view_mut()).unwrap_err().to_string();
    assert!(error.contains("moments [5] f32 on cpu has an unsupported dtype; supported: f64"), "{error}");
}
