//! The page of a run, `report.html`: one file without scripts and without anything to load, made of what the run's folder holds.
//!
//! Events become a [`record`] in bounded memory; curves are SVG. All text is escaped by `maud`, and nothing of the page may load or
//! run (its content security policy), because names of columns, labels and paths are of unknown origin.

mod series;
pub(crate) mod calibration_note;
pub(crate) mod chart;
pub(crate) mod parts;
pub(crate) mod record;
mod summary;
mod curves;
mod details;

use std::io;
use std::path::{Path, PathBuf};

use ddp::report::visible::shell_word;
use ddp::run_folder::folder::{METRICS_FILE, REPORT_FILE};
use ddp::storage::atomic_write::write_atomic;
use maud::{DOCTYPE, Markup, html};
use tracing::{info, warn};

use self::record::{Record, Status};

/// Most runs on one page.
pub(crate) const MAX_RUNS: usize = 32;
/// Points of each curve, on a page of one run and of several together.
const MAX_POINTS: usize = 200;
const MAX_POINTS_OF_ALL: usize = 2000;
/// Largest `metrics.jsonl` of which a run that ends early makes its page: its ranks may be killed soon.
const MAX_BYTES_IN_HURRY: u64 = 16 << 20;

/// First bytes of every page, by which it is recognized.
pub(crate) const MARK: &str = "<!DOCTYPE html><!-- ddp-train report -->";

/// Makes the page of runs; each of `runs` is a run folder.
///
/// # Errors
/// The folder whose `metrics.jsonl` can't be read, and why.
pub(crate) fn make(runs: &[PathBuf]) -> Result<String, (PathBuf, io::Error)> {
    let max_points = (MAX_POINTS_OF_ALL / runs.len().max(1)).min(MAX_POINTS);
    let read = |run: &PathBuf| Record::read(run, max_points).map_err(|error| (run.clone(), error));
    let runs: Vec<Record> = runs.iter().map(read).collect::<Result<_, _>>()?;
    debug_assert_eq!(DOCTYPE.0, &MARK[..DOCTYPE.0.len()]);
    Ok(format!("{MARK}\n{}\n", page(&runs).0))
}

/// Writes the page into the folder of a complete run; a failure is a warning.
///
/// - `shown`: the name of the folder for users
pub(crate) fn write_complete(run: &Path, shown: &Path) {
    match write(run) {
        Ok(_) => info!("report: {}", shown.join(REPORT_FILE).display()),
        Err(error) => warn!(
            "can't write the report of the run: {error}\nhint: `ddp-train report {}` writes it",
            shell_word(shown)
        ),
    }
}

/// Writes the page of a run that is stopped or fails, of which nothing may be said any more and whose ranks may be killed soon: best
/// effort, and only if it is soon made.
pub(crate) fn write_early(run: &Path) {
    let events = std::fs::metadata(run.join(METRICS_FILE));
    if events.is_ok_and(|events| events.len() <= MAX_BYTES_IN_HURRY) {
        let _ = write(run);
    }
}

fn write(run: &Path) -> io::Result<PathBuf> {
    let page = make(std::slice::from_ref(&run.to_owned())).map_err(|(_, error)| error)?;
    let path = run.join(REPORT_FILE);
    write_atomic(&path, page.as_bytes()).map_err(io::Error::other)?;
    Ok(path)
}

fn page(runs: &[Record]) -> Markup {
    let labels = summary::labels(runs);
    let title = if let [run] = runs { parts::name(&run.name) } else { format!("{} runs", runs.len()) };
    let of_one = if let [run] = runs { Some(run) } else { None };
    let time = details::time(runs, &labels);
    let settings = if let [run] = runs {
        summary::settings(run)
    } else {
        Some(summary::differing_settings(runs, &labels))
    };
    let of_run = |section: fn(&Record) -> Option<Markup>| of_one.and_then(section);
    let time = time.map(|time| html! { (time) @if let Some(ranks) = of_run(details::ranks) { (ranks) } });
    let is_complete = of_one.is_some_and(|run| run.status == Status::Complete);
    let evaluation = if is_complete { "Evaluation of the model" } else { "Last evaluation" };
    let sections = [
        ("curves", "Curves", Some(curves::charts(runs, &labels))),
        ("time", "Time", time),
        ("evaluation", evaluation, of_run(details::evaluated)),
        ("calibration", "Calibration", of_run(details::calibration)),
        ("settings", if of_one.is_some() { "Settings" } else { "Settings that differ" }, settings),
        ("history", "Restarts and checkpoints", of_run(details::history)),
    ];
    let sections: Vec<_> =
        sections.into_iter().filter_map(|(id, title, body)| Some((id, title, body?))).collect();
    html! {
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) " – ddp-train" }
                style { (maud::PreEscaped(include_str!("style.css"))) }
            }
            body {
                @if let Some(run) = of_one { (summary::head(run)) } @else { (summary::compared(runs, &labels)) }
                nav aria-label="Sections" { @for (id, title, _) in &sections { a href=(format!("#{id}")) { (title) } } }
                @for (run, label) in runs.iter().zip(&labels) {
                    @let findings = summary::findings(run, of_one.is_none());
                    @if of_one.is_none() && !findings.0.is_empty() { h3 { (label) } }
                    (findings)
                }
                main {
                    @for (id, title, body) in &sections { section id=(id) { h2 { (title) } (body) } }
                }
                footer.note { "ddp-train " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
}
