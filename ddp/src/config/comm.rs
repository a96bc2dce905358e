//! `[comm]`: how ranks exchange gradients, and which training state is sharded over the ranks.

use ddp_comm::RegisterBuffers;

use super::error::Result;
use super::key::{Range, count, number, one_of, switch};
use super::limits::MAX_STEPS;
use super::raw::RawConfig;
use super::section::section;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, config_enum};

config_enum!(impl RegisterBuffers { Off = "off", Auto = "auto", On = "on" });

config_enum! {
    /// Number format in which GPUs exchange gradients.
    pub enum CommDtype {
        /// Single precision.
        F32 = "f32",
        /// Rounded to bf16: half the bytes, 8 bits of precision.
        Bf16 = "bf16",
    }
}

/// Training state that is sharded over the ranks (ZeRO, arXiv:1910.02054).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing is sharded: every rank holds the whole state.
    Off,
    /// The optimizer state and the moving average of the weights.
    Optimizer,
    /// The optimizer state, the average, and the gradients accumulated over micro-batches.
    Gradients,
}

section! {
    /// `[comm]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct CommConfig in "comm", read(raw: &RawConfig), write {
        /// Size of a gradient bucket in MiB, positive.
        bucket_mib: f64 = number(Range::above_to(0.0, 1e6, "a size in MiB above 0 and at most 1e6"))
            .help("Size of a gradient bucket in MiB")
            .default("32.0")
            .hint("32 is a good start")
            .synonyms(&["bucket_cap_mb"])
            .may_change();

        /// Whether buckets are reduced while backward still computes.
        overlap: bool = switch().help("Reduce buckets while backward still computes").default("true").may_change();

        /// Number format in which GPUs exchange gradients.
        dtype: CommDtype = one_of(CommDtype::NAMES)
            .help("Number format in which gradients travel between GPUs")
            .default(r#""f32""#)
            .may_change();

        /// Training state that is sharded over the ranks.
        zero: ZeroStage = count(0, 2)
            .help("ZeRO stage: 1 shards the optimizer's state over the ranks, 2 also the accumulated gradients")
            .default("0")
            .example("1")
            .hint("0 divides nothing, 1 the optimizer's state, 2 also gradients")
            .synonyms(&["zero_stage", "zero1"])
            .may_change();

        /// Copies of each shard on other ranks: 0 or 1.
        zero_copies: usize = count(0, 1)
            .help("With zero: 1 keeps a copy of each rank's shard of the optimizer's state on another rank, so that the loss of a rank loses no step, or on GPUs few")
            .default("0")
            .example("1")
            .hint("0 keeps none, 1 one of each shard; it needs comm.zero 1 or 2")
            .may_change();

        /// Steps between two refreshes of the copies on GPUs, at least 1.
        zero_copies_every_steps: u64 = count(1, MAX_STEPS)
            .help("Steps after which ranks on GPUs refresh the copies of zero_copies; on the CPU those are exact after each step")
            .default("20")
            .hint("after a loss at most so many steps run again")
            .may_change();

        /// Whether NCCL reads and writes the buffers of collectives in place.
        register_buffers: RegisterBuffers = one_of(RegisterBuffers::NAMES)
            .help("Keep gradients and gathered weights in memory that NCCL reads and writes in place: never, where a trial succeeds, or fail where it does not")
            .default(r#""auto""#)
            .example(r#""off""#)
            .synonyms(&["nccl_ub", "use_user_buffers"])
            .may_change();
    }
}

impl CommConfig {
    /// Size of a gradient bucket in bytes.
    pub fn bucket_bytes(&self) -> usize {
        ((self.bucket_mib * (1 << 20) as f64) as usize).max(1)
    }
}

impl ConfigValue for ZeroStage {
    fn read(setting: &Setting) -> Result<Self> {
        let number = setting.count()? as usize;
        Ok(ZeroStage::ALL[number.min(ZeroStage::ALL.len() - 1)])
    }

    fn write(&self) -> String {
        self.number().to_string()
    }
}

impl ZeroStage {
    /// All of them.
    pub const ALL: [ZeroStage; 3] = [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients];

    /// The number of the stage in the config and in the literature.
    pub fn number(self) -> u8 {
        self as u8
    }
}
