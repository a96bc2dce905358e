//! The kernel files of all operations, and their compilation before the first use.

use super::{
    activation, add, argmax, batch_norm, begin_step, bias, cast, column_scale, convert, count_correct,
    dropout, elementwise, embedding, fill, fingerprint, gather_rows, glu, known_numbers, layer_norm,
    load_rows, loss, matmul, numeric_embedding, permute, reduce, rms_norm, scan, select_targets, softmax,
    sort, strided_copy, sum_of_squares, uniform, update,
};
use crate::cuda::source::Source;
use crate::cuda::{CompiledKernel, FilledCache, module};

/// All kernel files.
pub(crate) fn all() -> impl Iterator<Item = &'static Source> {
    SOURCES.iter().chain(&loss::SOURCES).chain(&update::OPTIMIZER_SOURCES).copied()
}

static SOURCES: &[&Source] = &[
    &activation::SOURCE,
    &add::SOURCE,
    &matmul::SOURCE,
    &matmul::SPLIT_SOURCE,
    &argmax::SOURCE,
    &batch_norm::SOURCE,
    &begin_step::SOURCE,
    &bias::SOURCE,
    &cast::SOURCE,
    &column_scale::SOURCE,
    &convert::SOURCE,
    &count_correct::SOURCE,
    &count_correct::WEIGHTED_SOURCE,
    &dropout::SOURCE,
    &elementwise::SOURCE,
    &embedding::SOURCE,
    &fill::SOURCE,
    &fingerprint::SOURCE,
    &gather_rows::SOURCE,
    &glu::SOURCE,
    &known_numbers::SOURCE,
    &layer_norm::SOURCE,
    &load_rows::SOURCE,
    &numeric_embedding::SOURCE,
    &permute::SOURCE,
    &reduce::SOURCE,
    &rms_norm::SOURCE,
    &scan::SOURCE,
    &select_targets::SOURCE,
    &softmax::SOURCE,
    &sort::SOURCE,
    &sum_of_squares::SOURCE,
    &strided_copy::SOURCE,
    &uniform::SOURCE,
];

/// Names and complete texts of all kernel files.
#[doc(hidden)]
pub fn kernel_sources() -> Vec<(&'static str, String)> {
    all().map(|source| (source.name(), source.whole())).collect()
}

/// Compiles every kernel file in every format for `architecture` (such as `sm_90`); needs no GPU.
///
/// # Errors
/// The reason that there is no compiler, or the log of the first file that fails.
#[doc(hidden)]
pub fn compile_all(architecture: &str) -> Result<Vec<CompiledKernel>, String> {
    module::compile(all(), architecture)
}

/// Compiles every kernel file in every format for those of `architectures` (such as 90) that the compiler supports, all of them if
/// there are none, into the cache that a first start on such a device reads; needs no GPU. Entries that are there stay.
///
/// # Errors
/// The reason that there is no compiler or no cache, or the log of the first file that fails.
#[doc(hidden)]
pub fn fill_cache(architectures: &[i32]) -> Result<FilledCache, String> {
    module::fill_cache(architectures, &all().collect::<Vec<_>>())
}
