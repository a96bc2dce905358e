//! Valid rows as files of arrays, for tests that corrupt them.

use super::harness::Place;
use crate::data::files::{self, Element};

pub(crate) const N_ROWS: usize = 12;
pub(crate) const N_FEATURES: usize = 3;

pub(crate) fn features() -> Vec<f64> {
    (0..N_ROWS * N_FEATURES).map(|i| (i % 10) as f64).collect()
}

pub(crate) fn labels() -> Vec<f64> {
    (0..N_ROWS).map(|row| (row % 2) as f64).collect()
}

pub(crate) fn x_npy() -> Vec<u8> {
    files::npy(Element::F32, false, &[N_ROWS, N_FEATURES], &features())
}

pub(crate) fn y_npy() -> Vec<u8> {
    files::npy(Element::I64, false, &[N_ROWS], &labels())
}

pub(crate) fn npz(is_deflated: bool) -> Vec<u8> {
    files::npz(&[("features", &x_npy()), ("labels", &y_npy())], is_deflated)
}

pub(crate) fn safetensors() -> Vec<u8> {
    files::safetensors(&[
        ("features", Element::F32, &[N_ROWS, N_FEATURES], &features()),
        ("labels", Element::I64, &[N_ROWS], &labels()),
    ])
}

pub(crate) fn x_idx() -> Vec<u8> {
    files::idx(Element::U8, &[N_ROWS, 1, N_FEATURES], &features())
}

pub(crate) fn y_idx() -> Vec<u8> {
    files::idx(Element::U8, &[N_ROWS], &labels())
}

/// A place with `x.npy` and `y.npy` of this content.
pub(crate) fn pair(x: &[u8], y: &[u8]) -> Place {
    let place = Place::new();
    place.write("x.npy", x);
    place.write("y.npy", y);
    place
}

/// The arguments for training with these settings.
pub(crate) fn train<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "--out", "out", "--set", "train.epochs=1", "-q"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    args
}

/// Settings for `x.npy` and `y.npy`.
pub(crate) const PAIR: [&str; 2] = ["data.train=x.npy", "data.labels=y.npy"];

/// Trains on `x.npy` and `y.npy` with these additional settings, which must be refused.
#[track_caller]
pub(crate) fn pair_refused(x: &[u8], y: &[u8], more: &[&str], parts: &[&str]) {
    pair(x, y).refuses(&train(&[&PAIR[..], more].concat()), parts);
}

/// A `.npy` file of f32.
pub(crate) fn npy_f32(shape: &[usize], values: &[f64]) -> Vec<u8> {
    files::npy(Element::F32, false, shape, values)
}

/// A `.npy` file of i64.
pub(crate) fn npy_i64(shape: &[usize], values: &[f64]) -> Vec<u8> {
    files::npy(Element::I64, false, shape, values)
}
