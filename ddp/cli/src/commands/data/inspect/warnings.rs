//! Warns of data and targets that would break training or make its result misleading.

use std::collections::HashMap;

use ddp::config::Task;
use ddp::data::labels::{MAX_CLASSES, similar};
use ddp_tables::fit::column_advice::{ONE_HOT, far_value, has_one_label};
use ddp_tables::formats::error::PLAIN_NOTATION;
use ddp_tables::labels::task::MAX_AUTO_CLASSES;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind, Origin};
use super::warning::{Inspected, MIN_ROWS, Warning, WarningKind, cut, listed};
use crate::report::stdout::count;

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
    let mut inspected = Inspected { origin, collected, columns, task, warnings: Vec::new() };
    target_warnings(&mut inspected);
    inspected.texts();
    inspected.numbers();
    inspected.leaks();
    inspected.useless();
    inspected.rows();
    inspected.warnings.sort_by_key(|warning| warning.kind);
    inspected.warnings
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
    /// Features with texts.
    fn texts(&mut self) {
        let mut texts = Vec::new();
        for index in self.features() {
            let column = &self.collected.columns[index];
            if self.is_of_words(index) {
                if self.is_formatted(index) {
                    let like = Some(self.odd(&column.types.texts)).filter(|odd| !odd.is_empty());
                    let like = like.map_or(String::new(), |odd| format!(", like {odd}"));
                    self.about(WarningKind::Formatted, &[index], |name| {
                        format!("{name} seems to hold numbers or dates as text{like}: {PLAIN_NOTATION}")
                    });
                } else if !self.is_identifier(index) && self.columns[index].n_distinct != Some(1) {
                    texts.push(index);
                }
            } else if column.types.texts.n > 0 || self.columns[index].has_strays {
                let words = column.words.by_count();
                let words: String = words.iter().map(|(text, n)| format!(", \"{text}\" ({n})")).collect();
                let (kind, remedy) = if self.columns[index].has_strays || self.marks_missing(index) {
                    let remedy = "correct them, or, if they mark missing values, `data.missing_values` lists them and `data.missing` fills them";
                    (WarningKind::Marked, remedy)
                } else {
                    (WarningKind::OddText, "correct them")
                };
                let first = if column.types.texts.n > 0 { &column.types.texts } else { &column.not_finite };
                let n_odd =
                    if self.columns[index].has_strays { column.n_odd() } else { column.types.texts.n };
                let (n, odd) = (self.n_values(index), self.odd(first));
                self.about(kind, &[index], |name| {
                    format!(
                        "{name}: {n_odd} of {n} values are not numbers{words}, the first is {odd}: {remedy}"
                    )
                });
            }
            if column.not_utf8.n > 0 {
                let (n, first) = (column.not_utf8.n, self.odd(&column.not_utf8));
                self.about(WarningKind::Encoding, &[index], |name| {
                    format!(
                        "{name}: not UTF-8 in {}, the first is {first}: save the file as UTF-8",
                        count(n, "row")
                    )
                });
            }
        }
        self.about(WarningKind::Text, &texts, |names| {
            format!("text in {names}: `data.categorical` treats it as categories, `data.drop` ignores it")
        });
        let unusable = self.features_where(|index| self.columns[index].kind == Kind::Other);
        self.about(WarningKind::Unusable, &unusable, |names| {
            format!("neither numbers nor text: {names}; split them into columns, or `data.drop` ignores them")
        });
    }

    /// Whether the texts of a column of numbers may all mark missing values: few words without digits, which no target holds.
    fn marks_missing(&self, index: usize) -> bool {
        let column = &self.collected.columns[index];
        let is_of_target = |text: &str| {
            self.origin.targets.iter().any(|&target| {
                let words = self.collected.columns[target].words.by_count();
                self.collected.columns[target].types.texts.n > 0
                    && (words.is_empty() || words.iter().any(|word| word.0 == text))
            })
        };
        let words = column.words.by_count();
        // Texts of a format with types are not numbers.
        self.origin.types.is_empty()
            && !words.is_empty()
            && words
                .iter()
                .all(|(text, _)| !text.contains(|c: char| c.is_ascii_digit()) && !is_of_target(text))
            && column.n_words() <= column.types.texts.n
            && column.not_utf8.n == 0
            && column.not_finite.n == 0
    }

    /// Columns with numbers that are ambiguous, beyond f32, missing or marks.
    fn numbers(&mut self) {
        for index in 0..self.columns.len() {
            let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
            if let Some((_, text)) = &column.types.unclear.first {
                let odd = self.odd(&column.types.unclear);
                let (large, small) = (text.replace([',', '.'], ""), text.replacen(',', ".", 1));
                self.about(WarningKind::Marks, &[index], |name| {
                    format!("{name}: {odd} may be {large} or {small}; `data.decimal` = \".\" or \",\" is the mark before the fraction")
                });
            }
            if column.not_finite.n > 0 && !profile.has_strays {
                let (n, odd) = (column.not_finite.n, self.odd(&column.not_finite));
                self.about(WarningKind::NotFinite, &[index], |name| {
                    format!("{name}: not finite in f32 in {}, the first is {odd}", count(n, "row"))
                });
            }
            if profile.is_feature() && column.types.n_padded > 0 && profile.kind == Kind::Integer {
                let odd = self.odd(&column.types.codes);
                self.about(WarningKind::Codes, &[index], |name| {
                    format!(
                        "{name} holds numbers with leading zeros, the first is {odd}: if they are codes, `data.categorical` keeps the zeros"
                    )
                });
            }
            if column.types.n_offsets > 0 && column.types.n_naive() > 0 {
                let n = count(column.types.n_naive(), "time");
                self.about(WarningKind::Zones, &[index], |name| {
                    format!("{name}: {n} without a time zone among times that have one; without one, a time is in UTC")
                });
            }
            if column.types.n_infinite > 0 {
                let n = count(column.types.n_infinite, "value");
                self.about(WarningKind::InfiniteDates, &[index], |name| {
                    format!("{name}: {n} beyond the calendar (infinity) count as missing values")
                });
            }
            let is_number = matches!(profile.kind, Kind::Integer | Kind::Number | Kind::Element(_));
            if !is_number || (profile.is_target && self.task != Some(Task::Regression)) {
                continue;
            }
            if let Some((value, n)) = column.nines.outside() {
                let remedy = if self.origin.is_table {
                    "list it in `data.missing_values`"
                } else {
                    "write NaN in its place"
                };
                self.about(WarningKind::Sentinel, &[index], |name| {
                    format!(
                        "{name}: {value} in {} is far outside the other values: if it marks a missing value, {remedy}",
                        count(n, "row")
                    )
                });
            } else if let Some(range) = profile.range
                && self.collected.n_rows >= MIN_ROWS
                && let Some(far) = far_value([range.min, range.max], column.sample.values.clone())
            {
                let remedy = if profile.is_target {
                    "the few rows outside decide the loss; correct them or leave them out, or set `loss.kind` = \"huber\""
                } else {
                    "normalization squeezes those together; correct the others, or set `data.normalize` = \"robust\""
                };
                self.about(WarningKind::FarValue, &[index], |name| format!("{name} {far}: {remedy}"));
            }
        }
        // A missing text is an unknown category.
        let missing = self.features_where(|index| {
            let kind = self.columns[index].kind;
            self.columns[index].n_missing > 0
                && !self.is_of_words(index)
                && !matches!(kind, Kind::Empty | Kind::Other)
        });
        let found = missing.iter().map(|&index| &self.collected.columns[index].types.missing);
        let first = found.min_by_key(|found| found.first.as_ref().map(|(place, _)| *place));
        let first = first.map_or(String::new(), |found| self.first(found));
        self.about(WarningKind::Missing, &missing, |names| {
            format!("missing values in {names}{first}: `data.missing` = \"mean\" or \"zero\" fills them")
        });
    }

    /// Columns that contain the target in another form.
    fn leaks(&mut self) {
        let Some(&first) = self.origin.targets.first() else { return };
        if self.columns[first].kind == Kind::Empty {
            return;
        }
        let n_rows = self.collected.n_rows;
        let target = self.columns[first].name.clone();
        // Rows of all classes except the largest.
        let most = self.columns[first].values.first();
        let n_others = most.map_or(n_rows as f64 / 2.0, |most| n_rows as f64 - most.n_rows as f64);
        for index in self.features_where(|index| !self.is_constant(index)) {
            let column = &self.collected.columns[index];
            let is_equal = |target: &&usize| self.collected.columns[**target].hash == column.hash;
            let n_distinct = self.columns[index].n_distinct.unwrap_or(n_rows);
            // By chance, each of those rows would share its value with the average number of others.
            let n_shared = n_others * (n_rows as f64 / n_distinct as f64 - 1.0);
            let mut kind = WarningKind::Leak;
            let finding = if let Some(&equal) = self.origin.targets.iter().find(is_equal) {
                format!("equals the target {}", self.columns[equal].name)
            } else if n_rows >= MIN_ROWS
                && let Some(correlation) = column.correlation().filter(|c| c.abs() > MAX_CORRELATION)
            {
                format!("is a rescaled copy of the target {target}: their correlation is {correlation:.5}")
            } else if n_rows >= MIN_ROWS
                && self.task == Some(Task::Classification)
                && n_distinct >= 2
                && 2 * n_distinct < n_rows
                && n_shared >= MIN_ROWS as f64
                && column.values.determines_target()
            {
                // The best column there is, or one that is known only after the target: the user knows.
                kind = WarningKind::Determines;
                format!(
                    "alone determines {target}: each of its {n_distinct} values occurs with a single class"
                )
            } else {
                continue;
            };
            self.about(kind, &[index], |name| {
                format!("{name} {finding}; will it be available when the model is used?")
            });
        }
    }

    /// Columns without information.
    fn useless(&mut self) {
        let constant = self.features_where(|index| self.is_constant(index));
        self.about(WarningKind::Constant, &constant, |names| {
            format!("the same value in all rows: {names}; `data.drop` ignores the columns")
        });
        let identifiers = self.features_where(|index| self.is_identifier(index));
        self.about(WarningKind::Identifier, &identifiers, |names| {
            format!(
                "about as many values as rows, like an identifier: {names}; `data.drop` ignores the columns"
            )
        });
        let mut groups: HashMap<u64, Vec<usize>> = HashMap::new();
        for index in
            self.features_where(|index| !self.is_constant(index) && self.columns[index].kind != Kind::Other)
        {
            groups.entry(self.collected.columns[index].hash).or_default().push(index);
        }
        let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
        groups.sort();
        for group in groups {
            self.about(WarningKind::Duplicate, &group, |names| format!("identical columns: {names}"));
        }
    }

    fn rows(&mut self) {
        let (n_rows, n_features) = (self.collected.n_rows, self.features().len());
        let (kind, message) = if n_features == 0 && !self.origin.targets.is_empty() {
            let has_index = self.columns.iter().any(|column| column.kind == Kind::Index);
            let others = if has_index { " besides an index, which is left out" } else { "" };
            (WarningKind::NoFeatures, format!("no features: the target is the only column{others}"))
        } else if n_rows < n_features.max(100) {
            let (n, of) = (count(n_rows, "row"), count(n_features, "feature"));
            (WarningKind::FewRows, format!("only {n} for {of}: what a model finds in them may be chance"))
        } else {
            return;
        };
        self.warnings.push(Warning { kind, columns: Vec::new(), message });
    }

    fn is_constant(&self, index: usize) -> bool {
        let column = &self.columns[index];
        let varies_by_rounding = column.kind == Kind::Number
            && self.collected.columns[index].stats.is_constant_but_for_rounding(0);
        column.kind == Kind::Empty
            || (column.n_distinct == Some(1) || varies_by_rounding) && column.n_missing == 0
    }

    /// Whether a column holds texts of which most occur once, or integers that number the rows.
    fn is_identifier(&self, index: usize) -> bool {
        let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
        let (n_rows, n) = (self.collected.n_rows, self.n_values(index) as usize);
        let are_distinct =
            column.types.missing.n == 0 && column.values.all_differ() && column.not_finite.n == 0;
        match profile.kind {
            // Named as numbers or dates.
            Kind::Text if self.is_formatted(index) => false,
            Kind::Text => {
                n >= MIN_ROWS && (are_distinct || profile.n_distinct.is_some_and(|distinct| 2 * distinct > n))
            }
            Kind::Date | Kind::Time => false,
            _ => {
                let name = profile.name.to_lowercase();
                let is_named = name == "index" || name == "key" || name.ends_with("id");
                let range = profile.range;
                let is_dense = range.is_some_and(|range| range.max - range.min < 2.0 * n_rows as f64);
                let is_rising =
                    column.is_rising && !range.is_some_and(|range| is_epoch(range.min, range.max));
                n_rows >= MIN_ROWS
                    && are_distinct
                    && !column.has_fractions()
                    && (is_rising || is_dense || is_named)
            }
        }
    }
}

/// Whether integers are times since 1970, in seconds, milliseconds, microseconds or nanoseconds.
fn is_epoch(min: f64, max: f64) -> bool {
    [1.0, 1e3, 1e6, 1e9].iter().any(|unit| min >= EPOCH_S[0] * unit && max <= EPOCH_S[1] * unit)
}

/// Most rows of the largest class per row of the smallest.
const MAX_IMBALANCE: u64 = 100;

/// Adds the warnings about the targets.
pub(super) fn target_warnings(inspected: &mut Inspected<'_>) {
    for &target in &inspected.origin.targets {
        warn_of_values(inspected, target);
    }
    warn_of_labels(inspected);
    let &[target] = &inspected.origin.targets[..] else { return };
    let is_classification = inspected.task == Some(Task::Classification);
    if let [only] = &inspected.columns[target].values[..] {
        let needs = if is_classification { "; training needs two classes or more" } else { "" };
        inspected.about(WarningKind::OneClass, &[target], |name| {
            format!("{name} is {} in all rows: there is nothing to learn{needs}", cut(&only.value, 40))
        });
    } else if is_classification {
        warn_of_classes(inspected, target);
    }
}

/// Warns of values that are missing or are texts among numbers.
fn warn_of_values(inspected: &mut Inspected<'_>, target: usize) {
    let (column, profile) = (&inspected.collected.columns[target], &inspected.columns[target]);
    if profile.kind == Kind::Empty {
        inspected.about(WarningKind::TargetEmpty, &[target], |name| {
            format!("{name} has no value in any row: --target names another column")
        });
        return;
    }
    let (n_texts, n, odd) =
        (column.types.texts.n, inspected.n_values(target), inspected.odd(&column.types.texts));
    let is_wide = profile.n_distinct.is_none_or(|n| n > MAX_AUTO_CLASSES);
    let are_mostly_numbers = n_texts > 0 && 2 * n_texts < n && (column.has_fractions() || is_wide);
    let is_one_of_several = inspected.origin.targets.len() > 1;
    let problem = if is_wide && inspected.is_formatted(target) {
        let like = if odd.is_empty() { odd } else { format!(", like {odd}") };
        Some(format!(
            "seems to hold numbers or dates as text{like}, so that each value is a class of its own: {PLAIN_NOTATION}"
        ))
    } else if profile.kind == Kind::Text && is_one_of_several {
        Some(format!("contains text, for example {odd}: one of several targets must be a number"))
    } else if are_mostly_numbers {
        Some(format!(
            "is text in {n_texts} of {n} rows, the first is {odd}, so that all values are class labels: correct or remove them"
        ))
    } else {
        None
    };
    if let Some(problem) = problem {
        inspected.about(WarningKind::TargetText, &[target], |name| format!("{name} {problem}"));
    }
    if column.types.missing.n > 0 {
        let first = inspected.first(&column.types.missing);
        let na = if column.has_na_code() {
            "; \"NA\" seems to be a code like the others: `data.missing_values` = [\"\"] says that only empty cells are missing"
        } else {
            ""
        };
        inspected.about(WarningKind::TargetMissing, &[target], |name| {
            format!(
                "{name} is missing in {}{first}: remove those rows, or leave them out of a table with \
                 `data.missing_target` = \"skip\"{na}",
                count(column.types.missing.n, "row")
            )
        });
    }
}

/// Warns of several labels of which each row has one.
fn warn_of_labels(inspected: &mut Inspected<'_>) {
    let targets = &inspected.origin.targets;
    let samples: Vec<&[f64]> =
        targets.iter().map(|&target| &inspected.collected.columns[target].sample.values[..]).collect();
    if inspected.task == Some(Task::Multilabel)
        && (0..samples[0].len()).all(|row| has_one_label(samples.iter().map(|sample| sample[row])))
    {
        inspected.about(WarningKind::OneHot, targets, |_| ONE_HOT.to_owned());
    }
}

/// Warns of classes that can't be learned.
fn warn_of_classes(inspected: &mut Inspected<'_>, target: usize) {
    let profile = &inspected.columns[target];
    let counts = &profile.values;
    let alike = similar(counts.iter().map(|count| &*count.value));
    if profile.kind == Kind::Text && !alike.is_empty() {
        let groups: Vec<String> = alike.iter().take(4).map(|group| group.join(" / ")).collect();
        inspected.about(WarningKind::Spelling, &[target], |name| {
            let groups = groups.join(", ");
            format!("labels of {name} differ only in case, spaces or invisible characters: {groups}")
        });
    }
    let n_rows = inspected.n_values(target) as usize;
    let limit = MAX_CLASSES.min(if n_rows < MIN_ROWS { usize::MAX } else { n_rows / 2 });
    if profile.n_distinct.is_none_or(|n| n > limit) {
        let n = profile.n_distinct.map_or("too many".to_owned(), |n| n.to_string());
        inspected.about(WarningKind::ManyClasses, &[target], |name| {
            format!("{name} has {n} distinct labels in {n_rows} rows: is it an identifier, or a quantity with text?")
        });
    }
    if let (Some(most), Some(least)) = (counts.first(), counts.last())
        && most.n_rows > MAX_IMBALANCE * least.n_rows
    {
        inspected.about(WarningKind::Imbalance, &[target], |_| {
            format!(
                "class {} has {} for each row of class {}: accuracy will be misleading; see `loss.class_weights` = \"balanced\"",
                most.value,
                count(most.n_rows / least.n_rows, "row"),
                least.value,
            )
        });
    }
}
