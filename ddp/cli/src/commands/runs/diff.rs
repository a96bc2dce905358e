//! `ddp-train runs diff`: two runs side by side.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::json;

use super::summary::state;
use super::{read, show};
use crate::cli::RunsDiffArgs;
use crate::error::Result;
use crate::report::page::record::{Record, folder_name};
use crate::report::stdout::{print_result, table};

/// A key or metric and its value in each run, empty where it has none.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    values: [String; 2],
}

/// Prints the settings that differ, and the metrics of both.
pub(super) fn diff(args: &RunsDiffArgs) -> Result<()> {
    let (a, b) = (read(&args.runs[0])?, read(&args.runs[1])?);
    let settings = [&a, &b].map(|run| {
        let pairs = run.settings().into_iter().map(|(key, value)| (key, value.to_string()));
        pairs.collect::<Vec<_>>()
    });
    let mut differing = rows(&settings);
    differing.retain(|row| row.values[0] != row.values[1]);
    let metrics = rows(&[&a, &b].map(figures));
    if args.json {
        let object = json!({"runs": [&a.path, &b.path], "settings": differing, "metrics": metrics});
        return Ok(print_result(&format!("{object}\n"))?);
    }
    let names = [&a, &b].map(|run| folder_name(&run.path));
    let cells = |rows: &[Row]| {
        let cells = |row: &Row| std::iter::once(row.name.clone()).chain(row.values.clone()).collect();
        rows.iter().map(cells).collect::<Vec<Vec<String>>>()
    };
    let [first, second] = names.each_ref().map(|name| format!("<{name}"));
    let settings = match &differing[..] {
        [] => "the runs have the same settings\n".to_owned(),
        rows => table(&["<setting", &first, &second], &cells(rows)),
    };
    let [right, other] = names.map(|name| format!(">{name}"));
    let metrics = table(&["<metric", &right, &other], &cells(&metrics));
    Ok(print_result(&format!("{settings}\n{metrics}"))?)
}

/// State and numbers of a run, and its metrics.
fn figures(run: &Record) -> Vec<(String, String)> {
    let mut figures = vec![("state".to_owned(), state(&run.status).to_owned())];
    figures.extend(show::figures(run));
    figures.extend(run.figures().into_iter().map(|(name, value)| (name, show::metric(value))));
    figures
}

/// The rows of two lists, in the order of the first one and then of the second.
fn rows(of: &[Vec<(String, String)>; 2]) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    let names = of.iter().flatten().map(|(name, _)| name).filter(|name| seen.insert(*name));
    let value = |list: &[(String, String)], name: &str| {
        list.iter().find(|(of, _)| of == name).map_or(String::new(), |(_, value)| value.clone())
    };
    names.map(|name| Row { name: name.clone(), values: [value(&of[0], name), value(&of[1], name)] }).collect()
}
