//! The number of threads changes no bit of a loss or its gradient.

use crate::cpu::threads::join_pool;
use crate::ops::loss::testing::sums_after;
use crate::ops::testing::{random, tensor};
use crate::ops::{self, CrossEntropyConfig, ElementLoss};
use crate::{DType, Device, Tensor};

/// Enough for three threads, and no multiple of a block.
const ROWS: usize = 5001;

/// The bits of sums and gradients with rows of 13 columns, for few and for many classes.
fn bits(n_threads: usize) -> Vec<u64> {
    join_pool(n_threads).unwrap();
    let cpu = Device::Cpu;
    let mut all = Vec::new();
    for cols in [13, 70] {
        let x = tensor(&random::<f32>(ROWS * cols, 1), &[ROWS, cols], cpu);
        let t = Tensor::full(&[ROWS, cols], 0.25, DType::F32, cpu).unwrap();
        let labels: Vec<i64> = (0..ROWS).map(|row| (row % cols) as i64).collect();
        let labels = tensor(&labels, &[ROWS], cpu);
        let row_weights: Vec<f32> = random::<f32>(ROWS, 2).iter().map(|w| (w + 0.5).max(0.0)).collect();
        let row_weights = tensor(&row_weights, &[ROWS], cpu);
        for weights in [None, Some(row_weights.view())] {
            let config = CrossEntropyConfig { row_weights: weights, ..CrossEntropyConfig::default() };
            for loss in 0..4 {
                let mut d = Tensor::full(&[ROWS, cols], f64::NAN, DType::F32, cpu).unwrap();
                let (x, labels) = (x.view(), labels.view());
                let sums = sums_after(cpu, None, |sums| match loss {
                    0 => ops::element_loss(
                        ElementLoss::Mse,
                        x,
                        t.view(),
                        weights,
                        0.5,
                        Some(d.view_mut()),
                        sums,
                    ),
                    1 => ops::element_loss(
                        ElementLoss::Bce,
                        x,
                        t.view(),
                        weights,
                        0.5,
                        Some(d.view_mut()),
                        sums,
                    ),
                    2 => ops::ordinal(x, labels, weights, 0.5, Some(d.view_mut()), sums),
                    _ => ops::softmax_cross_entropy(x, labels, &config, 0.5, Some(d.view_mut()), sums),
                });
                let sums = sums.unwrap();
                assert!(sums.loss.is_finite() && sums.weight > 0.0);
                all.extend([sums.loss.to_bits(), sums.weight.to_bits()]);
                let d = d.to_vec::<f32>().unwrap();
                assert!(d.iter().all(|d| d.is_finite()));
                all.extend(d.iter().map(|d| u64::from(d.to_bits())));
            }
        }
    }
    all
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let of = |n_threads| std::thread::spawn(move || bits(n_threads)).join().unwrap();
    let one = of(1);
    assert!(one == of(2) && one == of(3));
}
