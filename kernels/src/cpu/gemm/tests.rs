//! Products against their definition, for sizes around tiles, panels and blocks of terms.

use std::sync::Mutex;

use super::*;
use crate::cpu::threads::join_pool;
use crate::ops::testing::{assert_close, random};

/// Rows, columns, terms: below and above the sides of a tile, several blocks of terms, several blocks of rows.
const SIZES: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (5, 40, 9),
    (40, 5, 9),
    (24, 24, 1),
    (1100, 33, 29),
    (31, 100, 800),
    (48, 48, 48),
    (50, 55, 385),
    (150, 30, 390),
    (300, 59, 64),
    (700, 49, 50),
    (53, 4200, 51),
    (64, 512, 512),
];

/// An `[m, k]` matrix stored by rows, and the same one stored by columns.
pub(super) fn both_ways<T: Copy>(by_rows: Vec<T>, m: usize, k: usize) -> [(Vec<T>, bool); 2] {
    let by_cols = (0..m * k).map(|e| by_rows[e % m * k + e / m]).collect();
    [(by_rows, false), (by_cols, true)]
}

pub(super) fn view<T>((data, by_cols): &(Vec<T>, bool), rows: usize, cols: usize) -> Mat<'_, T> {
    if *by_cols { Mat::new(data, cols, rows).t() } else { Mat::new(data, rows, cols) }
}

fn products_are_their_definition<T: Float>(tolerance: f64) {
    for (m, n, k) in SIZES {
        let (a, b, c0) = (
            both_ways(random::<T>(m * k, 1), m, k),
            both_ways(random::<T>(k * n, 2), k, n),
            random::<T>(m * n, 3),
        );
        let sums: Vec<f64> = (0..m * n)
            .map(|e| (0..k).map(|l| a[0].0[e / n * k + l].to_f64() * b[0].0[l * n + e % n].to_f64()).sum())
            .collect();
        for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
            for (alpha, beta) in [(1.0, 0.0), (1.0, 1.0), (0.5, 0.0), (-2.0, 0.25)] {
                let mut c = if beta == 0.0 { vec![T::from_f64(f64::NAN); m * n] } else { c0.clone() };
                gemm(T::from_f64(alpha), view(a, m, k), view(b, k, n), T::from_f64(beta), &mut c);
                let want: Vec<f64> =
                    sums.iter().zip(&c0).map(|(sum, c)| alpha * sum + beta * c.to_f64()).collect();
                let c: Vec<f64> = c.iter().map(|c| c.to_f64()).collect();
                assert_close(&c, &want, tolerance * (k as f64).sqrt(), tolerance);
            }
        }
    }
}

#[test]
fn f32_products_are_their_definition() {
    products_are_their_definition::<f32>(4e-6);
}

#[test]
fn f64_products_are_their_definition() {
    products_are_their_definition::<f64>(1e-14);
}

#[test]
fn work_follows_once_on_each_finished_element() {
    // The last one has more rows than are transposed at once.
    for (m, n, k) in SIZES.into_iter().chain([(70_000, 20, 12)]) {
        let (a, b) = (random::<f32>(m * k, 1), both_ways(random::<f32>(k * n, 2), k, n));
        for b in &b {
            let (a, b) = (Mat::new(&a, m, k), view(b, k, n));
            let seen = Mutex::new(vec![0; m * n]);
            let mut c = vec![f32::NAN; m * n];
            gemm_then(a, b, &mut c, |mut part| {
                let (rows, cols) = part.rows_and_cols();
                for row in rows {
                    for (c, col) in part.row(row).iter_mut().zip(cols.clone()) {
                        seen.lock().unwrap()[row * n + col] += 1;
                        *c = *c * *c - 1.0;
                    }
                }
            });
            assert!(seen.into_inner().unwrap().iter().all(|&times| times == 1), "{m} x {n} x {k}");
            let mut plain = vec![0.0; m * n];
            gemm(1.0, a, b, 0.0, &mut plain);
            let want: Vec<f32> = plain.iter().map(|c| c * c - 1.0).collect();
            assert_close(&c, &want, 1e-3, 1e-4);
        }
    }
}

#[test]
fn no_terms_are_zero_and_get_the_work_that_follows() {
    let mut c = vec![f32::NAN; 6];
    gemm_then(Mat::new(&[], 2, 0), Mat::new(&[], 0, 3), &mut c, |mut part| {
        assert_eq!(part.rows_and_cols(), (0..2, 0..3));
        part.row(1)[2] = 5.0;
    });
    assert_eq!(c, [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
}

/// For each size, the results of all orders in memory of both operands, each alone and added to ones.
fn on_threads<T: Float>(threads: usize, sizes: &[(usize, usize, usize)]) -> Vec<Vec<T>> {
    let run = || {
        join_pool(threads).unwrap();
        let of_size = |&(m, n, k): &_| {
            let (a, b) = (both_ways(random::<T>(m * k, 1), m, k), both_ways(random::<T>(k * n, 2), k, n));
            let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
            let products = pairs.flat_map(|(a, b)| [(a, b, 0.0), (a, b, 1.0)]).flat_map(|(a, b, beta)| {
                let mut c = vec![T::ONE; m * n];
                gemm(T::ONE, view(a, m, k), view(b, k, n), T::from_f64(beta), &mut c);
                c
            });
            products.collect()
        };
        sizes.iter().map(of_size).collect()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn threads_change_no_bit_of<T: Float>(sizes: &[(usize, usize, usize)]) {
    let alone = on_threads::<T>(1, sizes);
    for threads in [2, 3, 8, 16] {
        for ((size, got), alone) in sizes.iter().zip(on_threads::<T>(threads, sizes)).zip(&alone) {
            assert!(got == *alone, "{size:?} with {threads} threads");
        }
    }
}

/// Split by rows and by columns, into parts below and above the sizes for which the crate changes its order: 256 elements, and 64 rows
/// and columns with more than 512 terms.
#[test]
fn threads_change_no_bit() {
    let sizes = [
        (500, 100, 900),
        (100, 500, 900),
        (40, 1000, 100),
        (64, 128, 784),
        (50, 100, 784),
        (40, 100, 600),
        (32, 256, 784),
        (6, 97, 2048),
        (1, 600, 3000),
        (2, 1000, 1025),
    ];
    threads_change_no_bit_of::<f32>(&sizes);
    threads_change_no_bit_of::<f64>(&sizes.map(|(m, n, k)| (n, m, k)));
}

#[test]
fn threads_change_no_bit_of_any_size() {
    let random = random::<f64>(3 * 40, 7);
    let length = |unit: f64, longest: f64| longest.powf((unit + 1.0) / 2.0) as usize;
    let (sizes, _) = random.as_chunks();
    let sizes = sizes.iter().map(|&[m, n, k]| (length(m, 300.0), length(n, 300.0), length(k, 3000.0)));
    threads_change_no_bit_of::<f32>(&sizes.collect::<Vec<_>>());
}

#[test]
fn each_thread_gets_a_part_that_is_worth_it() {
    let run = || {
        join_pool(2).unwrap();
        for (m, n, k) in [(64, 256, 64), (1, 1024, 1024), (1024, 1, 1024), (50, 100, 784), (64, 64, 1024)] {
            let (a, b, mut c) = (random(m * k, 1), random(k * n, 2), vec![0.0_f32; m * n]);
            let product = Product { alpha: 1.0, a: Mat::new(&a, m, k), b: Mat::new(&b, k, n), beta: 0.0 };
            let parts = Mutex::new(Vec::new());
            split::by_threads(product, &mut c, &|part| parts.lock().unwrap().push(part.rows_and_cols()));
            let parts = parts.into_inner().unwrap();
            assert!(split::is_tiled(&product) || parts.len() == 2, "{m} x {n} x {k}: {parts:?}");
        }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

/// A thread that waits for the parts of its product may take another job of the pool, with a product.
#[test]
fn products_nest() {
    let (m, n, k) = (16, 256, 512);
    let (a, b) = (random::<f32>(m * k, 1), random::<f32>(n * k, 2));
    let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, n, k).t());
    let product = || {
        let mut c = vec![0.0; m * n];
        gemm(1.0, a, b, 0.0, &mut c);
        c
    };
    let (alone, mut c) = (product(), vec![0.0; m * n]);
    gemm_then(a, b, &mut c, |_| assert!(product() == alone));
    assert!(c == alone);
}

/// A row alone would be another size, which the crate may compute in another order.
#[cfg(target_arch = "x86_64")]
#[test]
fn rows_beside_a_row_change_no_bit_of_it_in_tiles() {
    let (m, n, k) = (300, 96, 500);
    let (a, b) = (random::<f32>(m * k, 1), random::<f32>(n * k, 2));
    let a_rows = |rows: &std::ops::Range<usize>| Mat::new(&a[rows.start * k..rows.end * k], rows.len(), k);
    let b = Mat::new(&b, n, k).t();
    let product = |rows: std::ops::Range<usize>| {
        let mut c = vec![0.0; rows.len() * n];
        gemm(1.0, a_rows(&rows), b, 0.0, &mut c);
        c
    };
    if !tiled::is_faster(&a_rows(&(0..24)), &b) {
        return;
    }
    let whole = product(0..m);
    for rows in [0..24, 1..26, 100..287, 275..300] {
        assert!(product(rows.clone()) == whole[rows.start * n..rows.end * n], "{rows:?}");
    }
}
