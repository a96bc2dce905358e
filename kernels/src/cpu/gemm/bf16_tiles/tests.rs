//! Products of bf16 against their definition, for sizes around tiles, blocks and what is copied at a time.

use std::sync::Mutex;

use half::bf16;

use super::*;
use crate::cpu::gemm::tests::{both_ways, view};
use crate::cpu::simd::{Amx, Avx512Bf16};
use crate::cpu::threads::join_pool;
use crate::ops::testing::random;

/// Rows, columns, terms.
const SIZES: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (3, 2, 0),
    (16, 16, 32),
    (17, 33, 31),
    (32, 32, 64),
    (33, 31, 65),
    (10, 200, 40),
    (200, 10, 40),
    (96, 160, 300),
    (64, 64, 513),
    (530, 40, 260),
    (40, 530, 260),
    (300, 1100, 33),
    (1100, 300, 33),
    (90, 3000, 35),
    (3000, 90, 35),
];

/// The product, and how often each element was part of what was passed on.
fn product(unit: Bf16Unit, a: Mat<'_, bf16>, b: Mat<'_, bf16>) -> (Vec<f32>, Vec<usize>) {
    let n = b.cols;
    let result = Mutex::new((vec![f32::NAN; a.rows * n], vec![0; a.rows * n]));
    unit.gemm_then(a, b, |mut part| {
        let (rows, cols) = part.rows_and_cols();
        let mut result = result.lock().unwrap();
        for row in rows {
            let place = row * n + cols.start..row * n + cols.end;
            result.0[place.clone()].copy_from_slice(part.row(row));
            result.1[place].iter_mut().for_each(|n| *n += 1);
        }
    });
    result.into_inner().unwrap()
}

/// Random numbers that bf16 holds.
fn numbers(n: usize, seed: u64) -> Vec<bf16> {
    random::<f32>(n, seed).into_iter().map(bf16::from_f32).collect()
}

#[test]
fn products_of_amx_are_their_definition() {
    if let Some(amx) = Amx::get() {
        products_are_their_definition_on_any_number_of_threads(Bf16Unit::Amx(amx));
    }
}

#[test]
fn products_of_avx512_bf16_are_their_definition() {
    if let Some(vectors) = Avx512Bf16::get() {
        products_are_their_definition_on_any_number_of_threads(Bf16Unit::Vectors(vectors));
    }
}

fn products_are_their_definition_on_any_number_of_threads(unit: Bf16Unit) {
    for (m, n, k) in SIZES {
        let (a, b) = (both_ways(numbers(m * k, 1), m, k), both_ways(numbers(k * n, 2), k, n));
        let (wide_a, wide_b): (Vec<f64>, Vec<f64>) =
            (a[0].0.iter().map(|v| v.to_f64()).collect(), b[0].0.iter().map(|v| v.to_f64()).collect());
        for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
            let (c, times) = product(unit, view(a, m, k), view(b, k, n));
            assert!(times.iter().all(|&times| times == 1), "{m} x {n} x {k}");
            for (e, &c) in c.iter().enumerate() {
                let terms = (0..k).map(|l| wide_a[e / n * k + l] * wide_b[l * n + e % n]);
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let error = (f64::from(c) - sum).abs();
                assert!(error <= 1e-6 * (1.0 + size), "{m} x {n} x {k}: element {e} is {c} for {sum}");
            }
            let (a, b) = (a.clone(), b.clone());
            let on_two = std::thread::spawn(move || {
                join_pool(2).unwrap();
                product(unit, view(&a, m, k), view(&b, k, n)).0
            });
            let on_two = on_two.join().unwrap();
            assert!(
                c.iter().zip(&on_two).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{m} x {n} x {k} on two threads"
            );
        }
    }
}
