//! `ddp-train trace` and `ddp-train stacks`: questions to a running job, through its folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddp::run_folder::done::Done;
use ddp::run_folder::folder::{CONFIG_FILE, TRACES, active};
use ddp::run_folder::requests::{Question, Request};
use ddp::storage::user_file::open_regular;
use ddp::train::trace::TraceAnswer;
use ddp_comm::World;
use serde_json::Value;

use crate::cli::{StacksArgs, TraceArgs, limit};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::stdout::{print_result, table};

/// Time between two looks for the answer.
const POLL: Duration = Duration::from_millis(50);
/// Time between two looks whether the run is still active.
const POLL_RUN: Duration = Duration::from_secs(2);

/// Asks for a trace, waits for it and prints its path, on rank 0.
///
/// # Errors
/// [`CommandError::NotRunning`], [`CommandError::NoAnswer`], [`CommandError::NoTrace`].
pub fn trace(world: &World, args: &TraceArgs) -> Result<(), Stop> {
    let is_first = world.rank().0 == 0;
    Ok(world.collective_result(if is_first { get_trace(args) } else { Ok(()) })?)
}

/// Asks for the places of all ranks and prints them, on rank 0.
///
/// # Errors
/// [`CommandError::NotRunning`], [`CommandError::NoAnswer`], [`CommandError::NoWatchdog`].
pub fn stacks(world: &World, args: &StacksArgs) -> Result<(), Stop> {
    let is_first = world.rank().0 == 0;
    Ok(world.collective_result(if is_first { get_stacks(args) } else { Ok(()) })?)
}

fn get_trace(args: &TraceArgs) -> Result<()> {
    let TraceArgs { run, steps, out, timeout } = args;
    let answer = ask(run, &Request::Trace { steps: *steps }, limit(*timeout))?;
    let failed = |reason: String| CommandError::NoTrace { run: run.clone(), reason };
    let path = match serde_json::from_str(&answer).map_err(|error| failed(error.to_string()))? {
        // The run may have another working directory, or another mount of the disk.
        TraceAnswer::Written { path } => {
            path.file_name().map_or(path.clone(), |name| run.join(TRACES).join(name))
        }
        TraceAnswer::Failed { reason } => return Err(failed(reason).into()),
    };
    if let Some(out) = out {
        move_to(&path, out).map_err(|error| failed(format!("`{}`: {error}", out.display())))?;
    }
    Ok(print_result(&format!("{}\n", out.as_ref().unwrap_or(&path).display()))?)
}

/// Moves a file, also to another file system.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    let copy = || io::copy(&mut open_regular(from)?, &mut File::create(to)?);
    fs::rename(from, to).or_else(|_| copy().and_then(|_| fs::remove_file(from)))
}

fn get_stacks(args: &StacksArgs) -> Result<()> {
    let StacksArgs { run, timeout, json } = args;
    let answer = ask(run, &Request::Stacks, limit(*timeout))?;
    let places: Value = serde_json::from_str(&answer).unwrap_or_default();
    let Some(ranks) = places["ranks"].as_array() else {
        return Err(CommandError::NoWatchdog { run: run.clone() }.into());
    };
    if *json {
        return Ok(print_result(&format!("{answer}\n"))?);
    }
    let titles = ["rank", "<host", "pid", "<device", "<phase", "step", "<collective", "still s", "silent s"];
    Ok(print_result(&table(&titles, &ranks.iter().map(row).collect::<Vec<_>>()))?)
}

fn row(place: &Value) -> Vec<String> {
    let text = |key: &str| match &place[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let seconds = |key: &str| format!("{:.1}", place[key].as_f64().unwrap_or_default());
    let collective = match place["collective"].as_str() {
        Some(call) => {
            let where_ = if place["is_inside"] == true { "inside" } else { "after" };
            format!("{where_} {} ({call})", text("n_collectives"))
        }
        None => "-".to_owned(),
    };
    vec![
        text("rank"),
        text("host"),
        text("pid"),
        text("device"),
        text("phase"),
        text("step"),
        collective,
        seconds("still_s"),
        seconds("silent_s"),
    ]
}

/// Asks the run in the folder `run` and waits for its answer.
fn ask(run: &Path, request: &Request, limit: Duration) -> Result<String> {
    check_active(run)?;
    let unwritable = |source| CommandError::NoRequest { run: run.to_owned(), source };
    let question = Question::ask(run, request).map_err(unwritable)?;
    let (since, mut looked) = (Instant::now(), Instant::now());
    loop {
        if let Some(answer) = question.answer() {
            return Ok(answer);
        }
        if since.elapsed() >= limit {
            let (run, timeout_s) = (run.to_owned(), limit.as_secs_f64());
            return Err(CommandError::NoAnswer { run, timeout_s, is_taken: question.is_taken() }.into());
        }
        if looked.elapsed() >= POLL_RUN {
            check_active(run)?;
            looked = Instant::now();
        }
        std::thread::sleep(POLL);
    }
}

/// Refuses a folder in which no run is active.
fn check_active(run: &Path) -> Result<()> {
    let path: PathBuf = run.to_owned();
    if !run.join(CONFIG_FILE).is_file() {
        return Err(CommandError::NotARun { path }.into());
    }
    if active(run)?.is_some() {
        return Ok(());
    }
    let step = Done::read(run).map(|done| done.step);
    Err(CommandError::NotRunning { path, step }.into())
}
