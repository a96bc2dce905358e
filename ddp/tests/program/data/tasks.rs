//! The task that targets decide on where the config leaves it open.

use std::fs;

use super::files::{self, Element};
use crate::common::{run, single, temp_dir, write};

#[test]
fn targets_decide_on_the_task() {
    let folder = temp_dir();
    let place = folder.path();
    let table = |label: &dyn Fn(usize) -> String| {
        (0..60).fold("x,label\n".to_owned(), |text, row| text + &format!("{},{}\n", row % 7, label(row)))
    };
    let dry = |more: &[&str]| {
        let mut command = single(&[&["train", "--dry-run", "--set", "data.train=rows.csv"], more].concat());
        command.current_dir(place);
        run(command)
    };
    for (label, task, reason) in [
        (
            &(|row: usize| ["no", "yes"][row % 2].to_owned()) as &dyn Fn(usize) -> String,
            "classification",
            "holds text",
        ),
        (&|row| ["true", "false"][row % 2].to_owned(), "classification", "holds truth values"),
        (&|row| (row % 20).to_string(), "classification", "holds 20 distinct integers"),
        (&|row| format!("{}.0", row % 3), "classification", "holds 3 distinct integers"),
        (&|row| format!("{}", row as f64 * 0.5), "regression", "holds numbers with fractions"),
        (
            &|row| (row % 21 * 3).to_string(),
            "regression",
            "holds 21 distinct integers from 0 to 60 with gaps",
        ),
    ] {
        write(place, "rows.csv", &table(label));
        let ended = dry(&[]);
        assert!(ended.status.success(), "{}", ended.stderr);
        let line = ended.stderr.lines().find(|line| line.starts_with("task: ")).unwrap();
        assert!(line.contains(task) && line.contains(&format!("because \"label\" {reason}")), "{line}");
        assert!(ended.stdout.contains(&format!("\ntask = \"{task}\"\n")), "{}", ended.stdout);
        let loss = if task == "regression" { "mse" } else { "cross_entropy" };
        assert!(ended.stdout.contains(&format!("\nkind = \"{loss}\"")), "{}", ended.stdout);
    }
    write(place, "rows.csv", &table(&|row| (row % 21).to_string()));
    let ended = dry(&[]);
    assert_eq!(ended.status.code(), Some(2));
    for part in [
        "`rows.csv`: \"label\" holds 21 distinct integers, which may be classes or quantities",
        "hint: set `data.task` to \"classification\" or \"regression\"",
    ] {
        assert!(ended.stderr.contains(part), "no {part:?} in {}", ended.stderr);
    }
    for task in ["classification", "regression"] {
        let ended = dry(&["--set", &format!("data.task={task}")]);
        assert!(ended.status.success() && !ended.stderr.contains("task: "), "{}", ended.stderr);
    }
    // A key of the other task is an error once the targets have determined the task.
    write(place, "rows.csv", &table(&|row| ["ham", "spam"][row % 2].to_owned()));
    let ended = dry(&["--set", "loss.kind=mse"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended.stderr.contains("\"cross_entropy\" or \"focal\" or \"ordinal\" for task \"classification\""),
        "{}",
        ended.stderr
    );
    // A loss that is no task's default determines the task before the targets do.
    let ended = dry(&["--set", "loss.kind=huber"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("column \"label\": expected a number, got \"ham\""), "{}", ended.stderr);
    write(place, "rows.csv", &table(&|row| (row % 20).to_string()));
    let ended = dry(&["--set", "loss.kind=huber"]);
    assert!(ended.stdout.contains("\ntask = \"regression\""), "{}{}", ended.stdout, ended.stderr);
    // Several targets.
    for (rows, task) in [("0,1\n1,0\n1,1\n", "multilabel"), ("0,1\n2,0\n1,1\n", "regression")] {
        let rows: String = rows.lines().enumerate().map(|(x, targets)| format!("{x},{targets}\n")).collect();
        write(place, "rows.csv", &format!("x,a,b\n{rows}"));
        let ended = dry(&["--set", "data.target=[\"a\", \"b\"]"]);
        assert!(ended.stdout.contains(&format!("\ntask = \"{task}\"\n")), "{}{}", ended.stdout, ended.stderr);
    }
    fs::write(place.join("x.npy"), files::npy(Element::F32, false, &[4, 1], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    for (values, task) in [([1.0, 2.0, 1.0, 2.0], "classification"), ([1.0, 2.5, 1.0, 2.0], "regression")] {
        fs::write(place.join("y.npy"), files::npy(Element::F64, false, &[4], &values)).unwrap();
        let ended = dry(&["--set", "data.train=x.npy", "--set", "data.labels=y.npy"]);
        assert!(ended.stdout.contains(&format!("\ntask = \"{task}\"\n")), "{}{}", ended.stdout, ended.stderr);
    }
}
