//! Words that a newcomer types, from other programs: each is taken or answered with the right way. A line of `guesses.txt` is the
//! typed words, then `=>` and a part of the words that they are taken for, or `=> tip:` and a part of the answer.

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::{Cli, rewrite};

/// The words that `line` is taken for, or the answer.
fn outcome(line: &str) -> String {
    let words: Vec<OsString> =
        std::iter::once("ddp-train").chain(line.split(' ')).map(OsString::from).collect();
    match Cli::parse_arguments(words.clone(), None) {
        Ok(_) => {
            let taken = rewrite::rewrite(words, &Cli::command()).words;
            let taken: Vec<_> = taken[1..].iter().map(|word| word.to_string_lossy()).collect();
            taken.join(" ")
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!(text.contains("Usage:") && text.contains("tip:")), "{line}: {text}");
            match text.split_once("tip: ") {
                Some((_, tip)) => format!("tip: {}", tip.split("\n\n").next().unwrap_or_default()),
                None => format!("error: {text}"),
            }
        }
    }
}

#[test]
fn guesses_are_taken_or_answered() {
    let lines = include_str!("guesses.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut wrong = Vec::new();
    for line in lines {
        let (typed, wanted) = line.split_once(" => ").unwrap_or((line, "nothing"));
        let typed = typed
            .strip_prefix("T ")
            .map_or(typed.to_owned(), |typed| format!("train t.csv --target y {typed}"));
        let outcome = outcome(&typed);
        if !outcome.contains(wanted) {
            wrong.push(format!("{typed} => {outcome}"));
        }
    }
    assert!(wrong.is_empty(), "{} lines:\n{}", wrong.len(), wrong.join("\n"));
}
