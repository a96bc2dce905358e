//! Features of training on GPUs, each of which can be turned off: one row per feature, with its trial and what takes its place.
//!
//! [docs/gpus.md](../../../docs/gpus.md) shows the table. A trial that fails turns its feature off on all ranks, with one warning that
//! names it.
//!
//! ```
//! use ddp::config::Config;
//! use ddp::config::gpu_features::{FEATURES, without_all};
//!
//! let safe = Config::load(None, &without_all())?;
//! let named = FEATURES.iter().filter(|row| row.feature.is_some()).count();
//! assert_eq!((safe.train.gpu_without.len(), safe.comm.overlap), (named, false));
//! # Ok::<(), ddp::config::ConfigError>(())
//! ```

use ddp_kernels::cuda::GpuFeature;

use super::error::{ConfigError, Result};
use super::setting::Setting;
use super::value::{ConfigValue, list};

/// A feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureRow {
    /// Its name, in kebab case.
    pub name: &'static str,
    /// The feature of the device, where it is one that `train.gpu_without` names.
    pub feature: Option<GpuFeature>,
    /// The setting that turns it off, where another one does.
    pub off: &'static str,
    /// The trial, in words.
    pub trial: &'static str,
    /// Substitute without it.
    pub fallback: &'static str,
    /// Cost of the substitute.
    pub cost: &'static str,
}

const fn device_row(feature: GpuFeature, [trial, fallback, cost]: [&'static str; 3]) -> FeatureRow {
    FeatureRow { name: feature.name(), feature: Some(feature), off: "", trial, fallback, cost }
}

const fn setting_row(
    [name, off]: [&'static str; 2],
    [trial, fallback, cost]: [&'static str; 3],
) -> FeatureRow {
    FeatureRow { name, feature: None, off, trial, fallback, cost }
}

/// Name of steps that are replayed as graphs.
pub const CUDA_GRAPH: &str = "cuda-graph";

/// All features that `--safe` turns off.
pub const FEATURES: [FeatureRow; 12] = [
    device_row(
        GpuFeature::FusedEpilogues,
        [
            "in its first use: cuBLASLt says which it has; the self-check",
            "bias, activation and their gradients are kernels of their own; other rounding in bf16 and f16",
            "one pass more over the outputs of each layer",
        ],
    ),
    device_row(
        GpuFeature::TimedMatmuls,
        [
            "the self-check; each candidate is run with outputs in scratch memory",
            "the first algorithm of cuBLASLt; other rounding",
            "matmuls that are slower by some percent, up to twice",
        ],
    ),
    setting_row(
        [CUDA_GRAPH, "`--cuda-graph off`"],
        [
            "before the first step the collectives of a step are captured and replayed twice; later each capture",
            "steps launched kernel by kernel; the same bits",
            "5 µs of the host per kernel: small models are several times slower",
        ],
    ),
    setting_row(
        ["registered-buffers", "`comm.register_buffers = \"off\"`"],
        [
            "before the first step the collectives of a step with known numbers, at once and in graphs",
            "NCCL copies through buffers of its own; sums inside a switch may round otherwise",
            "a slower exchange with more thread blocks",
        ],
    ),
    setting_row(
        ["overlap", "`comm.overlap = false`"],
        [
            "none",
            "gradients are exchanged after backward; the same bits",
            "the time of the exchange is added to the step",
        ],
    ),
    device_row(
        GpuFeature::StreamPriorities,
        [
            "at the start: the driver creates the stream",
            "collectives have the priority of other work; the same bits",
            "collectives may wait for the blocks of matmuls",
        ],
    ),
    device_row(
        GpuFeature::MemoryPool,
        [
            "at the start: the driver creates the pool",
            "each tensor is an allocation by itself, and its release waits for the device; the same bits",
            "a slower start; steps allocate nothing",
        ],
    ),
    device_row(
        GpuFeature::MappedOutcome,
        [
            "at the start: the driver maps a page",
            "the host copies the sums of a step from the device; the same bits",
            "about 10 µs of the host per step",
        ],
    ),
    device_row(
        GpuFeature::PinnedMemory,
        [
            "at the start: the driver locks a page",
            "rows and results are copied through memory of the driver, and the host waits; the same bits",
            "copies at a third of the speed, not next to computation",
        ],
    ),
    device_row(
        GpuFeature::StepTimes,
        [
            "before the first step two events are captured and replayed",
            "the time of steps is not known by part; the same bits",
            "nothing",
        ],
    ),
    device_row(
        GpuFeature::DependentLaunches,
        [
            "at the start: kernels that follow each other; the self-check, also in a graph",
            "a kernel is launched when the one before it is complete, as on GPUs before Hopper; the same bits",
            "an estimate: 1 to 2 µs per kernel that follows another",
        ],
    ),
    setting_row(
        ["cpu-binding", "`--bind none`"],
        [
            "none",
            "the system places threads and host memory; the same bits",
            "slower copies where they are far from the GPU",
        ],
    ),
];

/// Settings of the config with which a run does without all features; those of flags are the caller's.
pub fn without_all() -> Vec<String> {
    let names: Vec<String> =
        GpuFeature::ALL.iter().map(|feature| format!("\"{}\"", feature.name())).collect();
    let without = format!("train.gpu_without=[{}]", names.join(","));
    vec![without, "comm.register_buffers=off".to_owned(), "comm.overlap=false".to_owned()]
}

/// The table of docs/gpus.md.
pub fn markdown() -> String {
    let mut table =
        "| feature | turned off by | trial | in its place | cost |\n|---|---|---|---|---|\n".to_owned();
    for FeatureRow { name, feature, off, trial, fallback, cost } in FEATURES {
        let off = if feature.is_some() { "`train.gpu_without`" } else { off };
        table += &format!("| `{name}` | {off} | {trial} | {fallback} | {cost} |\n");
    }
    table
}

impl ConfigValue for Vec<GpuFeature> {
    fn read(setting: &Setting) -> Result<Self> {
        let feature = |name: String| -> Result<GpuFeature, ConfigError> {
            let named = GpuFeature::ALL.iter().find(|feature| feature.name() == name);
            named.copied().ok_or_else(|| {
                let names: Vec<_> = GpuFeature::ALL.iter().map(|feature| feature.name()).collect();
                setting.bad(format!("a list of {}", names.join(", ")), "docs/gpus.md describes the features")
            })
        };
        setting.texts()?.into_iter().map(feature).collect()
    }

    fn write(&self) -> String {
        list(self, |feature| format!("\"{}\"", feature.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_table_is_that_of_the_docs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/gpus.md");
        assert!(std::fs::read_to_string(path).unwrap().contains(&markdown()), "\n{}", markdown());
    }

    #[test]
    fn each_feature_of_a_device_has_one_row() {
        for feature in GpuFeature::ALL {
            assert_eq!(FEATURES.iter().filter(|row| row.feature == Some(feature)).count(), 1, "{feature:?}");
        }
        let config = Config::load(None, &without_all()).unwrap();
        assert_eq!(config.train.gpu_without, GpuFeature::ALL);
        let error = Config::load(None, &["train.gpu_without=[\"memory\"]".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("memory-pool"), "{error}");
    }
}
