//! The inspected columns together with the task, and the wording that warnings share.

use ddp::config::Task;
use ddp::data::errors::formatted::{TextType, stored_as_text};

use super::collector::{Collector, Odd, Place};
use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warning::{Warning, WarningKind};
use super::words::{cut, listed};

/// Fewest rows for findings that could arise by chance.
pub(super) const MIN_ROWS: usize = 30;

/// Inspected columns, and the task of a model for their targets.
pub(super) struct Inspected<'a> {
    pub(super) origin: &'a Origin,
    pub(super) collected: &'a Collector,
    pub(super) columns: &'a [ColumnProfile],
    pub(super) task: Option<Task>,
}

impl Inspected<'_> {
    pub(super) fn features(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.columns.len())
            .filter(|&index| !self.columns[index].is_target && self.columns[index].kind != Kind::Index)
    }

    pub(super) fn names(&self, indices: &[usize]) -> Vec<String> {
        indices.iter().map(|&index| self.columns[index].name.clone()).collect()
    }

    /// Adds a warning about columns, if there are any.
    pub(super) fn about(
        &self,
        all: &mut Vec<Warning>,
        kind: WarningKind,
        indices: &[usize],
        message: impl FnOnce(&str) -> String,
    ) {
        if !indices.is_empty() {
            let columns = self.names(indices);
            let message = message(&listed(&columns));
            all.push(Warning { kind, columns, message });
        }
    }

    pub(super) fn first(&self, place: Option<Place>) -> String {
        place.map_or(String::new(), |place| format!(", first in {}", self.origin.place(place)))
    }

    /// Place and text of the first odd value.
    pub(super) fn odd(&self, odd: &Odd) -> String {
        odd.first.as_ref().map_or(String::new(), |(place, text)| {
            format!("\"{}\" in {}", cut(text, 40), self.origin.place(*place))
        })
    }

    /// The words and the remedy for a column whose texts are formatted numbers or dates; a few of them may be typing errors.
    pub(super) fn formatted(&self, index: usize) -> Option<(String, String)> {
        const MIN_SHARE: u64 = 20;
        let (column, profile) = (&self.collected.columns[index], &self.columns[index]);
        let n = self.collected.n_rows as u64 - column.n_missing;
        if profile.kind == Kind::Text && column.texts.n == 0 {
            let type_of_values = match () {
                () if n == 0 || column.n_truths > 0 => return None,
                () if column.n_times == 0 => TextType::Numbers,
                () if column.n_times == n && !column.has_times_of_day => TextType::Dates,
                () => return None,
            };
            return Some(stored_as_text(&profile.name, type_of_values));
        }
        let are_many = column.texts.n * MIN_SHARE >= n;
        column.formatted.of_column(&profile.name, column.texts.n).filter(|_| are_many)
    }

    /// An example of a column's texts, as part of a sentence.
    pub(super) fn like(&self, index: usize) -> String {
        match self.odd(&self.collected.columns[index].texts) {
            odd if odd.is_empty() => String::new(),
            odd => format!(", like {odd}"),
        }
    }
}
