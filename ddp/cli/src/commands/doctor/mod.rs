//! `ddp-train doctor`: checks a machine under the launcher before a run. A table over what the other commands check too.
//!
//! Each check yields findings on each rank; those that differ at most in numbers become one line, which rank 0 prints. A check that
//! does not end within its limit ends the job, and so does a rank that is lost.

mod finding;
mod report;
mod host;
mod cpus;
mod gpus;
mod world;

use ddp::config::WatchdogConfig;
use ddp::report::metrics::json_line;
use ddp_comm::{Phase, World};
use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;

use self::cpus::CpuQuota;
use self::finding::{Finding, Scope, merge};
pub use self::report::Report;
use super::watchdog::{self, Watched};
use crate::cli::DoctorArgs;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;

/// The watchdog of a run with the default config.
const WATCHDOG: WatchdogConfig =
    WatchdogConfig { enabled: true, interval_s: 0.5, timeout_s: 10.0, save_s: 0.0 };

/// Runs all checks and prints what they find; every rank of the world calls it.
///
/// # Errors
/// [`CommandError::Doctor`] if a check fails, which is no error of the command itself.
pub fn doctor(world: &World, log: &Log, args: &DoctorArgs, report: &Report) -> Result<(), Stop> {
    report.join(world);
    let doctor = Doctor { world, report, hosts: hosts(world)? };
    let hosts = &doctor.hosts;
    let quota = CpuQuota::now();
    doctor.check("world", Scope::Job, || Ok(vec![world::world(world, hosts, report.program())]))?;
    if report.has_failed() {
        // All else would be found in each of the worlds.
        return doctor.finish();
    }
    doctor.check("network", Scope::Job, || {
        let unwatched = watchdog::start_unreported(world, log, &WATCHDOG, Watched::Checks)?;
        world.watchdog().enter(Phase::Doctor);
        world::network(world, unwatched.as_ref())
    })?;
    // Before this program loads the CPUs itself.
    doctor.check("load", Scope::Rank, || Ok(vec![cpus::load(world)?]))?;
    doctor.check("versions", Scope::Rank, || world::versions(world))?;
    let mut device = None;
    doctor.check("device", Scope::Rank, || {
        let (findings, joined) = gpus::join(world)?;
        device = joined;
        Ok(findings)
    })?;
    let gpu = match device {
        Some(Device::Cuda(index)) => Some(Gpu::get(index).map_err(Error::from)?),
        _ => None,
    };
    if let Some(device) = device {
        world.watchdog().set_device(&device.to_string());
    }
    doctor.check("cores", Scope::Rank, || cpus::cores(world, gpu))?;
    doctor.check("shared-memory", Scope::Host, || Ok(host::shared_memory(world, gpu.is_some())))?;
    doctor.check("limits", Scope::Rank, || Ok(vec![host::limits(world)]))?;
    doctor.check("memory", Scope::Host, || Ok(host::memory(world)))?;
    if let Some(gpu) = gpu {
        doctor.check("gpu-memory", Scope::Rank, || Ok(vec![gpus::memory(gpu)?]))?;
        doctor.check("kernel-cache", Scope::Rank, || Ok(vec![gpus::kernel_cache()]))?;
        doctor.check("gpu-copies", Scope::Rank, || gpus::copies(world, hosts, gpu))?;
    }
    doctor.check("all-reduce", Scope::Rank, || world::sums(world, gpu))?;
    doctor.check("clock", Scope::Rank, || world::clocks(world))?;
    doctor.check("cpu-quota", Scope::Host, || Ok(vec![CpuQuota::now().since(quota)]))?;
    doctor.check("out", Scope::Rank, || host::out(world, &args.out))?;
    doctor.finish()
}

/// The checks of one world.
struct Doctor<'a> {
    world: &'a World,
    report: &'a Report,
    /// The host of each rank.
    hosts: Vec<String>,
}

impl Doctor<'_> {
    /// Runs a check on all ranks, and adds its lines to the result. Collective.
    ///
    /// - `scope`: the least one of its findings
    fn check(
        &self,
        name: &'static str,
        scope: Scope,
        find: impl FnOnce() -> Result<Vec<Finding>>,
    ) -> Result<()> {
        self.report.begin(name);
        self.world.watchdog().tick();
        let mut own = find()?;
        own.iter_mut().for_each(|finding| finding.scope = finding.scope.max(scope));
        own.retain(|finding| match finding.scope {
            Scope::Rank => true,
            Scope::Host => self.world.local_rank().0 == 0,
            Scope::Job => self.world.rank().0 == 0,
        });
        let all = self.world.group().all_gather_bytes(json_line(&own).as_bytes())?;
        let all: Vec<Vec<Finding>> =
            all.iter().map(|own| serde_json::from_slice(own).unwrap_or_default()).collect();
        self.report.add(merge(name, &all, &self.hosts));
        Ok(())
    }

    /// Ends the result. Collective.
    fn finish(&self) -> Result<(), Stop> {
        let failed = self.world.collective_result(self.report.finish().map_err(Error::from))?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Doctor { failed: failed.join(", ") }.into())
        }
    }
}

/// The host of each rank. Collective.
fn hosts(world: &World) -> Result<Vec<String>> {
    let all = world.group().all_gather_bytes(world.hostname().as_bytes())?;
    Ok(all.iter().map(|host| String::from_utf8_lossy(host).into_owned()).collect())
}
