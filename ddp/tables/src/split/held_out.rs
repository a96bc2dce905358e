//! Hash of the targets of held-out rows, which shows whether a split after training is still that of the run.

use ddp::data::datasets::dataset::Dataset;
use ddp::data::error::Result;
use ddp::storage::fingerprint::Fingerprint;
use ddp_kernels::{Device, Tensor};

/// Rows that are read at a time.
const CHUNK_ROWS: usize = 1 << 14;

/// Hash of the targets of all rows, in order. Features are left out because their codes depend on the vocabularies of a model.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if rows can't be read.
pub fn targets_hash(rows: &dyn Dataset) -> Result<u64> {
    let (layout, mut hash) = (&rows.layout().targets, Fingerprint::default());
    hash.number(rows.len() as u64);
    for start in (0..rows.len()).step_by(CHUNK_ROWS) {
        let numbers: Vec<usize> = (start..rows.len().min(start + CHUNK_ROWS)).collect();
        let mut targets = Tensor::zeros(&layout.dims(numbers.len()), layout.dtype(), Device::Cpu)?;
        rows.gather_targets(&numbers, targets.view_mut())?;
        hash.bytes(targets.view().as_bytes("held_out", "targets")?);
    }
    Ok(hash.finish())
}
