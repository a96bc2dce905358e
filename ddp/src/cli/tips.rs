//! Tips for words that the command line does not know: a flag of another program, a config key written as a flag, a subcommand that
//! stands below another.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::config::key_for_flag;

/// Subcommands by the words that other programs use.
const COMMANDS: &[(&str, &str)] = &[
    ("fit", "train"),
    ("run", "train"),
    ("evaluate", "eval"),
    ("test", "eval"),
    ("score", "eval"),
    ("infer", "predict"),
    ("inference", "predict"),
    ("transform", "predict"),
    ("gpus", "devices"),
    ("summary", "describe"),
    ("benchmark", "bench"),
];

/// Flags by the words that other programs use.
const FLAGS: &[(&str, &str)] = &[
    ("gpu", "--device cuda"),
    ("gpus", "--device cuda"),
    ("cuda", "--device cuda"),
    ("cpu", "--device cpu"),
    ("no-cuda", "--device cpu"),
    ("output", "--out"),
    ("output-dir", "--out"),
    ("force", "--overwrite"),
    ("model", "--checkpoint"),
    ("weights", "--checkpoint"),
    ("input", "--data"),
    ("debug", "-vv"),
];

/// The error with a tip in place of clap's, if it is about a word that is known by another name.
///
/// - `args`: the command line, with the program's name
pub(super) fn with_tip(mut error: Error, program: &Command, args: &[OsString]) -> Error {
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => invalid(&error, ContextKind::InvalidArg)
            .and_then(|word| argument_tip(&word, named_command(program, args), args)),
        ErrorKind::InvalidSubcommand => {
            invalid(&error, ContextKind::InvalidSubcommand).and_then(|word| subcommand_tip(&word, program))
        }
        _ => None,
    };
    if let Some(tip) = tip {
        for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::TrailingArg] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

/// The word that an error is about.
fn invalid(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    }
}

/// The innermost subcommand that the command line names.
fn named_command<'a>(program: &'a Command, args: &[OsString]) -> &'a Command {
    let words = args.iter().skip(1);
    words
        .fold((program, true), |(command, goes_on), word| {
            match command.find_subcommand(word).filter(|_| goes_on) {
                Some(inner) => (inner, true),
                None => (command, command.has_subcommands() && goes_on),
            }
        })
        .0
}

fn has_flag(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(long))
}

/// A tip for an argument that `command` does not take.
fn argument_tip(word: &str, command: &Command, args: &[OsString]) -> Option<String> {
    let Some(flag) = word.strip_prefix("--") else { return positional_tip(word, command, args) };
    let flag = flag.split('=').next().unwrap_or(flag);
    // A flag of this command that is merely mistyped has clap's own tip.
    if let Some((_, known)) = FLAGS.iter().find(|(name, _)| *name == flag) {
        let long = known.split(' ').next().and_then(|known| known.strip_prefix("--"));
        if long.is_none_or(|long| has_flag(command, long)) {
            return Some(format!("use '{known}'"));
        }
    }
    let key = key_for_flag(flag)?;
    let short = key.short_name().replace('_', "-");
    if has_flag(command, &short) {
        return Some(format!("use '--{short}', which sets {}", key.name));
    }
    match has_flag(command, "set") {
        true => Some(format!("set the config key: '--set {}={}'", key.name, key.example)),
        false => Some(format!("{} is a key of the run's config, which `train` takes by --set", key.name)),
    }
}

/// A tip for a word that is no flag.
fn positional_tip(word: &str, command: &Command, args: &[OsString]) -> Option<String> {
    if word.starts_with('-') {
        return None;
    }
    let before = args.iter().position(|arg| arg == word).and_then(|at| args.get(at.checked_sub(2)?));
    if word.parse::<f64>().is_ok()
        && let Some(flag) = before.and_then(|flag| flag.to_str()).filter(|flag| flag.starts_with("--"))
    {
        return Some(format!("several values are separated by commas: '{flag} A,B'"));
    }
    if command.get_name() == "launch" {
        return Some(format!("the arguments of the run stand after '--': '-- {word}'"));
    }
    let named = ["checkpoint", "data"].into_iter().filter(|flag| has_flag(command, flag));
    let named = Vec::from_iter(named.map(|flag| format!("--{flag} PATH")));
    (!named.is_empty()).then(|| format!("files are named by flags: '{}'", named.join(" ")))
}

/// A tip for a word that is no subcommand.
fn subcommand_tip(word: &str, program: &Command) -> Option<String> {
    let known = COMMANDS.iter().find(|(name, _)| *name == word).map(|(_, known)| (*known).to_owned());
    let below = program.get_subcommands().find_map(|outer| {
        let inner = outer.find_subcommand(word)?;
        Some(format!("{} {}", outer.get_name(), inner.get_name()))
    });
    Some(format!("use '{} {}'", program.get_name(), below.or(known)?))
}
