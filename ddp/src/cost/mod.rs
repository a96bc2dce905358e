//! Cost of a run before it exists: memory, bytes and time of a rank, for any number of ranks on machines that need not be here.
//!
//! - Memory ([`memory_plan`]) and bytes moved ([`step_traffic`]) come from the code that allocates and computes.
//! - Time ([`step_time`]) is a model: a roofline per operation, the better of ring and tree per bucket ([`collective`]), and both next to
//!   each other as the trainer runs them. Its constants are in one table ([`hardware`]), or measured by `ddp-train bench`
//!   ([`calibration`]). A time is an estimate.
//!
//! `describe` shows the first two, `bench step` a predicted time beside the measured one, `plan` all of them.

pub mod memory_plan;
pub mod step_traffic;
pub mod collective;
pub mod hardware;
pub mod calibration;
pub mod machine;
pub mod step_time;
pub mod bench_step;
