//! Training runs from start to end: their bits and quality, the files that they save, and how they stop and resume.

mod averages;
mod batch_norm;
mod determinism;
mod heads;
mod init_from;
mod judges;
mod live;
mod longer;
#[cfg(target_os = "linux")]
mod memory;
mod metrics;
mod ordinal;
mod parity;
mod places;
mod precision;
mod prometheus;
mod quality;
mod resume;
mod review;
mod saved_runs;
mod stopping;
mod targets;
mod tensorboard;
mod times;
pub(crate) mod traces;
mod training;
mod trainjob;
