//! The command line accepts its documented arguments, and refuses everything else with status 2.

use clap::CommandFactory as _;
use ddp::config::DataFormat;

use super::*;
use crate::report::log::{LogFormat, LogOptions};
use crate::report::progress::ProgressChoice;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("ddp-train").chain(line.split_whitespace()))
}

fn train(line: &str) -> TrainArgs {
    match parse(line).unwrap().command {
        Command::Train(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn train_takes_all_its_flags() {
    let args = train(
        "train run.toml --set model.hidden=[64,32] --set train.seed=-1 --out o --device cuda:1 --threads 2 \
         --init-from w.safetensors --progress plain --json --dry-run --overwrite -v",
    );
    assert_eq!(args.run.run, Some(PathBuf::from("run.toml")));
    assert_eq!(args.run.set, ["model.hidden=[64,32]", "train.seed=-1"]);
    assert_eq!((args.out, args.init_from), (Some("o".into()), Some("w.safetensors".into())));
    assert_eq!(
        (args.device.as_str(), args.threads, args.progress),
        ("cuda:1", Some(2), ProgressChoice::Plain)
    );
    assert!(args.json && args.dry_run && args.overwrite && !args.quiet);

    let args = train("train");
    assert_eq!((args.run.run, args.device.as_str(), args.threads), (None, "auto", None));
    assert_eq!(args.progress, ProgressChoice::Auto);
    assert!(train("train --set a=1 run.toml").run.run.is_some(), "--set takes one value");
}

#[test]
fn flags_of_the_log_belong_to_all_commands() {
    let options = |line: &str| parse(line).unwrap().log_options(None);
    for (line, verbosity) in [("train", 0), ("train -v", 1), ("-v train", 1), ("eval --checkpoint a -vv", 2)]
    {
        assert_eq!(options(line), LogOptions { verbosity, ..LogOptions::default() }, "{line}");
    }
    let json = options("devices --log-format json");
    assert_eq!((json.format, json.quiet), (LogFormat::Json, false));
    assert!(options("train -q").quiet);
    let cli = parse("train --verbose --verbose").unwrap();
    assert_eq!(cli.log_options(Some("debug".to_owned())).directives.as_deref(), Some("debug"));
    assert!(
        parse("train --log-format yaml").unwrap_err().to_string().contains("[possible values: text, json]")
    );
}

#[test]
fn config_commands() {
    let keys = |line: &str| match parse(line).unwrap().command {
        Command::Config(ConfigCommand::Keys(args)) => args,
        other => panic!("{other:?}"),
    };
    assert_eq!((keys("config keys").prefix.as_str(), keys("config keys --json").json), ("", true));
    let args = keys("config keys optimizer.w --markdown");
    assert_eq!((args.prefix.as_str(), args.markdown), ("optimizer.w", true));
    assert!(parse("config keys --markdown --json").is_err());
    let schema = parse("config schema").unwrap().command;
    assert!(matches!(schema, Command::Config(ConfigCommand::Schema)));
}

#[test]
fn other_commands() {
    let Command::Eval(args) = parse("eval --checkpoint runs/x --data a.csv --json").unwrap().command else {
        panic!()
    };
    assert_eq!(
        (args.checkpoint, args.data, args.json),
        (PathBuf::from("runs/x"), Some("a.csv".to_owned()), true)
    );

    let line = "bench step --dims 784,1024,1024,10 --batch 128 --steps 60 --warmup 0 --optim sgd --dtype f32 --threads 1 --json";
    let Command::Bench(BenchCommand::Step(args)) = parse(line).unwrap().command else { panic!() };
    assert_eq!(args.dims, Dims(vec![784, 1024, 1024, 10]));
    assert_eq!((args.batch, args.steps, args.warmup, args.optim), (128, 60, 0, BenchOptim::Sgd));
    let Command::Bench(BenchCommand::Step(args)) = parse("bench step --optim adamw").unwrap().command else {
        panic!()
    };
    assert_eq!((args.optim, args.dtype, args.place.threads), (BenchOptim::AdamW, BenchDtype::F32, None));
    let line =
        "bench allreduce --sizes 12,4KiB,2MiB,1GiB --repeats 3 --repeat-ms 5 --device cuda --share-gpu";
    let Command::Bench(BenchCommand::Allreduce(args)) = parse(line).unwrap().command else { panic!() };
    assert_eq!(args.sizes, [12, 4 << 10, 2 << 20, 1 << 30]);
    assert_eq!((args.timing.repeats, args.timing.repeat_ms, args.place.share_gpu), (3, 5, true));
    let Command::Bench(BenchCommand::Addmm(args)) = parse("bench addmm --dtype tf32,bf16").unwrap().command
    else {
        panic!()
    };
    assert_eq!(args.dtype, [BenchDtype::Tf32, BenchDtype::Bf16]);
    let devices = |line| match parse(line).map(|cli| cli.command) {
        Ok(Command::Devices(args)) => args,
        other => panic!("{other:?}"),
    };
    assert!(devices("devices --json").json && devices("devices --json").compile.is_none());
    assert_eq!(devices("devices --compile sm_90,100").compile, Some(Architectures(vec![90, 100])));
    assert_eq!(devices("devices --compile all").compile, Some(Architectures(Vec::new())));
    for wrong in ["devices --compile sm90", "devices --compile 90,", "devices --compile"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(matches!(
        parse("completions bash").unwrap().command,
        Command::Completions { shell: Shell::Bash }
    ));
}

#[test]
fn bad_usage_is_status_2() {
    for (line, part) in [
        ("", "Usage"),
        ("trian", "'train'"),
        ("train --sett a=1", "'--set'"),
        ("train --device gpu", "expected auto, cpu, cuda or cuda:N"),
        ("train --device cuda:", "hint: cuda:0 is the first GPU"),
        ("train --device cuda:-1", "cuda:N"),
        ("train --device cuda:99999999999", "cuda:N"),
        ("train --device mps", "not supported by this build"),
        ("train --threads 0", "1 or above"),
        ("train --threads many", "1 or above"),
        ("train --progress fancy", "[possible values: auto, bar, plain, none]"),
        ("train -v -q", "cannot be used with"),
        ("train a.toml b.toml", "b.toml"),
        ("eval", "--checkpoint"),
        ("bench", "Usage"),
        ("bench step --dims 10", "at least two widths"),
        ("bench step --dims 10,0,3", "at least two widths"),
        ("bench step --dims 10,,3", "hint: for example 784,1024,10"),
        ("bench step --batch 0", "1 or above"),
        ("bench step --steps -4", "-4"),
        ("bench step --dtype f16", "possible values: f32"),
        ("bench step --optim lion", "sgd, adamw"),
        ("bench addmm --dtype f32,f16", "possible values: f32, f32x3, tf32, bf16"),
        ("bench addmm --square 0", "1 or above"),
        ("bench copy --sizes 4MB", "hint: for example 4MiB"),
        ("bench copy --sizes 1.5MiB", "KiB, MiB or GiB"),
        ("bench allreduce --sizes 0", "a number of bytes"),
        ("bench kernels --repeats 0", "1 or above"),
        ("devices all", "'all'"),
        ("completions tcsh", "possible values"),
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(part), "{line}: no {part:?} in {error}");
    }
    for line in ["--version", "--help", "train --help", "bench step --help"] {
        assert_eq!(parse(line).expect_err(line).exit_code(), 0, "{line}");
    }
}

#[test]
fn help_tells_defaults() {
    for (subcommand, parts) in [
        ("train", &["[default: runs/NAME-TIME]", "[default: auto]", "A bar if stderr is a terminal"][..]),
        ("bench step", &["[default: 784,1024,1024,10]", "[default: 128]", "[default: adamw]"]),
        ("bench copy", &["64KiB,1MiB,16MiB,256MiB]", "in ms", "[default: 20]"]),
    ] {
        let help = parse(&format!("{subcommand} --help")).expect_err("help").to_string();
        for part in parts {
            assert!(help.contains(part), "no {part:?} in {help}");
        }
    }
}

#[test]
fn completions_name_the_binary() {
    let mut script = Vec::new();
    clap_complete::generate(Shell::Zsh, &mut Cli::command(), "ddp-train", &mut script);
    assert!(String::from_utf8(script).unwrap().contains("#compdef ddp-train"));
}

#[test]
fn data_inspect_takes_its_flags() {
    let line = "data inspect x.npy --labels y.npy --target a --target b --format npy --all --json";
    let Command::Data(DataCommand::Inspect(args)) = parse(line).unwrap().command else { panic!() };
    assert_eq!((args.path.as_str(), args.labels.as_deref()), ("x.npy", Some("y.npy")));
    assert_eq!((args.target, args.format), (vec!["a".to_owned(), "b".to_owned()], Some(DataFormat::Npy)));
    assert!(args.all && args.json);
    let error = parse("data inspect rows --format xlsx").unwrap_err().to_string();
    assert!(error.contains("expected one of auto, csv") && error.contains("hint: "), "{error}");
}

#[test]
fn checkpoint_takes_its_flags() {
    let checkpoint = |line: &str| match parse(line).unwrap().command {
        Command::Checkpoint(command) => command,
        other => panic!("{other:?}"),
    };
    let CheckpointCommand::Prune(args) = checkpoint("checkpoint prune runs/a --keep 2 --also-best --dry-run")
    else {
        panic!()
    };
    assert_eq!(
        (args.path, args.keep, args.also_best, args.dry_run),
        (PathBuf::from("runs/a"), 2, true, true)
    );
    let line = "checkpoint average a b --last 3 --weights ema --out m.safetensors --overwrite";
    let CheckpointCommand::Average(args) = checkpoint(line) else { panic!() };
    assert_eq!(
        (args.paths.len(), args.last, args.weights, args.overwrite),
        (2, Some(3), WeightsChoice::Ema, true)
    );
    let CheckpointCommand::Export(args) = checkpoint("checkpoint export a --out m.safetensors") else {
        panic!()
    };
    assert_eq!((args.weights, args.overwrite), (WeightsChoice::Auto, false));
    assert!(matches!(checkpoint("checkpoint ls a --json"), CheckpointCommand::Ls(args) if args.json));
    for (line, part) in [
        ("checkpoint prune runs/a", "--keep"),
        ("checkpoint prune runs/a --keep 0", "1 or above"),
        ("checkpoint average --out m", "<PATHS>"),
        ("checkpoint export a", "--out"),
        ("checkpoint show a --config --json", "cannot be used with"),
        ("checkpoint verify", "<PATH>"),
    ] {
        let error = parse(line).expect_err(line);
        assert!(error.exit_code() == 2 && error.to_string().contains(part), "{line}: no {part:?} in {error}");
    }
}

#[test]
fn rows_keep_their_flag_in_the_words_of_other_commands() {
    let words = |line: &str| train(line).run.words_with(&[("optimizer.lr", "1e-2".to_owned())]).join(" ");
    for (line, wanted) in [
        ("train --data a.csv --target y", "--data a.csv --set data.target=\"y\" --set optimizer.lr=1e-2"),
        ("train a.csv --plain --lr 1", "a.csv --plain --set optimizer.lr=1e-2"),
        ("train a.toml --data b.csv --set a=1", "a.toml --data b.csv --set a=1 --set optimizer.lr=1e-2"),
    ] {
        assert_eq!(words(line), wanted);
    }
}
