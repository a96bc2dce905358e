//! `ddp-train checkpoint` from a user's point of view.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ddp::checkpoint::{CheckpointStore, SaveOptions, Saver};
use ddp::config::EvalMetric;
use ddp::data::order::epoch_proof::RowsHash;
use ddp::model::ParamLayout;
use ddp::report::EvalMetrics;
use serde_json::{Value, json};

use super::fixture::*;
use crate::common::{Outcome, ddp_train, read_weights, run, run_ok, single, temp_dir, write};

fn checkpoint(args: &[&str]) -> Outcome {
    run(single(&[&["checkpoint"], args].concat()))
}

#[track_caller]
fn stdout(args: &[&str]) -> String {
    let outcome = checkpoint(args);
    assert!(outcome.status.success(), "{args:?}: {}{}", outcome.stdout, outcome.stderr);
    outcome.stdout
}

#[track_caller]
fn fails(args: &[&str], code: i32, parts: &[&str]) -> String {
    let outcome = checkpoint(args);
    assert_eq!(outcome.status.code(), Some(code), "{args:?}: {}{}", outcome.stdout, outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "{args:?}: no {part:?} in {}", outcome.stderr);
    }
    outcome.stdout
}

/// A run's folder with checkpoints of steps 5, 10 and 15, of which 10 is the best.
fn a_run(layout: &ParamLayout) -> (tempfile::TempDir, CheckpointStore) {
    let dir = temp_dir();
    let store = saved(dir.path(), layout, 1, []);
    for step in [5, 10, 15] {
        let mut run = run_state_with_best(step, step.min(10));
        run.eval = EvalMetrics::default().with(EvalMetric::Loss, step as f64 / 64.0);
        let options = SaveOptions { keep_best: true, ..options(layout, 0, 1) };
        save(&mut Saver::new(store.clone(), options), &run).unwrap();
    }
    (dir, store)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn ls_lists_and_tells_what_is_broken() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    fs::write(store.step_folder(5).join("model.safetensors"), "cut").unwrap();
    let list = stdout(&["ls", text(dir.path())]);
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["checkpoint", "step", "epochs", "written"], "{list}");
    assert_eq!(lines[1][..3], ["step-5", "BROKEN:", "model.safetensors"], "{list}");
    assert_eq!((lines[2][..3].to_vec(), lines[2].last()), (vec!["step-10", "10", "4.00"], Some(&"best")));
    assert_eq!((lines[3][..3].to_vec(), lines[3].last()), (vec!["step-15", "15", "6.00"], Some(&"latest")));
    let json = stdout(&["ls", text(store.folder()), "--json"]);
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        json[0]["fault"],
        "model.safetensors has 3 bytes, expected ".to_owned() + &expected_bytes(&json[0])
    );
    assert_eq!(
        (&json[1]["step"], &json[1]["epochs"], &json[1]["marks"][0]),
        (&10.into(), &4.0.into(), &"best".into())
    );
    assert_eq!((&json[2]["eval_loss"], &json[2]["world_size"]), (&(15.0 / 64.0).into(), &1.into()));
}

fn expected_bytes(line: &Value) -> String {
    line["fault"].as_str().unwrap().rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn verify_says_what_it_proved_and_ends_with_1_if_anything_is_wrong() {
    let layout = layout(&[3, 5, 2]);
    let (dir, store) = a_run(&layout);
    let told = stdout(&["verify", text(dir.path())]);
    assert!(told.contains("step-10: all 3 files ("), "{told}");
    assert!(told.contains("  each of 10 rows was used exactly once in each of epochs 1 to 4\n"), "{told}");
    let one = stdout(&["verify", text(&store.step_folder(10))]);
    assert!(told.contains(&one) && one.lines().count() == 2, "{one}");

    // A run that used a row twice in its second epoch, instead of another row.
    let mut wrong = run_state(20);
    let mut rows: RowsHash = (0..10).filter(|&row| row != 3).collect();
    rows.add(8);
    wrong.proof = Default::default();
    for epoch in 1..=8 {
        wrong.proof.finish_epoch(if epoch == 2 { rows } else { RowsHash::for_all_rows(10) });
    }
    save(&mut Saver::new(store.clone(), options(&layout, 0, 1)), &wrong).unwrap();
    let path = store.step_folder(5).join("optimizer-00000-of-00001.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let told = fails(&["verify", text(dir.path())], 1, &["error: 2 of 4 checkpoints failed verification"]);
    assert!(told.contains("step-5: BROKEN: optimizer-00000-of-00001.safetensors was changed"), "{told}");
    let want = "  WRONG: epoch 2: 10 rows were used, expected each of 10 once: row 3 is missing, and row 8 was used twice\n";
    assert!(told.contains(want), "{told}");
    let json = fails(&["verify", text(&store.step_folder(20)), "--json"], 1, &["1 of 1"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ok"], json.get("fault")), (&false.into(), None));
    assert!(json["epochs_fault"].as_str().unwrap().starts_with("epoch 2: "), "{json}");
}

#[test]
fn show_tells_it_in_words() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    let told = stdout(&["show", text(dir.path())]);
    for part in [
        "step 15, 60 rows used by 1 ranks\n",
        "epochs      each of 10 rows was used exactly once in each of epochs 1 to 6\n",
        "best        eval_loss 0.25 after step 10\n",
        "state       m, v, ema\n",
        "layers.0.weight  [5, 3]",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    assert_eq!(stdout(&["show", text(&store.folder().join("best")), "--config"]), "[train]\nepochs = 3\n");
    let json: Value =
        serde_json::from_str(&stdout(&["show", text(&store.folder().join("best")), "--json"])).unwrap();
    assert_eq!(json["run"]["step"], 10);
    fails(
        &["show", text(&dir.path().join("nowhere"))],
        2,
        &["error: no checkpoint at `", "`: no such file or folder\nhint: check the spelling"],
    );
    fs::write(store.step_folder(15).join("manifest.json"), "").unwrap();
    let outcome = checkpoint(&["show", text(dir.path())]);
    assert!(outcome.stderr.contains("skipped step-15: manifest.json is truncated"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("step 10, 40 rows"), "{}", outcome.stdout);
}

#[test]
fn show_tells_how_rows_become_input_and_output() {
    let folder = temp_dir();
    let train = |name: &str, table: &str, target: &str| {
        let table = write(folder.path(), &format!("{name}.csv"), table);
        let out = folder.path().join(name);
        let target = format!("data.target={target}");
        let categorical = "data.categorical=[\"kind\"]";
        let args = ["train", text(&table), "--out", text(&out), "--quiet", "--epochs", "1"];
        let sets = ["--set", &target, "--set", categorical, "--set", "data.missing=mean"];
        run_ok(single(&[&args[..], &sets].concat()));
        let json: Value = serde_json::from_str(&stdout(&["show", text(&out), "--json"])).unwrap();
        (stdout(&["show", text(&out)]), json)
    };
    let (told, json) = train("pets", "kind,x,label\ncat,1,yes\ndog,2.5,no\ncat,,yes\n", "label");
    for part in [
        "columns     2, 1 of them with categories, numbers normalized, missing values filled in\n",
        "classes     2: no, yes\n",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let of = &json["preprocessing"];
    assert_eq!((&of["columns"], &of["classes"]), (&json!(["kind", "x"]), &json!(["no", "yes"])));
    assert_eq!(of["vocabularies"], json!([{"column": "kind", "values": ["cat", "dog"]}]));
    assert_eq!((&of["is_normalized"], &of["fills_missing"]), (&json!(true), &json!(true)));
    assert!(of.get("target_scale").is_none(), "{of}");
    assert!(json["epochs"].as_str().unwrap().starts_with("each of 3 rows was used"), "{json}");
    assert_eq!(json["run"]["step"], 1);
    let (told, json) = train("prices", "kind,x,price\na,1,10.5\nb,2,30.5\na,3,10.5\nb,4,30.5\n", "price");
    assert!(told.contains("targets     1, standardized\n"), "{told}");
    assert_eq!(json["preprocessing"]["target_scale"], json!({"shift": [20.5], "scale": [10.0]}));
}

#[test]
fn prune_keeps_the_newest_and_the_best() {
    let layout = layout(&[3, 5, 2]);
    let (dir, store) = a_run(&layout);
    let told = stdout(&["prune", text(dir.path()), "--keep", "1", "--dry-run"]);
    assert!(told.starts_with("would delete step-5 (") && told.lines().count() == 1, "{told}");
    assert_eq!(store.steps().unwrap(), [5, 10, 15]);
    assert_eq!(stdout(&["prune", text(dir.path()), "--keep", "3"]), "nothing to delete\n");
    assert!(stdout(&["prune", text(dir.path()), "--keep", "1"]).starts_with("deleted step-5 ("));
    assert_eq!(store.steps().unwrap(), [10, 15]);
    fails(
        &["prune", text(&store.step_folder(10)), "--keep", "1"],
        2,
        &["is a single checkpoint, expected a folder of checkpoints", "hint: name the folder"],
    );
    // The newest one is damaged in a way that only its checksum shows, so the older one is kept.
    let path = store.step_folder(15).join("model.safetensors");
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&path, bad).unwrap();
    let told = stdout(&["prune", text(dir.path()), "--keep", "1", "--also-best"]);
    assert_eq!(told, "nothing to delete; broken checkpoints do not count: step-15\n");
    fs::write(&path, good).unwrap();
    assert!(
        stdout(&["prune", text(dir.path()), "--keep", "1", "--also-best"]).starts_with("deleted step-10 (")
    );
    assert_eq!(store.steps().unwrap(), [15]);
}

#[test]
fn export_writes_the_moving_average_where_there_is_one() {
    let layout = layout(&[3, 5, 2]);
    let dir = temp_dir();
    let store = saved(dir.path(), &layout, 3, [4]);
    let out = dir.path().join("w.safetensors");
    for (choice, what, told) in [
        ("auto", "ema", "wrote the moving average of the weights of step 4 to "),
        ("model", "weights", "wrote the weights of step 4 to "),
        ("ema", "ema", "wrote the moving average"),
    ] {
        let args = ["export", text(dir.path()), "--out", text(&out), "--weights", choice, "--overwrite"];
        assert!(stdout(&args).starts_with(told));
        let exported = read_weights(&out);
        for entry in layout.entries() {
            let want = values(what, 4, entry.range());
            assert_eq!(exported[&entry.name].values, want, "{choice}: {}", entry.name);
            assert_eq!(exported[&entry.name].shape, entry.dims);
        }
        assert_eq!(exported["normalize.scale"].values, [0.5; 3]);
    }
    fails(&["export", text(dir.path()), "--out", text(&out)], 2, &["already exists", "pass --overwrite"]);
    // A link would lead to it, too.
    let link = dir.path().join("link.safetensors");
    std::os::unix::fs::symlink(store.folder().join("step-4/model.safetensors"), &link).unwrap();
    let args = ["export", text(dir.path()), "--out", text(&link), "--overwrite"];
    fails(&args, 2, &["link.safetensors` belongs to a checkpoint", "hint: name a file outside"]);

    let no_ema = |options: &mut SaveOptions| options.state_names = vec!["velocity".to_owned(); 1];
    let state = values("velocity", 5, 0..layout.flat_len());
    let mut options = options(&layout, 0, 1);
    no_ema(&mut options);
    let weights = values("weights", 5, 0..layout.flat_len());
    Saver::new(store, options).save(&run_state(5), Some(&weights), &[&state]).unwrap();
    let args = ["export", text(dir.path()), "--out", text(&out), "--overwrite"];
    assert!(stdout(&args).starts_with("wrote the weights of step 5"));
    let args = ["export", text(dir.path()), "--out", text(&out), "--overwrite", "--weights", "ema"];
    fails(&args, 2, &["holds no EMA of the weights", "hint: `--weights model`"]);
}

#[test]
fn average_is_the_mean_in_double_precision() {
    let small = layout(&[3, 5, 2]);
    let (dir, store) = a_run(&small);
    let out = dir.path().join("mean.safetensors");
    let mean = |steps: &[u64], at: usize| {
        let sum: f64 = steps.iter().map(|&step| f64::from(value("weights", step, at))).sum();
        (sum / steps.len() as f64) as f32
    };
    let check = |steps: &[u64]| {
        let weights = read_weights(&out);
        for entry in small.entries() {
            let want: Vec<f32> = entry.range().map(|at| mean(steps, at)).collect();
            assert_eq!(weights[&entry.name].values, want, "{}", entry.name);
        }
        fs::remove_file(&out).unwrap();
    };
    let args = ["average", text(dir.path()), "--last", "2", "--weights", "model", "--out", text(&out)];
    assert!(stdout(&args).starts_with("wrote the mean of 2: weights of step 15, weights of step 10 to "));
    check(&[15, 10]);
    let (a, b, c) = (store.step_folder(5), store.step_folder(10), store.folder().join("latest"));
    stdout(&["average", text(&a), text(&b), text(&c), "--weights", "model", "--out", text(&out)]);
    check(&[5, 10, 15]);

    let args = ["average", text(dir.path()), "--last", "4", "--out", text(&out)];
    fails(&args, 2, &["holds 3 usable checkpoints, expected 4"]);
    let other = temp_dir();
    saved(other.path(), &layout(&[3, 6, 2]), 1, [1]);
    let args = ["average", text(dir.path()), text(other.path()), "--out", text(&out)];
    fails(&args, 2, &["belongs to a different model", "layers.0.weight is [6, 3], expected [5, 3]"]);
    assert!(!out.exists());
}

#[test]
fn average_refuses_what_is_no_mean() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    let out = dir.path().join("mean.safetensors");
    let (run, a, b) = (dir.path(), store.step_folder(5), store.folder().join("best"));
    for (args, parts) in [
        (
            &[text(run), text(&a), "--last", "2"][..],
            &["--last takes the newest checkpoints of one run, got 2 paths"],
        ),
        (&[text(run)], &["averaging needs at least two checkpoints, got one: `"]),
        (&[text(run), "--last", "1"], &["`--last K` averages the K newest of a run, 2 or more"]),
        (&[text(&b), text(&a), text(&store.step_folder(10))], &["step-10` is named twice"]),
    ] {
        let args = [&["average"], args, &["--out", text(&out)]].concat();
        fails(&args, 2, &[parts[0], "\nhint: "]);
        assert!(!out.exists());
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_the_work() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    let (run, a, b) = (text(dir.path()), store.step_folder(5), store.step_folder(10));
    let manifest = a.join("manifest.json");
    // Faults of the checkpoints would be reported later.
    fs::write(b.join("model.safetensors"), "cut").unwrap();
    for (out, hint) in [
        (
            dir.path().join("no/w.safetensors"),
            format!("the folder `{run}/no` does not exist: create it, or choose another path"),
        ),
        (dir.path().to_owned(), "it is a folder: name a file in it".to_owned()),
        (manifest.join("w.safetensors"), "a component of the path is a file: check the spelling".to_owned()),
    ] {
        let parts = [format!("error: can't write `{}`: ", out.display()), format!("\nhint: {hint}\n")];
        let parts = [parts[0].as_str(), &parts[1]];
        fails(&["export", text(&b), "--out", text(&out)], 74, &parts);
        fails(&["export", text(&b), "--overwrite", "--out", text(&out)], 74, &parts);
        fails(&["average", text(&a), text(&b), "--out", text(&out)], 74, &parts);
    }
}

#[test]
fn where_there_is_none_it_says_what_there_is() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    let other = temp_dir();
    let in_other = |name: &str| other.path().join(name);
    for folder in ["empty", "data", "ended/checkpoints", "killed/checkpoints"] {
        fs::create_dir_all(in_other(folder)).unwrap();
    }
    for file in ["data/x.npy", "ended/model.safetensors"] {
        fs::write(in_other(file), "").unwrap();
    }
    let model = in_other("ended/model.safetensors");
    fs::write(store.folder().join("best"), "step-1x").unwrap();
    let list = format!(
        "hint: `ddp-train checkpoint ls {}` lists the existing checkpoints\n",
        store.folder().display()
    );
    let init = format!("hint: name another run; `--init-from {}` starts a new run", model.display());
    for (path, why, hint) in [
        (in_other("nowhere"), "no such file or folder", "hint: check the spelling"),
        (store.step_folder(7), "no such file or folder", list.as_str()),
        (in_other("data/x.npy"), "it is a file", "hint: name a run's folder, its checkpoints folder"),
        (model.clone(), "it is a file", "inside; --init-from starts a new run from weights alone"),
        (
            store.folder().join("best"),
            "the file names a checkpoint that does not exist",
            "hint: name the run's folder",
        ),
        (in_other("empty"), "the folder is empty", "hint: name a run's folder, its checkpoints folder"),
        (
            in_other("data"),
            "the folder holds no checkpoints",
            "hint: name a run's folder, its checkpoints folder",
        ),
        (in_other("ended"), "the run has no checkpoints", init.as_str()),
        (in_other("killed"), "the run has no checkpoints", "this one has saved no checkpoint yet"),
    ] {
        let want = format!("error: no checkpoint at `{}`: {why}\n", path.display());
        fails(&["show", text(&path)], 2, &[&want, hint]);
        fails(&["ls", text(&path)], 2, &[&want, hint]);
    }
    // A folder that exists but can't be used.
    fs::write(store.step_folder(10).join("manifest.json"), "").unwrap();
    let step = store.step_folder(10);
    let list =
        format!("hint: `ddp-train checkpoint verify {}` lists the usable ones", store.folder().display());
    fails(&["show", text(&step)], 2, &["can't be used: manifest.json is truncated", &list]);
    fails(
        &["verify", text(&step)],
        1,
        &["1 of 1 checkpoints failed verification\nhint: --resume skips BROKEN"],
    );
    let out = in_other("mean.safetensors");
    let args = ["average", text(dir.path()), "--out", text(&out), "--last"];
    fails(&[&args[..], &["3"]].concat(), 2, &["holds 2 usable checkpoints, expected 3\nhint: `--last 2`"]);
    for step in [5, 15] {
        fs::write(store.step_folder(step).join("manifest.json"), "").unwrap();
    }
    fails(
        &[&args[..], &["2"]].concat(),
        2,
        &["holds 0 usable checkpoints", "hint: `ddp-train checkpoint ls` shows"],
    );
    fails(
        &["show", text(dir.path())],
        2,
        &["none of the checkpoints in", "hint: fix the problems listed above"],
    );
}

#[test]
fn what_may_not_be_read_is_not_called_missing() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set(dir.path(), 0o755);
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", ddp_train(), "checkpoint"]).args(args);
        command.output().ok().filter(|output| output.status.code() != Some(127))
    };
    let Some(output) = as_nobody(&["ls", text(dir.path())]).filter(|output| output.status.success()) else {
        return println!("skipped: needs the right to become another user, who may read the program");
    };
    assert!(String::from_utf8_lossy(&output.stdout).contains("step-15"));
    for (locked, want) in [(dir.path(), "no checkpoint at `"), (store.folder(), "can't read `")] {
        set(locked, 0o700);
        let output = as_nobody(&["ls", text(dir.path())]).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        for part in [want, "Permission denied (os error 13)\n", "hint: check who may read there\n"] {
            assert!(stderr.contains(part), "no {part:?} in {stderr}");
        }
        set(locked, 0o755);
    }
}

#[test]
fn what_a_marker_holds_is_cut_where_it_is_told() {
    let (dir, store) = a_run(&layout(&[3, 5, 2]));
    fs::write(store.folder().join("latest"), vec![7u8; 1 << 20]).unwrap();
    let told = stdout(&["verify", text(dir.path())]);
    let line = told.lines().find(|line| line.starts_with("latest: it names \"\\u{7}")).unwrap();
    assert!(line.len() < 130 && line.ends_with("...\", and there is no such checkpoint"), "{line}");
    let outcome = checkpoint(&["show", text(dir.path())]);
    assert!(
        outcome.stderr.len() < 160 && outcome.stderr.contains("skipped latest: it names \""),
        "{}",
        outcome.stderr
    );
    fs::write(store.folder().join("latest"), "step-77").unwrap();
    let told = stdout(&["verify", text(dir.path())]);
    assert!(told.contains("latest: it names \"step-77\", and there is no such checkpoint\n"), "{told}");
}

#[test]
fn bench_measures_on_the_disk_that_is_named_and_leaves_nothing() {
    let dir = temp_dir();
    fs::write(dir.path().join("mine"), "stays").unwrap();
    let args =
        ["bench", "checkpoint", "--device", "cpu", "--dims", "30,20", "--repeats", "2", "--json", "--out"];
    let outcome = run(single(&[&args[..], &[text(dir.path())]].concat()));
    assert!(outcome.status.success(), "{}", outcome.stderr);
    let lines: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whats: Vec<_> = lines.iter().map(|line| line["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["snapshot", "save", "resume"]);
    assert!(lines.iter().all(|line| line["gb_per_s"].as_f64().unwrap() > 0.0 && line["size_bytes"] == 7680));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}
