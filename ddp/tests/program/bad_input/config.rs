//! Invalid configs: the message contains the place, the key, the expected and the given value.

use super::harness::{GOOD_CSV, Place};

/// Trains with `text` as the config, which must be refused.
#[track_caller]
fn refuses(text: &str, parts: &[&str]) {
    let place = Place::with(&[("run.toml", text), ("rows.csv", GOOD_CSV)]);
    place.refuses(&["train", "run.toml", "--out", "out"], parts);
    place.refuses(&["train", "run.toml"], parts);
}

#[track_caller]
fn refuses_set(sets: &[&str], parts: &[&str]) {
    let mut args = vec!["train"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    Place::new().refuses(&args, parts);
}

#[test]
fn unknown_keys() {
    refuses(
        "[train]\nepochs = 3\n\n  epoch = 5\n",
        &["run.toml: line 4, column 3: unknown key `train.epoch`", "hint: did you mean `train.epochs`?"],
    );
    refuses(
        "[optimizer]\nlearning_rate = 0.1\n",
        &["line 2, column 1: unknown key `optimizer.learning_rate`", "did you mean `optimizer.lr`?"],
    );
    refuses("[training]\nepochs = 3\n", &["line 1, column 2: unknown key `training`", "the sections are"]);
    refuses("device = \"cuda\"\n", &["line 1, column 1: unknown key `device`", "hint: ", "--device"]);
    refuses_set(
        &["model.hiden=[8]"],
        &["`--set model.hiden=[8]`: unknown key `model.hiden`", "did you mean `model.hidden`?"],
    );
}

#[test]
fn wrong_types() {
    refuses(
        "[optimizer]\nlr = \"0.1\"\n",
        &[
            "run.toml: line 2, column 1: `optimizer.lr` must be a number, got the text \"0.1\"",
            "`lr = 0.001`",
        ],
    );
    // If it were read as one string, it would be refused when the run resumes.
    refuses(
        "[data]\ntarget = [\"\\t\"]\n",
        &["line 2", "`data.target` must be at least one name, none of them empty"],
    );
    refuses(
        "[train]\nepochs = 2.5\n",
        &["line 2", "`train.epochs` must be a whole number, got the number 2.5"],
    );
    refuses(
        "[model]\nhidden = 64\n",
        &["`model.hidden` must be a list of whole numbers", "`hidden = [128, 64]`"],
    );
    refuses("[data]\nshuffle = 1\n", &["`data.shuffle` must be true or false, got the number 1"]);
    refuses_set(&["train.seed=abc"], &["`--set train.seed=abc`", "a whole number", "--set train.seed="]);
}

#[test]
fn no_toml() {
    refuses(
        "[train]\nepochs = \n",
        &["config file run.toml: line 2, column", "not valid TOML", "hint: lines are `key = value`"],
    );
    refuses("[train]\nepochs = 3\nepochs = 4\n", &["run.toml: line 3", "not valid TOML", "duplicate key"]);
    refuses("epochs: 3\n", &["run.toml: line 1", "not valid TOML"]);
}

#[test]
fn no_config_file() {
    let place = Place::with(&[("folder/run.toml", "")]);
    place.refuses(
        &["train", "missing.toml", "--out", "out"],
        &["config file `missing.toml` does not exist", "hint: relative paths start at the current folder"],
    );
    // A folder, like a table, is read as data.
    place.refuses(&["train", "folder"], &["`folder`", "hint: "]);
    place.write("latin1.toml", b"[data]\ntrain = \"caf\xe9.csv\"\n");
    place.refuses(
        &["train", "latin1.toml"],
        &["latin1.toml: line 2, column 13: not UTF-8 text", "hint: save"],
    );
    place.write("words.txt", b"neither keys nor cells");
    place.refuses(
        &["train", "words.txt"],
        &["words.txt: line 1, column", "not valid TOML", "hint: if it is data"],
    );
    place.refuses(
        &["train", "/no/such/run.toml"],
        &["config file `/no/such/run.toml` does not exist", "hint: check the spelling"],
    );
    place.write("big.toml", &vec![b'#'; 2 << 20]);
    place.refuses(&["train", "big.toml"], &["`big.toml` has 2097152 bytes", "hint: is it a data file?"]);
    place.refuses(
        &["train", "--set", "train.epochs"],
        &["`--set train.epochs`: expected SECTION.KEY=VALUE", "hint: for example"],
    );
    place.refuses(&["train", "--set", "=3"], &["`--set =3`: expected SECTION.KEY=VALUE"]);
}

#[test]
fn values_out_of_range() {
    refuses(
        "[train]\nbatch_size = 0\n",
        &[
            "run.toml: line 2, column 1: `train.batch_size` must be a whole number from 1",
            "got 0",
            "32 is a good start",
        ],
    );
    refuses("[train]\nglobal_batch_size = 0\n", &["`train.global_batch_size`", "got 0"]);
    refuses("[train]\nepochs = -1\n", &["`train.epochs` must be a whole number from 1", "got -1"]);
    for lr in ["nan", "0", "-0.1", "inf", "1e300"] {
        refuses(
            &format!("[optimizer]\nlr = {lr}\n"),
            &["run.toml: line 2, column 1: `optimizer.lr` must be a finite number above 0", "0.001 is usual"],
        );
    }
    refuses_set(&["optimizer.kind=adan"], &["must be one of sgd, adam, adamw", "did you mean \"adam\"?"]);
    refuses(
        "[train]\nprecision = \"f8\"\n",
        &["`train.precision` must be one of f32, f32x3, tf32, bf16, f16"],
    );
    refuses("[data]\neval_fraction = 1.0\n", &["`data.eval_fraction` must be a fraction between 0 and 1"]);
}

#[test]
fn keys_that_exclude_each_other() {
    refuses(
        "[train]\nepochs = 3\nsteps = 10\n",
        &[
            "run.toml: line 3, column 1: `train.epochs` and `train.steps` are both given",
            "hint: keep one of them",
        ],
    );
    refuses(
        "[train]\nbatch_size = 3\nglobal_batch_size = 10\n",
        &["`train.batch_size` and `train.global_batch_size` are both given"],
    );
    refuses(
        "[train]\nglobal_batch_size = 2\ngrad_accum_steps = 4\n",
        &["line 2", "`train.global_batch_size` must be at least `train.grad_accum_steps`, 4, got 2"],
    );
    refuses(
        "[data]\ntask = \"regression\"\ntrain = \"rows.csv\"\n[loss]\nkind = \"cross_entropy\"\n",
        &[
            "line 5",
            "`loss.kind` must be \"mse\" or \"huber\" or \"log_cosh\" or \"quantile\" or \"poisson\" for task \"regression\"",
            "hint: set `data.task`",
        ],
    );
    refuses(
        "[data]\ntrain = \"rows.csv\"\n[loss]\nclass_weights = [1, 1, 1]\n",
        &["`loss.class_weights` has 3 numbers, expected 2", "rows.csv"],
    );
}

/// Too few rows for the requested micro-batches are not an error, and cost no empty passes.
#[test]
fn far_more_micro_batches_than_rows() {
    let place = Place::with(&[("rows.csv", GOOD_CSV)]);
    let sets = ["data.train=rows.csv", "train.epochs=1", "train.grad_accum_steps=1000000"];
    let mut args = vec!["train", "-q", "--out", "out"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    place.run(&args).is_good();
}

/// Evaluation rows may come with the training rows, so their existence is known only once the files are found.
#[test]
fn keys_that_need_rows_to_evaluate_on() {
    let keys = [
        ("train.eval_every_steps", "3", "must be 0 where `data.eval` is \"none\" by default"),
        ("train.early_stop_patience", "2", "must be 0 where `data.eval` is \"none\" by default"),
        ("train.early_stop_metric", "\"eval_r2\"", "must be \"eval_loss\" where `data.eval` is \"none\""),
        ("checkpoint.keep_best", "\"eval_r2\"", "must be \"eval_loss\" or \"none\" where `data.eval` is"),
    ];
    for (key, value, expected) in keys {
        let (section, short) = key.split_once('.').unwrap();
        let text =
            format!("[data]\ntrain = \"rows.csv\"\ntask = \"regression\"\n[{section}]\n{short} = {value}\n");
        refuses(&text, &["run.toml: line 5, column 1", key, expected, "`data.eval_fraction`, such as 0.1"]);
    }
}
