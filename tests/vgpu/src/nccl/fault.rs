//! Faults on request, from `VGPU_FAIL` (rules of other parts of the virtual GPU are skipped):
//!
//! - `nccl:step=5,rank=1`: the fifth collective of rank 1 fails with the asynchronous error ncclSystemError
//! - `nccl:hang=5,rank=1`: rank 1 never enters its fifth collective
//! - `nccl:init,rank=1`: rank 1 can't be initialized; `nccl:init=2,rank=1`: only in the second communicator that its process joins
//! - `nccl:finalize=1,rank=1`: the first ncclCommFinalize of rank 1 fails
//! - `nccl:slow-destroy=6,rank=1`: ncclCommDestroy of rank 1 takes 6 seconds
//! - `nccl:init-hang,rank=1`: the initialization of rank 1 never ends
//! - `nccl:capture,rank=1`: rank 1 does what a capture forbids, so that a collective fails within one
//! - `nccl:register,rank=1`: rank 1 can register no buffers
//! - `nccl:registered,rank=1`: each collective of rank 1 in registered buffers fails; `nccl:registered-sums,rank=1`: such sums do not
//!   reach the buffers of rank 1; with `min=BYTES` only in buffers at least so long, with `captured=1` only in graphs;
//!   `nccl:sums`: the same for all buffers
//! - `nccl:registered-hang,rank=1`: rank 1 never enters a collective in registered buffers; with `captured=1` only in graphs;
//!   `nccl:hangs`: the same for all buffers
//! - `nccl:abort-hang`: ncclCommAbort never returns
//! - `nccl:order`: four ranks and more take the sums of a captured collective in another order, unless `NCCL_ALGO` is Ring or Tree
//!
//! `rank` is the rank in the communicator; without it a rule is for each rank.
use crate::fault;
use crate::report::note;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Kind of fault, with a number that counts from one: for `Step` and `Hang` the collectives of a rank in one communicator, for
/// the others the calls of a rank in this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fault {
    Step(u64),
    Hang(u64),
    Init,
    InitNumber(u64),
    FinalizeNumber(u64),
    /// Seconds.
    SlowDestroy(u64),
    InitHang,
    AbortHang,
    Capture,
    Register,
    Registered,
    RegisteredSums,
    RegisteredHang,
    Hangs,
    Sums,
    Order,
}

struct Rule {
    fault: Fault,
    rank: Option<u64>,
    /// Fewest bytes of a buffer, for `RegisteredSums` and `Sums`.
    min: u64,
    /// Whether it applies in graphs only, for these, `RegisteredHang` and `Hangs`.
    is_in_graphs: bool,
}

// `fault::rules` is not used, because it keeps only the rules for the rank of this process; here ranks can be threads of one
// process.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let all = fault::parse(&std::env::var("VGPU_FAIL").unwrap_or_default());
    all.into_iter().filter(|rule| rule.name == "nccl").filter_map(|rule| Rule::new(&rule)).collect()
});

impl Rule {
    fn new(rule: &fault::Rule) -> Option<Rule> {
        let fault = match rule.word.as_deref() {
            Some("init") => Some(Fault::Init),
            Some("init-hang") => Some(Fault::InitHang),
            Some("abort-hang") => Some(Fault::AbortHang),
            Some("capture") => Some(Fault::Capture),
            Some("register") => Some(Fault::Register),
            Some("registered") => Some(Fault::Registered),
            Some("registered-sums") => Some(Fault::RegisteredSums),
            Some("registered-hang") => Some(Fault::RegisteredHang),
            Some("hangs") => Some(Fault::Hangs),
            Some("sums") => Some(Fault::Sums),
            Some("order") => Some(Fault::Order),
            Some(_) => None,
            None => {
                let numbered = |name: &str, fault: fn(u64) -> Fault| rule.number(name).map(fault);
                numbered("step", Fault::Step)
                    .or_else(|| numbered("hang", Fault::Hang))
                    .or_else(|| numbered("init", Fault::InitNumber))
                    .or_else(|| numbered("finalize", Fault::FinalizeNumber))
                    .or_else(|| numbered("slow-destroy", Fault::SlowDestroy))
            }
        };
        if fault.is_none() {
            note(&format!("VGPU_FAIL: no such fault of nccl: {rule:?}"));
        }
        let (min, is_in_graphs) = (rule.number("min").unwrap_or(0), rule.number("captured").is_some());
        Some(Rule { fault: fault?, rank: rule.number("rank"), min, is_in_graphs })
    }
}

/// Whether this fault applies to a rank.
pub(crate) fn is_due(fault: Fault, rank: u64) -> bool {
    RULES.iter().any(|rule| rule.fault == fault && rule.rank.is_none_or(|only| only == rank))
}

/// A collective of a rank, as rules about buffers see it.
#[derive(Clone, Copy)]
pub(super) struct InBuffers {
    pub(super) rank: u64,
    /// Length of its long buffer.
    pub(super) bytes: u64,
    pub(super) is_registered: bool,
    pub(super) is_captured: bool,
}

impl InBuffers {
    /// Whether its sums do not reach the rank.
    pub(super) fn loses_sums(self) -> bool {
        self.is_due(Fault::Sums) || self.is_registered && self.is_due(Fault::RegisteredSums)
    }

    /// Whether the rank never enters it.
    pub(super) fn hangs(self) -> bool {
        self.is_due(Fault::Hangs) || self.is_registered && self.is_due(Fault::RegisteredHang)
    }

    fn is_due(self, fault: Fault) -> bool {
        RULES.iter().any(|rule| {
            rule.fault == fault
                && rule.rank.is_none_or(|only| only == self.rank)
                && self.bytes >= rule.min
                && (self.is_captured || !rule.is_in_graphs)
        })
    }
}

/// Seconds that ncclCommDestroy of a rank takes longer.
pub(crate) fn slow_destroy_s(rank: u64) -> Option<u64> {
    RULES.iter().filter(|rule| rule.rank.is_none_or(|only| only == rank)).find_map(|rule| match rule.fault {
        Fault::SlowDestroy(seconds) => Some(seconds),
        _ => None,
    })
}

/// Counts a call of a rank; returns whether this call fails.
pub(crate) fn is_due_now(fault: fn(u64) -> Fault, rank: u64) -> bool {
    static CALLS: LazyLock<Mutex<HashMap<(Fault, u64), u64>>> = LazyLock::new(Mutex::default);
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = calls.entry((fault(0), rank)).or_default();
    *number += 1;
    is_due(fault(*number), rank)
}
