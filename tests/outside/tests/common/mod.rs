//! Checks of messages, and rows of four features.

#![allow(dead_code)] // Not every test uses all of it.

use ddp::prelude::*;
use ddp::with_hint;

/// The message and hint of the error, which must contain each of `parts`.
#[track_caller]
pub fn says<T>(result: Result<T, impl Into<ddp::Error>>, parts: &[&str]) {
    let Err(error) = result else { panic!("no error, expected {parts:?}") };
    let said = with_hint(&error.into());
    for part in parts {
        assert!(said.contains(part), "`{said}` does not contain `{part}`");
    }
}

/// `[n, 4]` drawn numbers.
pub fn x(n: usize) -> Tensor {
    Tensor::randn(&[n, 4], DType::F32, Device::Cpu, 1).unwrap()
}

/// The sums of the rows of [`x`], `[n, 1]`.
pub fn sums(n: usize) -> Tensor {
    x(n).sum(keepdim(1)).unwrap()
}
