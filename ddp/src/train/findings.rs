//! Findings about a step that is not finite: which rank, which layer, which rows.
//!
//! ```
//! use ddp::train::findings::{Finding, Findings, Place};
//!
//! let finding = Finding { rank: 0, place: Place::Layer("layers.0".to_owned()), rows: vec![3, 17] };
//! let findings = Findings { of_ranks: vec![finding], source: "rows.csv".to_owned() };
//! let text = findings.to_string();
//! assert!(text.contains("rank 0: the outputs of `layers.0` are not finite for rows 3,17"), "{text}");
//! assert!(text.contains("`ddp-train data show rows.csv --rows 3,17` prints these rows"), "{text}");
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::visible::shell_word;

/// Rows that a message lists.
const SHOWN_ROWS: usize = 10;

/// First place in forward order whose values are not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The parameter of this name, before the step.
    Weights(String),
    /// The features as the model reads them.
    Features,
    /// The output of the layer of this name.
    Layer(String),
    /// The loss of finite outputs.
    Loss,
    /// The gradient of the parameter of this name.
    Gradient(String),
}

/// Finding of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Rank that found it, from 0.
    pub rank: usize,
    /// First place that is not finite.
    pub place: Place,
    /// Numbers, in the source of the training rows, of this rank's rows that produce it, ascending; none where every row does.
    pub rows: Vec<usize>,
}

/// Findings of all ranks about one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Findings of the ranks that found something, in rank order.
    pub of_ranks: Vec<Finding>,
    /// Source of the training rows.
    pub source: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Weights(name) => write!(f, "the weights `{name}` are not finite"),
            Place::Features => {
                f.write_str("the features are not finite after conversion to the model's format")
            }
            Place::Layer(name) => write!(f, "the outputs of `{name}` are not finite"),
            Place::Loss => f.write_str("the loss of finite outputs is not finite"),
            Place::Gradient(name) => write!(f, "the gradient of `{name}` is not finite"),
        }
    }
}

/// Writes the rows as `data show --rows` reads them.
fn list(rows: &[usize]) -> String {
    let shown: Vec<_> = rows.iter().take(SHOWN_ROWS).map(ToString::to_string).collect();
    shown.join(",")
}

impl fmt::Display for Findings {
    /// One line per rank, each after a line break, and the command that prints the rows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { rank, place, rows } in &self.of_ranks {
            write!(f, "\nrank {rank}: {place}")?;
            match rows.len() {
                0 => {}
                1 => write!(f, " for row {}", rows[0])?,
                n if n <= SHOWN_ROWS => write!(f, " for rows {}", list(rows))?,
                n => write!(f, " for {n} rows, the first ones {}", list(rows))?,
            }
        }
        let mut rows: Vec<usize> = self.of_ranks.iter().flat_map(|of_rank| of_rank.rows.clone()).collect();
        rows.sort_unstable();
        rows.dedup();
        if !rows.is_empty() {
            let source = shell_word(&self.source);
            write!(f, "\n`ddp-train data show {source} --rows {}` prints these rows", list(&rows))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_named_and_the_command_has_all_rows() {
        let finding = |rank, place, rows: &[usize]| Finding { rank, place, rows: rows.to_vec() };
        let findings = Findings {
            of_ranks: vec![
                finding(0, Place::Layer("layers.0".to_owned()), &[20]),
                finding(2, Place::Gradient("layers.1.weight".to_owned()), &[3, 17]),
                finding(3, Place::Weights("layers.1.bias".to_owned()), &[]),
            ],
            source: "my rows.csv".to_owned(),
        };
        assert_eq!(
            findings.to_string(),
            "\nrank 0: the outputs of `layers.0` are not finite for row 20\
             \nrank 2: the gradient of `layers.1.weight` is not finite for rows 3,17\
             \nrank 3: the weights `layers.1.bias` are not finite\
             \n`ddp-train data show 'my rows.csv' --rows 3,17,20` prints these rows"
        );
        let many = Findings {
            of_ranks: vec![finding(0, Place::Loss, &(0..12).collect::<Vec<_>>())],
            source: "a.csv".to_owned(),
        };
        let text = many.to_string();
        assert!(text.contains("for 12 rows, the first ones 0,1,2,3,4,5,6,7,8,9\n"), "{text}");
        assert_eq!(Findings::default().to_string(), "");
    }
}
