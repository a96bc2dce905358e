//! Names that a newcomer may guess: flags and subcommands of other programs, files under other names, and the program's answers.

use crate::common::{made_up_csv, refused, run_line, run_line_ok, run_ok, single, temp_dir, write};
use crate::data::files::Element;
use crate::data::formats::as_arrays;

#[test]
fn flags_and_subcommands_of_other_programs_get_a_tip() {
    let folder = temp_dir();
    for (line, tip) in [
        ("train --optimizer ranger", "'ranger' is no value of optimizer.kind (one of \"sgd\", \"adam\""),
        ("train --log-interval --data x.csv", "log.every_steps needs a value (whole number from 1"),
        ("train --precision 64", "'64' is no value of train.precision (one of \"f32\""),
        ("train --kind mlp", "several keys have this name: '--set model.kind="),
        ("train --config run.toml", "tip: the config needs no flag: 'ddp-train train RUN.toml'"),
        ("train -c run.toml", "tip: the config needs no flag: 'ddp-train train RUN.toml'"),
        ("describe --config run.toml", "tip: the config needs no flag: 'ddp-train describe RUN.toml'"),
        ("train --gpus 2", "'ddp-train launch -n N -- RUN.toml'"),
        ("train --nproc_per_node=2", "'mpirun -n N ddp-train train RUN.toml'"),
        ("--nproc_per_node 2 x.csv", "'mpirun -n N ddp-train train RUN.toml'"),
        ("train --local_rank=0", "no flag joins ranks: "),
        ("train --wandb", "metrics.jsonl"),
        ("train --unheard-of", "'ddp-train config keys' lists the settings of a run"),
        ("train --checkpoint runs/a", "'--init-from PATH' starts from a model's weights"),
        ("train --force", "'--overwrite' deletes the run"),
        ("train --ema", "train.ema_decay=0.999"),
        (
            "eval --checkpoint a --batch-size 1 --drop x",
            "is a key of the run's config, which `train` takes by --set",
        ),
        ("inspect x.csv", "tip: use 'ddp-train data inspect'"),
        ("export a", "tip: use 'ddp-train checkpoint export'"),
        ("fit x.csv", "tip: use 'ddp-train train'"),
        ("checkpoint list runs/a", "tip: use 'ddp-train checkpoint ls'"),
        ("serve", "there is no server: "),
        ("train --set optimizer.name=adam", "did you mean `optimizer.kind`?"),
    ] {
        let outcome = run_line(folder.path(), line);
        assert_eq!(outcome.status.code(), Some(2), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(tip), "{line}: no {tip:?} in {}", outcome.stderr);
        assert!(!outcome.stderr.contains("as a value, use '--"), "{line}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("Usage:"), "{line}: {}", outcome.stderr);
    }
    // clap's own tip is kept for a mistyped flag.
    refused(folder.path(), "train --epoch 3", &["a similar argument exists: '--epochs'"]);
}

#[test]
fn flags_that_name_one_key_are_taken() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &made_up_csv(60, 3, "classification", 0));
    let line = "rows.csv --label label --seed 12 --optimizer lion --patience 3 --dropout 0.1 --precision 32 \
                --hidden 16 8 --max-epochs 2 --optimizer.weight_decay=0.2 train.init=xavier --set model.norm layer \
                --no-shuffle --test-size 0.2 --output-dir runs/abc --cpu";
    let taken = run_line_ok(folder.path(), line);
    let said = taken.stderr.lines().next().unwrap();
    for part in [
        "--seed 12 sets train.seed, ",
        "--precision 32 sets train.precision=\"f32\"",
        "--label label is --target label",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let config = std::fs::read_to_string(folder.path().join("runs/abc/config.toml")).unwrap();
    for part in [
        // The run is named after its folder.
        "name = \"abc\"",
        "seed = 12",
        "kind = \"lion\"",
        "early_stop_patience = 3",
        "dropout = 0.1",
        "precision = \"f32\"",
        "hidden = [16, 8]",
        "epochs = 2",
        "weight_decay = 0.2",
        "init = \"xavier\"",
        "norm = \"layer\"",
        "shuffle = false",
        "eval_fraction = 0.2",
    ] {
        assert!(config.contains(part), "no {part:?} in {config}");
    }
    // A flag of the command itself wins, and its errors are those of the key.
    refused(folder.path(), "rows.csv --target label --epochs five", &["`--epochs five`", "a whole number"]);
    refused(
        folder.path(),
        "rows.csv --target label --dropout 2",
        &["`--set model.dropout=2`", "probability"],
    );
    let named =
        run_line_ok(folder.path(), "rows.csv --target label --name own --epochs 1 --out runs/other -q");
    assert!(named.stderr.is_empty(), "{}", named.stderr);
    let config = std::fs::read_to_string(folder.path().join("runs/other/config.toml")).unwrap();
    assert!(config.contains("name = \"own\""), "{config}");
}

#[test]
fn texts_in_flags_of_keys_keep_brackets_and_quotes() {
    let folder = temp_dir();
    let folder = folder.path();
    let mut text = "speed [kmh],[odd,x,label\n".to_owned();
    for row in 0..90 {
        let label = ["low [1]", "\"mid, or so\"", "high [3]"][row % 3];
        text += &format!("{},{},{}.5,{label}\n", row % 4, row % 5, row * 7 % 31);
    }
    write(folder, "rows.csv", &text);
    let run = |words: &[&str]| {
        let mut command = single(words);
        command.current_dir(folder);
        run_ok(command);
    };
    let inspect = ["data", "inspect", "rows.csv", "--target", "label", "--write-config"];
    for (number, (flag, value, want)) in [
        ("--categorical", "speed [kmh]", "categorical = [\"speed [kmh]\"]"),
        ("--categorical", "[odd", "categorical = [\"[odd\"]"),
        ("--categorical", "[odd,speed [kmh]", "categorical = [\"[odd\", \"speed [kmh]\"]"),
        ("--missing_values", "Oslo,Rome]", "missing_values = [\"Oslo\", \"Rome]\"]"),
    ]
    .into_iter()
    .enumerate()
    {
        let config = format!("{number}.toml");
        run(&[&inspect[..], &[&config, flag, value]].concat());
        let config = std::fs::read_to_string(folder.join(config)).unwrap();
        assert!(config.contains(want), "{flag} {value}: {config}");
    }
    let order = "low [1],\"mid, or so\",high [3]";
    for (out, flags) in
        [("flag", ["--class_order", order]), ("set", ["--set", &format!("data.class_order={order}")])]
    {
        let train =
            ["train", "rows.csv", "--target", "label", "--epochs", "1", "--device", "cpu", "--out", out];
        run(&[&train[..], &flags].concat());
        let config = std::fs::read_to_string(folder.join(out).join("config.toml")).unwrap();
        let want = "class_order = [\"low [1]\", \"mid, or so\", \"high [3]\"]";
        assert!(config.contains(want), "{flags:?}: {config}");
    }
}

#[test]
fn several_files_and_places_are_taken() {
    let folder = temp_dir();
    std::fs::create_dir(folder.path().join("parts")).unwrap();
    for part in 0..3 {
        let name = format!("parts/{part}.csv");
        write(folder.path(), &name, &made_up_csv(20, 3, "classification", part));
    }
    let train = "--plain --target label --epochs 1 --device cpu";
    let all = run_line_ok(folder.path(), &format!("parts/0.csv parts/1.csv parts/2.csv {train} --out all"));
    assert!(all.stderr.contains("3 files are --data parts/*.csv"), "{}", all.stderr);
    assert!(all.stderr.contains("all: 60 rows, "), "{}", all.stderr);
    let two = run_line_ok(folder.path(), &format!("--data parts/2.csv parts/0.csv {train} --out two"));
    assert!(two.stderr.contains("reads parts/{2.csv,0.csv}"), "{}", two.stderr);
    assert!(two.stderr.contains("two: 40 rows, "), "{}", two.stderr);
    // A saved run finds them from anywhere.
    run_line_ok(folder.path(), "train --resume auto --out two --epochs 2 -q");
    let resumed = std::fs::read_to_string(folder.path().join("two/config.toml")).unwrap();
    assert!(resumed.contains("/parts/{2.csv,0.csv}\""), "{resumed}");

    let evaluated = run_line_ok(folder.path(), "eval all parts/1.csv");
    assert!(
        evaluated.stdout.contains("20 rows of parts/1.csv, using all/model.safetensors"),
        "{}",
        evaluated.stdout
    );
    let predicted = run_line_ok(folder.path(), "predict all parts/0.csv parts/1.csv --out out.csv");
    assert!(predicted.stderr.contains("40 rows -> out.csv, using all"), "{}", predicted.stderr);
    refused(folder.path(), "eval", &["--checkpoint <PATH>"]);
    write(folder.path(), "train.csv", &made_up_csv(20, 3, "classification", 0));
    write(folder.path(), "test.csv", &made_up_csv(20, 3, "classification", 0));
    refused(
        folder.path(),
        "train.csv test.csv --target label",
        &["'--eval test.csv' evaluates on these rows"],
    );
    refused(folder.path(), "train --data - --target label", &["stdin can be read once: save it first"]);
    std::os::unix::fs::symlink("gone.csv", folder.path().join("link.csv")).unwrap();
    refused(folder.path(), "link.csv --target label", &["a link to a file that is not there: `gone.csv`"]);
}

#[test]
fn columns_and_labels_are_named_by_short_flags() {
    let folder = temp_dir();
    let mut table = "id,city,when,x,y\n".to_owned();
    for row in 0..40 {
        let city = ["Bern", "Genf", "Chur"][row % 3];
        table += &format!("{row},{city},later,{},{}\n", (row as f64).sin(), row % 2);
    }
    write(folder.path(), "rows.csv", &table);
    let line =
        "train rows.csv --target y --drop id --drop when --categorical city --epochs 1 --device cpu --out r";
    run_line_ok(folder.path(), line);
    let config = std::fs::read_to_string(folder.path().join("r/config.toml")).unwrap();
    for wanted in ["drop = [\"id\", \"when\"]\n", "categorical = [\"city\"]\n"] {
        assert!(config.contains(wanted), "no {wanted:?} in {config}");
    }
    refused(
        folder.path(),
        "train rows.csv --target y --drop ix",
        &["no column \"ix\"", "did you mean \"id\"?"],
    );

    if cfg!(feature = "parquet") {
        run_line_ok(
            folder.path(),
            "data convert rows.csv x.parquet --target y --drop id --drop when --drop city",
        );
    }
    as_arrays(folder.path(), "rows.csv", "x.npy", "y", &["id", "when", "city"], Element::F32);
    let line = "train x.npy --labels x.labels.npy --epochs 1 --device cpu --out arrays";
    run_line_ok(folder.path(), line);
    refused(folder.path(), "train x.npy --labels y.npy", &["y.npy"]);
}

#[test]
fn missing_files_are_named_by_their_neighbors() {
    let folder = temp_dir();
    write(folder.path(), "iris_train.csv", &made_up_csv(8, 2, "classification", 0));
    refused(
        folder.path(),
        "iris_trian.csv",
        &["`iris_trian.csv` does not exist", "did you mean `iris_train.csv`?"],
    );
    write(folder.path(), "run.json", r#"{"data": {"train": "iris_train.csv", "target": "label"}}"#);
    refused(
        folder.path(),
        "run.json",
        &["run.json: line 1, column 1: ", "a config is TOML, and this is JSON"],
    );
    write(folder.path(), "stray.csv", "x,y\n1,0\n2,1\noops,0\n");
    let parts = [
        "got \"oops\"",
        "`--set 'data.missing_values=[\"oops\"]'`",
        "else list the column in `data.categorical`",
    ];
    refused(folder.path(), "stray.csv --plain --target y", &parts);
    refused(folder.path(), "other.csv", &["hint: relative paths start at the current folder"]);
    refused(folder.path(), "train --data https://localhost:1/x.csv", &["https://localhost:1/x.csv"]);
}

#[test]
fn tables_with_other_endings_are_trained() {
    let folder = temp_dir();
    let table = made_up_csv(40, 3, "classification", 0);
    for (name, text) in [
        ("rows.txt", table.clone()),
        ("rows.dat", table.replace(',', "\t")),
        ("rows", table.replace(',', "|")),
    ] {
        write(folder.path(), name, &text);
        run_line_ok(folder.path(), &format!("{name} --target label --epochs 1 --out run-{name}"));
    }
    run_line_ok(folder.path(), "--data rows.txt --target label --epochs 1 --out flag");
    // A config file is recognized under any name.
    write(
        folder.path(),
        "config.txt",
        "# rows, and more\n[data]\ntrain = \"rows.txt\"\n[train]\nepochs = 1\n",
    );
    run_line_ok(folder.path(), "config.txt --out config");
}

#[test]
fn a_trained_model_is_told_what_its_commands_can_do() {
    let folder = temp_dir();
    let table = made_up_csv(40, 3, "classification", 0).replace(",0\n", ",red\n").replace(",1\n", ",blue\n");
    write(folder.path(), "rows.csv", &table);
    run_line_ok(folder.path(), "rows.csv --target label --epochs 1 --out run");
    let header = table.lines().next().unwrap();
    let rows = |line: &str| format!("{header}\n{line}\n{}\n", table.lines().nth(1).unwrap());
    write(folder.path(), "empty.csv", &rows("1,,1,red"));
    write(folder.path(), "green.csv", &rows("1,1,1,green"));
    write(folder.path(), "extra.csv", "f0,f1,f2,extra\n1,1,1,1\n");
    write(folder.path(), "unlabeled.csv", "f0,f1,f2\n1,1,1\n");

    let predict = |data: &str| format!("predict --checkpoint run --data {data} --out out.csv");
    refused(
        folder.path(),
        &predict("empty.csv"),
        &["the cell is empty", "--bad-rows null", "was decided in training"],
    );
    run_line_ok(folder.path(), &format!("{} --bad-rows null", predict("empty.csv")));
    let strict = format!("{} --strict-columns", predict("extra.csv"));
    refused(folder.path(), &strict, &["\"extra\" is extra", "--keep NAME"]);
    let predicted = run_line_ok(folder.path(), &format!("{} --overwrite", predict("extra.csv")));
    assert!(predicted.stderr.contains("extra.csv: column \"extra\" is left out"), "{}", predicted.stderr);
    let eval = |data: &str| format!("eval --checkpoint run --data {data}");
    refused(
        folder.path(),
        &eval("unlabeled.csv"),
        &["no target column \"label\"", "`ddp-train predict` needs none"],
    );
    refused(folder.path(), &eval("green.csv"), &["label \"green\" is none of", "--unknown-label skip"]);
    let left = run_line_ok(folder.path(), &format!("{} --unknown-label skip --json", eval("green.csv")));
    assert!(left.stdout.contains("\"skipped_rows\":1"), "{}", left.stdout);
    let outcome = run_line(folder.path(), &eval("empty.csv"));
    assert!(!outcome.stderr.contains("`data.missing`"), "{}", outcome.stderr);
}

#[test]
fn a_model_is_exported_to_a_known_ending_only() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &made_up_csv(20, 2, "classification", 0));
    run_line_ok(folder.path(), "rows.csv --target label --epochs 1 --out run");
    for name in ["model.pt", "model.h5"] {
        refused(
            folder.path(),
            &format!("checkpoint export run --out {name}"),
            &["ends in neither .onnx nor .safetensors", "--format safetensors"],
        );
    }
    run_line_ok(folder.path(), "checkpoint export run --out model.bin --format safetensors");
}
