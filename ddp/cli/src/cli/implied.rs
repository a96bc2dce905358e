//! Adds the subcommand that a command line omits: `ddp-train run.toml` means `ddp-train train run.toml`.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory as _;

use super::Cli;
use super::run_config::{is_run, names_run};

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
            let commands: Vec<_> =
                cli.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
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
