//! Compares the times of the ranks while a run trains, and warns once of each rank that the others wait for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ddp_comm::World;
use tracing::warn;

use crate::train::bottleneck::{Comparison, RankTimes};
use crate::train::error::Result;
use crate::train::run_clock::Lap;
use crate::train::waiting_for_cores::CoreWait;

/// Least time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(10);
/// Least number of steps that are compared.
const MIN_STEPS: u64 = 100;

/// Comparisons of a run.
#[derive(Debug)]
pub(crate) struct LateRanks {
    since: Instant,
    last: Lap,
    core_wait: CoreWait,
    begun: CoreWait,
    named: HashSet<usize>,
}

impl LateRanks {
    pub(crate) fn new() -> Self {
        let core_wait = CoreWait::now();
        LateRanks {
            since: Instant::now(),
            last: Lap::default(),
            core_wait,
            begun: core_wait,
            named: HashSet::new(),
        }
    }

    /// Whether this rank's clock says that the ranks are to be compared at this point of the run.
    pub(crate) fn is_due_by_clock(&self, world: &World, n_steps: u64) -> bool {
        let is_voter = world.world_size() > 1 && world.rank().0 == 0;
        is_voter && n_steps >= self.last.n_steps() + MIN_STEPS && self.since.elapsed() >= INTERVAL
    }

    /// Compares the ranks since the last comparison. Collective.
    pub(crate) fn compare(&mut self, world: &World, now: Lap) -> Result<()> {
        let core_wait = CoreWait::now();
        let own = RankTimes::between(world, &self.last, &now, core_wait.since(self.core_wait));
        (self.last, self.core_wait, self.since) = (now, core_wait, Instant::now());
        let compared = Comparison::gather(world, own)?;
        if let Some((rank, warning)) = compared.and_then(|compared| compared.late_rank())
            && self.named.insert(rank)
            && world.rank().0 == 0
        {
            warn!("{warning}");
        }
        Ok(())
    }

    /// Compares the ranks over the whole run up to `end`; None where no step was measured. Collective.
    pub(crate) fn compare_run(&self, world: &World, end: &Lap) -> Result<Option<Comparison>> {
        let waited = CoreWait::now().since(self.begun);
        Comparison::gather(world, RankTimes::between(world, &Lap::default(), end, waited))
    }
}
