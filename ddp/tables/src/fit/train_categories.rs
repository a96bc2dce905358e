//! Categories whose known values are those of the training rows, or of enough of them: a value that only evaluation rows have is
//! unknown, as it will be when the model is used. Rare values are unknown too, so that what a model learns for them it also does for
//! values that it will see for the first time.

use std::sync::Arc;

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout};
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::Result;
use ddp::data::vocabulary::Vocabulary;
use ddp_comm::HostShare;
use ddp_kernels::{DType, Device, Tensor};

use crate::host_once::once;

/// Rows that are read at a time.
const CHUNK_ROWS: usize = 1024;

/// Rows whose known values are those of at least `min_rows` training rows, which `all` begins with; the rows themselves where these are
/// all values.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if training rows cannot be read.
pub(crate) fn by_train_rows(
    all: Vec<Arc<dyn Dataset>>,
    min_rows: u64,
    host: Option<&HostShare>,
) -> Result<Vec<Arc<dyn Dataset>>> {
    let train = &*all[0];
    let used = used_codes(train, min_rows.max(1), host)?;
    if used.iter().flatten().all(|is_used| *is_used) {
        return Ok(all);
    }
    let mut layout = train.layout().clone();
    let mut codes = Vec::with_capacity(used.len());
    for (category, used) in layout.categories.iter_mut().zip(&used) {
        let values = category.vocabulary.values();
        let known = (1..).zip(values).filter(|(code, _)| used[*code]).map(|(_, value)| value.clone());
        let known = Vocabulary::new(category.vocabulary.name().to_owned(), known.collect());
        let new = std::iter::once(0).chain(values.iter().map(|value| known.code(value)));
        codes.push((category.column, new.collect::<Vec<u32>>()));
        let n_rare = values.len() - known.values().len();
        if min_rows > 1 && n_rare > 0 {
            layout.left_out.push(format!(
                "{n_rare} of {} values of \"{}\" have fewer than {min_rows} training rows and share the code of unknown values",
                values.len(),
                known.name()
            ));
        }
        category.vocabulary = known;
    }
    let codes = Arc::new(codes);
    let with_codes = |of: Arc<dyn Dataset>| -> Arc<dyn Dataset> {
        Arc::new(Recoded { of, layout: layout.clone(), codes: codes.clone() })
    };
    Ok(all.into_iter().map(with_codes).collect())
}

/// Whether at least `min_rows` rows have each code of each categorical column; the code of unknown values counts as used.
fn used_codes(rows: &dyn Dataset, min_rows: u64, host: Option<&HostShare>) -> Result<Vec<Vec<bool>>> {
    let n_codes: Vec<usize> =
        rows.layout().categories.iter().map(|category| category.vocabulary.n_codes()).collect();
    // One after the other.
    let of_all = once(host, || {
        let mut counts: Vec<Vec<u64>> = n_codes.iter().map(|n_codes| vec![0; *n_codes]).collect();
        counts.iter_mut().for_each(|counts| counts[0] = min_rows);
        let mut n_rare = n_codes.iter().sum::<usize>() - n_codes.len();
        // The first rows have most values often enough.
        for_each_code(rows, |category, code| {
            counts[category][code] += 1;
            n_rare -= usize::from(counts[category][code] == min_rows);
            n_rare > 0
        })?;
        Ok(counts.into_iter().flatten().map(|n| u8::from(n >= min_rows)).collect())
    })?;
    let mut rest = of_all.into_iter().map(|is_used| is_used == 1);
    Ok(n_codes.iter().map(|n_codes| rest.by_ref().take(*n_codes).collect()).collect())
}

/// Categorical columns with the number of rows whose value is unknown, if there are such rows.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if rows cannot be read.
pub fn unknown_values(rows: &dyn Dataset) -> Result<Vec<(String, u64)>> {
    let categories = &rows.layout().categories;
    let mut counts: Vec<(String, u64)> =
        categories.iter().map(|category| (category.vocabulary.name().to_owned(), 0)).collect();
    for_each_code(rows, |category, code| {
        counts[category].1 += u64::from(code == 0);
        true
    })?;
    counts.retain(|(_, n_rows)| *n_rows > 0);
    Ok(counts)
}

/// Calls `take` with the number of a categorical column and the code of a row, for all of them, or until it needs no more rows.
fn for_each_code(rows: &dyn Dataset, mut take: impl FnMut(usize, usize) -> bool) -> Result<()> {
    let layout = rows.layout();
    if layout.categories.is_empty() {
        return Ok(());
    }
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut x = zeros(&[CHUNK_ROWS, layout.n_features()], DType::F32)?;
    let mut targets = zeros(&layout.targets.dims(CHUNK_ROWS), layout.targets.dtype())?;
    let mut weights = zeros(&[CHUNK_ROWS], DType::F32)?;
    for start in (0..rows.len()).step_by(CHUNK_ROWS) {
        let numbers: Vec<usize> = (start..(start + CHUNK_ROWS).min(rows.len())).collect();
        let n = numbers.len();
        let out = BatchMut {
            x: x.view_mut().rows(0, n)?,
            targets: targets.view_mut().rows(0, n)?,
            weights: if layout.has_weights { Some(weights.view_mut().rows(0, n)?) } else { None },
        };
        rows.gather(&numbers, out)?;
        let x = x.view().rows(0, n)?;
        for row in x.as_slice::<f32>("categories", "x")?.chunks_exact(layout.n_features()) {
            for (index, category) in layout.categories.iter().enumerate() {
                if !take(index, row[category.column] as usize) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Rows whose categories have other numbers.
#[derive(Debug)]
struct Recoded {
    of: Arc<dyn Dataset>,
    layout: RowLayout,
    /// Categorical columns, and the new number of each old one.
    codes: Arc<Vec<(usize, Vec<u32>)>>,
}

impl DatasetWrapper for Recoded {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        let BatchMut { mut x, targets, weights } = out;
        self.of.gather(rows, BatchMut { x: x.reborrow(), targets, weights })?;
        for row in x.into_slice::<f32>("gather", "x")?.chunks_exact_mut(self.layout.n_features()) {
            for (column, codes) in self.codes.iter() {
                row[*column] = codes[row[*column] as usize] as f32;
            }
        }
        Ok(())
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if !self.of.gather_doubles(rows, origin, out)? {
            return Ok(false);
        }
        for row in out.chunks_exact_mut(self.layout.n_features()) {
            for (column, codes) in self.codes.iter() {
                let code = codes[(row[*column] + origin[*column]) as usize];
                row[*column] = f64::from(code) - origin[*column];
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use ddp::data::vocabulary::CategoryColumn;
    use ddp::data::{TargetLayout, Targets, TensorDataset, numbered_columns};

    use super::*;

    /// Rows with one category, a target that is exact in f64 only, and rows that were left out.
    #[derive(Debug)]
    struct ExactTargets(TensorDataset);

    impl DatasetWrapper for ExactTargets {
        const CHANGES: Changes = Changes::Nothing;

        fn inner(&self) -> &dyn Dataset {
            &self.0
        }

        fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
            rows.iter().zip(out).for_each(|(&row, out)| *out = 1.7e9 + row as f64 - origin[0]);
            Ok(true)
        }

        fn n_without_target(&self) -> usize {
            3
        }
    }

    #[test]
    fn rows_with_new_codes_keep_exact_targets_and_the_count_of_rows_without_one() {
        let names = numbered_columns(1);
        let mut layout = RowLayout::new(names.clone(), TargetLayout::Values { names });
        let vocabulary = Vocabulary::new("city".to_owned(), vec!["Bern".to_owned(), "Rome".to_owned()]);
        layout.categories = vec![CategoryColumn { column: 0, vocabulary }];
        let rows = ExactTargets(TensorDataset {
            features: vec![1.0, 1.0, 2.0],
            targets: Targets::Values(vec![1.7e9; 3]),
            weights: None,
            layout,
            source: "rows in memory".to_owned(),
        });
        // Rome has a single row.
        let recoded = by_train_rows(vec![Arc::new(rows)], 2, None).unwrap().remove(0);
        assert_eq!(recoded.layout().categories[0].vocabulary.values(), ["Bern"]);
        let mut targets = [0.0; 3];
        assert!(recoded.gather_target_doubles(&[0, 1, 2], &[1.7e9], &mut targets).unwrap());
        assert_eq!(targets, [0.0, 1.0, 2.0]);
        assert_eq!(recoded.n_without_target(), 3);
    }
}
