//! The ranks' devices: each rank says which one is its own, and GPUs are joined by NCCL.

use std::time::Duration;

use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;

use crate::group::nccl::{self, NcclGroup, NcclOptions, UniqueId};
use crate::{CommError, Group, Result, World};

/// How devices are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Whether ranks of one host may use the same GPU: to try things out, since it is slow. NCCL is told in its environment
    /// variables, unless they are set already.
    pub share_gpu: bool,
    /// How long a rank waits for the others, in joining them and in [`Group::wait_until`]; `None` for ever.
    pub timeout: Option<Duration>,
    /// Whether sums are taken in the same order in every run on the same GPUs. NCCL is held to rings by its environment
    /// variable `NCCL_ALGO`, unless that is set: sums inside of a switch (NVLS) have no fixed order.
    ///
    /// Source: Megatron-LM, `--deterministic-mode`.
    pub deterministic: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions { share_gpu: false, timeout: Some(Duration::from_secs(600)), deterministic: false }
    }
}

/// What ranks do here, as errors tell it.
const JOINING: &str = "joining the ranks' devices";

/// The version of the NCCL that ranks on GPUs would use here, as `2.27.3`; None where there is none that will do.
pub fn nccl_version() -> Option<String> {
    nccl::version().ok().map(nccl::version_name)
}

/// What a rank tells the others of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// `cpu` or `cuda`.
    kind: String,
    host: String,
    /// Name and UUID; empty for a CPU.
    gpu: String,
    /// NCCL's, where it is needed.
    nccl_version: i32,
}

impl World {
    /// Joins the ranks' devices, so that [`World::tensor_group`] can exchange tensors of `device`. Collective, and once.
    ///
    /// All ranks take CPUs, or all take GPUs, each its own. A world of one and CPUs need nothing. All ranks succeed, or none
    /// does: the one that fails has the reason, the others [`CommError::FailedElsewhere`] with its words.
    ///
    /// # Errors
    /// [`CommError::GpuTaken`] and [`CommError::Disagreement`] (of the kind of device, of NCCL's version), the same on every
    /// rank; [`CommError::Kernel`] where the device cannot be used; [`CommError::NcclUnavailable`]; [`CommError::Nccl`];
    /// [`CommError::DeviceTimeout`] where a rank does not come; [`CommError::AlreadyConnected`]; else as
    /// [`Group::all_reduce`].
    ///
    /// Source: NCCL's user guide, "Creating a communicator with options".
    pub fn connect_device(&self, device: Device, options: DeviceOptions) -> Result<()> {
        if self.device_group.get().is_some() {
            return Err(CommError::AlreadyConnected);
        }
        if self.world_size() == 1 {
            return Ok(device.ensure_available()?);
        }
        let (gpu, records) = self.all_or_none(JOINING, self.prepare(device, options))?;
        let places: Vec<Place> = records.iter().map(|record| Place::decode(record)).collect();
        self.compare_places(&places)?;
        let Some(gpu) = gpu else { return Ok(()) };
        let taken = first_taken(&places);
        if let Some(ranks) = taken.filter(|_| !options.share_gpu) {
            let Place { host, gpu, .. } = places[ranks[1]].clone();
            return Err(CommError::GpuTaken { host, gpu, ranks });
        }
        if taken.is_some() {
            set_environment(&sharing_environment(self, places[0].nccl_version));
        }
        let (rank, world_size) = (self.rank().0, self.world_size());
        let id = match rank {
            0 => nccl::new_unique_id(gpu, rank).map(|id| ((), id.to_vec())),
            _ => Ok(((), Vec::new())),
        };
        let ((), ids) = self.all_or_none(JOINING, id)?;
        let id = UniqueId::try_from(&ids[0][..]).expect("rank 0 sent an id of that length");
        let options = NcclOptions { rank, world_size, shares_gpu: taken.is_some(), timeout: options.timeout };
        let mut group = None;
        let joined = NcclGroup::join(gpu, &id, options).map(|joined| group = Some(joined));
        let joined = self.all_or_none(JOINING, joined.map(|()| ((), Vec::new())));
        let Some(group) = group else { return joined.map(|_| ()) };
        if let Err(error) = joined {
            group.abandon();
            return Err(error);
        }
        // Nobody else can have set it: a world stays on its thread.
        let _ = self.device_group.set(Group::Nccl(Box::new(group)));
        Ok(())
    }

    /// The group that exchanges tensors of this rank's device: NCCL's once [`World::connect_device`] has joined GPUs, else
    /// [`World::group`].
    pub fn tensor_group(&self) -> &Group {
        self.device_group.get().unwrap_or(self.group())
    }

    /// This rank's GPU, if it has one, and what to tell the others.
    fn prepare(&self, device: Device, options: DeviceOptions) -> Result<(Option<&'static Gpu>, Vec<u8>)> {
        let host = self.hostname().to_owned();
        let Device::Cuda(index) = device else {
            let place = Place { kind: "cpu".to_owned(), host, gpu: String::new(), nccl_version: 0 };
            return Ok((None, place.encode()));
        };
        let gpu = Gpu::get(index)?;
        if options.deterministic {
            require_fixed_order(std::env::var(NCCL_ALGO).ok())?;
        }
        let info = gpu.info();
        let name = format!("{} ({})", info.name, info.uuid);
        let place = Place { kind: "cuda".to_owned(), host, gpu: name, nccl_version: nccl::version()? };
        Ok((Some(gpu), place.encode()))
    }

    /// Tells all ranks what each has, if none failed.
    ///
    /// # Errors
    /// Its own on the ranks that failed, [`CommError::FailedElsewhere`] on the others.
    pub(crate) fn all_or_none<T>(
        &self,
        doing: &'static str,
        mine: Result<(T, Vec<u8>)>,
    ) -> Result<(T, Vec<Vec<u8>>)> {
        let message = match &mine {
            Ok((_, bytes)) => [&[1], &bytes[..]].concat(),
            Err(error) => [&[0], error.to_string().as_bytes()].concat(),
        };
        let all = self.group().all_gather_bytes(&message)?;
        let (value, _) = mine?;
        if let Some(rank) = all.iter().position(|message| message.first() != Some(&1)) {
            let text = String::from_utf8_lossy(all[rank].get(1..).unwrap_or_default()).into_owned();
            return Err(CommError::FailedElsewhere { rank, doing, text });
        }
        Ok((value, all.into_iter().map(|message| message[1..].to_vec()).collect()))
    }

    /// All CPUs or all GPUs, and one NCCL.
    fn compare_places(&self, places: &[Place]) -> Result<()> {
        let differing = |key: &str, value: &dyn Fn(&Place) -> String| {
            let rank = places.iter().position(|place| value(place) != value(&places[0]))?;
            let (got, expected) = (value(&places[rank]), value(&places[0]));
            let (key, host) = (key.to_owned(), places[rank].host.clone());
            Some(CommError::Disagreement { key, rank, host, got, expected })
        };
        let kinds = differing("kind of device", &|place| place.kind.clone());
        let version = || differing("version of NCCL", &|place| nccl::version_name(place.nccl_version));
        kinds.or_else(version).map_or(Ok(()), Err)
    }
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        // No field has a line break in it.
        format!("{}\n{}\n{}\n{}", self.kind, self.host, self.gpu, self.nccl_version).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut fields = text.split('\n').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        Place { kind: next(), host: next(), gpu: next(), nccl_version: next().parse().unwrap_or(0) }
    }
}

/// Names the ways that NCCL may take.
const NCCL_ALGO: &str = "NCCL_ALGO";

/// Has NCCL take ways with a fixed order of sums, where the user has not said which to take.
///
/// # Errors
/// [`CommError::UnorderedSums`] where the user's choice allows others.
fn require_fixed_order(chosen: Option<String>) -> Result<()> {
    let Some(value) = chosen else {
        set_environment(&[(NCCL_ALGO, "Ring".to_owned())]);
        return Ok(());
    };
    let is_excluding = value.starts_with('^');
    if value.to_lowercase().contains("nvls") == is_excluding {
        return Ok(());
    }
    Err(CommError::UnorderedSums { variable: NCCL_ALGO, value })
}

/// The first two ranks that use one GPU.
fn first_taken(places: &[Place]) -> Option<[usize; 2]> {
    let same = |a: &Place, b: &Place| (&a.host, &a.gpu) == (&b.host, &b.gpu);
    (1..places.len()).find_map(|rank| {
        let other = places[..rank].iter().position(|other| same(other, &places[rank]))?;
        Some([other, rank])
    })
}

/// What lets NCCL have two ranks on one GPU.
///
/// From 2.30 on it has a switch for that. Older ones refuse it within one host, so each rank poses as a host of its own and
/// talks to the others by sockets; which ranks that are threads of one process cannot, having one environment.
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
    // The loopback reaches no other host.
    let fixed = fixed.into_iter().filter(|(name, _)| is_one_host || *name != "NCCL_SOCKET_IFNAME");
    let mut variables: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).collect();
    variables.push(("NCCL_HOSTID", format!("{}-{}", world.hostname(), world.rank())));
    variables
}

/// Sets variables that the user has not set.
fn set_environment(variables: &[(&'static str, String)]) {
    for (name, value) in variables {
        if std::env::var_os(name).is_none() {
            // SAFETY: Rust's own readers are kept out meanwhile. Of C libraries, MPI and the driver have read what they want to
            // know when they were started, before a device can be joined, and NCCL reads its variables later.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn place(host: &str, gpu: &str) -> Place {
        Place { kind: "cuda".into(), host: host.into(), gpu: gpu.into(), nccl_version: 22_703 }
    }

    #[test]
    fn places_survive_the_way() {
        let place = place("node7", "Some GPU (GPU-0123)");
        assert_eq!(Place::decode(&place.encode()), place);
    }

    #[test]
    fn a_gpu_is_one_of_its_host() {
        let apart = [place("a", "0"), place("a", "1"), place("b", "0")];
        assert_eq!(first_taken(&apart), None);
        assert_eq!(first_taken(&[&apart[..], &apart[1..2]].concat()), Some([1, 3]));
    }

    #[test]
    fn nccl_is_told_how_to_share_by_its_version() {
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
        for fixed in ["Ring", "Tree,Ring", "^NVLS,NVLSTree", "allreduce:tree;broadcast:ring"] {
            require_fixed_order(Some(fixed.to_owned())).unwrap();
        }
        for other in ["NVLS", "Ring,NVLSTree", "^Tree"] {
            let error = require_fixed_order(Some(other.to_owned())).unwrap_err();
            assert!(error.to_string().contains(&format!("NCCL_ALGO={other}")), "{error}");
        }
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
