//! The result as it grows, and the time limit of each check.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ddp::exit_code;
use ddp::report::ReportError;
use ddp::report::metrics::json_line;
use ddp::report::visible::visible;
use ddp_comm::{World, failure, stated_rank};
use serde::Serialize;

use super::finding::{Finding, Line, Status};
use crate::error::Error;
use crate::report::log::error_line;
use crate::report::stdout::{print_result, say};

/// Time limit of a check. Calls that can hang have shorter ones of their own, which say more.
const LIMIT: Duration = Duration::from_secs(60);
/// Time by which rank 0 is ahead of the others in reporting a check that hangs.
const RANK_ZERO_FIRST: Duration = Duration::from_secs(1);

/// The check before the ranks have joined.
pub(super) const WORLD: &str = "world";

/// The result of `ddp-train doctor`, which rank 0 prints line by line, or at the end as one JSON object.
#[derive(Debug, Clone)]
pub struct Report(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    json: bool,
    program: &'static str,
    rank: usize,
    world_size: usize,
    /// The check under way, and since when; `None` once all are over.
    check: Option<(&'static str, Instant)>,
    lines: Vec<Line>,
    /// The first error of stdout.
    unprinted: Option<ReportError>,
}

/// One JSON object.
#[derive(Serialize)]
struct Object<'a> {
    program: &'a str,
    world_size: usize,
    /// The worst of all checks.
    status: Status,
    checks: &'a [Line],
}

impl Report {
    /// Begins the result, and ends the job with status 1 as soon as a check takes longer than its limit, the start of MPI included.
    pub fn start(json: bool, program: &'static str) -> Self {
        let report = Report(Arc::new(Mutex::new(State {
            json,
            program,
            rank: stated_rank().unwrap_or(0),
            world_size: 1,
            check: Some((WORLD, Instant::now())),
            lines: Vec::new(),
            unprinted: None,
        })));
        let watched = report.clone();
        // Without a thread there is no limit, and everything else works.
        let _ = thread::Builder::new().name("doctor".to_owned()).spawn(move || watched.watch());
        report
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        loop {
            let Some((check, since)) = self.state().check else { return };
            let limit = if self.state().rank == 0 { LIMIT } else { LIMIT + RANK_ZERO_FIRST };
            match limit.checked_sub(since.elapsed()) {
                Some(rest) if !rest.is_zero() => thread::sleep(rest),
                _ => self.end_late(check),
            }
        }
    }

    /// Reports a check that has not ended, and ends the job.
    fn end_late(&self, check: &'static str) -> ! {
        let found = format!("it has not ended within {} s", LIMIT.as_secs());
        let remedy = match check {
            WORLD => {
                "the hosts must reach each other on any TCP port; with several networks name the interface, as by mpirun --mca \
                 btl_tcp_if_include IFACE --mca oob_tcp_if_include IFACE"
            }
            _ => {
                "a call hangs in a driver, a library, a network or a disk: start each host alone to find which"
            }
        };
        self.end(check, Finding::fail(found, remedy))
    }

    /// Ends the result by this failure, and the job with status 1.
    fn end(&self, check: &'static str, finding: Finding) -> ! {
        let mut state = self.state();
        let line = Line::new(check, finding, None);
        if state.rank > 0 && state.world_size > 1 {
            say(&error_line(&format!("rank {}: {check}: {}", state.rank, line.found)));
        }
        state.add(vec![line]);
        let _ = state.finish();
        failure::end_job(exit_code::FAILED.into())
    }

    /// From now on this is a rank of `world`.
    pub(super) fn join(&self, world: &World) {
        let mut state = self.state();
        (state.rank, state.world_size) = (world.rank().0, world.world_size());
    }

    /// The name of this build.
    pub(super) fn program(&self) -> &'static str {
        self.state().program
    }

    /// Begins a check, and ends the one before.
    pub(super) fn begin(&self, check: &'static str) {
        self.state().check = Some((check, Instant::now()));
    }

    /// Reports that the ranks could not be joined, and ends the job with status 1.
    pub fn not_joined(&self, error: &Error) -> ! {
        if self.state().rank > 0 {
            // Each process has the error, and the end of one may end them all.
            thread::sleep(RANK_ZERO_FIRST);
        }
        self.end(WORLD, Finding::from_error(error))
    }

    /// Adds lines, which all ranks have; rank 0 prints them.
    pub(super) fn add(&self, lines: Vec<Line>) {
        self.state().add(lines);
    }

    /// Whether a check has failed so far.
    pub(super) fn has_failed(&self) -> bool {
        self.state().lines.iter().any(|line| line.status == Status::Fail)
    }

    /// Prints the end of the result on rank 0; returns the checks that failed, on all ranks.
    ///
    /// # Errors
    /// [`ReportError::Stdout`] on rank 0 if a part of the result could not be printed.
    pub(super) fn finish(&self) -> Result<Vec<&'static str>, ReportError> {
        self.state().finish()
    }
}

impl State {
    fn add(&mut self, lines: Vec<Line>) {
        if !self.json && self.rank == 0 {
            self.print(&lines.iter().map(text).collect::<String>());
        }
        self.lines.extend(lines);
    }

    fn print(&mut self, text: &str) {
        if let Err(error) = print_result(text) {
            self.unprinted.get_or_insert(error);
        }
    }

    fn finish(&mut self) -> Result<Vec<&'static str>, ReportError> {
        self.check = None;
        let State { json, program, world_size, lines, .. } = &*self;
        let of = |status: Status| lines.iter().filter(move |line| line.status == status);
        let mut failed: Vec<_> = of(Status::Fail).map(|line| line.check).collect();
        failed.dedup();
        let end = if *json {
            let status = lines.iter().map(|line| line.status).max().unwrap_or(Status::Ok);
            json_line(&Object { program, world_size: *world_size, status, checks: lines })
        } else {
            let [ok, warn, fail] = [Status::Ok, Status::Warn, Status::Fail].map(|status| of(status).count());
            format!("{ok} ok, {warn} warn, {fail} fail\n")
        };
        if self.rank == 0 {
            self.print(&end);
        }
        self.unprinted.take().map_or(Ok(failed), Err)
    }
}

/// A line, and below it the remedy.
fn text(line: &Line) -> String {
    let Line { check, status, found, remedy, .. } = line;
    let hint = |remedy: &String| format!("{:20}hint: {}\n", "", visible(remedy));
    let remedy = remedy.as_ref().map_or_else(String::new, hint);
    format!("{:<5} {check:<13} {}\n{remedy}", status.name(), visible(found))
}
