//! Progress of this rank: written by the training thread, read by the watchdog's thread.
//!
//! Writing takes no lock and no system call. There is one writer, so a counter is a load and a store. A reader may see the fields
//! of two neighboring moments, which is good enough to report the place of a rank.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::Call;
use crate::operations::{Operation, Operations};
use crate::phase::Phase;
use crate::survivor::Survivor;

/// Progress of this rank.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    phase: AtomicU8,
    step: AtomicU64,
    /// Whatever else shows that the rank is at work: batches of an evaluation, changes of the phase.
    ticks: AtomicU64,
    n_collectives: AtomicU64,
    /// Asynchronous collectives started in this step.
    n_buckets: AtomicU64,
    /// The last collective, and whether the rank is inside a call that runs or awaits it.
    call: [AtomicU64; 2],
    is_inside: AtomicBool,
    device: OnceLock<String>,
    /// When the watchdog's thread last looked.
    looked_ns: AtomicU64,
    /// Whether the watchdog has noticed the loss of a rank, and when.
    is_lost: Arc<AtomicBool>,
    lost_at: OnceLock<Instant>,
    aborts_alone: AtomicBool,
    withdrawal: OnceLock<Withdrawal>,
    /// Whether the save that this rank's withdrawal lets the others do is over.
    is_released: AtomicBool,
    /// Exit status of all ranks after one was lost; 0 until it is known.
    exit_code: AtomicI32,
    /// Whether its thread ends the process, without a save.
    is_ending: AtomicBool,
    survivor: Survivor,
    operations: Operations,
}

/// The watchdog's thread looks several times per second. If it did not for this long, the process was frozen.
const FROZEN: Duration = Duration::from_secs(1);
/// Time for which a training thread waits for the watchdog's: a bound in case that thread is gone.
const HELD: Duration = Duration::from_secs(5);

/// Time within which the watchdog notices the loss that made a collective fail.
const NOTICED: Duration = Duration::from_secs(2);

/// Time beyond the limit of a save for the word that it has ended.
const RELEASED: Duration = Duration::from_secs(2);
/// Time in which the watchdog's thread, which looks several times per second, tells the others of an abort.
const ALONE_TOLD: Duration = Duration::from_millis(400);

/// The end of a rank by an error of its own, before which the ranks may save.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    pub(crate) error: String,
    /// Whether this rank may save, too: its device works.
    pub(crate) holds_state: bool,
    /// Longest time for the save.
    limit: Duration,
}

/// Place of a rank in the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// The step under way, from 1; 0 before the first.
    pub(crate) step: u64,
    pub(crate) ticks: u64,
    pub(crate) n_collectives: u64,
    pub(crate) n_buckets: u64,
    /// The last collective in the words of [`Call::to_words`]; zeros for none.
    pub(crate) call: [u64; 2],
    pub(crate) is_inside: bool,
    /// Name of the device; empty until it is chosen.
    pub(crate) device: String,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Progress {
            began: Instant::now(),
            phase: AtomicU8::new(Phase::Start.to_code()),
            step: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            n_collectives: AtomicU64::new(0),
            n_buckets: AtomicU64::new(0),
            call: Default::default(),
            is_inside: AtomicBool::new(false),
            device: OnceLock::new(),
            looked_ns: AtomicU64::new(0),
            is_lost: Arc::default(),
            lost_at: OnceLock::new(),
            aborts_alone: AtomicBool::new(false),
            withdrawal: OnceLock::new(),
            is_released: AtomicBool::new(false),
            exit_code: AtomicI32::new(0),
            is_ending: AtomicBool::new(false),
            survivor: Survivor::default(),
            operations: Operations::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::from_code(self.phase.load(Relaxed)).expect("written from a phase")
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase.to_code(), Relaxed);
        self.tick();
        self.note(Operation::words_of(phase));
    }

    pub(crate) fn set_step(&self, step: u64) {
        self.step.store(step, Relaxed);
        self.n_buckets.store(0, Relaxed);
        if self.phase() == Phase::Step {
            self.tick();
        } else {
            self.set_phase(Phase::Step);
        }
    }

    pub(crate) fn set_device(&self, device: String) {
        let _ = self.device.set(device);
    }

    pub(crate) fn tick(&self) {
        increment(&self.ticks);
    }

    /// The rank enters a collective and waits for it. Returns its number among the operations.
    pub(crate) fn enter(&self, call: Call) -> u64 {
        self.is_inside.store(true, Relaxed);
        self.count(call)
    }

    /// The rank starts an asynchronous collective. Returns its number among the operations.
    pub(crate) fn start(&self, call: Call) -> u64 {
        increment(&self.n_buckets);
        self.count(call)
    }

    /// The operation of this number is complete.
    pub(crate) fn end_operation(&self, number: u64) {
        self.operations.end(number, self.now_ns());
    }

    /// The rank waits for asynchronous collectives.
    pub(crate) fn wait(&self) {
        self.is_inside.store(true, Relaxed);
    }

    /// The rank waits no longer.
    pub(crate) fn leave(&self) {
        self.is_inside.store(false, Relaxed);
        self.tick();
        self.hold_now();
    }

    /// Same as [`Progress::hold`], at this moment.
    pub(crate) fn hold_now(&self) {
        self.hold(self.now_ns());
    }

    /// Holds this thread while the watchdog ends the process, and after the process was frozen until the watchdog has heard what
    /// happened meanwhile: the others may have reported this rank as lost, and nothing may be written after that.
    fn hold(&self, now_ns: u64) {
        let looked_ns = self.looked_ns.load(Relaxed);
        let is_late = now_ns.saturating_sub(looked_ns) > FROZEN.as_nanos() as u64;
        if !is_late && !self.is_ending.load(Relaxed) {
            return;
        }
        let since = Instant::now();
        while since.elapsed() < HELD
            && (self.is_ending.load(SeqCst) || self.looked_ns.load(SeqCst) == looked_ns)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The watchdog's thread looked, and has heard all that the others had sent.
    pub(crate) fn looked(&self) {
        self.looked_ns.store(self.now_ns(), SeqCst);
    }

    /// The watchdog's thread has ended: nobody waits for it any more.
    pub(crate) fn left(&self) {
        self.looked_ns.store(u64::MAX, SeqCst);
    }

    /// Exit status of all ranks after one was lost, if the caller has one.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        Some(self.exit_code.load(Relaxed)).filter(|code| *code != 0)
    }

    pub(crate) fn set_exit_code(&self, exit_code: i32) {
        self.exit_code.store(exit_code, Relaxed);
    }

    /// A rank is lost: the watchdog's thread ends the process, after a save if there is to be one. Returns the limit of that save.
    pub(crate) fn lose(&self) -> Option<Duration> {
        let limit = self.survivor.limit();
        let saves = limit.is_some();
        self.is_ending.store(!saves, SeqCst);
        let _ = self.lost_at.set(Instant::now());
        self.is_lost.store(true, SeqCst);
        if saves {
            // The watchdog's thread looks no more, and the training thread must not wait for it. Last, so that one which waits finds the loss.
            self.left();
        }
        limit
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(SeqCst)
    }

    /// Set once a rank is lost.
    pub(crate) fn loss(&self) -> Arc<AtomicBool> {
        self.is_lost.clone()
    }

    /// Whether no collective will complete, and the training thread is to return from them to save.
    pub(crate) fn is_to_save(&self) -> bool {
        self.is_lost.load(Acquire) && !self.is_ending.load(Acquire)
    }

    /// This rank aborts its communicator without the others, whose sums are undefined from then on. Returns when they should know.
    pub(crate) fn abort_alone(&self) {
        self.aborts_alone.store(true, SeqCst);
        std::thread::sleep(ALONE_TOLD);
    }

    /// This rank ends with `error`, and lets the others save before, where there is to be a save after the loss of a rank; returns whether
    /// it does.
    ///
    /// - `holds_state`: whether this one may save, too
    pub(crate) fn withdraw(&self, error: &str, holds_state: bool) -> bool {
        if !self.is_lost()
            && let Some(limit) = self.survivor.limit()
        {
            let _ = self.withdrawal.set(Withdrawal { error: error.to_owned(), holds_state, limit });
        }
        self.withdrawal.get().is_some()
    }

    pub(crate) fn withdrawal(&self) -> Option<&Withdrawal> {
        self.withdrawal.get()
    }

    /// The save after this rank's withdrawal is over.
    pub(crate) fn release(&self) {
        self.survivor.let_abort();
        self.survivor.stop_waiting();
        self.is_released.store(true, SeqCst);
    }

    /// Waits for the end of the save, if this rank has withdrawn.
    pub(crate) fn wait_for_release(&self) {
        if let Some(withdrawal) = self.withdrawal.get() {
            self.released_within(withdrawal.limit + RELEASED);
        }
    }

    /// Waits for the end of the save after this rank's withdrawal, for at most `limit`.
    pub(crate) fn released_within(&self, limit: Duration) {
        let since = Instant::now();
        while !self.is_released.load(SeqCst) && since.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether this rank has aborted its communicator, or is about to, without the others.
    pub(crate) fn aborts_alone(&self) -> bool {
        self.aborts_alone.load(SeqCst)
    }

    /// Time since the loss of a rank was noticed; none before.
    pub(crate) fn lost_for(&self) -> Option<Duration> {
        self.lost_at.get().map(Instant::elapsed)
    }

    /// Waits a moment for the loss that a failure may follow from; returns whether there is one, and a save is to follow.
    pub(crate) fn awaits_loss(&self) -> bool {
        let since = Instant::now();
        while !self.is_lost() && since.elapsed() < NOTICED {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_to_save()
    }

    pub(crate) fn survivor(&self) -> &Survivor {
        &self.survivor
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn count(&self, call: Call) -> u64 {
        let words = call.to_words();
        self.call[0].store(words[0], Relaxed);
        self.call[1].store(words[1], Relaxed);
        increment(&self.n_collectives);
        self.note(words)
    }

    fn note(&self, words: [u64; 2]) -> u64 {
        let now_ns = self.now_ns();
        self.hold(now_ns);
        self.operations.add(words, self.step.load(Relaxed), now_ns)
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing {
            phase: self.phase(),
            step: self.step.load(Relaxed),
            ticks: self.ticks.load(Relaxed),
            n_collectives: self.n_collectives.load(Relaxed),
            n_buckets: self.n_buckets.load(Relaxed),
            call: [self.call[0].load(Relaxed), self.call[1].load(Relaxed)],
            is_inside: self.is_inside.load(Relaxed),
            device: self.device.get().cloned().unwrap_or_default(),
        }
    }

    /// The last operations, oldest first.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.last(self.now_ns())
    }

    /// The last operations, one per line, oldest first, with the time since each.
    pub(crate) fn last_operations(&self) -> String {
        let line = |operation: Operation| {
            format!(
                "\n{:10.3} s ago, step {}: {operation}",
                operation.begin_ago.as_secs_f64(),
                operation.step
            )
        };
        self.operations().into_iter().map(line).collect()
    }
}

/// Adds one; only one thread writes.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl fmt::Display for Standing {
    /// `step 41, training, inside collective 120 (barrier), 3 buckets started`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Standing { phase, step, n_collectives, n_buckets, call, is_inside, .. } = self;
        match step {
            // Perhaps of a command that has no steps.
            0 if matches!(phase, Phase::Prediction | Phase::Evaluation) => write!(f, "in phase {phase}")?,
            0 => write!(f, "before step 1, in phase {phase}")?,
            _ => write!(f, "at step {step}, in phase {phase}")?,
        }
        if let Some(call) = Call::from_words(*call).filter(|_| *n_collectives > 0) {
            let place = if *is_inside { "inside" } else { "after" };
            write!(f, ", {place} collective {n_collectives} ({call})")?;
        }
        if *n_buckets > 0 {
            write!(f, ", bucket {n_buckets}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standing_names_step_phase_collective_and_bucket() {
        let progress = Progress::new();
        assert_eq!(progress.standing().to_string(), "before step 1, in phase start");
        progress.set_step(41);
        progress.start(Call::BARRIER);
        progress.wait();
        let text = progress.standing().to_string();
        assert_eq!(text, "at step 41, in phase training, inside collective 1 (barrier), bucket 1");
        progress.leave();
        progress.set_step(42);
        assert_eq!(progress.standing().n_buckets, 0);
    }

    #[test]
    fn a_rank_that_was_frozen_waits_for_its_watchdog() {
        let progress = Progress::new();
        let n_before = |progress: &Progress| progress.operations().len();
        progress.enter(Call::BARRIER);
        std::thread::sleep(FROZEN + Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(|| progress.enter(Call::BARRIER));
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(n_before(&progress), 1);
            progress.looked();
        });
        assert_eq!(n_before(&progress), 2);
    }

    #[test]
    fn a_rank_without_a_watchdog_waits_for_none() {
        let progress = Progress::new();
        progress.left();
        let late = 10 * FROZEN.as_nanos() as u64;
        let since = Instant::now();
        progress.hold(late);
        assert!(since.elapsed() < HELD / 2);
    }

    #[test]
    fn the_last_200_operations_are_kept() {
        let progress = Progress::new();
        for step in 1..=300 {
            progress.set_step(step);
            progress.enter(Call::BARRIER);
            progress.leave();
        }
        progress.set_phase(Phase::Evaluation);
        let text = progress.last_operations();
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 200);
        assert!(
            text.ends_with("step 300: begins: evaluation") && text.contains("step 102: barrier"),
            "{text}"
        );
        assert!(!text.contains("step 101:"), "{text}");
    }
}
