//! Invalid inputs to several ranks: all of them end with one status, and one rank reports.

use std::process::Command;

use super::file_sets;
use super::harness::{GOOD_CSV, Place, with_mount};
use crate::common::ddp_train;

/// Ranks that are started in the same way.
#[derive(Clone, Copy)]
struct Ranks<'a> {
    n: usize,
    /// Working directory, relative to the place.
    folder: &'a str,
    args: &'a [&'a str],
}

fn ranks<'a>(n: usize, args: &'a [&'a str]) -> Ranks<'a> {
    Ranks { n, folder: ".", args }
}

/// Whether ranks can be started here.
fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: needs mpirun");
    }
    found
}

fn mpirun(place: &Place, all: &[Ranks<'_>]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--bind-to", "none", "--oversubscribe"]);
    for (index, Ranks { n, folder, args }) in all.iter().enumerate() {
        command.args((index > 0).then_some(":"));
        command.args(["-n", &n.to_string(), "-wdir"]).arg(place.file(folder));
        command.arg(ddp_train()).args(*args);
    }
    command
}

/// Exit status of a bad command line, config or data.
const USAGE: i32 = 2;
/// Exit status of a world or environment that does not fit.
const ENVIRONMENT: i32 = 78;

/// Asserts that all ranks end with `status` and one message with all `parts`, and that no file is created, changed or removed.
#[track_caller]
fn refuse(place: &Place, status: i32, all: &[Ranks<'_>], parts: &[&str]) {
    if !has_mpirun() {
        return;
    }
    let before = place.files();
    let ended = place.end(&mut mpirun(place, all));
    assert_eq!(ended.status, Some(status), "{ended:#?}");
    ended.says_once(parts);
    assert_eq!(place.files(), before, "files changed by a refused run");
}

#[test]
fn one_rank_tells_what_is_wrong_for_all() {
    let place =
        Place::with(&[("run.toml", "[train]\nepoch = 3\n"), ("three.csv", "x,label\n0,0\n1,1\n2,0\n")]);
    refuse(&place, USAGE, &[ranks(2, &["train", "--threads", "0"])], &["'0' for '--threads <N>'"]);
    refuse(
        &place,
        USAGE,
        &[ranks(2, &["train", "run.toml", "--out", "out"])],
        &["error: run.toml: line 2, column 1: unknown key `train.epoch`", "did you mean `train.epochs`?"],
    );
    refuse(
        &place,
        ENVIRONMENT,
        &[ranks(4, &["train", "--set", "data.train=three.csv", "--out", "out"])],
        &["error: three.csv: 3 training rows, fewer than the 4 ranks", "hint: start at most 3 ranks"],
    );
    // Without the flag, the ranks would use cuda:0 and cuda:1; the error is the same.
    refuse(
        &place,
        ENVIRONMENT,
        &[ranks(2, &["train", "--device", "cuda", "--out", "out"])],
        &["error: the device cuda:0 cannot be used", "hint: "],
    );
}

const TRAIN: [&str; 9] =
    ["train", "--set", "data.train=rows.csv", "--out", "out", "--threads", "1", "-q", "--set"];

#[test]
fn ranks_that_were_told_different_things() {
    let place = Place::with(&[("rows.csv", GOOD_CSV)]);
    let three = [&TRAIN[..], &["train.epochs=3"]].concat();
    let four = [&TRAIN[..], &["train.epochs=4"]].concat();
    refuse(
        &place,
        ENVIRONMENT,
        &[ranks(2, &three), ranks(1, &four)],
        &["error: rank 2 (", "disagrees with rank 0 on 'train.epochs': '4' there, '3' on rank 0", "hint: "],
    );
    let dry = [&three[..], &["--dry-run"]].concat();
    refuse(&place, ENVIRONMENT, &[ranks(1, &three), ranks(1, &dry)], &["error: rank 1 (", "'--dry-run'"]);

    let start = [&three[..], &["--init-from", "w.safetensors"]].concat();
    let missing = ["[rank 1 ", "error: model file `w.safetensors` does not exist"];
    refuse(&place, USAGE, &[ranks(1, &three), ranks(1, &start)], &missing);
    place
        .run(
            &[
                &["train", "--set", "data.train=rows.csv", "--set", "train.epochs=1"],
                &["--out", "run", "-q"][..],
            ]
            .concat(),
        )
        .is_good();
    std::fs::rename(place.file("run/model.safetensors"), place.file("w.safetensors")).unwrap();
    refuse(
        &place,
        ENVIRONMENT,
        &[ranks(1, &three), ranks(1, &start)],
        &["error: rank 1 (", "'--init-from (fingerprint)'", "'none' on rank 0"],
    );
}

#[test]
fn ranks_that_see_different_rows() {
    let other = GOOD_CSV.replace("4,0,1", "5,0,1");
    let place = Place::with(&[("a/rows.csv", GOOD_CSV), ("b/rows.csv", &other)]);
    let args = [&TRAIN[..], &["train.epochs=3"]].concat();
    let of = |folder| Ranks { folder, ..ranks(1, &args) };
    refuse(
        &place,
        ENVIRONMENT,
        &[of("a"), of("b")],
        &["error: rank 1 (", "disagrees with rank 0 on 'rows and columns of the data", "hint: "],
    );
}

#[test]
fn arrays_on_several_ranks() {
    let place = Place::new();
    let mut x = file_sets::features();
    let three = |values: &[f64]| file_sets::npy_f32(&[3, 3], &values[..9]);
    place.write("few.npy", &three(&x));
    place.write("few_labels.npy", &file_sets::npy_i64(&[3], &[0.0, 1.0, 0.0]));
    place.write("y.npy", &file_sets::y_npy());
    // In the shard of rows that only the last rank reads.
    x[11 * 3 + 2] = f64::NAN;
    place.write("x.npy", &file_sets::npy_f32(&[12, 3], &x));
    let few = ["data.train=few.npy", "data.labels=few_labels.npy"];
    refuse(
        &place,
        ENVIRONMENT,
        &[ranks(4, &file_sets::train(&few))],
        &["error: few.npy: 3 training rows, fewer than the 4 ranks", "hint: start at most 3 ranks"],
    );
    let nan = [&file_sets::PAIR[..], &["data.normalize=standard"]].concat();
    refuse(
        &place,
        USAGE,
        &[ranks(2, &file_sets::train(&nan))],
        &["data file `x.npy`, row 11, column \"f2\": expected a finite number, got NaN", "hint: "],
    );
    // Otherwise a loader finds it in the middle of the run.
    if has_mpirun() {
        let args = file_sets::train(&file_sets::PAIR);
        let ended = place.end(&mut mpirun(&place, &[ranks(2, &args)]));
        assert_eq!(ended.status, Some(2), "{ended:#?}");
        // With so few rows, all ranks may find it before one of them has ended the job.
        assert!(ended.stderr.contains("error: data file `x.npy`, row 11, column \"f2\""), "{ended:#?}");
    }
}

/// Only rank 0 writes, so only it notices; all ranks end with its status.
#[test]
fn a_full_disk_ends_all_ranks() {
    let args = ["train", "--out", "disk/out", "--threads", "1", "-q"];
    if !has_mpirun() {
        return;
    }
    let place = Place::new();
    let command = mpirun(&place, &[ranks(2, &args)]);
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_str().unwrap())
        .collect();
    if let Some(ended) = with_mount(&place, "-osize=4k", &words) {
        assert_eq!(ended.status, Some(74), "{ended:#?}");
        ended.says_once(&[
            "[rank 0 ",
            "can't write `disk/out/config.toml`: No space left on device",
            "hint: the disk is full",
        ]);
    }
}
