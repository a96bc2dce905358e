//! The result of a check, and the lines by which the process of the check tells it.

use ddp::train::self_check::Comparison;
use serde::{Deserialize, Serialize};

/// A model that was trained on both devices, or another group of comparisons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Check {
    pub(super) check: String,
    pub(super) agrees: bool,
    pub(super) seconds: f64,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) results: Vec<Comparison>,
}

impl Check {
    pub(super) fn new(check: String, seconds: f64, results: Result<Vec<Comparison>, String>) -> Self {
        let (results, error) = match results {
            Ok(results) => (results, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let agrees = error.is_none() && results.iter().all(Comparison::agrees);
        Check { check, agrees, seconds, error, results }
    }

    /// The result that comes closest to its tolerance.
    pub(super) fn closest(&self) -> Option<&Comparison> {
        closest([self])
    }

    /// The error of the check, or its first result that differs, in the order in which a step computes; None if it agrees.
    pub(super) fn difference(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(error.clone());
        }
        let first = self.results.iter().find(|result| !result.agrees())?;
        let Comparison { result, relative_difference, tolerance } = first;
        let n_more = self.results.iter().filter(|result| !result.agrees()).count() - 1;
        let more = if n_more > 0 {
            format!(", and {n_more} more of {} results", self.results.len())
        } else {
            String::new()
        };
        let by = if *relative_difference < f64::MAX {
            format!("differs by {relative_difference:.1e} (tolerance {tolerance:.0e})")
        } else {
            "is not a number, or infinitely far off".to_owned()
        };
        Some(format!("{result} {by}{more}"))
    }
}

/// The result of all `checks` that comes closest to its tolerance.
pub(super) fn closest<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Option<&'a Comparison> {
    let all = checks.into_iter().flat_map(|check| &check.results);
    all.max_by(|a, b| a.part_of_tolerance().total_cmp(&b.part_of_tolerance()))
}

/// A line on the stdout of the process of a check.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The check of this name begins.
    Begins(String),
    Done(Check),
    /// Nothing can be said about the GPU: it is in use, lacks memory, or a library is missing.
    Impossible(String),
    /// Nothing follows.
    Complete,
}
