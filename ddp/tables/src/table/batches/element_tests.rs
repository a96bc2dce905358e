//! Elements of lists that are targets, weights, categories or dropped: they have the values of columns of their own.

use std::sync::Arc;

use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, FixedSizeListArray, Float64Array, LargeListArray, ListArray};

use crate::table::large::tests::{all, assert_refused, open_whole, open_with, write};

const N_ROWS: usize = 40_000;

/// Element `at` of the list in a row: its values differ by element and by row, and the third is a category.
fn value(row: usize, at: usize) -> f64 {
    match at {
        3 => (row % 3) as f64,
        _ => (row * 10 + at) as f64 / 8.0,
    }
}

fn lists() -> [ArrayRef; 3] {
    let rows = || (0..N_ROWS).map(|row| Some((0..5).map(|at| Some(value(row, at))).collect::<Vec<_>>()));
    [
        Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows())),
        Arc::new(LargeListArray::from_iter_primitive::<Float64Type, _, _>(rows())),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>(rows(), 5)),
    ]
}

fn column(at: usize) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values((0..N_ROWS).map(|row| value(row, at))))
}

const TASK: [&str; 2] = ["data.task=regression", "data.shuffle_mode=blocks"];

#[test]
fn elements_with_uses_are_columns_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let names: Vec<String> = (0..5).map(|at| format!("emb[{at}]")).collect();
    let columns = names.iter().enumerate().map(|(at, name)| (&**name, column(at)));
    write(&at("columns.parquet"), columns.chain([("x", column(0))]).collect(), 1000);
    let uses = [
        // The first element is used in each way, and not at all.
        &[
            "data.target=[\"emb[1]\"]",
            "data.weight=emb[2]",
            "data.categorical=[\"emb[3]\"]",
            "data.drop=[\"emb[0]\"]",
        ][..],
        &["data.target=[\"emb[0]\", \"emb[4]\"]"],
        &["data.target=[\"x\"]", "data.weight=emb[0]"],
        &["data.target=[\"x\"]", "data.categorical=[\"emb[3]\"]"],
        &["data.target=[\"x\"]", "data.drop=[\"emb[0]\"]"],
        &["data.target=[\"x\"]", "data.drop=[\"emb[4]\"]", "data.filter=\"emb[1]\" > 12 and \"emb[3]\" = 2"],
        &["data.target=[\"x\"]", "data.filter=\"emb[4]\" < 900"],
    ];
    for lists in lists() {
        write(&at("lists.parquet"), vec![("emb", lists), ("x", column(0))], 1000);
        for sets in uses {
            let sets = [sets, &TASK].concat();
            let want = open_whole(&at("columns.parquet"), &sets).unwrap();
            let got = open_whole(&at("lists.parquet"), &sets).unwrap();
            assert_eq!(got.layout(), want.layout(), "{sets:?}");
            assert!(all(&*got) == all(&*want), "{sets:?}");
            if sets.iter().all(|set| !set.starts_with("data.filter")) {
                let blocks = open_with(&at("lists.parquet"), &sets, 700 << 10).unwrap();
                assert!(blocks.block_ends().is_some() && all(&*blocks) == all(&*want), "in blocks: {sets:?}");
            }
        }
    }
}

#[test]
fn missing_and_unfit_elements_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let rows = [
        Some(vec![Some(1.0), Some(2.0), None]),
        Some(vec![Some(3.0), None, Some(5.0)]),
        None,
        Some(vec![Some(6.0), Some(7.0), Some(8.0)]),
    ];
    let lists = || Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows.clone()));
    let x = || Arc::new(Float64Array::from(vec![0.0, 1.0, 2.0, 3.0]));
    write(&path, vec![("emb", lists()), ("x", x())], 10);
    let drop = "data.drop=[\"emb[2]\", \"emb[0]\"]";
    let target = "data.target=[\"emb[1]\"]";
    assert_refused(open_whole(&path, &[target, TASK[0], drop]), &["row 1", "column \"emb[1]\""]);
    let rows = open_whole(&path, &[target, TASK[0], drop, "data.missing_target=skip"]).unwrap();
    assert_eq!(all(&*rows), (vec![0.0, 3.0], vec![2.0, 7.0], None));
    assert_refused(open_whole(&path, &["data.target=[\"emb[3]\"]"]), &["no target column \"emb[3]\""]);
    let filter = |text: &str| format!("data.filter={text}");
    assert_refused(
        open_whole(&path, &["data.target=[\"x\"]", TASK[0], &filter("\"emb[3]\" > 0")]),
        &["no column \"emb[3]\"", "is it \"emb["],
    );
    let kept = ["data.target=[\"x\"]", TASK[0], "data.drop=[\"emb[0]\"]"];
    assert_refused(open_whole(&path, &kept), &["row 1", "column \"emb[1]\""]);
    let rows = open_whole(&path, &[&kept[..], &[&filter("\"emb[2]\" > 5")]].concat()).unwrap();
    assert_eq!(all(&*rows), (vec![7.0, 8.0], vec![3.0], None));
}
