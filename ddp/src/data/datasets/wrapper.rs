//! [`DatasetWrapper`]: rows of another dataset that are changed on their way.
//!
//! A wrapper states what it changes; this file decides once, for all wrappers, which methods of the inner rows still hold.

use std::fmt;
use std::ops::Range;

use ddp_kernels::TensorMut;

use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::datasets::dataset::{Dataset, RowLayout, class_indices_of_gathered, targets_of_gathered};
use crate::data::error::Result;

/// Changes that a wrapper makes to its inner rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// Nothing: it watches the rows, or adds to them. Every method is that of the inner rows.
    Nothing,
    /// The features. Targets and their classes are those of the inner rows; exact values and rows in place are not.
    Features,
    /// The targets. Exact values of the features are those of the inner rows; rows in place are not.
    Targets,
    /// Features and targets: neither exact values nor rows in place are those of the inner rows.
    FeaturesAndTargets,
    /// The selection of rows: row `n` is the inner row [`DatasetWrapper::row`]. The wrapper states its length and fingerprint, too;
    /// blocks, rows in place and announcements are not those of the inner rows.
    Rows,
}

/// A [`Dataset`] around another one. It states [`DatasetWrapper::CHANGES`], the inner rows and the methods that it changes; the
/// others follow from these. See [`Dataset`] for each method.
#[expect(clippy::len_without_is_empty, reason = "`Dataset` has it")]
pub trait DatasetWrapper: fmt::Debug + Send + Sync {
    /// Changes that it makes.
    const CHANGES: Changes;

    /// The inner rows.
    fn inner(&self) -> &dyn Dataset;

    /// Number of the inner row that is row `n`, with [`Changes::Rows`].
    fn row(&self, n: usize) -> usize {
        n
    }

    /// See [`Dataset::len`].
    fn len(&self) -> usize {
        self.inner().len()
    }

    /// See [`Dataset::layout`].
    fn layout(&self) -> &RowLayout {
        self.inner().layout()
    }

    /// See [`Dataset::gather`].
    ///
    /// # Errors
    /// Same as [`Dataset::gather`] of the wrapped rows.
    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        match Self::CHANGES {
            Changes::Rows => self.inner().gather(&inner_rows(self, rows), out),
            _ => self.inner().gather(rows, out),
        }
    }

    /// See [`Dataset::gather_targets`].
    ///
    /// # Errors
    /// Same as [`Dataset::gather_targets`] of the wrapped rows.
    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()>
    where
        Self: Sized,
    {
        match Self::CHANGES {
            Changes::Nothing | Changes::Features => self.inner().gather_targets(rows, out),
            Changes::Targets | Changes::FeaturesAndTargets => targets_of_gathered(self, rows, out),
            Changes::Rows => self.inner().gather_targets(&inner_rows(self, rows), out),
        }
    }

    /// See [`Dataset::gather_doubles`].
    ///
    /// # Errors
    /// Same as [`Dataset::gather_doubles`] of the wrapped rows.
    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        match Self::CHANGES {
            Changes::Nothing | Changes::Targets => self.inner().gather_doubles(rows, origin, out),
            Changes::Features | Changes::FeaturesAndTargets => Ok(false),
            Changes::Rows => self.inner().gather_doubles(&inner_rows(self, rows), origin, out),
        }
    }

    /// See [`Dataset::gather_target_doubles`].
    ///
    /// # Errors
    /// Same as [`Dataset::gather_target_doubles`] of the wrapped rows.
    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        match Self::CHANGES {
            Changes::Nothing | Changes::Features => self.inner().gather_target_doubles(rows, origin, out),
            Changes::Targets | Changes::FeaturesAndTargets => Ok(false),
            Changes::Rows => self.inner().gather_target_doubles(&inner_rows(self, rows), origin, out),
        }
    }

    /// See [`Dataset::class_indices`].
    ///
    /// # Errors
    /// Same as [`Dataset::class_indices`] of the wrapped rows.
    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()>
    where
        Self: Sized,
    {
        match Self::CHANGES {
            Changes::Nothing | Changes::Features => self.inner().class_indices(rows, out),
            Changes::Targets | Changes::FeaturesAndTargets | Changes::Rows => {
                class_indices_of_gathered(self, rows, out)
            }
        }
    }

    /// See [`Dataset::in_place`].
    ///
    /// # Errors
    /// Same as [`Dataset::in_place`] of the wrapped rows.
    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        match Self::CHANGES {
            Changes::Nothing => self.inner().in_place(rows),
            _ => Ok(None),
        }
    }

    /// See [`Dataset::block_ends`].
    fn block_ends(&self) -> Option<&[usize]> {
        if Self::CHANGES == Changes::Rows { None } else { self.inner().block_ends() }
    }

    /// See [`Dataset::source_row`].
    fn source_row(&self, n: usize) -> usize {
        self.inner().source_row(if Self::CHANGES == Changes::Rows { self.row(n) } else { n })
    }

    /// See [`Dataset::n_without_target`].
    fn n_without_target(&self) -> usize {
        self.inner().n_without_target()
    }

    /// See [`Dataset::prefetch`].
    fn prefetch(&self, rows: &[Range<usize>]) {
        if Self::CHANGES != Changes::Rows {
            self.inner().prefetch(rows);
        }
    }

    /// See [`Dataset::advice`].
    fn advice(&self) -> Option<String> {
        self.inner().advice()
    }

    /// See [`Dataset::fingerprint`].
    ///
    /// # Errors
    /// Same as [`Dataset::fingerprint`] of the wrapped rows.
    fn fingerprint(&self) -> Result<u64> {
        self.inner().fingerprint()
    }

    /// See [`Dataset::resident_bytes`].
    fn resident_bytes(&self) -> usize {
        self.inner().resident_bytes()
    }

    /// See [`Dataset::source`].
    fn source(&self) -> &str {
        self.inner().source()
    }
}

fn inner_rows<W: DatasetWrapper + ?Sized>(wrapper: &W, rows: &[usize]) -> Vec<usize> {
    rows.iter().map(|&n| wrapper.row(n)).collect()
}

// A new method of `Dataset` needs a decision here: clippy refuses to leave it to the default, which would hide the inner rows.
#[deny(clippy::missing_trait_methods)]
impl<W: DatasetWrapper> Dataset for W {
    fn check(&self) -> Result<()> {
        self.inner().check()
    }

    fn len(&self) -> usize {
        DatasetWrapper::len(self)
    }

    fn is_empty(&self) -> bool {
        DatasetWrapper::len(self) == 0
    }

    fn layout(&self) -> &RowLayout {
        DatasetWrapper::layout(self)
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        DatasetWrapper::gather(self, rows, out)
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        DatasetWrapper::gather_targets(self, rows, out)
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        DatasetWrapper::gather_doubles(self, rows, origin, out)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        DatasetWrapper::gather_target_doubles(self, rows, origin, out)
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        DatasetWrapper::class_indices(self, rows, out)
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        DatasetWrapper::in_place(self, rows)
    }

    fn block_ends(&self) -> Option<&[usize]> {
        DatasetWrapper::block_ends(self)
    }

    fn source_row(&self, n: usize) -> usize {
        DatasetWrapper::source_row(self, n)
    }

    fn n_without_target(&self) -> usize {
        DatasetWrapper::n_without_target(self)
    }

    fn prefetch(&self, rows: &[Range<usize>]) {
        DatasetWrapper::prefetch(self, rows);
    }

    fn advice(&self) -> Option<String> {
        DatasetWrapper::advice(self)
    }

    fn fingerprint(&self) -> Result<u64> {
        DatasetWrapper::fingerprint(self)
    }

    fn resident_bytes(&self) -> usize {
        DatasetWrapper::resident_bytes(self)
    }

    fn source(&self) -> &str {
        DatasetWrapper::source(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ddp_kernels::{DType, Device, Tensor};

    use crate::data::datasets::wrapper::*;
    use crate::data::testing::gathered;
    use crate::data::{TargetLayout, TensorDataset, numbered_columns};

    /// Rows that answer every method in their own way. Clippy refuses a new method of `Dataset` that they do not state.
    #[derive(Debug)]
    struct Probe {
        rows: TensorDataset,
        announced: Mutex<Vec<Range<usize>>>,
    }

    #[deny(clippy::missing_trait_methods)]
    impl Dataset for Probe {
        fn check(&self) -> Result<()> {
            self.rows.check()
        }

        fn len(&self) -> usize {
            self.rows.len()
        }

        fn is_empty(&self) -> bool {
            self.rows.is_empty()
        }

        fn layout(&self) -> &RowLayout {
            self.rows.layout()
        }

        fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
            self.rows.gather(rows, out)
        }

        fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
            let out = out.into_slice::<i64>("probe", "targets")?;
            rows.iter().zip(out).for_each(|(&row, out)| *out = 100 + row as i64);
            Ok(())
        }

        fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
            rows.iter().zip(out).for_each(|(&row, out)| *out = 200.0 + row as f64 - origin[0]);
            Ok(true)
        }

        fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
            rows.iter().zip(out).for_each(|(&row, out)| *out = 400.0 + row as f64 - origin[0]);
            Ok(true)
        }

        fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
            rows.zip(out).for_each(|(row, out)| *out = 300 + row as i64);
            Ok(())
        }

        fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
            self.rows.in_place(rows)
        }

        fn block_ends(&self) -> Option<&[usize]> {
            Some(&[1, 3])
        }

        fn source_row(&self, n: usize) -> usize {
            100 + n
        }

        fn n_without_target(&self) -> usize {
            0
        }

        fn prefetch(&self, rows: &[Range<usize>]) {
            self.announced.lock().unwrap().extend_from_slice(rows);
        }

        fn advice(&self) -> Option<String> {
            Some("probing".to_owned())
        }

        fn fingerprint(&self) -> Result<u64> {
            Ok(17)
        }

        fn resident_bytes(&self) -> usize {
            42
        }

        fn source(&self) -> &str {
            "probe"
        }
    }

    fn probe() -> Probe {
        let layout = RowLayout::new(numbered_columns(1), TargetLayout::Classes { n_classes: 2 });
        Probe {
            rows: TensorDataset::classes(vec![0.5, 1.5, 2.5], vec![0, 1, 0], layout),
            announced: Mutex::default(),
        }
    }

    macro_rules! wrapper {
        ($name:ident, $changes:ident) => {
            #[derive(Debug)]
            struct $name(Probe);

            impl DatasetWrapper for $name {
                const CHANGES: Changes = Changes::$changes;

                fn inner(&self) -> &dyn Dataset {
                    &self.0
                }
            }
        };
    }

    wrapper!(Watching, Nothing);
    wrapper!(OtherFeatures, Features);
    wrapper!(OtherTargets, Targets);
    wrapper!(OtherRows, Rows);

    /// The answers to every method, as text.
    fn answers(of: &dyn Dataset, probe: &Probe) -> Vec<(&'static str, String)> {
        let mut targets = Tensor::zeros(&[2], DType::I64, Device::Cpu).unwrap();
        of.gather_targets(&[2, 1], targets.view_mut()).unwrap();
        let mut doubles = [0.0; 2];
        let is_wide = of.gather_doubles(&[2, 1], &[0.25], &mut doubles).unwrap();
        let mut target_doubles = [0.0; 2];
        let is_wide_target = of.gather_target_doubles(&[2, 1], &[0.25], &mut target_doubles).unwrap();
        let mut classes = [0; 2];
        of.class_indices(1..3, &mut classes).unwrap();
        of.prefetch(&[0..2, 4..5]);
        let in_place = of.in_place(1..3).unwrap();
        vec![
            ("len", of.len().to_string()),
            ("is_empty", of.is_empty().to_string()),
            ("layout", format!("{:?}", of.layout())),
            ("gather", format!("{:?}", gathered(of, &[2, 0]))),
            ("gather_targets", format!("{:?}", targets.to_vec::<i64>().unwrap())),
            ("gather_doubles", format!("{is_wide} {doubles:?}")),
            ("gather_target_doubles", format!("{is_wide_target} {target_doubles:?}")),
            ("class_indices", format!("{classes:?}")),
            (
                "in_place",
                format!(
                    "{:?}",
                    in_place.map(|batch| batch.x.as_slice::<f32>("probe", "x").unwrap().to_vec())
                ),
            ),
            ("block_ends", format!("{:?}", of.block_ends())),
            ("source_row", of.source_row(2).to_string()),
            ("prefetch", format!("{:?}", std::mem::take(&mut *probe.announced.lock().unwrap()))),
            ("advice", format!("{:?}", of.advice())),
            ("fingerprint", of.fingerprint().unwrap().to_string()),
            ("resident_bytes", of.resident_bytes().to_string()),
            ("source", of.source().to_owned()),
        ]
    }

    #[test]
    fn every_method_that_a_wrapper_does_not_change_is_that_of_its_rows() {
        let plain = probe();
        let want = answers(&plain, &plain);
        let differing = |of: &dyn Dataset, probe: &Probe| {
            let got = answers(of, probe);
            let differ = got.into_iter().zip(&want).filter(|(got, want)| got != *want);
            differ.map(|((method, _), _)| method).collect::<Vec<_>>()
        };
        let watching = Watching(probe());
        assert_eq!(differing(&watching, &watching.0), Vec::<&str>::new());
        let features = OtherFeatures(probe());
        assert_eq!(differing(&features, &features.0), ["gather_doubles", "in_place"]);
        let targets = OtherTargets(probe());
        assert_eq!(
            differing(&targets, &targets.0),
            ["gather_targets", "gather_target_doubles", "class_indices", "in_place"]
        );
        let rows = OtherRows(probe());
        assert_eq!(differing(&rows, &rows.0), ["class_indices", "in_place", "block_ends", "prefetch"]);
    }
}
