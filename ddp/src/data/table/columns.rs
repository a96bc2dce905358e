//! Names and roles of the columns of a table.

use std::path::Path;

use super::csv::CsvError;
use crate::config::nearest;
use crate::data::error::{DataError, Result};
use crate::data::source::{SourceSpec, ToPredict};

/// Role of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A number; its index among the features.
    Feature(usize),
    /// A category; its index among the features and among the categorical columns.
    Category { feature: usize, index: usize },
    /// A target; its index in the config.
    Target(usize),
    /// The weight of the row.
    Weight,
    /// Not used.
    Dropped,
}

/// Names and roles of all columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnPlan {
    pub(crate) names: Vec<String>,
    pub(crate) roles: Vec<Role>,
    /// Names of the features in their order.
    pub(crate) features: Vec<String>,
    /// Names of the categorical columns, in the order of their indices.
    pub(crate) categorical: Vec<String>,
    /// Indices of the columns that are passed through as text, in the order of the user.
    pub(crate) kept: Vec<usize>,
}

impl ColumnPlan {
    /// Assigns roles to the columns `names` of the file `path`.
    ///
    /// # Errors
    /// [`CsvError::TargetMissing`], [`DataError::ColumnMissing`] and [`DataError::ColumnsDiffer`] for columns that the config or
    /// the model needs; [`CsvError::NoFeatures`].
    pub(crate) fn new(path: &Path, names: Vec<String>, spec: &SourceSpec<'_>) -> Result<Self> {
        let data = spec.data;
        if let Some(rows) = spec.to_predict {
            return Self::to_predict(path, names, spec, rows);
        }
        if let Some(target) = data.target.iter().find(|target| !names.contains(target)) {
            return Err(target_missing(path, target, &names));
        }
        let lists = [("data.drop", &data.drop), ("data.categorical", &data.categorical)];
        let weight: Vec<String> = data.weight.iter().cloned().collect();
        for (key, columns) in lists.into_iter().chain([("data.weight", &weight)]) {
            if let Some(column) = columns.iter().find(|column| !names.contains(column)) {
                return Err(column_missing(path, column, key, &names));
            }
        }
        let is_feature = |name: &&String| {
            !data.target.contains(name) && !data.drop.contains(name) && data.weight.as_ref() != Some(*name)
        };
        let present: Vec<String> = names.iter().filter(is_feature).cloned().collect();
        if present.is_empty() {
            return Err(
                CsvError::NoFeatures { path: path.to_owned(), targets: data.target.join(", ") }.into()
            );
        }
        let features = match spec.features {
            Some(known) => {
                same_features(path, &present, known.names, known.of)?;
                known.names.to_vec()
            }
            None => present,
        };
        let categorical = categorical(&features, spec);
        let role = |name: &String| {
            if let Some(index) = data.target.iter().position(|target| target == name) {
                return Role::Target(index);
            }
            let Some(feature) = features.iter().position(|feature| feature == name) else {
                return if data.weight.as_ref() == Some(name) { Role::Weight } else { Role::Dropped };
            };
            match categorical.iter().position(|column| column == name) {
                Some(index) => Role::Category { feature, index },
                None => Role::Feature(feature),
            }
        };
        let roles = names.iter().map(role).collect();
        Ok(ColumnPlan { names, roles, features, categorical, kept: Vec::new() })
    }

    /// Roles of the columns of rows to predict: targets, weights and dropped columns of the config are not needed.
    fn to_predict(
        path: &Path,
        names: Vec<String>,
        spec: &SourceSpec<'_>,
        rows: ToPredict<'_>,
    ) -> Result<Self> {
        let data = spec.data;
        let position = |column: &String| {
            let found = names.iter().position(|name| name == column);
            found.ok_or_else(|| column_missing(path, column, "--keep", &names))
        };
        let kept = rows.kept.iter().map(position).collect::<Result<Vec<_>>>()?;
        let features = match spec.features {
            Some(known) => known.names.to_vec(),
            None => names.clone(),
        };
        let is_needed = |name: &&String| {
            let is_aside = data.target.contains(name)
                || data.drop.contains(name)
                || data.weight.as_ref() == Some(*name)
                || rows.kept.contains(name);
            features.contains(name) || !is_aside
        };
        if let Some(known) = spec.features {
            let present: Vec<String> = names.iter().filter(is_needed).cloned().collect();
            same_features(path, &present, known.names, known.of)?;
        }
        let categorical = categorical(&features, spec);
        let role = |name: &String| match features.iter().position(|feature| feature == name) {
            None => Role::Dropped,
            Some(feature) => match categorical.iter().position(|column| column == name) {
                Some(index) => Role::Category { feature, index },
                None => Role::Feature(feature),
            },
        };
        let roles = names.iter().map(role).collect();
        Ok(ColumnPlan { names, roles, features, categorical, kept })
    }
}

/// Names of the categorical features, in the order of the features, not of the config.
fn categorical(features: &[String], spec: &SourceSpec<'_>) -> Vec<String> {
    features.iter().filter(|name| is_categorical(name, spec)).cloned().collect()
}

fn column_missing(path: &Path, column: &str, key: &'static str, names: &[String]) -> DataError {
    let hint = match nearest(column, names.iter().map(String::as_str)) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("the columns are {}", shown(names)),
    };
    DataError::ColumnMissing { path: path.to_owned(), column: column.to_owned(), key, hint }
}

/// Whether the column is categorical, by the config or by the model that `spec` names.
pub(super) fn is_categorical(name: &String, spec: &SourceSpec<'_>) -> bool {
    let known = spec.features.map_or(&[][..], |known| known.vocabularies);
    spec.data.categorical.contains(name) || known.iter().any(|vocabulary| vocabulary.name() == name)
}

/// Checks that the feature columns are those expected, in any order.
fn same_features(path: &Path, there: &[String], expected: &[String], of: &str) -> Result<()> {
    let without = |names: &[String], others: &[String]| -> Option<String> {
        names.iter().find(|name| !others.contains(name)).cloned()
    };
    let difference = match (without(expected, there), without(there, expected)) {
        (None, None) => return Ok(()),
        (Some(missing), Some(extra)) => format!("\"{missing}\" is missing, \"{extra}\" is extra"),
        (Some(missing), None) => format!("\"{missing}\" is missing"),
        (None, Some(extra)) => format!("\"{extra}\" is extra"),
    };
    Err(DataError::ColumnsDiffer {
        source_name: path.display().to_string(),
        n_columns: there.len(),
        other: of.to_owned(),
        n_other: expected.len(),
        difference,
    })
}

/// Checks that two shards have the same columns in the same order.
pub(crate) fn same_columns(first: &Path, expected: &[String], path: &Path, got: &[String]) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    let at = expected.iter().zip(got).position(|(expected, got)| expected != got);
    let difference = match at {
        Some(i) => format!("column {} is \"{}\" in one and \"{}\" in the other", i + 1, expected[i], got[i]),
        None => format!("{} columns against {}", expected.len(), got.len()),
    };
    Err(DataError::ShardsDiffer { first: first.to_owned(), other: path.to_owned(), difference })
}

fn target_missing(path: &Path, target: &str, names: &[String]) -> DataError {
    let hint = if let Some(name) = nearest(target, names.iter().map(String::as_str)) {
        format!("did you mean \"{name}\"?")
    } else if names.len() == 1 && names[0].contains([';', '\t', '|']) {
        "columns must be separated by commas".to_owned()
    } else {
        format!("set `data.target` to one of the columns: {}", shown(names))
    };
    CsvError::TargetMissing { path: path.to_owned(), target: target.to_owned(), hint }.into()
}

fn shown(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(_) => format!("{}, ... {}", names[..SHOWN - 1].join(", "), names[names.len() - 1]),
    }
}
