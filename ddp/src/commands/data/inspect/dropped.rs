//! Columns that the suggested config leaves out.

use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warnings::{Warning, WarningKind};

/// Names of the columns of a table that would stop training or mislead, in the order of the file.
pub(super) fn dropped(origin: &Origin, columns: &[ColumnProfile], warnings: &[Warning]) -> Vec<String> {
    let of_kinds = |kinds: &[WarningKind]| -> Vec<String> {
        let of = warnings.iter().filter(|warning| kinds.contains(&warning.kind));
        of.flat_map(|warning| warning.columns.clone()).collect()
    };
    let mut dropped = of_kinds(&[
        WarningKind::Leak,
        WarningKind::Identifier,
        WarningKind::OddText,
        WarningKind::NotFinite,
        WarningKind::Unusable,
        WarningKind::Encoding,
    ]);
    // The first of several equal columns stays.
    let duplicates = warnings.iter().filter(|warning| warning.kind == WarningKind::Duplicate);
    dropped.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
    // Constant numbers are harmless, but constant texts can't be read as numbers.
    let is_useless = |name: &String| {
        let is =
            |column: &&ColumnProfile| column.name == *name && matches!(column.kind, Kind::Text | Kind::Empty);
        columns.iter().any(|column| is(&column))
    };
    dropped.extend(of_kinds(&[WarningKind::Constant]).into_iter().filter(is_useless));
    dropped.retain(|name| columns.iter().any(|column| column.name == *name && !column.is_target));
    dropped.sort_by_key(|name| origin.names.iter().position(|other| other == name));
    dropped.dedup();
    keep_one(&mut dropped, columns);
    dropped
}

/// Takes a column that can be a feature out of `dropped` if no other feature is left: a model needs one.
fn keep_one(dropped: &mut Vec<String>, columns: &[ColumnProfile]) {
    if has_features(dropped, columns) {
        return;
    }
    let is_usable = |column: &&ColumnProfile| {
        let is_clean = !column.has_faults;
        is_clean && !matches!(column.kind, Kind::Other | Kind::Empty)
    };
    if let Some(kept) = columns.iter().filter(is_feature).find(is_usable) {
        dropped.retain(|name| *name != kept.name);
    }
}

/// Whether a column is left as a feature.
pub(super) fn has_features(dropped: &[String], columns: &[ColumnProfile]) -> bool {
    columns.iter().filter(is_feature).any(|column| !dropped.contains(&column.name))
}

fn is_feature(column: &&ColumnProfile) -> bool {
    !column.is_target && column.kind != Kind::Index
}
