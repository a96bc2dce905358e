//! Names that a newcomer may guess: flags and subcommands of other programs, files under other names, and the program's answers.

use crate::common::{made_up_csv, refused, run_line, run_line_ok, temp_dir, write};

#[test]
fn flags_and_subcommands_of_other_programs_get_a_tip() {
    let folder = temp_dir();
    for (line, tip) in [
        // The tip contains the typed value if the key accepts it, else an example.
        ("train --seed 12", "tip: set the config key: '--set train.seed=12'"),
        ("train --weight=w.npy", "tip: set the config key: '--set data.weight=\"w.npy\"'"),
        ("train --class-order low", "--set data.class_order=[\"low\"]'"),
        ("train --exclude customer", "tip: use '--drop', which sets data.drop"),
        ("train --cat-features city", "tip: use '--categorical', which sets data.categorical"),
        ("train --patience 3", "--set train.early_stop_patience=3'"),
        ("train --optimizer lion", "--set optimizer.kind=\"lion\"'"),
        ("train --optimizer ranger", "--set optimizer.kind=\"adamw\"'"),
        ("train --loss huber", "--set loss.kind=\"huber\"'"),
        ("train --log-interval --data x.csv", "--set log.every_steps=50'"),
        ("train --bs 32", "tip: use '--batch-size', which sets train.batch_size"),
        ("train --amp", "tip: use '--set train.precision=\"bf16\"'"),
        ("train --label y", "tip: use '--target'"),
        ("train --config run.toml", "tip: the config needs no flag: 'ddp-train train RUN.toml'"),
        ("train -c run.toml", "tip: the config needs no flag: 'ddp-train train RUN.toml'"),
        ("describe --config run.toml", "tip: the config needs no flag: 'ddp-train describe RUN.toml'"),
        ("train --gpus 2", "'mpirun -n N ddp-train train ...'"),
        ("train --nproc_per_node=2", "'mpirun -n N ddp-train train ...'"),
        ("--nproc_per_node 2 x.csv", "'mpirun -n N ddp-train train ...'"),
        ("train --local_rank=0", "no flag joins ranks: "),
        ("train --wandb", "metrics.jsonl"),
        ("train --unheard-of", "'ddp-train config keys' lists the settings of a run"),
        ("train --test-size 0.2", "tip: use '--eval-fraction', which sets data.eval_fraction"),
        ("train --validation-split=0.2", "tip: use '--eval-fraction'"),
        ("train --gpu", "tip: use '--device cuda'"),
        ("train x.csv --hidden 64 32", "tip: several values are separated by commas: '--hidden A,B'"),
        ("predict --model m --data x.csv --out y.csv", "tip: use '--checkpoint'"),
        ("predict runs/a x.csv", "tip: files are named by flags: '--checkpoint PATH --data PATH'"),
        (
            "eval --checkpoint a --seed 1 --drop x",
            "is a key of the run's config, which `train` takes by --set",
        ),
        ("launch -n 2 x.csv", "tip: the arguments of the run go after '--': '-- x.csv'"),
        ("inspect x.csv", "tip: use 'ddp-train data inspect'"),
        ("export a", "tip: use 'ddp-train checkpoint export'"),
        ("fit x.csv", "tip: use 'ddp-train train'"),
        ("train --set optimizer.name=adam", "did you mean `optimizer.kind`?"),
    ] {
        let outcome = run_line(folder.path(), line);
        assert_eq!(outcome.status.code(), Some(2), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(tip), "{line}: no {tip:?} in {}", outcome.stderr);
        assert!(!outcome.stderr.contains("as a value, use '--"), "{line}: {}", outcome.stderr);
    }
    // clap's own tip is kept for a mistyped flag.
    refused(folder.path(), "train --epoch 3", &["a similar argument exists: '--epochs'"]);
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

    run_line_ok(folder.path(), "data convert rows.csv x.npy --target y --drop id --drop when --drop city");
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
    refused(folder.path(), "other.csv", &["hint: relative paths start at the current folder"]);
    refused(
        folder.path(),
        "train --data https://example.org/x.csv",
        &["addresses are not read: download the file"],
    );
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
