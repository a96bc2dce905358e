//! The bottleneck of a run: ranks that the others wait for, and the largest part of the time that could be saved.
//!
//! All ranks leave a collective at the same time, so that a rank that computes less than the others waits longer. A rank's lateness is
//! therefore the time per step that it is busy outside of collectives, beyond that of the median rank: no clocks need to agree.

use ddp_comm::World;
use ddp_kernels::{DType, Device};
use serde::{Deserialize, Serialize};

use crate::config::{DataConfig, ShuffleMode};
use crate::data::Dataset;
use crate::data::loader::DataLoader;
use crate::report::times::{Part, RankTime, TimeSplit};
use crate::train::error::Result;
use crate::train::run_clock::Lap;
use crate::train::waiting_for_cores::CoreWait;

/// Share of a step by which a rank must be late to be named.
const LATE_SHARE: f64 = 0.1;
/// Share of its time from which waiting for a core is a cause.
const CORE_WAIT_SHARE: f64 = 0.05;
/// Share of the time from which a part is worth a hint, other than computing.
const BOUND_SHARE: f64 = 0.1;
/// Parts of which a rank's lateness is made.
const BUSY: [Part; 6] =
    [Part::Data, Part::CopyToGpu, Part::Forward, Part::Backward, Part::Update, Part::Other];

/// Times of one rank over some steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankTimes {
    host: String,
    n_steps: u64,
    /// Time in steps, in s.
    steps_s: f64,
    /// In s.
    split: TimeSplit,
    /// Share of its time for which the training thread was ready and had no core.
    core_wait: f64,
}

/// Times of all ranks over the same steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Comparison(Vec<RankTimes>);

impl RankTimes {
    /// The times of this rank between two points; None if none of its steps was measured.
    pub(crate) fn between(world: &World, from: &Lap, to: &Lap, waited: CoreWait) -> Option<Self> {
        let (n_steps, steps_s) = to.steps_since(from);
        let split = to.since(from)?;
        let core_wait = if split.total > 0.0 { waited.seconds() / split.total } else { 0.0 };
        Some(RankTimes { host: world.hostname().to_owned(), n_steps, steps_s, split, core_wait })
    }

    /// Other time in steps: without events, evaluations and checkpoints, which all ranks wait for.
    fn other(&self) -> f64 {
        let known = BUSY.iter().filter(|part| **part != Part::Other).map(|part| self.split.get(*part));
        (self.steps_s - self.split.exchange - known.sum::<f64>()).max(0.0)
    }

    /// Mean time of a part per step, in ms.
    fn per_step_ms(&self, part: Part) -> f64 {
        let time = if part == Part::Other { self.other() } else { self.split.get(part) };
        time * 1e3 / self.n_steps.max(1) as f64
    }

    fn busy_ms(&self) -> f64 {
        BUSY.iter().map(|part| self.per_step_ms(*part)).sum()
    }

    fn step_ms(&self) -> f64 {
        self.steps_s * 1e3 / self.n_steps.max(1) as f64
    }
}

impl Comparison {
    /// Gathers the times of all ranks; None if a rank has none. Collective.
    pub(crate) fn gather(world: &World, own: Option<RankTimes>) -> Result<Option<Self>> {
        let own = serde_json::to_vec(&own).expect("numbers and a name");
        let all = world.group().all_gather_bytes(&own)?;
        let times = all.iter().map(|bytes| serde_json::from_slice(bytes).ok().flatten());
        Ok(times.collect::<Option<Vec<RankTimes>>>().filter(|all| all[0].n_steps > 0).map(Comparison))
    }

    /// Where the time went, as the mean over the ranks, in s.
    pub(crate) fn split(&self) -> TimeSplit {
        let sum = |sum: TimeSplit, of: &RankTimes| sum.zip(&of.split, |a, b| a + b);
        self.0.iter().fold(TimeSplit::default(), sum).times(1.0 / self.0.len() as f64)
    }

    /// Busy time, lateness and cause of each rank; empty for one rank.
    pub(crate) fn ranks(&self) -> Vec<RankTime> {
        if self.0.len() == 1 {
            return Vec::new();
        }
        let (busy, without_core) = (self.median(RankTimes::busy_ms), self.median(|times| times.core_wait));
        let of_rank = |(rank, times): (usize, &RankTimes)| {
            // A rank that loses its core while it waits for others comes back late.
            let by_core = (times.core_wait - without_core) * times.step_ms();
            let late_ms = (times.busy_ms() - busy).max(by_core).max(0.0);
            let is_late = late_ms > LATE_SHARE * times.step_ms();
            let cause = is_late.then(|| self.cause(times, by_core == late_ms));
            RankTime { rank, host: times.host.clone(), busy_ms: times.busy_ms(), late_ms, cause }
        };
        self.0.iter().enumerate().map(of_rank).collect()
    }

    /// The lower median, so that of two ranks the slower one is late.
    fn median(&self, of: impl Fn(&RankTimes) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[(values.len() - 1) / 2]
    }

    /// Why a rank is late: for want of a core, or by the part in which it exceeds the median rank most.
    fn cause(&self, late: &RankTimes, for_want_of_a_core: bool) -> String {
        let no_core = format!(
            "waited for a CPU {:.0}% of its time: other processes use it, or its container is throttled",
            late.core_wait * 100.0
        );
        if for_want_of_a_core {
            return format!("it {no_core}");
        }
        let excess = |part: Part| late.per_step_ms(part) - self.median(|times| times.per_step_ms(part));
        let part = BUSY.into_iter().max_by(|a, b| excess(*a).total_cmp(&excess(*b))).expect("not empty");
        let cause = match part {
            Part::Data => "it waits for its rows".to_owned(),
            Part::CopyToGpu => "its rows reach the GPU late".to_owned(),
            Part::Other => "it is held up by overhead between steps".to_owned(),
            part => format!("it computes slower, most of all {}", part.name()),
        };
        if late.core_wait > CORE_WAIT_SHARE { format!("{cause}, and {no_core}") } else { cause }
    }

    /// A warning of the latest rank, if one is late, and its number.
    pub(crate) fn late_rank(&self) -> Option<(usize, String)> {
        let ranks = self.ranks();
        let late = ranks.iter().filter(|rank| rank.cause.is_some());
        let RankTime { rank, host, late_ms, cause, .. } =
            late.max_by(|a, b| a.late_ms.total_cmp(&b.late_ms))?;
        let (step_ms, cause) = (self.0[*rank].step_ms(), cause.as_deref().unwrap_or_default());
        let share = late_ms / step_ms * 100.0;
        Some((
            *rank,
            format!(
                "rank {rank} ({host}) is late by {late_ms:.3} ms of each step of {step_ms:.3} ms ({share:.0}%), for which the others wait: \
                 {cause}"
            ),
        ))
    }

    /// The bottleneck of the run in a sentence, with what to try.
    ///
    /// - `device`: device of the ranks; gradients travel in bf16 only between GPUs
    /// - `data_advice`: what helps a run that waits for rows
    pub(crate) fn bound(&self, device: Device, data_advice: impl FnOnce() -> String) -> String {
        let split = self.split();
        let late = self.late_rank();
        let hint = |part: Part| match part {
            Part::Data => data_advice(),
            Part::CopyToGpu => "try features stored as f16, bf16 or u8".to_owned(),
            Part::Exchange if device != Device::Cpu => {
                "try a larger `train.batch_size`, `train.grad_accum_steps` or `comm.dtype = \"bf16\"`"
                    .to_owned()
            }
            Part::Exchange | Part::Update => {
                "try a larger `train.batch_size` or `train.grad_accum_steps`".to_owned()
            }
            Part::Evaluation => {
                "try a larger `train.eval_every_steps`, or fewer rows to evaluate on".to_owned()
            }
            Part::Checkpoint => {
                "try less frequent checkpoints (`checkpoint.every_minutes`), or `checkpoint.async = true`"
                    .to_owned()
            }
            Part::Other => "try a larger `train.batch_size`, or a larger `log.every_steps`".to_owned(),
            Part::Forward | Part::Backward => String::new(),
        };
        let saved = Part::ALL.into_iter().filter(|part| !matches!(part, Part::Forward | Part::Backward));
        let largest = saved.max_by(|a, b| split.get(*a).total_cmp(&split.get(*b))).expect("not empty");
        let share = split.share(largest);
        match late {
            // The others' exchange is mostly waiting.
            Some((_, late)) if matches!(largest, Part::Exchange) || share < BOUND_SHARE => late,
            _ if share < BOUND_SHARE || computes(&split) > 3.0 * share && largest == Part::Update => {
                format!("bound by computing ({:.0}%): nothing else stands out", computes(&split) * 100.0)
            }
            _ => {
                let cores = self.without_cores().filter(|_| largest != Part::Data).unwrap_or_default();
                format!("bound by {} ({:.0}%): {cores}{}", name_of(largest), share * 100.0, hint(largest))
            }
        }
    }

    /// The note that the ranks' threads have to wait for cores, if they do.
    fn without_cores(&self) -> Option<String> {
        let share = self.0.iter().map(|times| times.core_wait).sum::<f64>() / self.0.len() as f64;
        (share > CORE_WAIT_SHARE).then(|| {
            format!(
                "threads waited for a CPU {:.0}% of the time, since other processes use them; else ",
                share * 100.0
            )
        })
    }
}

/// Advice for a run that waits for rows.
pub(crate) fn data_advice(loader: &DataLoader, train: &dyn Dataset, data: &DataConfig) -> String {
    let mut advice = Vec::from_iter(train.advice());
    if loader.n_threads() > 0 {
        advice.push(format!("`data.loader_threads` above {}", loader.n_threads()));
    }
    if loader.is_host_to_gpu() && train.layout().dtype == DType::F32 {
        advice.push("features stored as f16, bf16 or u8".to_owned());
    }
    if train.resident_bytes() == 0 && data.shuffle && data.shuffle_mode == ShuffleMode::Full {
        advice.push("`data.shuffle_mode = \"blocks\"` if the disk is slow".to_owned());
    }
    if advice.is_empty() {
        advice.push("a larger `train.batch_size`".to_owned());
    }
    format!("try {}", advice.join(", or "))
}

/// Share of forward, backward and update.
fn computes(split: &TimeSplit) -> f64 {
    split.share(Part::Forward) + split.share(Part::Backward) + split.share(Part::Update)
}

fn name_of(part: Part) -> &'static str {
    match part {
        Part::Data => "waiting for data",
        Part::CopyToGpu => "copies to the GPU",
        Part::Exchange => "exposed communication",
        Part::Update => "the update",
        Part::Evaluation => "evaluations",
        Part::Checkpoint => "checkpoints",
        Part::Other => "overhead between steps",
        Part::Forward | Part::Backward => part.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 steps of a rank in 10 s.
    fn rank(split: TimeSplit, core_wait: f64) -> RankTimes {
        let split = TimeSplit { total: 10.0, ..split }.with_other();
        RankTimes { host: "node1".to_owned(), n_steps: 100, steps_s: 10.0, split, core_wait }
    }

    /// A rank that loads, computes and exchanges for these times, in s.
    fn times(data: f64, forward: f64, exchange: f64) -> TimeSplit {
        TimeSplit {
            data,
            forward,
            backward: 10.0 - data - forward - exchange,
            exchange,
            ..TimeSplit::default()
        }
    }

    fn bound(ranks: &[RankTimes]) -> String {
        Comparison(ranks.to_vec()).bound(Device::Cpu, || "try more threads".to_owned())
    }

    #[test]
    fn the_sentence_names_the_part_that_could_be_saved() {
        let of = |split: TimeSplit| bound(&[rank(split, 0.0)]);
        let computing = TimeSplit { forward: 3.0, backward: 6.5, ..TimeSplit::default() };
        assert_eq!(of(computing), "bound by computing (95%): nothing else stands out");
        assert!(of(times(4.0, 2.0, 0.0)).starts_with("bound by waiting for data (40%): try more threads"));
        let exchanging = of(times(0.1, 2.0, 3.1));
        assert!(
            exchanging.starts_with("bound by exposed communication (31%): ") && !exchanging.contains("bf16")
        );
        for (part, split) in [
            ("copies to the GPU", TimeSplit { h2d: 2.0, ..TimeSplit::default() }),
            ("the update", TimeSplit { update: 4.0, forward: 3.0, backward: 2.5, ..TimeSplit::default() }),
            ("evaluations", TimeSplit { evaluation: 5.0, forward: 4.5, ..TimeSplit::default() }),
            ("checkpoints", TimeSplit { checkpoint: 2.0, backward: 7.5, ..TimeSplit::default() }),
            ("overhead between", TimeSplit { forward: 3.0, backward: 3.0, ..TimeSplit::default() }),
        ] {
            let split =
                if part == "copies to the GPU" { TimeSplit { backward: 7.5, ..split } } else { split };
            let got = of(split);
            assert!(got.starts_with(&format!("bound by {part}")), "{got}");
        }
    }

    #[test]
    fn a_late_rank_and_its_cause_are_named() {
        let usual = || rank(times(0.1, 3.0, 4.0), 0.0);
        for (late, cause) in [
            (rank(times(3.5, 3.0, 0.6), 0.0), "it waits for its rows"),
            (rank(times(0.1, 6.4, 0.6), 0.0), "it computes slower, most of all forward"),
            (rank(times(0.1, 6.4, 0.6), 0.3), "waited for a CPU 30% of its time"),
        ] {
            let ranks = [usual(), usual(), late, usual()];
            let compared = Comparison(ranks.to_vec());
            let (rank, warning) = compared.late_rank().unwrap();
            assert_eq!(rank, 2, "{warning}");
            assert!(
                warning.contains("rank 2 (node1) is late by 34.000 ms of each step of 100.000 ms (34%)"),
                "{warning}"
            );
            assert!(warning.contains(cause), "{warning}");
            assert_eq!(bound(&ranks), warning);
            let late: Vec<_> = compared.ranks().iter().map(|rank| rank.cause.is_some()).collect();
            assert_eq!(late, [false, false, true, false]);
        }
        // It loses its core while it waits.
        let ranks = [usual(), rank(times(0.1, 3.0, 4.0), 0.3)];
        let (late, warning) = Comparison(ranks.to_vec()).late_rank().unwrap();
        assert!(late == 1 && warning.contains("30.000 ms"), "{warning}");
        assert!(warning.ends_with(
            "it waited for a CPU 30% of its time: other processes use it, or its container is throttled"
        ));
        assert_eq!(Comparison(vec![usual(), usual()]).late_rank(), None);
        let crowded = rank(times(0.1, 3.0, 4.0), 0.2);
        let got = bound(&[crowded.clone(), crowded]);
        let want = "bound by exposed communication (40%): threads waited for a CPU 20% of the time";
        assert!(got.starts_with(want), "{got}");
    }

    #[test]
    fn the_slower_of_two_ranks_is_late() {
        let compared = Comparison(vec![rank(times(0.0, 6.0, 0.2), 0.0), rank(times(0.0, 3.0, 3.2), 0.0)]);
        assert_eq!(compared.late_rank().unwrap().0, 0);
        // 5% are not worth a warning.
        let compared = Comparison(vec![rank(times(0.0, 3.5, 0.2), 0.0), rank(times(0.0, 3.0, 0.7), 0.0)]);
        assert_eq!(compared.late_rank(), None);
    }
}
