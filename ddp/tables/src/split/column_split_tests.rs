//! Rows taken out for evaluation: no group and no later row among the training rows, for any number of ranks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use ddp::config::Config;

use crate::load;
use crate::split::column_split::*;
use crate::testing::{columns_of, features_of};

const N_ROWS: usize = 200;

fn patient(row: usize) -> String {
    format!("p{}", row * 7 % 200 / 9)
}

/// A day of 60; several rows share each.
fn day(row: usize) -> usize {
    row * 37 % 60
}

fn fold(row: usize) -> &'static str {
    ["train", "test", "train", "other", "train"][row % 5]
}

/// A table whose feature `row` is the number of the row.
fn table(rows: impl Iterator<Item = usize>) -> String {
    let mut text = "patient,row,date,fold,label\n".to_owned();
    for row in rows {
        let date = format!("2024-{:02}-{:02}", 1 + day(row) / 28, 1 + day(row) % 28);
        writeln!(text, "{},{row},{date},{},{}", patient(row), fold(row), row % 2).unwrap();
    }
    text
}

/// Numbers of the training rows and of the evaluation rows, and the line that tells of them.
type Sides = (BTreeSet<usize>, BTreeSet<usize>, String);

/// Rows that `n_ranks` ranks load.
fn loaded(text: &str, sets: &[&str], n_ranks: usize) -> Result<Sides, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, text).unwrap();
    let mut all = vec![format!("data.train={}", path.display()), "data.normalize=none".to_owned()];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    if !sets.iter().any(|set| set.starts_with("data.drop")) {
        all.push("data.drop=[\"patient\", \"date\", \"fold\"]".to_owned());
    }
    let config = Config::load(None, &all).map_err(|error| ddp_kernels::hint::with_hint(&error))?;
    let of_ranks = ddp_comm::threads::run(n_ranks, |world| {
        let loaded = load(&config, &world).map_err(|stop| {
            stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
        })?;
        assert_eq!(loaded.train.layout().features, ["row"]);
        let numbers = |rows: &dyn Dataset| features_of(rows).iter().map(|row| *row as usize).collect();
        let eval = loaded.eval.as_ref().expect("the config splits the rows");
        Ok((numbers(&*loaded.train), numbers(&**eval), loaded.split.clone().unwrap_or_default()))
    });
    assert!(of_ranks.iter().all(|of_rank| *of_rank == of_ranks[0]));
    of_ranks.into_iter().next().unwrap()
}

/// The same on 1, 2 and 3 ranks.
fn split(sets: &[&str]) -> Sides {
    let of_one = loaded(&table(0..N_ROWS), sets, 1).unwrap();
    for n_ranks in [2, 3] {
        assert_eq!(loaded(&table(0..N_ROWS), sets, n_ranks).unwrap(), of_one, "{n_ranks} ranks");
    }
    assert!(of_one.0.is_disjoint(&of_one.1));
    of_one
}

fn assert_refused(text: &str, sets: &[&str], parts: &[&str]) {
    let message = loaded(text, sets, 1).unwrap_err();
    for part in parts.iter().chain(&["hint: "]) {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

const BY_PATIENT: &str = "data.split={group=\"patient\"}";
const BY_DATE: &str = "data.split={time=\"date\"}";

#[test]
fn no_group_is_in_both_parts() {
    let (train, eval, note) = split(&[BY_PATIENT, "data.eval_fraction=0.2"]);
    assert_eq!(train.len() + eval.len(), N_ROWS);
    let groups = |rows: &BTreeSet<usize>| rows.iter().map(|row| patient(*row)).collect::<BTreeSet<_>>();
    assert!(groups(&train).is_disjoint(&groups(&eval)));
    // Groups have 9 rows, the last one 2.
    assert!(eval.len().abs_diff(40) <= 4, "{}", eval.len());
    let (n_train, n_eval) = (groups(&train).len(), groups(&eval).len());
    assert_eq!(
        note,
        format!(
            "split by \"patient\": {n_train} groups ({} rows) to train on, {n_eval} groups ({} rows) to evaluate",
            train.len(),
            eval.len()
        )
    );
    let other = split(&[BY_PATIENT, "data.eval_fraction=0.2", "train.seed=5"]);
    assert_ne!(groups(&other.1), groups(&eval), "the seed decides");
    // The order of the rows does not.
    let reversed = loaded(&table((0..N_ROWS).rev()), &[BY_PATIENT, "data.eval_fraction=0.2"], 1).unwrap();
    assert_eq!((reversed.0, reversed.1), (train, eval));
}

#[test]
fn every_group_is_drawn_equally_often() {
    let values = Values {
        texts: (0..20).map(|group| group.to_string()).collect(),
        n_rows: vec![3; 20],
        codes: (0..60).map(|row| row / 3).collect(),
    };
    let mut counts = [0; 20];
    for seed in 0..2000 {
        let (sides, _) = by_group(&values, "g", "x.csv", 0.25, seed).unwrap();
        (0..20).filter(|group| sides[3 * group] == Side::Eval).for_each(|group| counts[group] += 1);
    }
    // 500 on average, with a deviation of 19.
    assert!(counts.iter().all(|count| (420..580).contains(count)), "{counts:?}");
}

#[test]
fn a_large_group_trains_where_it_would_be_too_much() {
    let text = "g,row,label\n".to_owned()
        + &(0..100)
            .map(|row| format!("{},{row},{}\n", if row < 60 { 0 } else { row }, row % 2))
            .collect::<String>();
    let sets = ["data.split={group=\"g\"}", "data.eval_fraction=0.2", "data.drop=[]"];
    for seed in 0..20 {
        let (_, eval, _) = loaded(&text, &[&sets[..], &[&format!("train.seed={seed}")]].concat(), 1).unwrap();
        assert!(eval.len() == 20 && eval.iter().all(|row| *row >= 60), "{eval:?}");
    }
}

#[test]
fn no_later_row_trains() {
    let (train, eval, note) = split(&[BY_DATE, "data.eval_fraction=0.25"]);
    assert_eq!(train.len() + eval.len(), N_ROWS);
    let last = train.iter().map(|row| day(*row)).max().unwrap();
    let first = eval.iter().map(|row| day(*row)).min().unwrap();
    assert!(last < first, "rows of one day stay together");
    assert!((40..=50).contains(&eval.len()), "{}", eval.len());
    let date = |day: usize| format!("2024-{:02}-{:02}", 1 + day / 28, 1 + day % 28);
    let said = [format!("up to {} to train on", date(last)), format!("from {} on to evaluate", date(first))];
    assert!(said.iter().all(|part| note.contains(part)), "{note}");
}

#[test]
fn times_are_numbers_too() {
    let text = "t,row,label\n5,0,0\n-1.5,1,1\n1e3,2,0\n7,3,1\n";
    let by_time = ["data.split={time=\"t\"}", "data.drop=[]"];
    let (train, eval, note) = loaded(text, &[&by_time[..], &["data.eval_fraction=0.5"]].concat(), 1).unwrap();
    assert_eq!((train, eval), (BTreeSet::from([0, 1]), BTreeSet::from([2, 3])));
    assert!(note.contains("2 rows up to 5 to train on, 2 rows from 7 on"), "{note}");
}

#[test]
fn values_say_which_rows_are_evaluated() {
    let by = |more: &str| format!("data.split={{column=\"fold\"{more}}}");
    let (train, eval, note) = split(&[&by("")]);
    assert!(eval.iter().all(|row| fold(*row) == "test") && eval.len() == 40);
    assert_eq!(train.len(), 160);
    assert!(note.contains("160 rows to train on, 40 rows (\"test\") to evaluate"), "{note}");
    let (train, eval, note) = split(&[&by(", eval=[\"other\"], train=\"train\"")]);
    assert!(eval.iter().all(|row| fold(*row) == "other") && train.iter().all(|row| fold(*row) == "train"));
    assert!(note.contains(
        "120 rows to train on, 40 rows (\"other\") to evaluate, 40 rows with other values left out"
    ));
    let (_, both, _) = split(&[&by(", eval=[\"other\", \"test\"]")]);
    assert_eq!(both.len(), 80);
}

/// Rows with these values of `column`.
fn values(column: &str, values: &[&str]) -> String {
    let rows = values.iter().enumerate();
    format!("{column},row,label\n")
        + &rows.map(|(row, value)| format!("{value},{row},{}\n", row % 2)).collect::<String>()
}

#[test]
fn usual_names_are_recognized_where_they_are_clear() {
    let eval = |column: &str, of_rows: &[&str]| {
        let set = format!("data.split={{column=\"{column}\"}}");
        loaded(&values(column, of_rows), &[&set, "data.drop=[]"], 1).map(|(_, eval, _)| eval)
    };
    let second = BTreeSet::from([1]);
    for of_rows in [
        ["train", "Test", "train"],
        ["a", "valid", "b"],
        ["0", "1", "0"],
        ["0.0", "1.0", "0"],
        ["False", "True", "false"],
    ] {
        assert_eq!(eval("part", &of_rows).unwrap(), second, "{of_rows:?}");
    }
    for (column, of_rows) in [
        ("part", ["train", "valid", "test"]),
        ("fold", ["0", "1", "2"]),
        ("fold", ["1", "2", "1"]),
        ("is_train", ["0", "1", "0"]),
        ("part", ["test", "test", "test"]),
        ("part", ["a", "b", "a"]),
    ] {
        let message = eval(column, &of_rows).unwrap_err();
        for part in
            ["rows.csv", column, "does not say which rows to evaluate on", " row", "eval = \"", "hint: "]
        {
            assert!(message.contains(part), "no {part:?} in: {message}");
        }
    }
}

#[test]
fn splits_that_leave_nothing_are_refused() {
    let one_group = values("g", &["a"; 5]);
    let by_group = ["data.split={group=\"g\"}", "data.drop=[]", "data.eval_fraction=0.2"];
    assert_refused(&one_group, &by_group, &["rows.csv", "no rows to evaluate", "one group, \"a\""]);
    let three = values("g", &["a", "a", "b", "b", "c", "c"]);
    let few = [&by_group[..2], &["data.eval_fraction=0.1"]].concat();
    assert_refused(
        &three,
        &few,
        &["no rows to evaluate", "3 groups have at least 2 rows", "`data.eval_fraction` to 0.34"],
    );
    let most = [&by_group[..2], &["data.eval_fraction=0.9"]].concat();
    assert_refused(&three, &most, &["no rows to train on", "lower"]);
    let by_time = ["data.split={time=\"t\"}", "data.drop=[]", "data.eval_fraction=0.4"];
    let ties = values("t", &["1", "2", "2", "2", "2"]);
    assert_refused(&ties, &by_time, &["no rows to evaluate", "the last 4 rows are of the same time, 2"]);
    let tiny = [&by_time[..2], &["data.eval_fraction=0.01"]].concat();
    assert_refused(&ties, &tiny, &["no test rows left"]);
    let all = ["data.split={column=\"g\",eval=[\"a\"]}", "data.drop=[]"];
    assert_refused(&one_group, &all, &["leaves no rows to train on"]);
    let unknown = ["data.split={column=\"g\",eval=\"x\"}", "data.drop=[]"];
    assert_refused(&three, &unknown, &["no row has \"x\" in column \"g\"", "\"a\" (2 rows), \"b\" (2 rows)"]);
    let open = ["data.split={column=\"g\",eval=\"valid\"}", "data.drop=[]"];
    let parts = values("g", &["train", "valid", "test"]);
    assert_refused(&parts, &open, &["would train on the rows of \"test\"", "train = "]);
}

#[test]
fn values_that_can_not_be_used_are_named_with_their_place() {
    let fraction = "data.eval_fraction=0.5";
    for (set, more) in
        [("{group=\"c\"}", &[fraction][..]), ("{time=\"c\"}", &[fraction]), ("{column=\"c\"}", &[])]
    {
        let set = format!("data.split={set}");
        let sets = [&[&*set, "data.drop=[]"], more].concat();
        let text = values("c", &["1", "2", "NA", "4"]);
        assert_refused(&text, &sets, &["rows.csv`, line 4, column \"c\"", "the value is missing"]);
    }
    let by_time = ["data.split={time=\"c\"}", "data.drop=[]", fraction];
    assert_refused(&values("c", &["1", "soon"]), &by_time, &["line 3", "expected a date", "\"soon\""]);
    assert_refused(
        &values("c", &["1", "2024-01-01"]),
        &by_time,
        &["line 3", "notation of the rows before it"],
    );
    let by_other = ["data.split={group=\"patien\"}", fraction];
    assert_refused(
        &table(0..9),
        &by_other,
        &["no column \"patien\" for `data.split`", "did you mean \"patient\"?"],
    );
}

#[test]
fn rows_without_columns_are_refused() {
    let sets = ["data.split={group=\"g\"}".to_owned(), "data.eval_fraction=0.5".to_owned()];
    let config = Config::load(None, &sets).unwrap();
    let message = load(&config, &ddp_comm::World::single()).unwrap_err().to_string();
    assert!(message.contains("`data.split`") && message.contains("built-in set"), "{message}");
}

#[test]
fn what_evaluation_rows_alone_have_is_unknown() {
    // Rows from 80 on are evaluated: they have a city and a label of their own.
    let text = "t,row,city,label\n".to_owned()
        + &(0..100)
            .map(|row| {
                let (city, label) = if row < 90 { (["Bern", "Rome"][row % 2], row % 3) } else { ("Oslo", 7) };
                format!("{row},{row},{city},{label}\n")
            })
            .collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, text).unwrap();
    let config = |more: &[&str]| {
        let train = format!("data.train={}", path.display());
        let sets = ["data.categorical=[\"city\"]", "data.eval_fraction=0.2", "data.normalize=none", &train];
        let sets: Vec<String> = sets.iter().chain(more).map(|set| (*set).to_owned()).collect();
        Config::load(None, &sets).unwrap()
    };
    for n_ranks in [1, 3] {
        let config = config(&["data.split={time=\"t\"}"]);
        let of_ranks = ddp_comm::threads::run(n_ranks, |world| load(&config, &world).unwrap());
        let vocabulary = &columns_of(&of_ranks[0]).vocabularies[0];
        assert_eq!(vocabulary.values(), ["Bern", "Rome"]);
        let eval = of_ranks[0].eval.as_ref().unwrap();
        let encoded = features_of(&**eval);
        let [first, last] = [&encoded[..4], &encoded[encoded.len() - 4..]];
        // The row, and a column for unknown values, Bern and Rome.
        assert_eq!((first, last), (&[80.0, 0.0, 1.0, 0.0][..], &[99.0, 1.0, 0.0, 0.0][..]));
        let warned = "10 evaluation rows have labels that no training row has: \"7\"";
        assert!(
            of_ranks[0].warnings.iter().any(|warning| warning.contains(warned)),
            "{:?}",
            of_ranks[0].warnings
        );
    }
    let single_rows = load(&config(&["data.stratify=false"]), &ddp_comm::World::single()).unwrap();
    assert_eq!(columns_of(&single_rows).vocabularies[0].values(), ["Bern", "Oslo", "Rome"]);
    assert!(single_rows.warnings.is_empty());
}

#[test]
fn folds_by_time_train_on_the_past_and_evaluate_what_follows() {
    let (mut last_train, mut evaluated) = (BTreeSet::new(), BTreeSet::new());
    for number in 1..=4 {
        let fold = format!("data.fold={number}/4");
        let (train, eval, note) = split(&[&fold, "data.split={time=\"date\"}", "data.target=label"]);
        let latest = train.iter().map(|row| day(*row)).max().unwrap();
        let days: BTreeSet<usize> = eval.iter().map(|row| day(*row)).collect();
        assert!(*days.first().unwrap() > latest && last_train.is_subset(&train), "{note}");
        assert!(eval.is_disjoint(&evaluated) && (30..=50).contains(&eval.len()), "{}", eval.len());
        assert_eq!(note.contains(" later rows left out"), number < 4, "{note}");
        assert!(evaluated.iter().all(|row| train.contains(row)), "the past of each fold holds those before");
        last_train = train;
        evaluated.extend(eval);
    }
    let first_span = (0..N_ROWS).filter(|row| !evaluated.contains(row));
    assert!(first_span.map(day).max() < evaluated.iter().map(|row| day(*row)).min());
    let of = |fold: &str| loaded(&table(0..N_ROWS), &[fold, "data.split={time=\"date\"}"], 1).unwrap_err();
    let message = of("data.fold=3/150");
    assert!(message.contains("are of the same time") && message.contains("fewer folds"), "{message}");
    assert!(of("data.fold=1/250").contains("fewer than the 251 spans"));
}

#[test]
fn folds_hold_whole_groups_or_each_class_alike_and_all_rows() {
    for more in [&["data.split={group=\"patient\"}"][..], &[]] {
        let mut all = BTreeSet::new();
        let mut sizes = Vec::new();
        for number in 1..=4 {
            let fold = format!("data.fold={number}/4");
            let sets = [more, &[fold.as_str(), "data.target=label"]].concat();
            let (train, eval, note) = loaded(&table(0..N_ROWS), &sets, 1).unwrap();
            assert_eq!(
                loaded(&table(0..N_ROWS), &sets, 3).unwrap(),
                (train.clone(), eval.clone(), note.clone())
            );
            assert!(train.is_disjoint(&eval) && train.len() + eval.len() == N_ROWS);
            if more.is_empty() {
                let n_odd = eval.iter().filter(|row| **row % 2 == 1).count();
                assert_eq!((eval.len(), n_odd), (50, 25));
            } else {
                let patients =
                    |rows: &BTreeSet<usize>| rows.iter().map(|row| patient(*row)).collect::<BTreeSet<_>>();
                assert!(patients(&train).is_disjoint(&patients(&eval)));
                assert!(note.contains(&format!("fold {number}/4: ")), "{note}");
            }
            sizes.push(eval.len());
            all.extend(eval);
        }
        assert_eq!(all.len(), N_ROWS, "each row is in one fold");
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 9, "{sizes:?}");
    }
    let refused = |sets: &[&str]| loaded(&table(0..N_ROWS), sets, 1).unwrap_err();
    for (sets, part) in [
        (&["data.fold=5/4"][..], "NUMBER/OF"),
        (&["data.fold=1"], "NUMBER/OF"),
        (&["data.fold=1/300"], "no test rows"),
        (&["data.fold=1/4", "data.eval_fraction=0.2"], "data.eval_fraction"),
        (&["data.fold=1/4", "data.split={column=\"fold\"}"], "absent where `data.split` names a `column`"),
        (&["data.fold=1/30", "data.split={group=\"patient\"}"], "for 30 folds"),
    ] {
        let message = refused(sets);
        assert!(message.contains(part), "{sets:?}: {message}");
    }
}
