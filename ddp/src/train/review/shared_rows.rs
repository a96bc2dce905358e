//! Finding about evaluation rows that are training rows too.

use std::collections::HashMap;

use ddp_kernels::{DType, Device, Tensor};

use crate::data::batch::BatchMut;
use crate::data::{Dataset, RowLayout};
use crate::storage::fingerprint::Fingerprint;
use crate::train::error::Result;

/// Rows that are looked up at most.
const N_LOOKED_UP: usize = 512;
/// Least evaluation rows that are looked up.
const MIN_ROWS: usize = 8;
/// Values and rows of the training rows beyond which nothing is looked up: a fraction of a second, and 16 MiB of hashes.
const MAX_VALUES: usize = 1 << 24;
const MAX_ROWS: usize = 1 << 20;
/// Values that are read at a time.
const CHUNK_VALUES: usize = 1 << 16;

/// The finding, if at least half of the evaluation rows are training rows, and far fewer training rows have a double. Tables of few
/// different values have many equal rows.
pub(super) fn finding(train: &dyn Dataset, eval: &dyn Dataset) -> Result<Option<String>> {
    let (ours, theirs) = (eval.layout(), train.layout());
    let form = |layout: &RowLayout| {
        (layout.n_features(), layout.dtype, layout.targets.dtype(), layout.targets.n_values())
    };
    let is_alike = form(ours) == form(theirs);
    let n_values = train.len().saturating_mul(theirs.n_features().max(1));
    let is_small = n_values <= MAX_VALUES && train.len() <= MAX_ROWS;
    // One source was reported at the start.
    let is_same = train.source() == eval.source() && train.len() == eval.len();
    if !is_alike || !is_small || eval.len() < MIN_ROWS || is_same {
        return Ok(None);
    }
    let chunk_rows = (CHUNK_VALUES / theirs.n_features().max(1)).max(1);
    let mut counts: HashMap<u64, u32> = HashMap::with_capacity(train.len());
    for start in (0..train.len()).step_by(chunk_rows) {
        let rows: Vec<usize> = (start..(start + chunk_rows).min(train.len())).collect();
        hashes(train, &rows)?.into_iter().for_each(|hash| *counts.entry(hash).or_default() += 1);
    }
    let looked_up = spread(eval.len());
    let shared = hashes(eval, &looked_up)?.iter().filter(|hash| counts.contains_key(*hash)).count();
    let of_train = spread(train.len());
    let doubled = hashes(train, &of_train)?.iter().filter(|hash| counts[*hash] > 1).count();
    let share = |n: usize, of: &[usize]| n as f64 / of.len() as f64;
    let (shared_share, doubled_share) = (share(shared, &looked_up), share(doubled, &of_train));
    let n = looked_up.len();
    Ok((shared_share >= 0.5 && doubled_share < shared_share / 2.0).then(|| {
        format!(
            "{shared} of {n} evaluation rows that were looked up are training rows too ({:.0}%): \
             the evaluation says little about rows that the model has not seen\n\
             hint: use `data.eval_fraction = 0.2` instead of data.eval, or name other rows",
            100.0 * shared_share
        )
    }))
}

/// Numbers of at most [`N_LOOKED_UP`] of `n` rows, evenly spread.
fn spread(n: usize) -> Vec<usize> {
    let k = n.min(N_LOOKED_UP);
    (0..k).map(|i| i * n / k).collect()
}

/// A hash of features and targets of each row.
fn hashes(rows: &dyn Dataset, numbers: &[usize]) -> Result<Vec<u64>> {
    let layout = rows.layout();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut x = zeros(&[numbers.len(), layout.n_features()], layout.dtype)?;
    let mut targets = zeros(&layout.targets.dims(numbers.len()), layout.targets.dtype())?;
    let mut weights = zeros(&[numbers.len()], DType::F32)?;
    let of_weights = layout.has_weights.then(|| weights.view_mut());
    rows.gather(numbers, BatchMut { x: x.view_mut(), targets: targets.view_mut(), weights: of_weights })?;
    let bytes =
        |tensor: &Tensor| -> Result<Vec<u8>> { Ok(tensor.view().as_bytes("compare rows", "rows")?.to_vec()) };
    let (x, targets) = (bytes(&x)?, bytes(&targets)?);
    let of_row = |bytes: &[u8], row: usize| {
        let len = bytes.len() / numbers.len().max(1);
        bytes[row * len..(row + 1) * len].to_vec()
    };
    let hash = |row| {
        let mut hash = Fingerprint::default();
        hash.bytes(&of_row(&x, row));
        hash.bytes(&of_row(&targets, row));
        hash.finish()
    };
    Ok((0..numbers.len()).map(hash).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TensorDataset;

    /// Rows of two features, one row per number.
    fn rows(numbers: impl Iterator<Item = usize> + Clone) -> TensorDataset {
        let values: Vec<f32> = numbers.clone().flat_map(|n| [n as f32, (n * n % 97) as f32]).collect();
        let n = values.len() / 2;
        let x = Tensor::from_slice(&values, &[n, 2], Device::Cpu).unwrap();
        let y: Vec<f32> = numbers.map(|n| (n % 2) as f32).collect();
        TensorDataset::new(&x, &Tensor::from_slice(&y, &[n], Device::Cpu).unwrap()).unwrap()
    }

    #[test]
    fn shared_rows_are_found_unless_rows_are_often_equal() {
        let train = rows(0..2000);
        let found = finding(&train, &rows((1000..2500).rev())).unwrap().unwrap();
        assert!(found.contains("of 512 evaluation rows") && found.contains("(67%)"), "{found}");
        assert_eq!(finding(&train, &rows(1900..2500)).unwrap(), None);
        // Each row has a double.
        let train = rows((0..1000).chain(0..1000));
        assert_eq!(finding(&train, &rows(0..500)).unwrap(), None);
    }
}
