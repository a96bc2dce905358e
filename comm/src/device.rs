//! Joins the ranks' devices: ranks exchange which device each of them uses, and GPUs are joined by NCCL.

use std::time::Duration;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, Device, MemoryUse, Tensor};
use tracing::{debug, warn};

use crate::group::nccl::{self, NCCL_MEMORY_STEP_BYTES, NcclGroup, NcclMemory, NcclOptions, UniqueId};
use crate::register_buffers::RegisterBuffers;
use crate::this_host::boot_id;
use crate::{CommError, Group, Rank, Reporter, Result, World};

/// Options of [`World::connect_device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Whether ranks of one host may use the same GPU: for tests, since it is slow. Sets environment variables of NCCL that the
    /// user has not set.
    pub share_gpu: bool,
    /// Time for which a rank waits for the others while joining and in [`Group::wait_until`]; `None`: without limit.
    pub timeout: Option<Duration>,
    /// Whether sums are taken in the same order in every run on the same GPUs. Restricts NCCL to rings by its environment
    /// variable `NCCL_ALGO`, unless that is set: sums inside a switch (NVLS) have no fixed order.
    ///
    /// Source: Megatron-LM, `--deterministic-mode`.
    pub deterministic: bool,
    /// Whether collectives run next to matmuls: on one host their thread blocks are then limited to as many as matmuls leave to them
    /// ([`World::collective_blocks`]).
    pub overlap: bool,
    /// Whether [`World::exchange_zeros`] registers its tensors with NCCL.
    pub register_buffers: RegisterBuffers,
    /// Time for which a rank waits for the collectives of a trial ([`World::trial_timeout`]).
    pub trial_timeout: Duration,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            share_gpu: false,
            timeout: Some(Duration::from_secs(600)),
            deterministic: false,
            overlap: true,
            register_buffers: RegisterBuffers::Auto,
            trial_timeout: Duration::from_secs(60),
        }
    }
}

/// The name of the operation in errors.
const JOINING: &str = "joining the ranks' devices";
/// Time that each rank adds to the limit of a trial.
const TRIAL_TIMEOUT_PER_RANK: Duration = Duration::from_millis(200);

/// The version of the NCCL library that ranks on GPUs would use, such as `2.27.3`; `None` if there is no usable one.
pub fn nccl_version() -> Option<String> {
    nccl::version().ok().map(nccl::version_name)
}

/// A rank's device, as the ranks exchange it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankDevice {
    /// `cpu` or `cuda`.
    kind: String,
    host: String,
    /// Tells hosts of one name apart.
    boot_id: String,
    /// Name and UUID; empty for a CPU.
    gpu: String,
    /// Address on the bus, which MIG instances of one GPU share; empty for a CPU.
    pci_bus_id: String,
    /// 0 for a CPU.
    nccl_version: i32,
}

impl World {
    /// Joins the ranks' devices, so that [`World::tensor_group`] can exchange tensors of `device`. Collective; call it once.
    /// Waits for all ranks.
    ///
    /// All ranks use CPUs, or all use GPUs, each its own. CPUs, and a world of one, need no NCCL. Either all ranks succeed or
    /// none does: the failing rank returns the reason, the others [`CommError::FailedElsewhere`] with its text.
    ///
    /// # Errors
    /// On every rank [`CommError::GpuTaken`] or [`CommError::Disagreement`] (kind of device, version of NCCL).
    /// [`CommError::Kernel`] if the device cannot be used; [`CommError::UnorderedSums`]; [`CommError::NcclUnavailable`];
    /// [`CommError::Nccl`]; [`CommError::DeviceTimeout`] if a rank does not arrive; [`CommError::AlreadyConnected`];
    /// [`CommError::NoRegistration`] with [`RegisterBuffers::On`]; [`CommError::HostsWithoutMpi`] or [`CommError::NoSharedMemory`] for CPUs.
    ///
    /// Source: NCCL's user guide, "Creating a communicator with options".
    pub fn connect_device(&self, device: Device, options: DeviceOptions) -> Result<()> {
        if self.device_groups.get().is_some() {
            return Err(CommError::AlreadyConnected);
        }
        if self.world_size() == 1 {
            return Ok(device.ensure_available()?);
        }
        let prepared = self.prepare(device, options);
        let (prepared, records) = self.gather_all_or_none(JOINING, prepared, |own| own.record.encode())?;
        let devices: Vec<RankDevice> = records.iter().map(|record| RankDevice::decode(record)).collect();
        compare_devices(&devices)?;
        let Some(gpu) = prepared.gpu else { return self.check_host_group() };
        let shared = first_shared(&devices);
        if let Some(ranks) = shared.filter(|_| !options.share_gpu) {
            let RankDevice { host, gpu, .. } = devices[ranks[1]].clone();
            return Err(CommError::GpuTaken { host, gpu, ranks });
        }
        if shared.is_some() {
            set_environment(&sharing_environment(self, devices[0].nccl_version));
        }
        let (rank, world_size) = (self.rank().0, self.world_size());
        let DeviceOptions { timeout, register_buffers, trial_timeout, deterministic, overlap, .. } = options;
        let shares_gpu = shared.is_some();
        // Elsewhere matmuls are not made for what is left, and rings over hosts or in the deterministic mode take up to 24 blocks.
        let limits_blocks = overlap && !deterministic && self.local_size() == world_size;
        let options = NcclOptions {
            rank,
            world_size,
            shares_gpu,
            limits_blocks,
            timeout,
            register_buffers,
            trial_timeout,
        };
        self.use_new_group(gpu, options)
    }

    /// Joins the ranks' devices by [`World::connect_device`]: each has a GPU of its own if its host has enough for its ranks, or if its
    /// launcher shows each one GPU (`CUDA_VISIBLE_DEVICES`), else its CPUs. Returns the device. Collective; call it once.
    ///
    /// # Errors
    /// See [`World::connect_device`]; [`CommError::Disagreement`] if only some hosts have GPUs.
    pub fn connect(&self) -> Result<Device> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let of_ranks = self.group().all_gather_bytes(visible.as_bytes())?;
        let shows_one_each = Device::count() == 1 && of_ranks.iter().any(|of| *of != of_ranks[0]);
        let device = match () {
            () if Device::count() >= self.local_size() => Device::cuda(self.local_rank().0),
            () if shows_one_each => Device::cuda(0),
            () => Device::Cpu,
        };
        self.connect_device(device, DeviceOptions::default())?;
        Ok(device)
    }

    /// Checks that the host's group is one for gradients: without MPI and shared memory it carries only what ranks agree on.
    fn check_host_group(&self) -> Result<()> {
        match (self.group(), self.launcher()) {
            (Group::Host(group), Some(launcher)) if group.is_star() => {
                Err(match group.unshared().map(str::to_owned) {
                    Some(reason) => CommError::NoSharedMemory { reason },
                    None => CommError::HostsWithoutMpi { world_size: self.world_size(), launcher },
                })
            }
            _ => Ok(()),
        }
    }

    /// Joins all ranks by a new communicator, which registers buffers where it should and can, and exchanges tensors from now on.
    /// Collective.
    fn use_new_group(&self, gpu: &'static Gpu, options: NcclOptions) -> Result<()> {
        let nccl = self.join_nccl(gpu, options)?;
        if let Err(error) = self.register_buffers(&nccl) {
            nccl.abandon();
            return Err(error);
        }
        self.device_groups.push(Group::Nccl(Box::new(nccl)));
        self.count_progress();
        Ok(())
    }

    /// Joins the ranks' devices anew, after a trial that failed: closes the communicator, or aborts it where a rank did so, and makes
    /// another one. Collective.
    ///
    /// Tensors of [`World::exchange_zeros`] from before stay valid, but are not registered any more.
    ///
    /// - `unregistered`: the reason why no buffer is registered from now on; rank 0 warns of it
    ///
    /// # Errors
    /// Same as [`World::connect_device`]; [`CommError::NoRegistration`] with [`RegisterBuffers::On`].
    pub fn rejoin_devices(&self, unregistered: Option<String>) -> Result<()> {
        let Some(Group::Nccl(group)) = self.device_groups.get() else { return Ok(()) };
        let is_broken = self.group().all_gather_bytes(&[u8::from(group.is_broken())])?;
        group.leave(is_broken.iter().any(|record| record[0] != 0));
        let mut options = group.options();
        if let Some(reason) = unregistered {
            if options.register_buffers == RegisterBuffers::On {
                return Err(CommError::NoRegistration { reason });
            }
            options.register_buffers = RegisterBuffers::Off;
            if self.rank() == Rank(0) {
                warn!("NCCL fails with registered buffers, and does without them: {reason}");
            }
        }
        self.use_new_group(group.gpu(), options)
    }

    /// Joins all ranks by a new communicator, or none. Collective.
    fn join_nccl(&self, gpu: &'static Gpu, options: NcclOptions) -> Result<NcclGroup> {
        let rank = options.rank;
        let id = || if rank == 0 { nccl::new_unique_id(gpu, rank).map(Vec::from) } else { Ok(Vec::new()) };
        // A rank that fails before it joins keeps the others waiting in NCCL until their limit.
        let prepared = nccl::Prepared::new(gpu).and_then(|prepared| Ok((prepared, id()?)));
        let ((prepared, _), ids) = self.gather_all_or_none(JOINING, prepared, |(_, id)| id.clone())?;
        let id = UniqueId::try_from(&ids[0][..]).expect("rank 0 sent an id of that length");
        let mut group = None;
        let joined = NcclGroup::join(prepared, &id, options).map(|joined| group = Some(joined));
        let joined = self.all_or_none(JOINING, joined);
        match (group, joined) {
            (Some(group), Ok(())) => Ok(group),
            (Some(group), Err(error)) => {
                group.abandon();
                Err(error)
            }
            (None, joined) => Err(joined.expect_err("a rank without a group has an error")),
        }
    }

    /// Makes all ranks register their buffers from now on, or none: NCCL does not allow both in one collective. Collective.
    fn register_buffers(&self, nccl: &NcclGroup) -> Result<()> {
        let NcclOptions { register_buffers: wanted, shares_gpu, .. } = nccl.options();
        let is_useless = wanted == RegisterBuffers::Auto && shares_gpu;
        if is_useless || wanted == RegisterBuffers::Off {
            return Ok(());
        }
        let (memory, own_reason) = match nccl.try_memory() {
            Ok(Ok(memory)) => (Some(memory), None),
            Ok(Err(reason)) => (None, Some(reason)),
            Err(error) => (None, Some(with_hint(&error))),
        };
        let reason = self.first_cause(own_reason.map(|reason| (reason, Reporter::ThisRank)))?;
        let own_step = memory.as_ref().map_or(0, NcclMemory::step_bytes) as u64;
        let steps = self.group().all_gather_bytes(&own_step.to_le_bytes())?;
        let steps =
            steps.iter().map(|step| step.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)));
        let step = steps.max().unwrap_or(0);
        match (memory, reason) {
            (Some(_), None) if wanted == RegisterBuffers::Auto && step > NCCL_MEMORY_STEP_BYTES => {
                let step_mib = step >> 20;
                debug!(
                    "buffers are not registered with NCCL: it takes memory in steps of {step_mib} MiB, from 2.26 on of 2 MiB"
                );
            }
            (Some(memory), None) => {
                memory.set_step_bytes(step);
                nccl.register_buffers(memory);
            }
            (_, Some(reason)) if wanted == RegisterBuffers::On => {
                return Err(CommError::NoRegistration { reason });
            }
            (_, reason) => {
                debug!("buffers are not registered with NCCL: {}", reason.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Creates a tensor of zeros that [`World::tensor_group`] exchanges, on the device of this rank, accounted to `kind`. Between GPUs
    /// NCCL reads and writes it in place, if it can ([`DeviceOptions::register_buffers`]). Collective: every rank creates the same ones
    /// in the same order, and exchanges the same ranges of them.
    ///
    /// Its memory is granted in steps of 2 MiB (of 512 MiB where NCCL below 2.26 registers it on request), and once the tensor is dropped it is kept until the world is closed, for the next one
    /// of its length: create it once, not in every step.
    ///
    /// # Errors
    /// [`CommError::Kernel`] if the device is out of memory; [`CommError::Nccl`].
    pub fn exchange_zeros(
        &self,
        kind: MemoryUse,
        dims: &[usize],
        dtype: DType,
        device: Device,
    ) -> Result<Tensor> {
        match self.device_groups.get() {
            Some(Group::Nccl(group)) if group.gpu().device() == device => group.zeros(kind, dims, dtype),
            _ => Ok(Tensor::zeros_for(kind, dims, dtype, device)?),
        }
    }

    /// Whether [`World::exchange_zeros`] registers its tensors with NCCL: the same on all ranks.
    pub fn registers_buffers(&self) -> bool {
        matches!(self.device_groups.get(), Some(Group::Nccl(group)) if group.registers_buffers())
    }

    /// Most thread blocks that a collective between GPUs holds while it runs next to other work, for
    /// [`Gpu::next_to_collectives`](ddp_kernels::cuda::Gpu::next_to_collectives); 0 on GPUs whose matmuls need not know, and without GPUs.
    pub fn collective_blocks(&self) -> u32 {
        match self.device_groups.get() {
            Some(Group::Nccl(group)) => group.most_blocks(),
            _ => 0,
        }
    }

    /// Time for which a rank waits for collectives of a trial, after which [`World::rejoin_devices`] can follow: that of the options, and a
    /// share for each rank, since NCCL connects all of them.
    pub fn trial_timeout(&self) -> Duration {
        let timeout = match self.device_groups.get() {
            Some(Group::Nccl(group)) => group.options().trial_timeout,
            _ => DeviceOptions::default().trial_timeout,
        };
        timeout + TRIAL_TIMEOUT_PER_RANK * self.world_size() as u32
    }

    /// The text of the first rank that has an error, with its number; None if no rank has one. Collective.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`].
    pub fn first_failure(&self, own: Option<&impl miette::Diagnostic>) -> Result<Option<String>> {
        self.first_cause(own.map(|error| (with_hint(error), Reporter::ThisRank)))
    }

    /// The same for a reason and the rank that reports it: a failure that follows from another rank's counts only if there is no other.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`].
    pub fn first_cause(&self, own: Option<(String, Reporter)>) -> Result<Option<String>> {
        // The first byte says whether the rank has failed by itself (0), because another has (1), or not at all (2).
        let record = match own {
            None => vec![2],
            Some((text, reporter)) => {
                let follows = u8::from(reporter == Reporter::OtherRank);
                [&[follows], format!("rank {}: {text}", self.rank().0).as_bytes()].concat()
            }
        };
        let all = self.group().all_gather_bytes(&record)?;
        let first = all.iter().filter(|record| record[0] < 2).min_by_key(|record| record[0]);
        Ok(first.map(|record| String::from_utf8_lossy(&record[1..]).into_owned()))
    }

    /// The group that exchanges tensors of this rank's device: the NCCL group once [`World::connect_device`] has joined GPUs, else
    /// [`World::group`].
    pub fn tensor_group(&self) -> &Group {
        self.device_groups.get().unwrap_or(self.group())
    }

    /// Opens this rank's device and describes it for the other ranks.
    fn prepare(&self, device: Device, options: DeviceOptions) -> Result<Prepared> {
        let (host, boot_id) = (self.hostname().to_owned(), boot_id());
        let Device::Cuda(index) = device else {
            let (gpu, pci_bus_id) = (String::new(), String::new());
            let record =
                RankDevice { kind: "cpu".to_owned(), host, boot_id, gpu, pci_bus_id, nccl_version: 0 };
            return Ok(Prepared { gpu: None, record });
        };
        let gpu = Gpu::get(index)?;
        if options.deterministic {
            require_fixed_order(std::env::var(NCCL_ALGO).ok())?;
        }
        let info = gpu.info();
        let name = format!("{} ({})", info.name, info.uuid);
        let pci_bus_id = info.pci_bus_id.clone();
        let nccl_version = nccl::version()?;
        let record =
            RankDevice { kind: "cuda".to_owned(), host, boot_id, gpu: name, pci_bus_id, nccl_version };
        Ok(Prepared { gpu: Some(gpu), record })
    }

    /// Returns `result` if it is `Ok` on all ranks. Collective.
    ///
    /// # Errors
    /// Its own on the ranks that failed, [`CommError::FailedElsewhere`] on the others.
    pub(crate) fn all_or_none<T>(&self, operation: &'static str, result: Result<T>) -> Result<T> {
        Ok(self.gather_all_or_none(operation, result, |_| Vec::new())?.0)
    }

    /// Returns `result` and the messages of all ranks, in rank order, if it is `Ok` on all ranks. Collective.
    ///
    /// # Errors
    /// Its own on the ranks that failed, [`CommError::FailedElsewhere`] on the others.
    pub(crate) fn gather_all_or_none<T>(
        &self,
        operation: &'static str,
        result: Result<T>,
        message: impl FnOnce(&T) -> Vec<u8>,
    ) -> Result<(T, Vec<Vec<u8>>)> {
        // The first byte says whether the rank succeeded; then comes its message or the text of its error.
        let record = match &result {
            Ok(value) => [&[1], &message(value)[..]].concat(),
            Err(error) => [&[0], with_hint(error).as_bytes()].concat(),
        };
        let all = self.group().all_gather_bytes(&record)?;
        let value = result?;
        if let Some(rank) = all.iter().position(|record| record.first() != Some(&1)) {
            let text = String::from_utf8_lossy(all[rank].get(1..).unwrap_or_default()).into_owned();
            return Err(CommError::FailedElsewhere { rank, operation, text });
        }
        Ok((value, all.into_iter().map(|record| record[1..].to_vec()).collect()))
    }
}

/// This rank's device, opened.
struct Prepared {
    /// `None` for the CPU.
    gpu: Option<&'static Gpu>,
    record: RankDevice,
}

/// Checks that all ranks use CPUs or all use GPUs, with one version of NCCL.
fn compare_devices(devices: &[RankDevice]) -> Result<()> {
    let differing = |key: &str, value: &dyn Fn(&RankDevice) -> String| {
        let rank = devices.iter().position(|device| value(device) != value(&devices[0]))?;
        let (got, expected) = (value(&devices[rank]), value(&devices[0]));
        let (key, host) = (key.to_owned(), devices[rank].host.clone());
        Some(CommError::Disagreement { key, rank, host, got, expected })
    };
    let kinds = differing("kind of device", &|device| device.kind.clone());
    let version = || differing("version of NCCL", &|device| nccl::version_name(device.nccl_version));
    kinds.or_else(version).map_or(Ok(()), Err)
}

impl RankDevice {
    fn encode(&self) -> Vec<u8> {
        // No field contains a line break.
        let RankDevice { kind, host, boot_id, gpu, pci_bus_id, nccl_version } = self;
        format!("{kind}\n{host}\n{boot_id}\n{gpu}\n{pci_bus_id}\n{nccl_version}").into_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut fields = text.split('\n').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        RankDevice {
            kind: next(),
            host: next(),
            boot_id: next(),
            gpu: next(),
            pci_bus_id: next(),
            nccl_version: next().parse().unwrap_or(0),
        }
    }
}

/// The environment variable that restricts the algorithms of NCCL.
const NCCL_ALGO: &str = "NCCL_ALGO";

/// Restricts NCCL to algorithms with a fixed order of sums, unless the user has chosen some (`chosen`).
///
/// # Errors
/// [`CommError::UnorderedSums`] if the user's choice allows others.
fn require_fixed_order(chosen: Option<String>) -> Result<()> {
    let Some(value) = chosen.filter(|value| !value.trim().is_empty()) else {
        set_environment(&[(NCCL_ALGO, "Ring".to_owned())]);
        return Ok(());
    };
    let is_fixed = nccl::has_fixed_order(&value);
    if is_fixed { Ok(()) } else { Err(CommError::UnorderedSums { variable: NCCL_ALGO, value }) }
}

/// The first two ranks that use the same GPU, whole or as MIG instances of it: NCCL compares addresses on the bus.
fn first_shared(devices: &[RankDevice]) -> Option<[usize; 2]> {
    fn place(of: &RankDevice) -> [&str; 3] {
        [&of.host, &of.boot_id, &of.pci_bus_id]
    }
    (1..devices.len()).find_map(|rank| {
        let other = devices[..rank].iter().position(|other| place(other) == place(&devices[rank]))?;
        Some([other, rank])
    })
}

/// Environment variables that make NCCL accept two ranks on one GPU.
///
/// NCCL 2.30 and later have a switch for it. Older versions refuse it within one host, so each rank poses as a host of its own
/// and communicates by sockets. Ranks that are threads of one process cannot do that, since they share one environment.
fn sharing_environment(world: &World, nccl_version: i32) -> Vec<(&'static str, String)> {
    if nccl_version >= 23_000 {
        return vec![("NCCL_MULTI_RANK_GPU_ENABLE", "1".to_owned())];
    }
    let is_one_host = world.local_size() == world.world_size();
    let fixed = [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_NET", "Socket"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_SOCKET_IFNAME", "lo"),
    ];
    // The loopback interface reaches no other host.
    let fixed = fixed.into_iter().filter(|(name, _)| is_one_host || *name != "NCCL_SOCKET_IFNAME");
    let mut variables: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).collect();
    variables.push(("NCCL_HOSTID", format!("{}-{}", world.hostname(), world.rank())));
    variables
}

/// Sets the variables that the user has not set.
fn set_environment(variables: &[(&'static str, String)]) {
    for (name, value) in variables {
        if std::env::var_os(name).is_none_or(|value| value.to_string_lossy().trim().is_empty()) {
            // SAFETY: the standard library locks out its own readers. Of the C libraries, MPI and the driver read the
            // environment when they were initialized, before a device can be joined, and NCCL reads its variables later.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn device_of(host: &str, gpu: &str) -> RankDevice {
        RankDevice {
            kind: "cuda".into(),
            host: host.into(),
            boot_id: "b".into(),
            gpu: format!("Some GPU MIG 1g ({gpu})"),
            pci_bus_id: format!("0000:0{}:00.0", &gpu[..1]),
            nccl_version: 22_703,
        }
    }

    #[test]
    fn records_round_trip() {
        let device = device_of("node7", "0123");
        assert_eq!(RankDevice::decode(&device.encode()), device);
    }

    #[test]
    fn the_cause_of_a_failure_comes_before_what_follows_from_it() {
        let causes = threads::run(3, |world| {
            let gone = CommError::Nccl {
                call: "ncclAllReduce",
                rank: 0,
                device: Device::Cuda(0),
                code: "ncclRemoteError",
                text: String::new(),
                aborted: true,
            };
            let own = match world.rank().0 {
                0 => Err(gone),
                1 => Ok(()),
                _ => Err(CommError::AlreadyConnected),
            };
            let own = own.err().map(|error: CommError| (with_hint(&error), error.reporter()));
            world.first_cause(own).unwrap().unwrap()
        });
        assert!(
            causes.iter().all(|cause| cause.starts_with("rank 2: ") && *cause == causes[0]),
            "{causes:?}"
        );
        let none = threads::run(2, |world| world.first_failure(None::<&CommError>).unwrap());
        assert_eq!(none, [None, None]);
    }

    #[test]
    fn gpus_of_two_hosts_are_different() {
        let apart = [device_of("a", "0"), device_of("a", "1"), device_of("b", "0")];
        assert_eq!(first_shared(&apart), None);
        let instance = device_of("a", "1/3");
        assert_eq!(first_shared(&[&apart[..], &[instance]].concat()), Some([1, 3]));
        // Machines from one image have one name.
        let other = RankDevice { boot_id: "c".into(), ..device_of("a", "0") };
        assert_eq!(first_shared(&[device_of("a", "0"), other]), None);
    }

    #[test]
    fn sharing_depends_on_the_version_of_nccl() {
        let names = |version| {
            let variables = sharing_environment(&World::single(), version);
            variables.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(23_003), ["NCCL_MULTI_RANK_GPU_ENABLE"]);
        let older = names(22_703);
        assert!(older.contains(&"NCCL_HOSTID") && older.contains(&"NCCL_SOCKET_IFNAME"), "{older:?}");
    }

    #[test]
    fn a_choice_without_fixed_order_is_refused() {
        require_fixed_order(Some("Tree,Ring".to_owned())).unwrap();
        let error = require_fixed_order(Some("Ring,NVLSTree".to_owned())).unwrap_err();
        assert!(error.to_string().contains("NCCL_ALGO=Ring,NVLSTree"), "{error}");
    }

    #[test]
    fn cpus_are_joined_by_the_hosts_group() {
        threads::run(3, |world| {
            world.connect_device(Device::Cpu, DeviceOptions::default()).unwrap();
            assert_eq!(world.tensor_group().transport(), "threads");
        });
    }

    #[test]
    fn a_device_that_one_rank_lacks_fails_all_of_them() {
        let beyond = Device::Cuda(Gpu::count() as u32);
        let errors = threads::run(3, |world| {
            let device = if world.rank().0 == 1 { beyond } else { Device::Cpu };
            world.connect_device(device, DeviceOptions::default()).unwrap_err()
        });
        assert!(matches!(errors[1], CommError::Kernel(_)), "{}", errors[1]);
        for error in [&errors[0], &errors[2]] {
            let CommError::FailedElsewhere { rank: 1, text, .. } = error else { panic!("{error}") };
            assert!(text.contains("cannot be used"), "{text}");
        }
    }
}
