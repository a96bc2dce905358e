//! Columns that the suggested config leaves out.

use std::collections::{HashMap, HashSet};

use ddp::data::labels::MAX_AUTO_CLASSES;

use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warning::{Warning, WarningKind};

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
    // Few values are categories as they are written.
    let is_wide = |column: &&ColumnProfile| column.n_distinct.is_none_or(|n| n > MAX_AUTO_CLASSES);
    let wide: HashSet<&str> = columns.iter().filter(is_wide).map(|column| &*column.name).collect();
    let formatted = of_kinds(&[WarningKind::Formatted]);
    dropped.extend(formatted.into_iter().filter(|name| wide.contains(name.as_str())));
    // The first of several equal columns stays.
    let duplicates = warnings.iter().filter(|warning| warning.kind == WarningKind::Duplicate);
    dropped.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
    // Whether a value is missing may help a model.
    let is_constant = |column: &&ColumnProfile| column.n_missing == 0 || column.kind == Kind::Empty;
    let constants: HashSet<&str> = columns.iter().filter(is_constant).map(|column| &*column.name).collect();
    let of_one_value = of_kinds(&[WarningKind::Constant]);
    dropped.extend(of_one_value.into_iter().filter(|name| constants.contains(name.as_str())));
    let others = columns.iter().filter(|column| !column.is_target);
    let others: HashSet<&str> = others.map(|column| &*column.name).collect();
    dropped.retain(|name| others.contains(name.as_str()));
    let places: HashMap<&String, usize> = origin.names.iter().zip(0..).collect();
    dropped.sort_by_key(|name| places.get(name));
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
    let dropped: HashSet<&String> = dropped.iter().collect();
    columns.iter().filter(is_feature).any(|column| !dropped.contains(&column.name))
}

fn is_feature(column: &&ColumnProfile) -> bool {
    !column.is_target && column.kind != Kind::Index
}
