//! The inspected columns together with the task, and the questions and wording that warnings share.

use ddp::config::Task;
use ddp_rows::table::types::Found;

use super::collector::Collector;
use super::column_profile::ColumnProfile;
use super::kind::Kind;
use super::origin::Origin;
use super::warning::{Warning, WarningKind, cut, listed};

/// Fewest rows for findings that could arise by chance.
pub(super) const MIN_ROWS: usize = 30;

/// Inspected columns, and the task of a model for their targets.
pub(super) struct Inspected<'a> {
    pub(super) origin: &'a Origin,
    pub(super) collected: &'a Collector,
    pub(super) columns: &'a [ColumnProfile],
    pub(super) task: Option<Task>,
    pub(super) warnings: Vec<Warning>,
}

impl Inspected<'_> {
    pub(super) fn features(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|&index| self.columns[index].is_feature()).collect()
    }

    /// Features that satisfy `is_one`.
    pub(super) fn features_where(&self, is_one: impl Fn(usize) -> bool) -> Vec<usize> {
        self.features().into_iter().filter(|&index| is_one(index)).collect()
    }

    /// Adds a warning about columns, if there are any.
    pub(super) fn about(
        &mut self,
        kind: WarningKind,
        indices: &[usize],
        message: impl FnOnce(&str) -> String,
    ) {
        if !indices.is_empty() {
            let columns: Vec<String> =
                indices.iter().map(|&index| self.columns[index].name.clone()).collect();
            let message = message(&listed(&columns));
            self.warnings.push(Warning { kind, columns, message });
        }
    }

    pub(super) fn first(&self, found: &Found) -> String {
        let first = found.first.as_ref();
        first.map_or(String::new(), |(place, _)| format!(", first in {}", self.origin.place(*place)))
    }

    /// Place and text of the first odd value.
    pub(super) fn odd(&self, odd: &Found) -> String {
        odd.first.as_ref().map_or(String::new(), |(place, text)| {
            format!("\"{}\" in {}", cut(text, 40), self.origin.place(*place))
        })
    }

    pub(super) fn n_values(&self, index: usize) -> u64 {
        self.collected.n_rows as u64 - self.collected.columns[index].types.missing.n
    }

    /// Whether a model would read a column as text although most of its values are numbers or dates for people.
    pub(super) fn is_formatted(&self, index: usize) -> bool {
        let column = &self.collected.columns[index];
        // Without other texts, the file stores numbers or dates as text.
        let is_stored_so =
            column.types.texts.n == 0 && column.types.n_truths == 0 && self.n_values(index) > 0;
        self.columns[index].kind == Kind::Text
            && (is_stored_so || column.n_formatted > 0 && 2 * column.n_formatted >= column.types.texts.n)
    }

    /// Whether a column is one of words rather than of numbers with a few odd texts.
    pub(super) fn is_of_words(&self, index: usize) -> bool {
        let column = &self.collected.columns[index];
        !self.columns[index].has_strays
            && (2 * column.n_words() > self.n_values(index)
                || self.columns[index].kind == Kind::Text && column.types.texts.n == 0)
    }
}
