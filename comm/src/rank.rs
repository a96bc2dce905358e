//! Numbers of ranks, as types of their own: a rank of the world and a rank of a host are not to be confused.

use std::fmt;

/// A rank's number in the world, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub usize);

/// A rank's number among the ranks of its host, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalRank(pub usize);

/// `rank == 0`.
impl PartialEq<usize> for Rank {
    fn eq(&self, other: &usize) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Formats ascending ranks, such as `ranks 0 to 3, 5`.
pub fn ranks_text(ranks: &[usize]) -> String {
    let ranges = ranks.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    });
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", ranges.collect::<Vec<_>>().join(", "))
}
