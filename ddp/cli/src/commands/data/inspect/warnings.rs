//! Warns of data that would break training or make its result misleading.

use std::collections::HashMap;

use ddp::config::Task;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind};
use super::inspected::{Inspected, MIN_ROWS};
use super::origin::Origin;
use super::target_warnings::target_warnings;
use super::warning::{Warning, WarningKind};
use super::words::{count, cut, joined, listed, rows};

/// Correlation above which a column is a copy of the target.
const MAX_CORRELATION: f64 = 0.999;
/// Seconds since 1970 of 1980 and 2100.
const EPOCH_S: [f64; 2] = [315_532_800.0, 4_102_444_800.0];

/// All warnings.
pub(super) fn warnings(
    origin: &Origin,
    collected: &Collector,
    columns: &[ColumnProfile],
    task: Option<Task>,
) -> Vec<Warning> {
    let inspected = Inspected { origin, collected, columns, task };
    let mut all = Vec::new();
    target_warnings(&inspected, &mut all);
    inspected.values(&mut all);
    inspected.leaks(&mut all);
    inspected.useless(&mut all);
    inspected.rows(&mut all);
    all.sort_by_key(|warning| warning.kind);
    all
}

/// Adds a warning that no column is left as a feature without the `dropped` ones, unless there is none at all.
pub(super) fn no_features_left(all: &mut Vec<Warning>, dropped: &[String]) {
    if all.iter().any(|warning| warning.kind == WarningKind::NoFeatures) || dropped.is_empty() {
        return;
    }
    let message =
        format!("no features: no column is left without {}; correct their values to train", listed(dropped));
    all.insert(0, Warning { kind: WarningKind::NoFeatures, columns: dropped.to_vec(), message });
}

impl Inspected<'_> {
    fn values(&self, all: &mut Vec<Warning>) {
        let mut texts = Vec::new();
        let mut missing = Vec::new();
        for index in self.features() {
            let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
            let n = self.collected.n_rows as u64 - column.n_missing;
            if let Some((words, remedy)) = self.formatted(index) {
                let like = self.like(index);
                self.about(all, WarningKind::Formatted, &[index], |name| {
                    format!(
                        "{name} holds {words}{like}; a model reads them as text; rewrite them, with pandas:\n{remedy}"
                    )
                });
                continue;
            }
            let is_text = 2 * column.n_words() > n || profile.kind == Kind::Text && column.texts.n == 0;
            if is_text {
                texts.push(index);
            } else if column.texts.n > 0 {
                let odd = self.odd(&column.texts);
                let words: Vec<String> =
                    column.words.by_count().iter().map(|(text, n)| format!("\"{text}\" ({n})")).collect();
                let listed = if words.is_empty() { String::new() } else { format!(", {}", words.join(", ")) };
                let marks = self.marks_of_missing(index);
                let kind = if marks.is_empty() { WarningKind::OddText } else { WarningKind::Marked };
                let remedy = if marks.is_empty() {
                    "correct them"
                } else {
                    "if they mark missing values, `data.missing_values` lists them and `data.missing` fills them"
                };
                self.about(all, kind, &[index], |name| {
                    format!(
                        "{name}: {} of {n} values are not numbers{listed}, the first is {odd}: {remedy}",
                        column.texts.n
                    )
                });
            }
            // A missing text is an unknown category.
            if column.n_missing > 0 && !is_text && !matches!(profile.kind, Kind::Empty | Kind::Other) {
                missing.push(index);
            }
        }
        for index in 0..self.columns.len() {
            let column = &self.collected.columns[index];
            if let Some((_, text)) = &column.unclear.first {
                let odd = self.odd(&column.unclear);
                let (large, small) = (text.replace([',', '.'], ""), text.replacen(',', ".", 1));
                self.about(all, WarningKind::Marks, &[index], |name| {
                    format!("{name}: {odd} may be {large} or {small}; `data.decimal` = \".\" or \",\" is the mark before the fraction")
                });
            }
            if column.not_finite.n > 0 {
                let odd = self.odd(&column.not_finite);
                self.about(all, WarningKind::NotFinite, &[index], |name| {
                    let n = column.not_finite.n;
                    format!(
                        "{name}: {} not finite in f32, the first is {odd}",
                        count(n, "value is", "values are")
                    )
                });
            }
        }
        for index in self.features() {
            let odd = &self.collected.columns[index].not_utf8;
            if odd.n > 0 {
                let first = self.odd(odd);
                self.about(all, WarningKind::Encoding, &[index], |name| {
                    let n = count(odd.n, "value is", "values are");
                    format!("{name}: {n} not UTF-8, the first is {first}: save the file as UTF-8")
                });
            }
        }
        let unusable: Vec<usize> =
            self.features().filter(|&index| self.columns[index].kind == Kind::Other).collect();
        self.about(all, WarningKind::Unusable, &unusable, |names| {
            format!("neither numbers nor text: {names}; split them into columns, or `data.drop` ignores them")
        });
        texts.retain(|&index| {
            !self.is_identifier(index)
                && !self.is_nearly_unique(index)
                && self.columns[index].n_distinct != Some(1)
        });
        self.about(all, WarningKind::Text, &texts, |names| {
            format!("text in {names}: `data.categorical` treats it as categories, `data.drop` ignores it")
        });
        for index in self.features() {
            let column = &self.collected.columns[index];
            if column.n_padded == 0 || column.has_fractions || self.columns[index].kind != Kind::Integer {
                continue;
            }
            let odd = self.odd(&column.codes);
            self.about(all, WarningKind::Codes, &[index], |name| {
                format!(
                    "{name} holds numbers with leading zeros, the first is {odd}: if they are codes, `data.categorical` keeps the zeros"
                )
            });
        }
        let nested: Vec<usize> =
            self.features().filter(|index| self.origin.nested_lists.contains(index)).collect();
        self.about(all, WarningKind::NestedLists, &nested, |names| {
            format!(
                "lists of objects or lists in {names} are read as text: pandas.DataFrame.explode and pandas.json_normalize make columns of their values"
            )
        });
        let first = missing.iter().filter_map(|&index| self.collected.columns[index].first_missing);
        let first = self.first(first.min_by_key(|place| (place.file, place.number)));
        self.about(all, WarningKind::Missing, &missing, |names| {
            format!("missing values in {names}{first}: `data.missing` = \"mean\" or \"zero\" fills them")
        });
    }

    /// The texts of a column of numbers if they may all mark missing values: few words without digits, which no target holds.
    fn marks_of_missing(&self, index: usize) -> Vec<String> {
        let column = &self.collected.columns[index];
        let words = column.words.by_count();
        if !self.origin.types.is_empty() {
            // Texts of a format with types are not numbers.
            return Vec::new();
        }
        let of_targets = |text: &str| {
            let holds = |target: &usize| {
                let column = &self.collected.columns[*target];
                column.texts.n > 0
                    && (column.words.by_count().is_empty()
                        || column.words.by_count().iter().any(|word| word.0 == text))
            };
            self.origin.targets.iter().any(holds)
        };
        let are_marks =
            words.iter().all(|(text, _)| !text.contains(|c: char| c.is_ascii_digit()) && !of_targets(text));
        if !are_marks || column.n_words() > column.texts.n || column.not_utf8.n > 0 || column.not_finite.n > 0
        {
            return Vec::new();
        }
        words.into_iter().map(|(text, _)| text.to_owned()).collect()
    }

    /// Columns that contain the target in another form.
    fn leaks(&self, all: &mut Vec<Warning>) {
        let Some(&first) = self.origin.targets.first() else { return };
        if self.columns[first].kind == Kind::Empty {
            return;
        }
        let n_rows = self.collected.n_rows;
        let targets = &self.origin.targets;
        let counts = &self.columns[first].values;
        // Rows of all classes except the largest.
        let n_others = counts.first().map_or(n_rows as f64 / 2.0, |most| n_rows as f64 - most.n_rows as f64);
        for index in self.features().filter(|&index| !self.is_constant(index)) {
            let column = &self.collected.columns[index];
            let name = &self.columns[index].name;
            let target = &self.columns[first].name;
            let equal = targets.iter().find(|&&target| self.collected.columns[target].hash == column.hash);
            let n_distinct = self.columns[index].n_distinct.unwrap_or(n_rows);
            // By chance, each of those rows would share its value with the average number of others.
            let n_shared = n_others * (n_rows as f64 / n_distinct as f64 - 1.0);
            let message = if let Some(&target) = equal {
                format!("{name} equals the target {}", self.columns[target].name)
            } else if n_rows >= MIN_ROWS
                && let Some(correlation) = column.correlation().filter(|c| c.abs() > MAX_CORRELATION)
            {
                format!(
                    "{name} is a rescaled copy of the target {target}: their correlation is {correlation:.5}"
                )
            } else if n_rows >= MIN_ROWS
                && self.task == Some(Task::Classification)
                && n_distinct >= 2
                && 2 * n_distinct < n_rows
                && n_shared >= MIN_ROWS as f64
                && column.values.determines_target()
            {
                format!(
                    "{name} alone determines {target}: each of its {n_distinct} values occurs with a single class"
                )
            } else {
                continue;
            };
            self.about(all, WarningKind::Leak, &[index], |_| {
                format!("{message}; will it be available when the model is used?")
            });
        }
    }

    /// Columns without information.
    fn useless(&self, all: &mut Vec<Warning>) {
        let constant: Vec<usize> = self.features().filter(|&index| self.is_constant(index)).collect();
        self.about(all, WarningKind::Constant, &constant, |names| {
            format!("the same value in all rows: {names}; `data.drop` ignores the columns")
        });
        for index in self.features() {
            let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
            if profile.n_distinct == Some(1) && column.n_missing > 0 {
                let n = self.collected.n_rows as u64 - column.n_missing;
                self.about(all, WarningKind::Constant, &[index], |name| {
                    format!(
                        "the same value wherever there is one: {name}, missing in {} of {}; a model learns only whether it is missing",
                        column.n_missing,
                        rows(n + column.n_missing),
                    )
                });
            }
        }
        let identifiers: Vec<usize> = self.features().filter(|&index| self.is_identifier(index)).collect();
        self.about(all, WarningKind::Identifier, &identifiers, |names| {
            format!(
                "a different value in each row, like an identifier: {names}; `data.drop` ignores the columns"
            )
        });
        let nearly: Vec<usize> = self.features().filter(|&index| self.is_nearly_unique(index)).collect();
        if !nearly.is_empty() {
            let counts = nearly.iter().map(|&index| {
                let profile = &self.columns[index];
                let n = self.collected.n_rows as u64 - profile.n_missing;
                let n_distinct = profile.n_distinct.expect("nearly unique values were counted");
                format!("{} ({n_distinct} values in {})", cut(&profile.name, 30), rows(n))
            });
            let names = joined(&counts.collect::<Vec<_>>());
            self.about(all, WarningKind::Identifier, &nearly, |_| {
                format!(
                    "more values than a model can learn from the rows: {names}; `data.drop` ignores the columns"
                )
            });
        }
        let mut groups: HashMap<u64, Vec<usize>> = HashMap::new();
        for index in self
            .features()
            .filter(|&index| !self.is_constant(index) && self.columns[index].kind != Kind::Other)
        {
            groups.entry(self.collected.columns[index].hash).or_default().push(index);
        }
        let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
        groups.sort();
        for group in groups {
            self.about(all, WarningKind::Duplicate, &group, |names| format!("identical columns: {names}"));
        }
    }

    fn rows(&self, all: &mut Vec<Warning>) {
        let (n_rows, n_features) = (self.collected.n_rows, self.features().count());
        if n_features == 0 && !self.origin.targets.is_empty() {
            let has_index = self.columns.iter().any(|column| column.kind == Kind::Index);
            let others = if has_index { " besides an index, which is left out" } else { "" };
            let message = format!("no features: the target is the only column{others}");
            all.push(Warning { kind: WarningKind::NoFeatures, columns: Vec::new(), message });
            return;
        }
        if n_rows == 1 {
            let message = "only one row: a model can only memorize it".to_owned();
            all.push(Warning { kind: WarningKind::OneRow, columns: Vec::new(), message });
            return;
        }
        let message = if n_rows < n_features {
            format!("fewer rows ({n_rows}) than features ({n_features}): a model can memorize them")
        } else if n_rows < 100 {
            format!("only {}: patterns in so few rows may be chance", rows(n_rows as u64))
        } else {
            return;
        };
        all.push(Warning { kind: WarningKind::FewRows, columns: Vec::new(), message });
    }

    fn is_constant(&self, index: usize) -> bool {
        let column = &self.columns[index];
        column.kind == Kind::Empty || column.n_distinct == Some(1) && column.n_missing == 0
    }

    fn is_identifier(&self, index: usize) -> bool {
        let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
        let n_rows = self.collected.n_rows;
        if n_rows < MIN_ROWS || column.n_missing > 0 || !column.values.all_differ() || column.not_finite.n > 0
        {
            return false;
        }
        match profile.kind {
            Kind::Text => return self.formatted(index).is_none(),
            Kind::Date | Kind::Time => return false,
            _ => {}
        }
        let name = profile.name.to_lowercase();
        let is_named = name == "index" || name == "key" || name.ends_with("id");
        let is_dense = profile.range.is_some_and(|range| range.max - range.min < 2.0 * n_rows as f64);
        let is_rising =
            column.is_rising && !profile.range.is_some_and(|range| is_epoch(range.min, range.max));
        !column.has_fractions && (is_rising || is_dense || is_named)
    }

    /// Whether a text column has more distinct values than half of its rows, not all of them distinct.
    fn is_nearly_unique(&self, index: usize) -> bool {
        let profile = &self.columns[index];
        let n = self.collected.n_rows - profile.n_missing as usize;
        n >= MIN_ROWS
            && profile.kind == Kind::Text
            && profile.n_distinct.is_some_and(|n_distinct| 2 * n_distinct > n)
            && !self.is_identifier(index)
            && self.formatted(index).is_none()
    }
}

/// Whether integers are times since 1970, in seconds, milliseconds, microseconds or nanoseconds.
fn is_epoch(min: f64, max: f64) -> bool {
    [1.0, 1e3, 1e6, 1e9].iter().any(|unit| min >= EPOCH_S[0] * unit && max <= EPOCH_S[1] * unit)
}
