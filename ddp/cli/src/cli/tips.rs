//! The subcommand that a command line omits: `ddp-train run.toml` means `ddp-train train run.toml`.
//! And tips for words that the command line does not know and can't take for others: see `rewrite`.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};
use ddp::config::key::{Key, Kind};
use ddp::config::{find_key, keys, nearest};

use super::Cli;
use super::other_names::{Meaning, command_called, meanings_of, name_of_letter};
use super::rewrite::{command_of, has_flag, is_value, keys_of, sets, takes_run};
use super::run_config::{is_rows, is_run, names_run};

/// Replaces clap's tip in an error about a word that has a different name here.
///
/// - `args`: the command line, including the program's name
pub(super) fn with_tip(mut error: Error, program: &Command, args: &[OsString]) -> Error {
    let (command, _) = command_of(program, args);
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => invalid(&error, ContextKind::InvalidArg)
            .and_then(|word| run_tip(&word, program, command).or_else(|| argument_tip(&word, command, args))),
        ErrorKind::InvalidSubcommand => invalid(&error, ContextKind::InvalidSubcommand)
            .and_then(|word| subcommand_tip(&word, program, command)),
        _ => return error,
    };
    // None of our arguments begins with a dash, so clap's tip "to pass it as a value" never helps.
    error.remove(ContextKind::TrailingArg);
    let tip = tip.or_else(|| (!has_near_tip(&error)).then(|| general_tip(&error, command)));
    if let Some(tip) = tip {
        for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    // It names flags that were not typed.
    error.remove(ContextKind::Usage);
    error
}

/// Whether clap suggests a word that differs in a few letters.
fn has_near_tip(error: &Error) -> bool {
    let is_near = |typed: ContextKind, suggested: ContextKind| {
        let Some(word) = invalid(error, typed) else { return false };
        let word = word.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
        let near = |other: &str| nearest(&word, std::iter::once(other.trim_start_matches('-'))).is_some();
        match error.get(suggested) {
            Some(ContextValue::String(other)) => near(other),
            Some(ContextValue::Strings(others)) => others.iter().any(|other| near(other)),
            _ => false,
        }
    };
    is_near(ContextKind::InvalidArg, ContextKind::SuggestedArg)
        || is_near(ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand)
}

/// A tip for a word that is like none, or like a key.
fn general_tip(error: &Error, command: &Command) -> String {
    if takes_run(command) {
        let word = invalid(error, ContextKind::InvalidArg).unwrap_or_default();
        let flag = word.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        let full = keys().map(|key| key.name).filter(|_| flag.contains('.'));
        let names =
            keys().flat_map(|key| std::iter::once(key.short_name()).chain(key.synonyms.iter().copied()));
        if let Some(key) = nearest(&flag, full.chain(names)).and_then(find_short) {
            return format!("did you mean {}, which sets {}?", flag_words(key), key.name);
        }
        return "'ddp-train config keys' lists the settings of a run; '--set KEY=VALUE' sets one".to_owned();
    }
    match command.get_name() {
        "ddp-train" => "'ddp-train --help' lists the commands; 'ddp-train TABLE --target COLUMN' trains".to_owned(),
        "launch" => "its flags stand before the run, those of `train` after it: 'ddp-train launch -n 2 -- RUN.toml --epochs 3'".to_owned(),
        name => format!("'--help' lists what {name} takes"),
    }
}

fn find_short(name: &str) -> Option<&'static Key> {
    match keys_of(name).as_slice() {
        [key] => Some(key),
        _ => None,
    }
}

/// The word that an error is about.
fn invalid(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    }
}

/// A tip for a flag of runs that a sweep passes on.
fn run_tip(word: &str, program: &Command, command: &Command) -> Option<String> {
    let flag = word.strip_prefix("--").filter(|_| command.get_name() == "sweep")?;
    let mut flags = program.find_subcommand("find-lr")?.get_arguments();
    flags.find(|arg| arg.get_long() == Some(flag) && !arg.is_hide_set())?;
    program.find_subcommand("train").filter(|train| has_flag(train, flag))?;
    Some(format!("flags of `train` come after '--': '... -- {word}'"))
}

/// A tip for an argument that `command` does not accept.
fn argument_tip(word: &str, command: &Command, args: &[OsString]) -> Option<String> {
    let is_config = ["-c", "--config", "--config-file", "--cfg", "--config_file", "--yaml"];
    if is_config.contains(&word.split('=').next().unwrap_or(word)) && takes_run(command) {
        return Some(format!("the config needs no flag: 'ddp-train {} RUN.toml'", command.get_name()));
    }
    if !word.starts_with('-') {
        return positional_tip(word, command, args);
    }
    let flag = word.trim_start_matches('-').split('=').next().unwrap_or(word).replace('_', "-");
    let mut letters = flag.chars();
    let flag = match (letters.next().and_then(name_of_letter), letters.next()) {
        (Some(name), None) if !word.starts_with("--") => name.to_owned(),
        _ => flag,
    };
    let typed = value_of(word, args).filter(|typed| is_value(typed));
    let keys = keys_of(&flag);
    let is_flag = |name: &str| name.replace('_', "-") == flag;
    let is_name = keys.first().is_some_and(|key| is_flag(key.short_name()) || is_flag(key.name));
    let is_simple = |key: &Key| !matches!(key.kind, Kind::Tables(_) | Kind::Table(_));
    if let Some(key) = find_short(&flag).filter(|key| is_name && is_simple(key) && sets(command, key.name)) {
        return Some(key_tip(key, typed));
    }
    let mut tips = Vec::new();
    for meaning in meanings_of(&flag) {
        tips.extend(match meaning {
            Meaning::Tip(tip) if takes_run(command) => return Some(tip.to_owned()),
            Meaning::Flag(known) => value_name(command, known).map(|value| format!("use '{known} {value}'")),
            Meaning::Words(words) => {
                let first = words.split(' ').next().and_then(|first| first.strip_prefix("--"));
                first.is_some_and(|first| has_flag(command, first)).then(|| format!("use '{words}'"))
            }
            Meaning::Key(name) => {
                find_key(name).filter(|_| sets(command, name)).map(|key| key_tip(key, typed))
            }
            Meaning::Set(set) => sets(command, set).then(|| format!("use '--set {set}'")),
            Meaning::Tip(_) => None,
        });
    }
    if let Some(tip) = tips.into_iter().next() {
        return Some(tip);
    }
    match keys.as_slice() {
        [] => None,
        [key] if sets(command, key.name) => Some(key_tip(key, typed)),
        several if takes_run(command) => {
            let sets: Vec<_> = several.iter().map(|key| set_words(key)).collect();
            Some(format!("several keys have this name: {}", sets.join(", ")))
        }
        [key, ..] => Some(format!("{} is a key of the run's config, which `train` takes by --set", key.name)),
    }
}

/// The value typed with the flag `word`: after an equals sign, or as the next word.
fn value_of<'a>(word: &str, args: &'a [OsString]) -> Option<&'a str> {
    let name = word.split('=').next()?;
    let mut words = args.iter().filter_map(|arg| arg.to_str());
    let typed = words.find(|arg| arg.split('=').next() == Some(name))?;
    typed.split_once('=').map(|(_, value)| value).or_else(|| words.next())
}

/// The name of the value of a flag that `command` has.
fn value_name(command: &Command, flag: &str) -> Option<String> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    Some(arg.get_value_names()?.first()?.to_string())
}

/// Words that set a key, and its values; `typed` is a value that does not fit.
fn key_tip(key: &Key, typed: Option<&str>) -> String {
    let words = key.kind.words();
    let values = match key.kind {
        Kind::OneOf(_) | Kind::Metric(_) => format!("one of {words}"),
        _ => words,
    };
    match typed {
        Some(typed) => format!("'{typed}' is no value of {} ({values}): {}", key.name, flag_words(key)),
        None => format!("{} needs a value ({values}): {}", key.name, flag_words(key)),
    }
}

/// The flag that sets a key, with an example.
fn flag_words(key: &Key) -> String {
    let flag = key.short_name().replace('_', "-");
    let is_plain = !matches!(key.kind, Kind::Tables(_) | Kind::Table(_) | Kind::Bool | Kind::BoolOr(_));
    if !is_plain || find_short(&flag).is_none() {
        return set_words(key);
    }
    format!("'--{flag} {}'", example(key).replace(['"', '[', ']'], ""))
}

/// A value of a key that is not its default.
fn example(key: &Key) -> String {
    match key.kind {
        // The first names are the defaults.
        Kind::OneOf([first, others @ ..]) => {
            let other = others.iter().find(|name| **name != "tf32").unwrap_or(first);
            format!("\"{other}\"")
        }
        _ => key.example.replace(", ", ",").replace(' ', ""),
    }
}

fn set_words(key: &Key) -> String {
    format!("'--set {}={}'", key.name, example(key))
}

/// A tip for a word that is not a flag.
fn positional_tip(word: &str, command: &Command, args: &[OsString]) -> Option<String> {
    let before = args.iter().position(|arg| arg == word).and_then(|at| args.get(at.checked_sub(2)?));
    if word.parse::<f64>().is_ok()
        && let Some(flag) = before.and_then(|flag| flag.to_str()).filter(|flag| flag.starts_with("--"))
    {
        return Some(format!("several values are separated by commas: '{flag} A,B'"));
    }
    if takes_run(command) && is_rows(Path::new(word)) {
        return Some(format!(
            "'--eval {word}' evaluates on these rows; a pattern, such as --data '{{a,b}}.csv', trains on several files"
        ));
    }
    // A flag that needs no value was taken before the word.
    let set = args.iter().position(|arg| arg == word).and_then(|at| args.get(at.checked_sub(1)?)?.to_str());
    if let Some(key) = set.and_then(|set| find_key(set.trim_start_matches("--set=").split_once('=')?.0)) {
        return Some(key_tip(key, Some(word)));
    }
    if takes_run(command) {
        return Some(format!("the column to predict is named by a flag: '--target {word}'"));
    }
    let named = ["checkpoint", "data"].into_iter().filter(|flag| has_flag(command, flag));
    let named = Vec::from_iter(named.map(|flag| format!("--{flag} PATH")));
    (!named.is_empty()).then(|| format!("files are named by flags: '{}'", named.join(" ")))
}

/// A tip for a word that is not a subcommand of `outer`.
fn subcommand_tip(word: &str, program: &Command, outer: &Command) -> Option<String> {
    let is_top = outer.get_name() == program.get_name();
    let known = command_called(if is_top { "" } else { outer.get_name() }, word);
    let below = || {
        program.get_subcommands().filter(|_| is_top).find_map(|outer| {
            let inner = outer.find_subcommand(word)?;
            Some(format!("use '{} {} {}'", program.get_name(), outer.get_name(), inner.get_name()))
        })
    };
    let near = || {
        let names = outer.get_subcommands().map(Command::get_name);
        let outer = if is_top { String::new() } else { format!("{} ", outer.get_name()) };
        nearest(word, names).map(|name| format!("did you mean '{} {outer}{name}'?", program.get_name()))
    };
    match known {
        Some(Ok(known)) => Some(format!("use '{} {known}'", program.get_name())),
        Some(Err(way)) => Some(way.to_owned()),
        None => below().or_else(near),
    }
}

/// Returns the arguments, with `train` added if it is implied: before a config, a table or another path in place of a subcommand,
/// before `--data`, before other flags if a config or table follows, and under a launcher if there are no arguments at all.
/// (Without a launcher the program then prints its help.)
pub fn with_implied_command(args: impl IntoIterator<Item = OsString>, has_launcher: bool) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let implies = match args.get(1..) {
        None => false,
        Some([]) => has_launcher,
        Some(words @ [first, ..]) => {
            let cli = Cli::command();
            let commands: Vec<_> = cli.get_subcommands().map(Command::get_name).chain(["help"]).collect();
            let is_command = |word: &OsString| commands.iter().any(|name| word == name);
            if !is_flag(first) {
                !is_command(first) && is_run(Path::new(first))
            } else if ["-h", "--help", "-V", "--version"].iter().any(|about| first == about) {
                false
            } else {
                names_data(first)
                    || !words.iter().any(is_command)
                        && words
                            .iter()
                            .any(|word| names_data(word) || !is_flag(word) && names_run(Path::new(word)))
            }
        }
    };
    if implies {
        args.insert(1, "train".into());
    }
    args
}

fn is_flag(word: &OsString) -> bool {
    word.to_string_lossy().starts_with('-')
}

/// Whether a word is the flag for the rows.
fn names_data(word: &OsString) -> bool {
    let word = word.to_string_lossy();
    word == "--data" || word.starts_with("--data=")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(line: &str, has_launcher: bool) -> Option<String> {
        let args = with_implied_command(line.split_whitespace().map(OsString::from), has_launcher);
        args.get(1).map(|arg| arg.to_str().unwrap().to_owned())
    }

    #[test]
    fn runs_imply_train_and_commands_do_not() {
        for line in [
            "p run.toml",
            "p missing.csv --target y",
            "p missing.xlsx",
            "p x.csv.gz",
            "p shards/*.npy",
            "p builtin:digits",
            "p .",
            "p --data x.csv --target y",
            "p --data=x.txt",
            "p --target y missing.csv",
            "p -v run.toml",
            "p --device cpu builtin:digits",
            "p --device cpu --data rows",
        ] {
            assert_eq!(second(line, false).as_deref(), Some("train"), "{line}");
        }
        for line in [
            "p train run.toml",
            "p eval",
            "p help",
            "p trian",
            "p --version",
            "p --set a=1",
            "p --set optimizer.lr=1.5 --out .",
            "p -h",
            "p --help x.csv",
            "p -v eval --data x.csv",
        ] {
            assert_eq!(second(line, true).as_deref(), line.split(' ').nth(1), "{line}");
        }
        assert_eq!((second("p", false), second("p", true)), (None, Some("train".to_owned())));
    }
}
