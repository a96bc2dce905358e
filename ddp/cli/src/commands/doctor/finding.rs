//! Findings of the checks, and the few lines that those of many ranks become.

use ddp_comm::ranks_text;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Hosts that a line names.
const MAX_HOSTS: usize = 4;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Scope {
    Rank,
    /// All ranks of a host, the first of which reports it.
    Host,
    /// All ranks; rank 0 reports it.
    Job,
}

/// What a check has found on one rank.
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
    pub(super) fn of_error(error: &Error) -> Self {
        Finding { status: Status::Fail, remedy: error.hint(), ..Self::ok(error.message()) }
    }

    pub(super) fn of_host(self) -> Self {
        Finding { scope: Scope::Host, ..self }
    }

    pub(super) fn of_job(self) -> Self {
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
        Line { check, status, found: one_line(&found), remedy: remedy.as_deref().map(one_line), rank }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Findings of several ranks that differ at most in numbers.
struct Group<'a> {
    first: &'a Finding,
    texts: Vec<&'a str>,
    ranks: Vec<usize>,
}

/// The lines for the findings of all ranks: findings that differ only in numbers become one, with the ranks that have them.
///
/// - `hosts`: the name of each rank's host
pub(super) fn merge(check: &'static str, findings: &[Vec<Finding>], hosts: &[String]) -> Vec<Line> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (rank, finding) in
        findings.iter().enumerate().flat_map(|(rank, of)| of.iter().map(move |f| (rank, f)))
    {
        let fits = |group: &&mut Group<'_>| {
            let Group { first, ranks, .. } = group;
            // Two findings of one rank stay apart.
            (first.scope, first.status, &first.remedy) == (finding.scope, finding.status, &finding.remedy)
                && ranks.last() != Some(&rank)
                && is_same_form(&first.found, &finding.found)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => {
                group.texts.push(&finding.found);
                group.ranks.push(rank);
            }
            None => groups.push(Group { first: finding, texts: vec![&finding.found], ranks: vec![rank] }),
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for host in hosts {
        if !names.contains(&host.as_str()) {
            names.push(host);
        }
    }
    let line = |Group { first, texts, ranks }: &Group<'_>| {
        let n_all = match first.scope {
            Scope::Rank => hosts.len(),
            Scope::Host => names.len(),
            Scope::Job => 1,
        };
        let is_all = ranks.len() == n_all;
        let place = match (first.scope, is_all) {
            (_, true) if n_all == 1 => String::new(),
            (Scope::Rank, true) => format!(" (all {n_all} ranks)"),
            (Scope::Rank, false) if ranks.len() == 1 => {
                format!(" (rank {} on {})", ranks[0], hosts[ranks[0]])
            }
            (Scope::Rank, false) => format!(" ({})", ranks_text(ranks)),
            (_, true) => format!(" (all {n_all} hosts)"),
            (_, false) => {
                let shown: Vec<_> = ranks.iter().take(MAX_HOSTS).map(|rank| hosts[*rank].as_str()).collect();
                let more = match ranks.len().saturating_sub(MAX_HOSTS) {
                    0 => String::new(),
                    n => format!(" and {n} more hosts"),
                };
                format!(" ({}{more})", shown.join(", "))
            }
        };
        let found = with_ranges(texts) + &place;
        let finding = Finding { found, ..(*first).clone() };
        Line::new(check, finding, ranks.first().copied().filter(|_| !is_all))
    };
    groups.iter().map(line).collect()
}

/// A word without the punctuation around it, and its value if it is a number.
fn number(word: &str) -> (&str, Option<f64>) {
    let core = word.trim_matches(|c| "(),;:%".contains(c));
    (core, core.parse().ok().filter(|_| core.starts_with(|c: char| c.is_ascii_digit() || c == '-')))
}

/// Whether two texts differ only in numbers.
fn is_same_form(one: &str, other: &str) -> bool {
    let without = |word: &str| {
        let (core, value) = number(word);
        if value.is_some() { word.replacen(core, "0", 1) } else { word.to_owned() }
    };
    one.split_whitespace().map(without).eq(other.split_whitespace().map(without))
}

/// One text for several that differ only in numbers: where those differ, `LEAST to MOST`.
fn with_ranges(texts: &[&str]) -> String {
    let mut columns: Vec<Vec<&str>> = Vec::new();
    for text in texts {
        for (at, word) in text.split_whitespace().enumerate() {
            if at == columns.len() {
                columns.push(Vec::new());
            }
            columns[at].push(word);
        }
    }
    let merged = |words: &Vec<&str>| {
        let mut values: Vec<_> = words.iter().map(|word| number(word)).collect();
        values.sort_by(|a, b| a.1.unwrap_or(0.0).total_cmp(&b.1.unwrap_or(0.0)));
        match (values.first(), values.last()) {
            (Some((least, Some(_))), Some((most, Some(_)))) if least != most => {
                words[0].replacen(number(words[0]).0, &format!("{least} to {most}"), 1)
            }
            _ => words[0].to_owned(),
        }
    };
    columns.iter().map(merged).collect::<Vec<_>>().join(" ")
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
        let of_host = |of: Vec<Finding>| of.into_iter().map(Finding::of_host).collect::<Vec<_>>();
        let got = lines(&four, &[of_host(ok()), vec![], of_host(bad()), vec![]]);
        let want = [("ok 0 errors (a)", Some(0)), ("fail 2 errors on 1 disk (b)", Some(2))];
        assert_eq!(got, want.map(|(text, rank)| (text.to_owned(), rank)));
        let got = lines(&four, &[of_host(ok()), vec![], of_host(ok()), vec![]]);
        assert_eq!(got[0].0, "ok 0 errors (all 2 hosts)");
        let of_job = vec![bad()[0].clone().of_job()];
        assert_eq!(lines(&four, &[of_job, vec![], vec![], vec![]])[0].1, None);
    }

    #[test]
    fn names_with_digits_are_no_numbers() {
        assert!(!is_same_form("node1 is late", "node2 is late") && is_same_form("1.5 s", "-2 s"));
        assert!(!is_same_form("libnccl 2.27.3", "libnccl 2.28.1") && !is_same_form("1 s", "1 s late"));
        assert!(!is_same_form("inf s", "nan s"));
    }
}
