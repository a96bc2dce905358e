//! Cores of each rank: which CPUs it may run on, how many ranks share them, and which are near its GPU.
//!
//! ```
//! use ddp_comm::{World, cores};
//! use ddp_kernels::Device;
//! use ddp_kernels::cpu::threads::join_pool;
//!
//! let world = World::init()?;
//! // Before the threads start, so that they and their memory are near the GPU, too.
//! let near = cores::bind_near(Device::cuda(0).available_or_cpu());
//! join_pool(world.cores_per_rank()?)?;
//! println!("near the device: {near:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use ddp_kernels::Device;
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cuda::Gpu;

use crate::{Result, World};

/// Binds the calling thread, and the threads that it starts from now on, to the CPUs near `device`, where memory that they touch
/// first, also pinned memory, then lies. Returns these CPUs.
///
/// Does nothing and returns None for the CPU, if a launcher has bound the thread already, if the system does not report
/// which CPUs are near or all are, or if it does not allow these.
pub fn bind_near(device: Device) -> Option<CpuSet> {
    let Device::Cuda(index) = device else { return None };
    let local = Gpu::get(index).ok()?.info().local_cpus()?;
    let near = near(CpuSet::for_thread(), CpuSet::online()?, local)?;
    near.bind_thread().ok().map(|()| near)
}

/// The CPUs to bind to: those near the device, if the thread may run on all that are online and these are fewer.
fn near(own: CpuSet, online: CpuSet, local: CpuSet) -> Option<CpuSet> {
    let near = own.intersection(&local);
    (own == online && !near.is_empty() && near != own).then_some(near)
}

impl World {
    /// This rank's share of the CPUs that the calling thread may run on, in whole cores, at least 1: each CPU is divided by the
    /// ranks of the host that may run on it. A lower quota of the control group is divided by all ranks of the host. Collective.
    ///
    /// Launchers that bind ranks (`srun`, `mpirun --bind-to core`) have divided the host already, and each rank gets all
    /// that it is bound to.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    pub fn cores_per_rank(&self) -> Result<usize> {
        let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok(share(CpuSet::for_thread(), &self.cpus_of_host()?, allowed))
    }

    /// The CPUs that each rank of this host may run on. Collective.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    pub fn cpus_of_host(&self) -> Result<Vec<CpuSet>> {
        let own = self.host_key();
        let record = format!("{own}\n{}", CpuSet::for_thread());
        let all = self.group().all_gather_bytes(record.as_bytes())?;
        let records = all.iter().filter_map(|record| std::str::from_utf8(record).ok()?.split_once('\n'));
        let of_host = records.filter(|(host, _)| *host == own);
        Ok(of_host.filter_map(|(_, list)| CpuSet::parse(list)).collect())
    }
}

/// A rank's share of `own`, of which it may use `allowed` at a time; `of_host` are the sets of all ranks of its host.
fn share(own: CpuSet, of_host: &[CpuSet], allowed: usize) -> usize {
    let n_ranks = of_host.len().max(1);
    let sharers = |cpu: usize| of_host.iter().filter(|set| set.contains(cpu)).count().max(1);
    let fair: f64 = own.iter().map(|cpu| 1.0 / sharers(cpu) as f64).sum();
    // A third three times is a whole one.
    let cores = (fair + 1e-6) as usize;
    let quota = if allowed < own.len() { allowed / n_ranks } else { usize::MAX };
    // The system does not report the set: then `allowed` is all that is known.
    if own.is_empty() { (allowed / n_ranks).max(1) } else { cores.min(quota).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    #[test]
    fn cores_are_divided_by_the_ranks_that_share_them_and_only_once() {
        // mpirun without binding: 4 ranks on the same 8 CPUs.
        assert_eq!(share(set("0-7"), &[set("0-7"); 4], 8), 2);
        // srun: each rank has 8 of 64 CPUs of its own.
        let bound: Vec<CpuSet> = (0..8).map(|n| set(&format!("{}-{}", 8 * n, 8 * n + 7))).collect();
        for own in &bound {
            assert_eq!(share(*own, &bound, 8), 8);
        }
        // Bound to the CPUs of two sockets, three ranks each.
        let sockets = [[set("0-23"); 3], [set("24-47"); 3]].concat();
        assert_eq!(share(set("24-47"), &sockets, 24), 8);
        // Sets that overlap.
        assert_eq!(share(set("0-7"), &[set("0-7"), set("4-11")], 8), 6);
        // More ranks than cores; a quota of the container, which all ranks share; a system without sets.
        assert_eq!(share(set("0-1"), &[set("0-1"); 5], 2), 1);
        assert_eq!(share(set("0-63"), &[set("0-63"); 2], 12), 6);
        assert_eq!(share(CpuSet::default(), &[CpuSet::default(); 2], 8), 4);
    }

    #[test]
    fn only_ranks_that_no_launcher_bound_are_bound_to_the_gpus_cpus() {
        let (online, local) = (set("0-63"), set("32-63"));
        assert_eq!(near(online, online, local), Some(local));
        assert_eq!(near(set("0-7"), online, local), None, "bound by a launcher");
        assert_eq!(near(online, online, online), None, "a machine with one node");
        assert_eq!(near(online, online, CpuSet::default()), None);
    }

    #[test]
    fn ranks_that_are_threads_share_the_process_cores() {
        let n_cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(World::single().cores_per_rank(), Ok(n_cores));
        let shares = threads::run(n_cores, |world| world.cores_per_rank().unwrap());
        assert_eq!(shares, vec![1; n_cores]);
    }
}
