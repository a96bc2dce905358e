//! Names and roles of the columns of a table.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use ddp::config::{Datetime, ExtraColumns, nearest};
use ddp::data::error::{DataError, Result};
use ddp::data::vocabulary::Vocabulary;
use ddp::report::visible::{MAX_NAME, cut};

use crate::error::TableError;
use crate::formats::arrays::reader::SplitSide;
use crate::formats::error::{ColumnError, CsvError, RowsError};
use crate::formats::table::source::{FileColumns, MAX_COLUMNS};
use crate::formats::write::Purpose;
use crate::source::{KnownFeatures, SourceSpec, ToPredict};
use crate::table::partition;
use crate::values::time::{PARTS, date_of_parts};

/// Most names that a message lists.
const SHOWN: usize = 8;

/// Role of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A number; its index among the features.
    Feature(usize),
    /// A date; the index of the first of its parts among the features.
    Date(usize),
    /// A category.
    Category {
        /// Its index among the features.
        feature: usize,
        /// Its index among the categorical columns.
        index: usize,
    },
    /// A target; its index in the config.
    Target(usize),
    /// The weight of the row.
    Weight,
    /// Not used.
    Dropped,
    /// A column without a name at the end of the rows, whose cells must be empty.
    Blank,
}

/// Names and roles of all columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnPlan {
    /// Names of the columns, as in the header.
    pub names: Vec<String>,
    /// Use of each column.
    pub roles: Vec<Role>,
    /// Names of the features in their order.
    pub(crate) features: Vec<String>,
    /// Names of the categorical columns, in the order of their indices.
    pub(crate) categorical: Vec<String>,
    /// Indices of the columns that are passed through as text, in the order of the user; those of folders follow those of the file.
    pub(crate) kept: Vec<usize>,
    /// Columns that are not used although no setting excludes them, with the reason: ends of sentences.
    pub(crate) left_out: Vec<String>,
    /// Columns with one value for the whole file; they follow those of the file.
    pub partitions: Vec<Partition>,
}

/// A column with one value for all rows of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Name before the `=` of the folder.
    pub name: String,
    /// Empty for a missing value.
    pub value: String,
    /// Use of the value.
    pub role: Role,
}

impl Role {
    /// Use of a column that is converted; `None` for one that is dropped.
    pub fn purpose(self) -> Option<Purpose> {
        match self {
            Role::Feature(_) | Role::Date(_) | Role::Category { .. } => Some(Purpose::Feature),
            Role::Target(_) => Some(Purpose::Target),
            Role::Weight => Some(Purpose::Weight),
            Role::Dropped | Role::Blank => None,
        }
    }
}

impl ColumnPlan {
    /// Assigns roles to the columns of the file `path` and of its folders.
    ///
    /// Rows to predict need neither targets, weights and dropped columns of the config, nor are kept columns features unless the
    /// model knows them.
    ///
    /// # Errors
    /// [`CsvError::TargetMissing`], [`ColumnError::Missing`] and [`TableError::ColumnsDiffer`] for columns that the config, the
    /// user or the model needs; [`CsvError::NoFeatures`].
    pub(crate) fn new(path: &Path, columns: FileColumns, spec: &SourceSpec<'_>) -> Result<Self> {
        let data = spec.data;
        let FileColumns { mut names, mut are_dates, indices, unnamed, notes } = columns;
        let n_own = names.len();
        if n_own > MAX_COLUMNS {
            return Err(DataError::from(RowsError::Malformed {
                path: path.to_owned(),
                format: "table",
                reason: format!("it has {n_own} columns, more than {MAX_COLUMNS}"),
                hint: "write them as an array (npy)",
            }));
        }
        let partitions = partition::columns_of(path, spec);
        // A file may repeat the column of its folder, whose value applies, as in Spark.
        let is_of_folder = |name: &String| partitions.iter().any(|(of_folder, _)| of_folder == name);
        let repeated: HashSet<usize> =
            (0..n_own).filter(|&at| !partitions.is_empty() && is_of_folder(&names[at])).collect();
        names.extend(partitions.iter().map(|(name, _)| name.clone()));
        are_dates.resize(names.len(), false);
        let kept = match spec.to_predict {
            Some(rows) => kept(path, rows, &names)?,
            None => {
                check_names(path, spec, &names)?;
                let is_taken = |name: &String| spec.taken.is_some_and(|taken| taken.name == *name);
                // Columns of folders follow the file's columns, and take their place.
                names.iter().rposition(is_taken).into_iter().collect()
            }
        };
        // A table may have a hundred thousand columns: no list is searched for each of them.
        let known = set(spec.features.map_or(&[][..], |known| known.names));
        let dropped = set(&data.drop);
        let categories = categories(spec);
        let passed_on = set(spec.to_predict.map_or(&[][..], |rows| rows.kept));
        let is_known = |name: &String| known.contains(name.as_str());
        let is_categorical = |name: &String| categories.contains(name.as_str());
        let decides = |name: &String| data.split().is_some_and(|split| split.column() == name);
        let has_use =
            |name: &String| data.target.contains(name) || data.weight.as_ref() == Some(name) || decides(name);
        let indices: HashSet<usize> = indices.into_iter().collect();
        let is_index =
            |at: usize| indices.contains(&at) && !is_known(&names[at]) && !is_categorical(&names[at]);
        let is_unnamed = |at: usize| {
            let is_listed = is_known(&names[at]) || is_categorical(&names[at]) || has_use(&names[at]);
            unnamed.contains(&at) && !is_listed && !dropped.contains(&*names[at])
        };
        let is_blank = |at: usize| is_unnamed(at) && at + 1 == n_own;
        if let Some(&at) = unnamed.iter().find(|&&at| is_unnamed(at) && !is_blank(at)) {
            return Err(CsvError::UnnamedColumn { path: path.to_owned(), position: at + 1 }.into());
        }
        let is_index = |at: usize| is_index(at) || is_blank(at);
        // What the model was trained on decides.
        let is_divided = |at: usize| match spec.features {
            Some(_) => {
                let is_free = !is_known(&names[at]) && !dropped.contains(&*names[at]);
                is_free && part_names(&names[at]).iter().all(is_known)
            }
            None => data.datetime == Datetime::Parts && are_dates[at] && !is_categorical(&names[at]),
        };
        let is_aside = |at: usize| has_use(&names[at]) || dropped.contains(&*names[at]) || is_index(at);
        let becomes_parts = |at: usize| {
            !repeated.contains(&at) && is_divided(at) && (spec.to_predict.is_some() || !is_aside(at))
        };
        // Features of these names come from the dates, and from no column of the name.
        let of_dates: HashSet<String> =
            (0..names.len()).filter(|&at| becomes_parts(at)).flat_map(|at| part_names(&names[at])).collect();
        let is_known = |name: &String| is_known(name) && !of_dates.contains(name);
        let is_feature = |at: usize| {
            if repeated.contains(&at) {
                return false;
            }
            match spec.to_predict {
                None => !is_aside(at),
                Some(rows) if rows.only_kept => false,
                Some(_) if is_known(&names[at]) || spec.features.is_some() && is_divided(at) => true,
                Some(_) => !is_aside(at) && !passed_on.contains(&*names[at]),
            }
        };
        let is_taken = |&at: &usize| of_dates.contains(&names[at]) && is_feature(at) && !is_divided(at);
        if let Some(at) = (0..names.len()).find(is_taken).filter(|_| spec.features.is_none()) {
            let (path, column) = (path.to_owned(), names[at].clone());
            return Err(DataError::from(ColumnError::PartTaken { path, column }));
        }
        let left_out = |&at: &usize| is_index(at) && !has_use(&names[at]) && !dropped.contains(&*names[at]);
        let indices = (0..names.len()).filter(left_out).map(|at| index_note(at, &names[at]));
        let of_types = spec.types.iter().flat_map(|types| types.notes.iter().cloned());
        let mut left_out: Vec<String> = of_types.chain(notes).chain(indices).collect();
        let is_used = |at: usize| !dropped.contains(&*names[at]);
        left_out.extend(
            (0..n_own).filter(|at| repeated.contains(at) && is_used(*at)).map(|at| repeated_note(&names[at])),
        );
        let features_of =
            |at: usize| if is_divided(at) { part_names(&names[at]) } else { vec![names[at].clone()] };
        let present: Vec<String> =
            (0..names.len()).filter(|&at| is_feature(at)).flat_map(features_of).collect();
        if present.is_empty() && spec.to_predict.is_none() {
            let hint = match left_out.first() {
                Some(note) => format!("{note}; to train on it, give it a name of its own"),
                None if !dropped.is_empty() => "take a column out of `data.drop`".to_owned(),
                None => "every column that is not in `data.target` is a feature".to_owned(),
            };
            let (path, targets) = (path.to_owned(), data.target.join(", "));
            return Err(CsvError::NoFeatures { path, targets, hint }.into());
        }
        let features = match spec.features {
            Some(known) => {
                let extra = extra_features(path, &present, known.names, known.of)?;
                if !extra.is_empty() {
                    check_extra(path, &extra, &present, known, data.extra_columns)?;
                    left_out.push(extra_note(&extra, known.of));
                }
                known.names.to_vec()
            }
            None => present,
        };
        left_out.extend(spec.note_without_weight(|weight| names.iter().any(|name| name == weight)));
        // In the order of the features, not of the config.
        let categorical: Vec<String> = features.iter().filter(|name| is_categorical(name)).cloned().collect();
        let (feature_at, category_at) = (places(&features), places(&categorical));
        let reads_uses = spec.to_predict.is_none();
        let role = |at: usize| {
            let name = &names[at];
            if is_blank(at) {
                return Role::Blank;
            }
            if repeated.contains(&at) {
                return Role::Dropped;
            }
            if let Some(index) = data.target.iter().position(|target| target == name).filter(|_| reads_uses) {
                return Role::Target(index);
            }
            if is_feature(at) && is_divided(at) {
                let first = feature_at.get(&*part_names(name)[0]);
                return Role::Date(*first.expect("the parts of a date are features"));
            }
            let own = feature_at.get(name.as_str()).filter(|_| !of_dates.contains(name));
            let Some(&feature) = own else {
                let is_weight = reads_uses && data.weight.as_ref() == Some(name);
                return if is_weight { Role::Weight } else { Role::Dropped };
            };
            match category_at.get(name.as_str()) {
                Some(&index) => Role::Category { feature, index },
                None => Role::Feature(feature),
            }
        };
        let mut roles: Vec<Role> = (0..names.len()).map(role).collect();
        if let Some(types) = spec.types {
            let is_of = |name: &str, column: &str| {
                name.strip_prefix(column).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            };
            let is_used = |at: usize| kept.contains(&at) || !matches!(roles[at], Role::Dropped | Role::Blank);
            types.check(|column| (0..n_own).any(|at| is_used(at) && is_of(&names[at], column)))?;
        }
        let partitions = partitions.into_iter().zip(roles.split_off(n_own));
        let partitions = partitions.map(|((name, value), role)| Partition { name, value, role }).collect();
        names.truncate(n_own);
        Ok(ColumnPlan { names, roles, features, categorical, kept, left_out, partitions })
    }

    /// Names of the columns of the file and of its folders.
    pub fn all_names(&self) -> Vec<String> {
        let of_folders = self.partitions.iter().map(|partition| &partition.name);
        self.names.iter().chain(of_folders).cloned().collect()
    }

    /// Roles of the columns of the file and of its folders.
    pub fn all_roles(&self) -> Vec<Role> {
        let of_folders = self.partitions.iter().map(|partition| partition.role);
        self.roles.iter().copied().chain(of_folders).collect()
    }

    /// Places of the first features of dates.
    pub(crate) fn dates(&self) -> Vec<usize> {
        let first = |of| if let Role::Date(first) = of { Some(first) } else { None };
        self.all_roles().into_iter().filter_map(first).collect()
    }

    /// The name of the first target among the columns of the file.
    pub(crate) fn target_name(&self) -> &str {
        let target = self.roles.iter().position(|role| matches!(role, Role::Target(_)));
        target.map_or("", |target| &self.names[target])
    }
}

/// Checks that the columns of the config are there.
fn check_names(path: &Path, spec: &SourceSpec<'_>, names: &[String]) -> Result<()> {
    let data = spec.data;
    let there = set(names);
    if let Some(target) = data.target.iter().find(|target| !there.contains(target.as_str())) {
        return Err(target_missing(path, target, names));
    }
    // A column that a model does not know may as well be missing.
    let dropped = spec.features.is_none().then_some(("data.drop", &data.drop));
    let of_heads: Vec<String> = data.heads.iter().flat_map(|head| head.target.iter().cloned()).collect();
    let lists = [("heads", &of_heads)].into_iter().chain(dropped);
    let lists = lists.chain([("data.categorical", &data.categorical)]);
    // Rows for evaluation in files of their own need no such columns.
    let is_train = spec.side == SplitSide::Train;
    let weight: Vec<String> = data.weight.iter().filter(|_| is_train).cloned().collect();
    let split = data.split().filter(|_| is_train).map(|split| split.column().to_owned());
    let split: Vec<String> = split.into_iter().collect();
    for (key, columns) in lists.chain([("data.weight", &weight), ("data.split", &split)]) {
        if let Some(column) = columns.iter().find(|column| !there.contains(column.as_str())) {
            return Err(column_missing(path, column, key, names));
        }
    }
    Ok(())
}

/// Places of the columns to keep.
fn kept(path: &Path, rows: ToPredict<'_>, names: &[String]) -> Result<Vec<usize>> {
    let places = places(names);
    let position = |column: &String| {
        let found = places.get(column.as_str()).copied();
        found.ok_or_else(|| column_missing(path, column, "--keep", names))
    };
    rows.kept.iter().map(position).collect()
}

/// Names of the parts of a date.
fn part_names(name: &str) -> Vec<String> {
    PARTS.iter().map(|part| format!("{name}{part}")).collect()
}

/// The reason for leaving out column number `at`.
pub fn index_note(at: usize, name: &str) -> String {
    match name {
        "" => format!("column {} has no name and is left out, like row numbers of pandas or R", at + 1),
        _ if name == format!("Unnamed: {at}") => {
            format!("column {} has no name and is left out: its cells are empty", at + 1)
        }
        _ => format!("column \"{name}\" is left out, because it is an index that pandas wrote"),
    }
}

/// The note on a column of the files that has the name of a column of their folders.
pub fn repeated_note(name: &str) -> String {
    format!(
        "column \"{name}\" of the files is left out: the names of their folders (`{name}=...`) have its value"
    )
}

/// The error of a `key` that names a column which the file lacks.
pub fn column_missing(path: &Path, column: &str, key: &'static str, names: &[String]) -> DataError {
    let with_comma =
        names.iter().find(|name| name.contains(',') && name.split(',').any(|part| part == column));
    let near = || nearest(column, names.iter().map(String::as_str));
    let hint = match (with_comma, columns_in(column, names)) {
        (Some(name), _) => {
            format!("the name \"{name}\" holds a comma: quote it in a flag, as in '\"{name}\"'")
        }
        (None, Some(list)) => format!("for several columns write the list [{list}], or repeat the flag"),
        (None, None) => match near() {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("the columns are {}", shown(names)),
        },
    };
    DataError::from(ColumnError::Missing { path: path.to_owned(), column: column.to_owned(), key, hint })
}

/// The columns in `text`, quoted, if commas separate names of columns there.
fn columns_in(text: &str, names: &[String]) -> Option<String> {
    let several: Vec<&str> = text.split(',').map(str::trim).collect();
    let are_columns = several.iter().all(|part| names.iter().any(|name| name == part));
    let quoted = || several.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(", ");
    are_columns.then(quoted)
}

/// Names of the columns that are categorical, by the config or by the model that `spec` names.
pub(super) fn categories<'a>(spec: &SourceSpec<'a>) -> HashSet<&'a str> {
    let known = spec.features.map_or(&[][..], |known| known.vocabularies);
    spec.data.categorical.iter().map(String::as_str).chain(known.iter().map(Vocabulary::name)).collect()
}

fn set(names: &[String]) -> HashSet<&str> {
    names.iter().map(String::as_str).collect()
}

/// Place of each name, the last where a name is repeated: the column of a folder.
fn places(names: &[String]) -> HashMap<&str, usize> {
    names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect()
}

/// The feature columns that are not among those `expected`, all of which must be there, in any order.
fn extra_features(path: &Path, there: &[String], expected: &[String], of: &str) -> Result<Vec<String>> {
    let without = |names: &[String], others: &[String]| -> Vec<String> {
        let others = set(others);
        names.iter().filter(|name| !others.contains(name.as_str())).cloned().collect()
    };
    let extra = without(there, expected);
    let Some(missing) = users_columns(&without(expected, there)).into_iter().next() else { return Ok(extra) };
    let near = nearest(&missing, extra.iter().map(String::as_str)).or(extra.first().map(String::as_str));
    let difference = match near {
        Some(extra) => format!("\"{missing}\" is missing, \"{extra}\" is extra"),
        None => format!("\"{missing}\" is missing"),
    };
    Err(columns_differ(path, [there, expected], of, difference))
}

/// Fails for columns that the model `known` does not know, unless they are left out.
fn check_extra(
    path: &Path,
    extra: &[String],
    there: &[String],
    known: KnownFeatures<'_>,
    treatment: ExtraColumns,
) -> Result<()> {
    match treatment {
        ExtraColumns::Ignore => Ok(()),
        ExtraColumns::Error => {
            Err(columns_differ(path, [there, known.names], known.of, format!("\"{}\" is extra", extra[0])))
        }
    }
}

fn columns_differ(path: &Path, features: [&[String]; 2], of: &str, difference: String) -> DataError {
    let [n_columns, n_other] = features.map(|names| users_columns(names).len());
    let (source_name, other) = (path.display().to_string(), of.to_owned());
    DataError::from(TableError::ColumnsDiffer { source_name, n_columns, other, n_other, difference })
}

/// The note on columns that `of` does not know.
fn extra_note(extra: &[String], of: &str) -> String {
    let names = extra.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    match extra.len() {
        1 => format!("column {names} is left out: {of} does not have it"),
        n if n > SHOWN => format!("{n} columns are left out, which {of} does not have: {names}, ..."),
        _ => format!("columns {names} are left out: {of} does not have them"),
    }
}

/// The columns that features of these names may come from: a date is one column and seven features.
fn users_columns(mut features: &[String]) -> Vec<String> {
    let mut columns = Vec::new();
    while let [first, ..] = features {
        let (name, n) = date_of_parts(features).map_or((&**first, 1), |of| (of, PARTS.len()));
        columns.push(name.to_owned());
        features = &features[n..];
    }
    columns
}

/// The error of a shard, which was opened with the features of the first.
pub(super) fn naming_shards(error: DataError, first: &Path, path: &Path) -> DataError {
    match TableError::of(&error) {
        Some(TableError::ColumnsDiffer { difference, .. }) => {
            let (first, other, difference) = (first.to_owned(), path.to_owned(), difference.clone());
            DataError::from(RowsError::ShardsDiffer { first, other, difference })
        }
        _ => error,
    }
}

/// Checks that two shards have the same columns, in any order.
pub fn same_names(first: &Path, expected: &[String], path: &Path, got: &[String]) -> Result<()> {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    if expected == got || sorted(expected) == sorted(got) {
        return Ok(());
    }
    same_columns(first, expected, path, got)
}

/// Checks that two shards have the same columns in the same order.
pub fn same_columns(first: &Path, expected: &[String], path: &Path, got: &[String]) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    let at = expected.iter().zip(got).position(|(expected, got)| expected != got);
    let difference = match at {
        Some(i) => format!("column {} is \"{}\" in one and \"{}\" in the other", i + 1, expected[i], got[i]),
        None => format!("{} columns against {}", expected.len(), got.len()),
    };
    Err(DataError::from(RowsError::ShardsDiffer {
        first: first.to_owned(),
        other: path.to_owned(),
        difference,
    }))
}

fn target_missing(path: &Path, target: &str, names: &[String]) -> DataError {
    let hint = if let Some(list) = columns_in(target, names) {
        format!("for several targets set `data.target` to [{list}], or repeat --target")
    } else if let Some(name) = nearest(target, names.iter().map(String::as_str)) {
        format!("did you mean \"{name}\"?")
    } else if names.len() == 1 && names[0].contains([',', ';', '\t', '|']) {
        "set `data.delimiter` to the character between the columns".to_owned()
    } else {
        format!("set `data.target` (--target) to one of the columns: {}", shown(names))
    };
    CsvError::TargetMissing { path: path.to_owned(), target: target.to_owned(), hint }.into()
}

/// The columns that have a name.
fn shown(names: &[String]) -> String {
    let names: Vec<_> =
        names.iter().filter(|name| !name.is_empty()).map(|name| cut(name, MAX_NAME)).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(_) => format!("{}, ... {}", names[..SHOWN - 1].join(", "), names[names.len() - 1]),
    }
}
