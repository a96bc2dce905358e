//! The subcommand that a command line leaves out: `ddp-train run.toml` means `ddp-train train run.toml`.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory as _;

use super::Cli;
use super::run_config::is_run;

/// The arguments, with `train` where it is implied: before a config, a table or another path in place of a subcommand, before
/// `--data`, and under a launcher where there is no argument at all. (Alone, the program then prints its help.)
pub fn with_implied_command(args: impl IntoIterator<Item = OsString>, has_launcher: bool) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let implies = match args.get(1) {
        None => has_launcher && !args.is_empty(),
        Some(first) => {
            let cli = Cli::command();
            let mut commands = cli.get_subcommands().map(clap::Command::get_name).chain(["help"]);
            match first.to_string_lossy().strip_prefix("--") {
                // The rows, in front of the flags.
                Some(flag) => flag == "data" || flag.starts_with("data="),
                None => !commands.any(|name| first == name) && is_run(Path::new(first)),
            }
        }
    };
    if implies {
        args.insert(1, "train".into());
    }
    args
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
        ] {
            assert_eq!(second(line, false).as_deref(), Some("train"), "{line}");
        }
        for line in ["p train run.toml", "p eval", "p help", "p trian", "p --version", "p --set a=1", "p -h"]
        {
            assert_eq!(second(line, true).as_deref(), line.split(' ').nth(1), "{line}");
        }
        assert_eq!((second("p", false), second("p", true)), (None, Some("train".to_owned())));
    }
}
