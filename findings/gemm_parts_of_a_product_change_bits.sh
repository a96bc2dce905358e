#!/usr/bin/env bash
# The Rust crate gemm 0.19.0 sums a product in an order that depends on its rows and columns, not only on the number of terms: 64 columns of a
# product of 128, computed by a call of their own, have other bits than the same columns of the whole, although each element is the
# sum of the same 784 products. A product that a program divides between threads by itself is thus no function of its inputs alone. Found where
# it cuts the terms: at most 512 at a time if neither side exceeds 64, evenly divided else (2 x 392). Up to 512 terms the bits agree.
#
# Run: ./findings/gemm_parts_of_a_product_change_bits.sh     needs cargo and the package registry; exit 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "parts"
version = "0.0.0"
edition = "2021"

[dependencies]
gemm = "=0.19.0"
gemm-common = "=0.19.0"
gemm-f32 = "=0.19.0"
TOML
cat >src/main.rs <<'RS'
use gemm::{gemm, Parallelism};

/// Numbers between -1 and 1 from a linear congruence.
fn numbers(len: usize, mut state: u64) -> Vec<f32> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((*state >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next(&mut state)).collect()
}

/// `n` columns from `first` on of a [m, k] · [k, n] product, all row-major.
fn columns(m: usize, k: usize, all: usize, a: &[f32], b: &[f32], first: usize, n: usize) -> Vec<f32> {
    let mut c = vec![0.0f32; m * n];
    let (k_, n_, all_) = (k as isize, n as isize, all as isize);
    unsafe {
        gemm(
            m, n, k, c.as_mut_ptr(), 1, n_, false, a.as_ptr(), 1, k_, b.as_ptr().add(first), 1, all_, 0.0, 1.0, false,
            false, false, Parallelism::None,
        );
    }
    c
}

fn main() {
    for k in [784, 512] {
        let (m, n) = (64, 128);
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let whole = columns(m, k, n, &a, &b, 0, n);
        let part = columns(m, k, n, &a, &b, 0, 64);
        let differ = (0..m * 64).filter(|i| whole[i / 64 * n + i % 64].to_bits() != part[*i].to_bits()).count();
        println!("{k} terms: {}", if differ == 0 { "the same bits" } else { "other bits" });
    }
}
RS
cargo run --quiet --release >output.txt
cat output.txt
diff output.txt - <<'WANT'
784 terms: other bits
512 terms: the same bits
WANT
