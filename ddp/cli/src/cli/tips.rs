//! The subcommand that a command line omits: `ddp-train run.toml` means `ddp-train train run.toml`.
//! And tips for words that the command line does not know: a flag of another program, a config key written as a flag, a subcommand of
//! another command.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};
use ddp::config::key_for_flag;

use super::Cli;
use super::run_config::{is_run, names_run};

/// Subcommands by their names in other programs.
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
    ("check", "doctor"),
    ("diagnose", "doctor"),
    ("summary", "describe"),
    ("estimate", "plan"),
    ("benchmark", "bench"),
    ("lr-find", "find-lr"),
    ("lr_find", "find-lr"),
    ("scale-batch-size", "find-batch-size"),
    ("tune", "sweep"),
    ("search", "sweep"),
    ("resume", "train --resume RUN"),
    ("continue", "train --resume RUN"),
    ("list", "runs ls"),
    ("ls", "runs ls"),
    ("diff", "runs diff"),
    ("compare", "runs diff"),
];

/// Flags by their names in other programs.
const FLAGS: &[(&str, &str)] = &[
    ("gpu", "--device cuda"),
    ("cuda", "--device cuda"),
    ("cpu", "--device cpu"),
    ("no-cuda", "--device cpu"),
    ("output", "--out"),
    ("output-dir", "--out"),
    ("checkpoint-dir", "--out"),
    ("save-dir", "--out"),
    ("log-dir", "--out"),
    ("run-dir", "--out"),
    ("force", "--overwrite"),
    ("model", "--checkpoint"),
    ("weights", "--checkpoint"),
    ("input", "--data"),
    ("dataset", "--data"),
    ("train-data", "--data"),
    ("label", "--target"),
    ("debug", "-vv"),
    ("amp", "--set train.precision=\"bf16\""),
    ("mixed-precision", "--set train.precision=\"bf16\""),
    ("bf16", "--set train.precision=\"bf16\""),
    ("fp16", "--set train.precision=\"f16\""),
    ("half", "--set train.precision=\"f16\""),
    ("fp32", "--set train.precision=\"f32\""),
];

const ONE_PROCESS_PER_GPU: &str =
    "each GPU is a rank of its own: 'mpirun -n N ddp-train train ...', or 'ddp-train launch -n auto -- ...'";
const RANKS_BY_LAUNCHER: &str = "no flag joins ranks: 'mpirun -n N --hostfile HOSTS ddp-train train ...', 'torchrun --no-python ... ddp-train train ...', or 'ddp-train launch --hosts A:8,B:8 -- ...'";
const COLUMNS: &str =
    "all columns but the target are features; '--set data.drop=[\"NAME\"]' leaves columns out";
const METRICS: &str =
    "metrics are written to metrics.jsonl in the folder of the run, one JSON object per line";

/// Tips for flags of other training programs that correspond to no flag or key.
const SENTENCES: &[(&str, &str)] = &[
    ("gpus", ONE_PROCESS_PER_GPU),
    ("num-gpus", ONE_PROCESS_PER_GPU),
    ("n-gpus", ONE_PROCESS_PER_GPU),
    ("devices", ONE_PROCESS_PER_GPU),
    ("nproc", ONE_PROCESS_PER_GPU),
    ("nproc-per-node", ONE_PROCESS_PER_GPU),
    ("num-processes", ONE_PROCESS_PER_GPU),
    ("np", ONE_PROCESS_PER_GPU),
    ("ranks", ONE_PROCESS_PER_GPU),
    ("world-size", ONE_PROCESS_PER_GPU),
    ("rank", RANKS_BY_LAUNCHER),
    ("local-rank", RANKS_BY_LAUNCHER),
    ("node-rank", RANKS_BY_LAUNCHER),
    ("nnodes", RANKS_BY_LAUNCHER),
    ("hosts", RANKS_BY_LAUNCHER),
    ("hostfile", RANKS_BY_LAUNCHER),
    ("master-addr", RANKS_BY_LAUNCHER),
    ("master-port", RANKS_BY_LAUNCHER),
    ("rdzv-endpoint", RANKS_BY_LAUNCHER),
    ("backend", "GPUs exchange gradients by NCCL and CPUs by MPI; '--device cpu' or '--device cuda' chooses"),
    ("features", COLUMNS),
    ("columns", COLUMNS),
    ("usecols", COLUMNS),
    ("wandb", METRICS),
    ("tensorboard", METRICS),
    ("logger", METRICS),
];

/// Replaces clap's tip in an error about a word that has a different name here.
///
/// - `args`: the command line, including the program's name
pub(super) fn with_tip(mut error: Error, program: &Command, args: &[OsString]) -> Error {
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => invalid(&error, ContextKind::InvalidArg)
            .and_then(|word| argument_tip(&word, named_command(program, args), args)),
        ErrorKind::InvalidSubcommand => {
            invalid(&error, ContextKind::InvalidSubcommand).and_then(|word| subcommand_tip(&word, program))
        }
        _ => None,
    };
    // None of our arguments begins with a dash, so clap's tip "to pass it as a value" never helps.
    error.remove(ContextKind::TrailingArg);
    let tip = tip.or_else(|| {
        let is_unknown =
            error.kind() == ErrorKind::UnknownArgument && error.get(ContextKind::SuggestedArg).is_none();
        (is_unknown && has_flag(named_command(program, args), "set")).then(|| {
            "'ddp-train config keys' lists the settings of a run; '--set KEY=VALUE' sets one".to_owned()
        })
    });
    if let Some(tip) = tip {
        for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
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

/// The innermost subcommand on the command line.
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

/// A tip for an argument that `command` does not accept.
fn argument_tip(word: &str, command: &Command, args: &[OsString]) -> Option<String> {
    if word == "-c" && takes_a_config(command) {
        return Some(config_tip(command));
    }
    let Some(flag) = word.strip_prefix("--") else { return positional_tip(word, command, args) };
    let flag = &flag.split('=').next().unwrap_or(flag).replace('_', "-");
    if ["config", "config-file", "cfg"].contains(&&**flag) && takes_a_config(command) {
        return Some(config_tip(command));
    }
    // For a mistyped flag of this command, clap's own tip is better.
    if let Some((_, known)) = FLAGS.iter().find(|(name, _)| name == flag) {
        let long = known.split(' ').next().and_then(|known| known.strip_prefix("--"));
        if long.is_none_or(|long| has_flag(command, long)) {
            return Some(format!("use '{known}'"));
        }
    }
    if let Some((_, sentence)) = SENTENCES.iter().find(|(name, _)| name == flag)
        && takes_a_config(command)
    {
        return Some((*sentence).to_owned());
    }
    let key = key_for_flag(flag)?;
    let short = key.short_name().replace('_', "-");
    if has_flag(command, &short) {
        return Some(format!("use '--{short}', which sets {}", key.name));
    }
    if has_flag(command, "set") {
        let value = value_of(word, args).and_then(|typed| key.as_toml(typed));
        let value = value.unwrap_or_else(|| key.example.to_owned());
        Some(format!("set the config key: '--set {}={value}'", key.name))
    } else {
        Some(format!("{} is a key of the run's config, which `train` takes by --set", key.name))
    }
}

/// Whether `command` is configured by a config, which is a positional argument.
fn takes_a_config(command: &Command) -> bool {
    has_flag(command, "set") && command.get_positionals().next().is_some()
}

fn config_tip(command: &Command) -> String {
    format!("the config needs no flag: 'ddp-train {} RUN.toml'", command.get_name())
}

/// The value typed with the flag `word`: after an equals sign, or as the next word.
fn value_of<'a>(word: &str, args: &'a [OsString]) -> Option<&'a str> {
    let name = word.split('=').next()?;
    let mut words = args.iter().filter_map(|arg| arg.to_str());
    let typed = words.find(|arg| arg.split('=').next() == Some(name))?;
    match typed.split_once('=') {
        Some((_, value)) => Some(value),
        None => words.next().filter(|next| !next.starts_with('-')),
    }
}

/// A tip for a word that is not a flag.
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
        return Some(format!("the arguments of the run go after '--': '-- {word}'"));
    }
    let named = ["checkpoint", "data"].into_iter().filter(|flag| has_flag(command, flag));
    let named = Vec::from_iter(named.map(|flag| format!("--{flag} PATH")));
    (!named.is_empty()).then(|| format!("files are named by flags: '{}'", named.join(" ")))
}

/// A tip for a word that is not a subcommand.
fn subcommand_tip(word: &str, program: &Command) -> Option<String> {
    let known = COMMANDS.iter().find(|(name, _)| *name == word).map(|(_, known)| (*known).to_owned());
    let below = program.get_subcommands().find_map(|outer| {
        let inner = outer.find_subcommand(word)?;
        Some(format!("{} {}", outer.get_name(), inner.get_name()))
    });
    Some(format!("use '{} {}'", program.get_name(), below.or(known)?))
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
