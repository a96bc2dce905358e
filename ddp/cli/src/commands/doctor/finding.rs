//! Findings of the checks, and the few lines that those of many ranks become.

use std::collections::BTreeSet;

use ddp_comm::ranks_text;
use serde::{Deserialize, Serialize};

use crate::error::{DOCTOR, Error};

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// Training works, but slower or less safely than it could.
    Warn,
    /// Training fails, or computes something wrong.
    Fail,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// Ranks for which a finding stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Scope {
    Rank,
    /// All ranks of a host, the first of which reports it.
    Host,
    /// All ranks; rank 0 reports it.
    Job,
}

/// A result of a check on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) scope: Scope,
    status: Status,
    found: String,
    /// The command or setting that helps.
    remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Finding { scope: Scope::Rank, status: Status::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { status: Status::Warn, remedy: Some(remedy.into()), ..Self::ok(found) }
    }

    pub(super) fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { status: Status::Fail, ..Self::warn(found, remedy) }
    }

    /// A failure with the message and the hint of `error`.
    pub(super) fn from_error(error: &Error) -> Self {
        Finding { status: Status::Fail, remedy: error.hint(), ..Self::ok(error.message()) }
    }

    pub(super) fn about_host(self) -> Self {
        Finding { scope: Scope::Host, ..self }
    }

    pub(super) fn about_job(self) -> Self {
        Finding { scope: Scope::Job, ..self }
    }
}

/// A line of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// The first rank that it concerns, where it does not concern all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rank: Option<usize>,
}

impl Line {
    pub(super) fn new(check: &'static str, finding: Finding, rank: Option<usize>) -> Self {
        let Finding { status, found, remedy, .. } = finding;
        // Whoever reads this has started it.
        let without_doctor = |hint: String| one_line(hint.trim_end_matches(DOCTOR).trim_end_matches("; "));
        Line { check, status, found: one_line(&found), remedy: remedy.map(without_doctor), rank }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Findings of several ranks that differ at most in numbers.
struct Group<'a> {
    first: &'a Finding,
    /// The numbers of each.
    numbers: Vec<Vec<&'a str>>,
    ranks: Vec<usize>,
}

/// The lines for the findings of all ranks: findings that differ only in numbers become one, with the ranks that have them.
///
/// - `hosts`: the host of each rank
pub(super) fn merge(check: &'static str, findings: &[Vec<Finding>], hosts: &[String]) -> Vec<Line> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (rank, findings) in findings.iter().enumerate() {
        for finding in findings {
            let Finding { scope, status, found, remedy } = finding;
            let (form, numbers) = form_of(found);
            let fits = |group: &&mut Group<'_>| {
                let first = group.first;
                (first.scope, first.status, &first.remedy) == (*scope, *status, remedy)
                    && form_of(&first.found).0 == form
            };
            match groups.iter_mut().find(fits) {
                Some(group) => {
                    group.numbers.push(numbers);
                    group.ranks.push(rank);
                }
                None => groups.push(Group { first: finding, numbers: vec![numbers], ranks: vec![rank] }),
            }
        }
    }
    groups.iter().map(|group| group.line(check, hosts)).collect()
}

impl Group<'_> {
    fn line(&self, check: &'static str, hosts: &[String]) -> Line {
        let Group { first, ranks, .. } = self;
        let n_all = match first.scope {
            Scope::Rank => hosts.len(),
            Scope::Host => hosts.iter().collect::<BTreeSet<_>>().len(),
            Scope::Job => 1,
        };
        let is_all = ranks.len() == n_all;
        let place = match (is_all, first.scope, &ranks[..]) {
            (true, ..) if n_all == 1 => String::new(),
            (true, Scope::Host, _) => format!(" (all {n_all} hosts)"),
            (true, ..) => format!(" (all {n_all} ranks)"),
            (false, _, [rank]) => format!(" (rank {rank} on {})", hosts[*rank]),
            (false, ..) => format!(" ({})", ranks_text(ranks)),
        };
        let finding = Finding { found: self.with_ranges() + &place, ..(*first).clone() };
        Line::new(check, finding, ranks.first().copied().filter(|_| !is_all))
    }

    /// One text for all, with `LEAST to MOST` where numbers differ.
    fn with_ranges(&self) -> String {
        let mut text = form_of(&self.first.found).0;
        let value = |number: &str| number.parse::<f64>().unwrap_or(0.0);
        for at in 0..self.numbers[0].len() {
            let mut of_all: Vec<&str> = self.numbers.iter().map(|numbers| numbers[at]).collect();
            of_all.sort_by(|a, b| value(a).total_cmp(&value(b)));
            let (least, most) = (of_all[0], of_all[of_all.len() - 1]);
            let range = if least == most { least.to_owned() } else { format!("{least} to {most}") };
            text = text.replacen(NUMBER, &range, 1);
        }
        text
    }
}

/// Stands for a number in a form.
const NUMBER: char = '\0';

/// The text with a mark in place of each number, and the numbers. Names that contain digits, and versions, are no numbers.
fn form_of(text: &str) -> (String, Vec<&str>) {
    let mut numbers = Vec::new();
    let mark = |word| {
        let number: &str = str::trim_matches(word, |c| "(),;:%".contains(c));
        let begins = number.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if !begins || number.parse::<f64>().is_err() {
            return str::to_owned(word);
        }
        numbers.push(number);
        word.replacen(number, &NUMBER.to_string(), 1)
    };
    let words: Vec<String> = text.split_whitespace().map(mark).collect();
    (words.join(" "), numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(hosts: &[&str], findings: &[Vec<Finding>]) -> Vec<(String, Option<usize>)> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let lines = merge("test", findings, &hosts);
        lines.into_iter().map(|line| (format!("{} {}", line.status.name(), line.found), line.rank)).collect()
    }

    #[test]
    fn findings_that_differ_in_numbers_are_one_line() {
        let cores = |n: usize, free: f64| vec![Finding::ok(format!("{n} cores (at 3%), {free:.1} GiB free"))];
        let four = ["a", "a", "b", "b"];
        let all = lines(&four, &[cores(2, 8.0), cores(2, 7.5), cores(2, 11.0), cores(2, 7.5)]);
        assert_eq!(all, [("ok 2 cores (at 3%), 7.5 to 11.0 GiB free (all 4 ranks)".to_owned(), None)]);
        let alone = lines(&["a"], &[cores(1, 2.0)]);
        assert_eq!(alone, [("ok 1 cores (at 3%), 2.0 GiB free".to_owned(), None)]);
    }

    #[test]
    fn a_rank_or_host_that_differs_is_named() {
        let bad = || vec![Finding::fail("2 errors\non 1 disk", "replace it")];
        let ok = || vec![Finding::ok("0 errors")];
        let four = ["a", "a", "b", "b"];
        let got = lines(&four, &[ok(), bad(), ok(), ok()]);
        let want =
            [("ok 0 errors (ranks 0, 2 to 3)", Some(0)), ("fail 2 errors on 1 disk (rank 1 on a)", Some(1))];
        assert_eq!(got, want.map(|(text, rank)| (text.to_owned(), rank)));
        let of_host = |of: Vec<Finding>| of.into_iter().map(Finding::about_host).collect::<Vec<_>>();
        let got = lines(&four, &[of_host(ok()), vec![], of_host(bad()), vec![]]);
        let want =
            [("ok 0 errors (rank 0 on a)", Some(0)), ("fail 2 errors on 1 disk (rank 2 on b)", Some(2))];
        assert_eq!(got, want.map(|(text, rank)| (text.to_owned(), rank)));
        let got = lines(&four, &[of_host(ok()), vec![], of_host(ok()), vec![]]);
        assert_eq!(got[0].0, "ok 0 errors (all 2 hosts)");
        let of_job = vec![bad()[0].clone().about_job()];
        assert_eq!(lines(&four, &[of_job, vec![], vec![], vec![]])[0].1, None);
    }

    #[test]
    fn names_with_digits_are_no_numbers() {
        let is_same = |one, other| form_of(one).0 == form_of(other).0;
        assert!(!is_same("node1 is late", "node2 is late") && is_same("1.5 s", "-2 s"));
        assert!(!is_same("libnccl 2.27.3", "libnccl 2.28.1") && !is_same("1 s", "1 s late"));
        assert!(!is_same("inf s", "nan s"));
    }
}
