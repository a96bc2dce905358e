//! Decides whether targets are classes or quantities.

use ddp::config::Task;
use ddp::data::labels::TaskChoice;

/// Most distinct integers that are classes unless the config says so.
pub const MAX_AUTO_CLASSES: usize = 20;

/// Summary of the values of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetFacts {
    /// Number of distinct values; `None` if there are too many to count.
    pub n_distinct: Option<usize>,
    /// Whether some value is a text.
    pub has_text: bool,
    /// Whether all values are truth values.
    pub is_boolean: bool,
    /// Whether some number has a fraction.
    pub has_fractions: bool,
    /// Whether all values are 0 or 1.
    pub is_binary: bool,
    /// Least and largest value, if all are integers.
    pub range: Option<[i64; 2]>,
}

/// A target that may be classes or quantities: more than 20 integers without a gap, from 0 or 1 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// The values in words.
    pub(crate) values: String,
}

/// Decides on the task by the values of the targets `names`.
///
/// One target: texts, truth values and integers with at most 20 distinct values are classes; numbers with fractions, and more
/// integers than that with gaps between them, as counts and amounts have, are quantities. Several targets: multilabel if all values
/// are 0 or 1, else quantities.
///
/// # Errors
/// `Undecided` for more than 20 distinct integers from 0 or 1 on without a gap, as numbered classes have.
pub fn decide(names: &[String], facts: &[TargetFacts]) -> Result<TaskChoice, Undecided> {
    let choice = |task, reason: String| Ok(TaskChoice { task, reason });
    let ([name], [facts]) = (names, facts) else {
        return Ok(decide_several(names, facts.iter().all(|facts| facts.is_binary)));
    };
    match facts.n_distinct {
        _ if facts.is_boolean => {
            choice(Task::Classification, format!("because \"{name}\" holds truth values"))
        }
        _ if facts.has_text => choice(Task::Classification, format!("because \"{name}\" holds text")),
        _ if facts.has_fractions => {
            choice(Task::Regression, format!("because \"{name}\" holds numbers with fractions"))
        }
        Some(n) if n <= MAX_AUTO_CLASSES => {
            let integers = if n == 1 { "distinct integer" } else { "distinct integers" };
            choice(Task::Classification, format!("because \"{name}\" holds {n} {integers}"))
        }
        Some(n) => match facts.range {
            Some([min, max]) if !(matches!(min, 0 | 1) && max.abs_diff(min) + 1 == n as u64) => {
                let has_gaps = max.abs_diff(min) + 1 > n as u64;
                let why = if has_gaps { "with gaps between them" } else { "which begin at neither 0 nor 1" };
                choice(
                    Task::Regression,
                    format!("because \"{name}\" holds {n} distinct integers from {min} to {max} {why}"),
                )
            }
            _ => Err(Undecided { values: format!("{n} distinct integers") }),
        },
        None => choice(
            Task::Regression,
            format!("because \"{name}\" holds too many distinct integers to be classes"),
        ),
    }
}

/// Decides on the task of several targets.
pub fn decide_several(names: &[String], are_binary: bool) -> TaskChoice {
    let n = names.len();
    if are_binary {
        TaskChoice { task: Task::Multilabel, reason: format!("because all {n} targets hold 0 or 1") }
    } else {
        TaskChoice { task: Task::Regression, reason: format!("because {n} targets hold numbers") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_decide() {
        let integers = |n: usize| TargetFacts {
            n_distinct: Some(n),
            has_text: false,
            is_boolean: false,
            has_fractions: false,
            is_binary: n <= 2,
            range: Some([0, n as i64 - 1]),
        };
        let names = ["price".to_owned(), "rent".to_owned()];
        let of = |facts: TargetFacts| decide(&names[..1], &[facts]);
        let task = |facts| of(facts).map(|choice| choice.task);
        assert_eq!(task(integers(20)), Ok(Task::Classification));
        assert_eq!(of(integers(21)).unwrap_err().values, "21 distinct integers");
        assert!(task(TargetFacts { range: Some([1, 21]), ..integers(21) }).is_err());
        assert_eq!(task(TargetFacts { n_distinct: None, ..integers(0) }), Ok(Task::Regression));
        for range in [[0, 21], [2, 22], [-10, 10], [17, 90]] {
            assert_eq!(task(TargetFacts { range: Some(range), ..integers(21) }), Ok(Task::Regression));
        }
        let fractions = TargetFacts { has_fractions: true, ..integers(5) };
        assert_eq!(task(fractions), Ok(Task::Regression));
        let text = TargetFacts { has_text: true, n_distinct: Some(500), ..integers(0) };
        assert_eq!(task(text), Ok(Task::Classification));
        // A text among numbers is a name, so the numbers are names too.
        assert_eq!(task(TargetFacts { has_fractions: true, ..text }), Ok(Task::Classification));
        assert_eq!(of(integers(3)).unwrap().reason, "because \"price\" holds 3 distinct integers");
        let several = |facts: [TargetFacts; 2]| decide(&names, &facts).unwrap().task;
        assert_eq!(several([integers(2), integers(1)]), Task::Multilabel);
        assert_eq!(several([integers(2), integers(3)]), Task::Regression);
    }
}
