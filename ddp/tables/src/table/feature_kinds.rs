//! Kinds of the values that the features of a table have shown, compared with those of the training rows.

use std::collections::BTreeMap;
use std::path::Path;

use ddp::data::column_kind::{ColumnKind, SeenKinds};
use ddp::data::error::{DataError, Result};
use tracing::info;

use crate::error::TableError;
use crate::source::SourceSpec;
use crate::table::columns::ColumnPlan;
use crate::values::time::{Moment, PARTS};

/// Kinds of the values of all features.
#[derive(Debug)]
pub(crate) struct FeatureKinds {
    /// Kinds of the training rows, or of the files before this one.
    known: Vec<Option<ColumnKind>>,
    /// Owner of the known kinds, for messages.
    of: String,
    /// Kinds of the file that is read, and of all files.
    seen: Vec<SeenKinds>,
    all: Vec<SeenKinds>,
    /// Dates and times in the rows of text since the last comparison.
    n_moments: Vec<usize>,
    /// Dates beyond the calendar, which are missing values.
    n_infinite: Vec<u64>,
    /// Features whose time zones were named.
    are_named: Vec<bool>,
    /// Zones of the dates that become parts, by the first of these: of the file that is read, and of those before it.
    zones: BTreeMap<usize, [SeenKinds; 2]>,
}

impl FeatureKinds {
    pub(super) fn new(n_features: usize, spec: &SourceSpec<'_>) -> Self {
        let known = spec.features.map_or(&[][..], |known| known.kinds);
        let mut known = known.to_vec();
        known.resize(n_features, None);
        FeatureKinds {
            known,
            of: spec.features.map_or(String::new(), |known| known.of.to_owned()),
            seen: vec![SeenKinds::default(); n_features],
            all: vec![SeenKinds::default(); n_features],
            n_moments: vec![0; n_features],
            n_infinite: vec![0; n_features],
            are_named: vec![false; n_features],
            zones: BTreeMap::new(),
        }
    }

    /// Adds kinds of the values of a feature.
    pub(crate) fn add(&mut self, feature: usize, kinds: SeenKinds) {
        self.seen[feature].add(kinds);
    }

    /// Adds the kind of a date or time.
    pub(crate) fn add_moment(&mut self, feature: usize, moment: &Moment) {
        self.n_moments[feature] += 1;
        self.add(feature, if moment.has_date { SeenKinds::DATE } else { SeenKinds::TIME });
        if moment.has_date && moment.has_time {
            self.add(feature, if moment.has_offset { SeenKinds::ZONED } else { SeenKinds::NAIVE });
        }
    }

    /// Adds a date that becomes parts from `feature` on, which are numbers.
    pub(crate) fn add_parts(&mut self, feature: usize, moment: &Moment) {
        if moment.has_date && moment.has_time {
            let zone = if moment.has_offset { SeenKinds::ZONED } else { SeenKinds::NAIVE };
            self.zones.entry(feature).or_default()[0].add(zone);
        }
    }

    /// Adds a date beyond the calendar.
    pub(crate) fn add_infinite(&mut self, feature: usize, n: u64) {
        self.n_infinite[feature] += n;
    }

    /// Whether a feature holds dates, as far as is known.
    pub(crate) fn are_dates(&self, feature: usize) -> bool {
        self.seen[feature].has(SeenKinds::DATE)
            || matches!(self.known[feature], Some(ColumnKind::Date | ColumnKind::ZonedDate))
    }

    /// The kind of each feature.
    pub(crate) fn found(&self) -> Vec<Option<ColumnKind>> {
        self.all.iter().map(|all| all.kind()).collect()
    }

    /// Takes the kinds so far for those of the files that follow.
    pub(super) fn expect(&mut self, of: String) {
        for (known, all) in self.known.iter_mut().zip(&self.all) {
            *known = known.or(all.kind());
        }
        if self.of.is_empty() {
            self.of = of;
        }
        self.seen.fill(SeenKinds::default());
        for [file, before] in self.zones.values_mut() {
            before.add(std::mem::take(file));
        }
    }

    /// Checks that the text of a file has no numbers in a column of dates or times: `20240102` among dates would be seconds.
    ///
    /// - `n_values`: values of a feature in the last rows
    ///
    /// # Errors
    /// [`TableError::OtherKind`].
    pub(super) fn check_mixed(
        &mut self,
        names: &[String],
        path: &Path,
        n_values: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let are_moments = |seen: &SeenKinds| seen.has(SeenKinds::DATE) || seen.has(SeenKinds::TIME);
        for (feature, seen) in self.seen.iter_mut().enumerate().filter(|(_, seen)| are_moments(seen)) {
            if std::mem::take(&mut self.n_moments[feature]) < n_values(feature) {
                seen.add(SeenKinds::NUMBER);
            }
            if seen.has(SeenKinds::NUMBER) {
                let expected = if seen.has(SeenKinds::DATE) { ColumnKind::Date } else { ColumnKind::Time };
                let found = ColumnKind::Number;
                let (path, column, of) = (path.to_owned(), names[feature].clone(), "another row".to_owned());
                return Err(DataError::from(TableError::OtherKind { path, column, found, expected, of }));
            }
        }
        Ok(())
    }

    /// Compares the kinds in the file `path` with those that are known; `has_value` says whether a feature has a value in its last rows.
    pub(super) fn check(
        &mut self,
        names: &[String],
        path: &Path,
        has_value: impl Fn(usize) -> bool,
    ) -> Result<()> {
        for (&feature, [file, before]) in &self.zones {
            let differ = |here, there| file.has(here) && before.has(there) && !before.has(here);
            let has = match () {
                () if differ(SeenKinds::ZONED, SeenKinds::NAIVE) => ["a", "none"],
                () if differ(SeenKinds::NAIVE, SeenKinds::ZONED) => ["no", "one"],
                () => continue,
            };
            if !std::mem::replace(&mut self.are_named[feature], true) {
                note_zones(path, date_name(&names[feature]), has, &self.of);
            }
        }
        for (feature, name) in names.iter().enumerate() {
            let seen = &mut self.seen[feature];
            // Numbers are not marked one by one.
            if seen.is_empty() && has_value(feature) {
                seen.add(SeenKinds::NUMBER);
            }
            self.all[feature].add(*seen);
            let Some(expected) = self.known[feature] else { continue };
            if let Some(found) = seen.other_than(expected) {
                return Err(DataError::from(TableError::OtherKind {
                    path: path.to_owned(),
                    column: name.clone(),
                    found,
                    expected,
                    of: self.of.clone(),
                }));
            }
            let has = match expected {
                ColumnKind::Date if seen.has(SeenKinds::ZONED) => ["a", "none"],
                ColumnKind::ZonedDate if seen.has(SeenKinds::NAIVE) => ["no", "one"],
                _ => continue,
            };
            if !std::mem::replace(&mut self.are_named[feature], true) {
                note_zones(path, name, has, &self.of);
            }
        }
        Ok(())
    }

    /// Reports dates beyond the calendar.
    pub(crate) fn note(&mut self, plan: &ColumnPlan, source: &str) {
        for (feature, n) in self.n_infinite.iter_mut().enumerate().filter(|(_, n)| **n > 0) {
            let name = &plan.features[feature];
            let name = if plan.dates().contains(&feature) { date_name(name) } else { name };
            let (values, are) =
                if *n == 1 { ("date", "is a missing value") } else { ("dates", "are missing values") };
            info!("{source}: {n} infinite {values} of \"{name}\" {are}");
            *n = 0;
        }
    }
}

/// Returns the name of a date from the name of its first part.
fn date_name(of: &str) -> &str {
    of.strip_suffix(PARTS[0]).unwrap_or(of)
}

fn note_zones(path: &Path, name: &str, [here, there]: [&str; 2], of: &str) {
    info!(
        "{}: times of \"{name}\" have {here} time zone, and {there} in {of}: without one, a time is in UTC",
        path.display()
    );
}
