//! Memory of a rank, and settings that would make it fit.

use std::collections::BTreeMap;

use ddp::config::{Batch, Config, Placement};
use ddp::cost::memory_plan::{MemoryKind, MemoryPlan, RankPlan};
use serde::Serialize;

use super::subject::Subject;

/// Memory of a rank in bytes.
#[derive(Debug, Serialize)]
pub(super) struct RankMemory {
    /// Bytes by use, named as `describe` names them.
    pub(super) memory_bytes: BTreeMap<&'static str, usize>,
    /// On the device, with libraries.
    pub(super) device_bytes: usize,
    /// Of libraries on the device: an assumption.
    pub(super) library_bytes: usize,
    /// On the host, without rows that are not here.
    pub(super) host_bytes: usize,
    /// Memory of the device, if known.
    pub(super) capacity_bytes: Option<usize>,
    /// Whether the device has enough.
    pub(super) fits: Option<bool>,
    /// Settings with which a rank fits, each by itself, or all of the last entry together.
    pub(super) remedies: Vec<Remedy>,
}

/// Settings and the memory of the device with them.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Remedy {
    pub(super) set: Vec<String>,
    pub(super) device_bytes: usize,
    pub(super) fits: bool,
}

impl Subject {
    fn remedy(&self, set: Vec<String>, n_ranks: usize) -> Option<Remedy> {
        let mut config = self.config.clone();
        for setting in &set {
            config = config.with_setting(setting).ok()?;
        }
        let config = self.data.resolve(config).ok()?;
        let device_bytes = self.limited_bytes(&config, n_ranks).ok()?;
        Some(Remedy { set, device_bytes, fits: device_bytes <= self.capacity? })
    }

    /// Settings that make a rank fit: each alone, else the first ones of the list that do together, else those that come closest.
    pub(super) fn remedies(&self, n_ranks: usize, max_rows: usize) -> Vec<Remedy> {
        let mut settings: Vec<&str> = Vec::new();
        if self.config.data.placement != Placement::Host && self.machine.hardware.is_gpu() {
            settings.push("data.placement=host");
        }
        if !self.config.train.precision.is_short() && self.machine.hardware.is_gpu() {
            settings.push("train.precision=bf16");
        }
        if n_ranks > 1 {
            settings.extend(["comm.zero=1", "comm.zero=2"]);
        }
        let alone = settings.iter().map(|setting| vec![(*setting).to_owned()]);
        let smaller = |set: &[String]| {
            let with = |n: usize| self.remedy([set, &micro_batches(&self.config, n)].concat(), n_ranks);
            let mut found =
                divisors(self.config.train.batch, max_rows).into_iter().filter_map(with).peekable();
            let mut last = found.peek().cloned();
            for remedy in found {
                last = Some(remedy);
                if last.as_ref().is_some_and(|last| last.fits) {
                    break;
                }
            }
            last
        };
        let alone = alone.filter_map(|set| self.remedy(set, n_ranks)).chain(smaller(&[]));
        let fitting: Vec<_> = alone.filter(|remedy| remedy.fits).collect();
        if !fitting.is_empty() {
            return fitting;
        }
        // `comm.zero=2` takes the place of 1.
        settings.retain(|setting| *setting != "comm.zero=1" || n_ranks == 1);
        let together: Vec<String> = settings.into_iter().map(str::to_owned).collect();
        let of_length = |n: usize| self.remedy(together[..n].to_vec(), n_ranks);
        let found = (2..=together.len()).filter_map(of_length).find(|remedy| remedy.fits);
        found.or_else(|| smaller(&together)).into_iter().collect()
    }
}

/// Numbers by which micro-batches can be divided with as many rows per step as before: of each power of two the next one up.
fn divisors(batch: Batch, max_rows: usize) -> Vec<usize> {
    let powers = (1..usize::BITS).map(|n| 1 << n).take_while(|power| *power <= max_rows);
    let mut divisors: Vec<usize> = match batch {
        Batch::PerRank(rows) => powers.filter_map(|n| (n..=rows).find(|n| rows % n == 0)).collect(),
        // The rows of a step are given.
        Batch::Global(_) => powers.collect(),
    };
    divisors.dedup();
    divisors
}

/// Settings that divide each micro-batch by `n`, one of the [`divisors`].
fn micro_batches(config: &Config, n: usize) -> Vec<String> {
    let accumulated = format!("train.grad_accum_steps={}", config.train.grad_accum_steps * n);
    match config.train.batch {
        Batch::PerRank(rows) => vec![format!("train.batch_size={}", rows / n), accumulated],
        Batch::Global(_) => vec![accumulated],
    }
}

impl RankMemory {
    pub(super) fn new(subject: &Subject, plan: &RankPlan<'_>) -> Self {
        let n_ranks = plan.partition.train.world_size;
        let (memory, capacity_bytes) = (MemoryPlan::new(plan), subject.capacity);
        let library_bytes = subject.machine.hardware.library_bytes(n_ranks);
        let device_bytes = memory.on_device() + library_bytes;
        let fits = capacity_bytes.map(|capacity| subject.limited(&memory, n_ranks) <= capacity);
        let remedies = match fits {
            Some(false) => subject.remedies(n_ranks, plan.partition.max_rows),
            _ => Vec::new(),
        };
        RankMemory {
            memory_bytes: MemoryKind::ALL.map(|kind| (kind.name(), memory.of(kind))).into(),
            device_bytes,
            library_bytes,
            host_bytes: memory.total() - memory.on_device(),
            capacity_bytes,
            fits,
            remedies,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_divide_the_rows_of_a_step() {
        let of = |rows: usize| divisors(Batch::PerRank(rows), rows);
        assert_eq!((of(16), of(12)), (vec![2, 4, 8, 16], vec![2, 4, 12]));
        assert_eq!((of(101), of(45), of(1)), (vec![101], vec![3, 5, 9, 45], vec![]));
        assert_eq!(divisors(Batch::Global(101), 50), [2, 4, 8, 16, 32]);
        for rows in 1..200 {
            assert!(of(rows).iter().all(|n| rows / n * n == rows), "{rows}");
        }
    }
}
