//! `ddp-train runs show`: one run.

use std::collections::BTreeMap;

use ddp::report::units::{mib, rate};
use ddp::report::visible::visible_lines;
use ddp_kernels::hint::joined;
use serde_json::json;

use super::read;
use super::summary::state;
use crate::cli::RunsShowArgs;
use crate::error::Result;
use crate::report::page::parts::duration;
use crate::report::page::record::{Record, Restart, Status};
use crate::report::stdout::{count, print_result, table};

/// Prints the run.
pub(super) fn show(args: &RunsShowArgs) -> Result<()> {
    let run = read(&args.run)?;
    if !args.json {
        return Ok(print_result(&text(&run))?);
    }
    let best =
        run.best().map(|(metric, step, value)| json!({"metric": metric, "step": step, "value": value}));
    let object = json!({
        "name": run.name,
        "path": run.path,
        "state": state(&run.status),
        "reason": reason(&run),
        "step": run.step,
        "epochs": run.epoch,
        "world_size": run.world_size,
        "elapsed_s": run.end_number("elapsed_s"),
        "samples_per_s": rows_per_s(&run),
        "start": run.start,
        "program": run.program,
        "metrics": run.figures().into_iter().collect::<BTreeMap<_, _>>(),
        "best": best,
        "findings": run.findings(),
        "restarts": run.restarts,
        "checkpoints": run.checkpoints,
        "n_damaged_lines": run.n_damaged,
        "config": run.settings(),
    });
    Ok(print_result(&format!("{object}\n"))?)
}

/// Why a run ended early.
fn reason(run: &Record) -> Option<String> {
    match &run.status {
        Status::Failed { error, hint } => Some(joined(error.clone(), hint.as_deref())),
        Status::Stopped { reason } => Some(reason.clone()),
        _ => None,
    }
}

fn rows_per_s(run: &Record) -> Option<f64> {
    run.end_number("samples_per_s").or_else(|| run.steps[3].last())
}

/// A metric in seven digits, with an exponent where six decimals would show fewer.
pub(super) fn metric(value: f64) -> String {
    let is_usual = value == 0.0 || !value.is_finite() || (0.1..1e7).contains(&value.abs());
    if is_usual { format!("{value:.6}") } else { format!("{value:.6e}") }
}

/// Numbers of a run by name.
pub(super) fn figures(run: &Record) -> Vec<(String, String)> {
    let best = run.best().map(|(name, step, value)| format!("{name} {} after step {step}", metric(value)));
    let of_process = if run.restarts.is_empty() { "" } else { " since the last start" };
    let figures = [
        ("steps", Some(run.step.to_string())),
        ("epochs", run.epoch.map(|n| n.to_string())),
        ("ranks", run.world_size.map(|n| n.to_string())),
        ("time", run.end_number("elapsed_s").map(|s| duration(s) + of_process)),
        ("samples/s", rows_per_s(run).map(rate)),
        ("best", best),
        ("lost ranks", losses(run)),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Cost of the losses of ranks, if there were some.
fn losses(run: &Record) -> Option<String> {
    let all = || run.restarts.iter().filter_map(|restart| restart.lost.as_ref());
    let steps = all().map(|loss| loss.steps).sum::<u64>();
    let down_s = all().map(|loss| loss.down_s).sum();
    let n = all().count();
    (n > 0).then(|| format!("{n}: {} repeated, {} down", count(steps, "step"), duration(down_s)))
}

fn text(run: &Record) -> String {
    let mut text = format!("{}: {}\n{}\n", run.name, state(&run.status), run.path.display());
    run.start.iter().chain(&run.program).for_each(|line| text += &format!("{line}\n"));
    reason(run).iter().for_each(|reason| text += &format!("\n{reason}\n"));
    let metrics = run.figures().into_iter().map(|(name, value)| (name, metric(value)));
    let rows: Vec<_> =
        figures(run).into_iter().chain(metrics).map(|(name, value)| vec![name, value]).collect();
    text += &format!("\n{}", table(&["<figure", "value"], &rows));
    run.findings().iter().for_each(|finding| text += &format!("\n{finding}\n"));
    let chosen = run.chosen_settings();
    text += &format!("\nsettings other than the defaults:\n{}\n", chosen.trim_end());
    for Restart { step, world_size, world_size_before, lost } in &run.restarts {
        let ranks = count(*world_size, "rank");
        let why = lost.as_ref().map_or_else(String::new, |loss| format!("; {loss}"));
        text += &format!("\nresumed after step {step} on {ranks}, was {world_size_before}{why}");
    }
    if let Some(last) = run.checkpoints.last() {
        let n = run.checkpoints.len();
        text += &format!(
            "\n{}, the last one after step {}, {}",
            count(n, "checkpoint"),
            last.step,
            mib(last.bytes as u64)
        );
    }
    if run.n_damaged > 0 {
        text += &format!("\n{} of metrics.jsonl left out", count(run.n_damaged, "damaged line"));
    }
    visible_lines(text.trim_end()).into_owned() + "\n"
}
