//! Columns that the suggested config leaves out.

use std::collections::HashSet;

use super::column_profile::ColumnProfile;
use super::kind::Kind;
use super::warning::{Warning, WarningKind, columns_of};

/// Names of the columns of a table that would stop training or mislead, in the order of the file.
pub(super) fn dropped(columns: &[ColumnProfile], warnings: &[Warning]) -> Vec<String> {
    use WarningKind::{Constant, Duplicate, Encoding, Identifier, Leak, NotFinite, OddText, Unusable};
    let mut found =
        columns_of(warnings, &[Leak, Identifier, OddText, NotFinite, Unusable, Encoding, Constant]);
    // The first of several equal columns stays.
    let duplicates = warnings.iter().filter(|warning| warning.kind == Duplicate);
    found.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
    let features = columns.iter().filter(|column| column.is_feature());
    let found: HashSet<String> = found.into_iter().collect();
    let is_found = |column: &&ColumnProfile| found.contains(&column.name);
    let mut dropped: Vec<String> =
        features.clone().filter(is_found).map(|column| column.name.clone()).collect();
    // A model needs a feature.
    if !has_features(&dropped, columns) {
        let is_usable =
            |column: &&ColumnProfile| !column.has_faults && !matches!(column.kind, Kind::Other | Kind::Empty);
        if let Some(kept) = features.clone().find(is_usable) {
            dropped.retain(|name| *name != kept.name);
        }
    }
    dropped
}

/// Whether a column is left as a feature.
pub(super) fn has_features(dropped: &[String], columns: &[ColumnProfile]) -> bool {
    let dropped: HashSet<&String> = dropped.iter().collect();
    columns.iter().any(|column| column.is_feature() && !dropped.contains(&column.name))
}
