//! Traces of steps of a running job: one file that Perfetto and Chrome open, with the time of all ranks on one axis.
//!
//! Rank 0 is asked by a file in the run's folder ([`requests`](crate::run_folder::requests)) or the run by `--trace`. The ranks agree by a
//! vote that travels with a step (`votes`), record the next steps ([`Recorder`](ddp_comm::Recorder)), and send their slices
//! to rank 0, which writes them. A run that is not traced pays a load of a flag per step and per collective.

mod clocks;
mod rank_trace;
mod chrome;
mod inbox;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ddp_comm::{Track, World};
use tracing::{info, warn};

use self::chrome::chrome_trace;
use self::clocks::{Clocks, Readings};
use self::rank_trace::{RankTrace, sent};
use crate::run_folder::folder::{TRACES, trace_file};
use crate::storage::atomic_write::write_atomic;
use crate::train::error::Result;
use crate::train::trainer::Trainer;

pub use self::inbox::{Inbox, TraceAnswer};

/// Requests for traces of a run.
#[derive(Debug, Clone, Default)]
pub struct TracePlan {
    /// First and last step of the trace that the command line asks for, the same on all ranks.
    pub steps: Option<(u64, u64)>,
    /// Requests to the running job, on rank 0.
    pub inbox: Option<Arc<Inbox>>,
}

/// The traces of a run, on one rank.
#[derive(Debug)]
pub(crate) struct Tracing<'a> {
    world: &'a World,
    /// Folder of the run.
    folder: PathBuf,
    plan: TracePlan,
    active: Option<Active>,
}

/// A trace under way.
#[derive(Debug)]
struct Active {
    first: u64,
    /// Steps to come.
    n_left: u64,
    begin: Readings,
    device_error_s: Option<f64>,
    /// Name of the request that it answers, on rank 0.
    asked: Option<String>,
}

impl<'a> Tracing<'a> {
    pub(crate) fn new(world: &'a World, folder: &Path, plan: TracePlan) -> Self {
        Tracing { world, folder: folder.to_owned(), plan, active: None }
    }

    /// Whether rank 0 votes for a trace.
    pub(crate) fn wants_vote(&self) -> bool {
        self.active.is_none() && self.plan.inbox.as_ref().is_some_and(|inbox| inbox.is_waiting())
    }

    /// Whether a trace begins or ends after this many steps: the same on all ranks.
    pub(crate) fn is_due(&self, n_steps: u64) -> bool {
        match &self.active {
            Some(active) => active.n_left == 0,
            None => self.plans(n_steps).is_some(),
        }
    }

    /// Whether slices are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.active.is_some()
    }

    /// The moment of a slice's begin, where slices are recorded.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self, step: u64) {
        if let Some(active) = &mut self.active {
            active.n_left = active.n_left.saturating_sub(1);
            self.world.recorder().set_step(step);
        }
    }

    /// Adds a slice of the training thread that ends now.
    pub(crate) fn add(&self, name: &'static str, since: Option<Instant>) {
        if let Some(since) = since {
            self.world.recorder().add(Track::Host, name, (since, Instant::now()), None);
        }
    }

    /// Adds the slice of a step that ends now.
    pub(crate) fn add_step(&self, step: u64, since: Instant) {
        if self.is_on() {
            self.world.recorder().add(Track::Host, format!("step {step}"), (since, Instant::now()), None);
        }
    }

    /// Begins the trace that the command line asks for from this step on, or, if the ranks have voted for one, the trace that rank 0 was
    /// asked for. Collective.
    pub(crate) fn begin(&mut self, trainer: &mut Trainer<'_>, has_vote: bool) -> Result<()> {
        let n_steps = trainer.n_steps();
        if self.active.is_some() {
            return Ok(());
        }
        let (n_left, asked) = match self.plans(n_steps) {
            Some(n_left) => {
                self.plan.steps = None;
                (n_left, None)
            }
            None if has_vote => {
                let asked = self.plan.inbox.as_ref().and_then(|inbox| inbox.next());
                let n_left = asked.as_ref().map_or(0, |(n_left, _)| *n_left);
                let of_rank_0 = self.world.group().all_gather_bytes(&n_left.to_le_bytes())?.swap_remove(0);
                let n_left = of_rank_0.try_into().map_or(0, u64::from_le_bytes);
                (n_left, asked.map(|(_, name)| name))
            }
            None => return Ok(()),
        };
        if n_left == 0 {
            return Ok(());
        }
        let device_error_s = trainer.begin_trace()?;
        let begin = Readings::take(self.world)?;
        self.world.begin_recording();
        self.active = Some(Active { first: n_steps + 1, n_left, begin, device_error_s, asked });
        Ok(())
    }

    /// Ends the trace under way, if it has all its steps or `at_once`, and writes it on rank 0. Collective.
    ///
    /// - `device`: of this rank
    pub(crate) fn end(&mut self, n_steps: u64, device: &dyn std::fmt::Display, at_once: bool) -> Result<()> {
        let Some(active) = self.active.take_if(|active| at_once || active.n_left == 0) else { return Ok(()) };
        let world = self.world;
        let slices = world.recorder().end();
        let own = RankTrace {
            host: world.hostname().to_owned(),
            device: device.to_string(),
            clocks: [active.begin, Readings::take(world)?],
            device_error_s: active.device_error_s,
            slices: slices.into_iter().map(sent).collect(),
        };
        let own = serde_json::to_vec(&own).expect("names and numbers");
        let all = world.group().all_gather_bytes(&own)?;
        if world.rank().0 > 0 {
            return Ok(());
        }
        let answer = match write(&self.folder, &all, active.first..=n_steps) {
            Ok(path) => {
                info!("trace of steps {} to {n_steps}: {}", active.first, path.display());
                TraceAnswer::Written { path }
            }
            // The run continues without it.
            Err(reason) => {
                warn!("the trace of steps {} to {n_steps} was not written: {reason}", active.first);
                TraceAnswer::Failed { reason }
            }
        };
        if let (Some(inbox), Some(name)) = (&self.plan.inbox, active.asked) {
            inbox.answer(&name, &answer);
        }
        Ok(())
    }

    /// Steps of the trace that the command line asks for from this point on.
    fn plans(&self, n_steps: u64) -> Option<u64> {
        let (first, last) = self.plan.steps?;
        (first..=last).contains(&(n_steps + 1)).then(|| last - n_steps)
    }
}

/// Writes the traces of all ranks as one file; returns its path, or why that failed.
fn write(run: &Path, all: &[Vec<u8>], steps: RangeInclusive<u64>) -> Result<PathBuf, String> {
    let ranks: Vec<RankTrace> = all
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let clocks = Clocks::align(&ranks.iter().map(|rank| &rank.clocks).collect::<Vec<_>>());
    let folder = run.join(TRACES);
    let path = folder.join(trace_file(*steps.start(), *steps.end()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let text = chrome_trace(&ranks, &clocks, &steps).to_string();
    write_atomic(&path, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(path)
}
