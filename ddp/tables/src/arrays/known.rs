//! Compares the columns of an array with those of a model. The columns of an array keep their places, so the order matters.

use ddp::data::Dataset;
use ddp::data::datasets::dataset::numbered_columns;
use ddp::data::error::{DataError, Result};
use ddp::data::vocabulary::Vocabulary;

use crate::error::TableError;
use crate::source::KnownFeatures;

/// Checks that `rows` has the columns of `known`: the same names, if both have names, and the same categories.
///
/// # Errors
/// [`TableError::ColumnsDiffer`] for a different number, different names or order of names, and different categories.
pub fn same_columns(rows: &dyn Dataset, known: KnownFeatures<'_>) -> Result<()> {
    let layout = rows.layout();
    let (n, n_known) = (layout.n_features(), known.names.len());
    let differ = |difference: String| {
        Err(DataError::from(TableError::ColumnsDiffer {
            source_name: rows.source().to_owned(),
            n_columns: n,
            other: known.of.to_owned(),
            n_other: n_known,
            difference,
        }))
    };
    if n != n_known {
        return differ("the columns of an array are used as they are".to_owned());
    }
    let numbers = numbered_columns(n);
    let are_named = layout.features != numbers && known.names != numbers;
    if are_named && let Some(at) = (0..n).find(|&at| layout.features[at] != known.names[at]) {
        let (here, there) = (&layout.features[at], &known.names[at]);
        return differ(format!("column {} of the array is \"{here}\", not \"{there}\"", at + 1));
    }
    // Compared by position, because one side may have no names.
    for at in 0..n {
        let here = layout.categories.iter().find(|category| category.column == at);
        let here = here.map(|category| &category.vocabulary);
        let there = known.vocabularies.iter().find(|vocabulary| *vocabulary.name() == known.names[at]);
        let only = |vocabulary: &Vocabulary, has: &str, has_not: &str| {
            let name = vocabulary.name();
            differ(format!("\"{name}\" holds categories in {has}, but numbers in {has_not}"))
        };
        match (here, there) {
            (None, None) => {}
            (Some(here), None) => return only(here, rows.source(), known.of),
            (None, Some(there)) => return only(there, known.of, rows.source()),
            (Some(here), Some(there)) if here.values() == there.values() => {}
            (Some(here), Some(_)) => {
                return differ(format!("the categories of \"{}\" are numbered differently", here.name()));
            }
        }
    }
    Ok(())
}
