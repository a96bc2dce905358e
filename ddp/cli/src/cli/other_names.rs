//! Flags and commands by their names in other programs: the rows of `other_names.txt`, which are read when a word is unknown.

/// The meaning of a flag of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A key of the config, set to the value of the flag.
    Key(&'static str),
    /// A setting `KEY=VALUE`; the flag has no value.
    Set(&'static str),
    /// A flag of this program with the same values.
    Flag(&'static str),
    /// Words of this program; the flag has no value.
    Words(&'static str),
    /// No one thing here: the way to the same end.
    Tip(&'static str),
}

const ROWS: &str = include_str!("other_names.txt");

/// The long name that programs usually give to the flag of a letter.
const LETTERS: [(char, &str); 23] = [
    ('a', "arch"),
    ('b', "b"),
    ('c', "config"),
    ('d', "input"),
    ('D', "d"),
    ('e', "e"),
    ('f', "f"),
    ('g', "gpu-id"),
    ('H', "hosts"),
    ('i', "input"),
    ('j', "j"),
    ('l', "lr"),
    ('m', "model"),
    ('n', "n"),
    ('N', "nnodes"),
    ('o', "output"),
    ('p', "p"),
    ('r', "resume-from"),
    ('s', "s"),
    ('t', "target-column"),
    ('w', "n-workers"),
    ('x', "mca"),
    ('y', "y"),
];

/// Names, kind and value of each row.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = ROWS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (names, meaning) = line.split_once(" | ")?;
        let (kind, value) = meaning.split_once(' ')?;
        Some((names, kind, value))
    })
}

/// The meanings of the flag `name`, written with dashes; the first that a command can take counts.
pub(super) fn meanings_of(name: &str) -> impl Iterator<Item = Meaning> {
    let name = name.to_lowercase();
    rows().filter(move |(names, ..)| names.split(' ').any(|other| other == name)).filter_map(
        |(_, kind, value)| match kind {
            "key" => Some(Meaning::Key(value)),
            "set" => Some(Meaning::Set(value)),
            "flag" => Some(Meaning::Flag(value)),
            "words" => Some(Meaning::Words(value)),
            "tip" => Some(Meaning::Tip(value)),
            _ => None,
        },
    )
}

/// The long name that programs usually give to the flag of this letter.
pub(super) fn name_of_letter(letter: char) -> Option<&'static str> {
    LETTERS.iter().find(|(of, _)| *of == letter).map(|(_, name)| *name)
}

/// The command that is called `word` elsewhere, after the command `outer` or "", or a sentence where there is none.
pub(super) fn command_called(outer: &str, word: &str) -> Option<Result<&'static str, &'static str>> {
    let word = format!("{outer} {word}").trim().to_lowercase();
    rows().filter(|(names, ..)| names.split(", ").any(|name| name == word)).find_map(|(_, kind, value)| {
        match kind {
            "command" => Some(Ok(value)),
            "way" => Some(Err(value)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use ddp::config::{Config, find_key};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn rows_name_what_exists() {
        let program = Cli::command();
        let commands: Vec<_> = program
            .get_subcommands()
            .flat_map(|outer| std::iter::once(outer).chain(outer.get_subcommands()))
            .collect();
        let has_flag = |flag: &str| {
            let is = |arg: &clap::Arg| arg.get_long() == flag.strip_prefix("--");
            flag == "-vv" || commands.iter().any(|command| command.get_arguments().any(is))
        };
        for (names, kind, value) in rows() {
            match kind {
                "key" => assert!(find_key(value).is_some(), "{value}"),
                // A value may not fit the bundled digits, but it is one of the key.
                "set" => {
                    let loaded = Config::load(None, &[value.to_owned()]);
                    let error = loaded.err().map(|error| error.to_string()).unwrap_or_default();
                    assert!(
                        !error.contains("must be one of") && !error.contains("unknown key"),
                        "{names}: {error}"
                    );
                }
                "flag" => assert!(has_flag(value), "{value}"),
                "words" => assert!(has_flag(value.split(' ').next().unwrap()), "{value}"),
                "tip" | "way" => assert!(value.len() > 20, "{value}"),
                "command" => {
                    let mut words = value.split(' ');
                    let outer =
                        program.find_subcommand(words.next().unwrap()).unwrap_or_else(|| panic!("{value}"));
                    let inner = words.next().filter(|word| !word.starts_with('-'));
                    assert!(inner.is_none_or(|word| outer.find_subcommand(word).is_some()), "{value}");
                }
                other => panic!("{names}: no kind {other}"),
            }
        }
        let n_lines = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert_eq!(rows().count(), n_lines, "a line without a bar or a kind");
    }
}
