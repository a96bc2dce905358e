//! Settings from the environment, read and checked once.

use std::sync::LazyLock;

/// Maximum number of devices: the device address range and `device.h` are laid out for this number.
pub(crate) const MAX_DEVICES: usize = 16;

/// Pairs of devices that can access each other's memory (`VGPU_PEERS`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Peers {
    /// Every pair, as with NVLink.
    All,
    /// No pair, as with most consumer cards.
    None,
    /// 0 and 1, 2 and 3, ...: as with two sockets that have one switch each.
    Pairs,
}

/// The settings of this process. All of them come from environment variables, because the client is started unchanged.
#[derive(Debug)]
pub(crate) struct Config {
    /// Whether virtual devices are requested (`VGPU_DEVICES` or `VGPU=1`); otherwise `cuInit` refuses.
    pub(crate) wanted: bool,
    /// The physical numbers of the devices that are visible to this process: all, or `CUDA_VISIBLE_DEVICES`.
    pub(crate) visible: Vec<usize>,
    /// Whether the devices are MIG instances of one GPU (`VGPU_MIG=1`): each has its own UUID.
    pub(crate) mig: bool,
    /// The CUDA version of the driver (`VGPU_DRIVER`, default 13000), as `cuDriverGetVersion` reports it. `run` takes out of the library
    /// what it did not have.
    pub(crate) driver_version: i32,
    /// The version that NCCL reports and imitates (`VGPU_NCCL_VERSION`, default 2.30.3), in the library's encoding.
    pub(crate) nccl_version: i32,
    /// Memory of each device, bytes (`VGPU_MEMORY`, default 16 GiB).
    pub(crate) memory: u64,
    /// Compute capability (`VGPU_ARCH`, default 9.0).
    pub(crate) arch: (i32, i32),
    pub(crate) peers: Peers,
    /// Registers per thread of a kernel without `__launch_bounds__` (`VGPU_REGISTERS`, default 32); a compiler may use up to 255.
    pub(crate) registers: u32,
    /// Seed of adversarial timing and thread order (`VGPU_FUZZ`); 0: streams run in order and as fast as they can.
    pub(crate) fuzz: u64,
    /// Whether kernels are compiled with bounds and race checks, and the order between streams is checked (`VGPU_CHECK`).
    pub(crate) check: bool,
    /// Seconds without progress after which a waiting caller gets a report and the process is aborted (`VGPU_TIMEOUT`).
    pub(crate) timeout_s: u64,
    /// Whether to print the name of each function at its first call (`VGPU_TRACE`).
    pub(crate) trace: bool,
    /// The rank that the launcher gave this process; 0 without a launcher.
    pub(crate) rank: u64,
}

/// The settings of this process.
pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(Config::from_env);

impl Config {
    fn from_env() -> Config {
        let text = |key: &str| std::env::var(key).ok().filter(|v| !v.is_empty());
        let number = |key: &str, default: u64| match text(key) {
            Some(v) => v.parse().unwrap_or_else(|_| bad(key, &v, "a whole number")),
            None => default,
        };
        let devices = number("VGPU_DEVICES", 1) as usize;
        if devices > MAX_DEVICES {
            bad("VGPU_DEVICES", &devices.to_string(), "at most 16");
        }
        let rank = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"]
            .iter()
            .find_map(|key| text(key)?.parse().ok())
            .unwrap_or(0);
        Config {
            wanted: text("VGPU_DEVICES").is_some() || text("VGPU").is_some_and(|v| v != "0"),
            visible: visible(devices, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref()),
            mig: number("VGPU_MIG", 0) != 0,
            driver_version: number("VGPU_DRIVER", 13_000) as i32,
            nccl_version: number("VGPU_NCCL_VERSION", 23_003) as i32,
            memory: number("VGPU_MEMORY", 16 << 30),
            arch: text("VGPU_ARCH").map_or((9, 0), |v| {
                let parts = v.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                parts.unwrap_or_else(|| bad("VGPU_ARCH", &v, "a compute capability such as 8.0"))
            }),
            peers: match text("VGPU_PEERS").as_deref() {
                None | Some("all") => Peers::All,
                Some("none") => Peers::None,
                Some("pairs") => Peers::Pairs,
                Some(v) => bad("VGPU_PEERS", v, "all, none or pairs"),
            },
            registers: number("VGPU_REGISTERS", 32).clamp(1, 255) as u32,
            fuzz: number("VGPU_FUZZ", 0),
            check: number("VGPU_CHECK", 0) != 0,
            timeout_s: number("VGPU_TIMEOUT", 60),
            trace: number("VGPU_TRACE", 0) != 0,
            rank,
        }
    }

    /// Number of devices that this process sees.
    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    /// The number by which all processes know device `ordinal` of this process.
    pub(crate) fn physical(&self, ordinal: usize) -> usize {
        self.visible[ordinal]
    }

    /// Whether `a` can access the memory of `b` (ordinals of this process).
    pub(crate) fn peers(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.physical(a), self.physical(b));
        a != b
            && match self.peers {
                Peers::All => true,
                Peers::None => false,
                Peers::Pairs => a / 2 == b / 2,
            }
    }
}

/// The devices that `CUDA_VISIBLE_DEVICES` selects, in its order. As in CUDA, the list ends at the first entry that
/// names no device. An entry is a number, or a UUID in the format of nvidia-smi.
fn visible(devices: usize, list: Option<&str>) -> Vec<usize> {
    match list {
        None => (0..devices).collect(),
        Some(list) => list
            .split(',')
            .map_while(|entry| {
                let entry = entry.trim();
                // The UUID ends in the device's number, as two characters in hexadecimal; see `uuid_of`.
                let uuid = entry.strip_prefix("GPU-").or(entry.strip_prefix("MIG-"));
                let tail = uuid.and_then(|uuid| {
                    let digits: Vec<char> = uuid.strip_prefix(UUID_HEAD)?.chars().collect();
                    Some(digits.chunks(2).filter_map(|pair| pair.last()).collect::<String>())
                });
                tail.as_deref().unwrap_or(entry).parse::<usize>().ok().filter(|&d| d < devices)
            })
            .collect(),
    }
}

/// The common part of the UUIDs of all devices, without the last two characters, in the format of nvidia-smi.
const UUID_HEAD: &str = "76697274-7561-6c20-4750-55202020";

/// Ends the process because of an invalid setting: no default could be what the user intended.
#[allow(clippy::print_stderr)]
fn bad(key: &str, got: &str, expected: &str) -> ! {
    eprintln!("vgpu: {key}={got}: expected {expected}");
    std::process::exit(2);
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn visible_devices_end_at_the_first_that_is_none() {
        assert_eq!(visible(4, None), [0, 1, 2, 3]);
        assert_eq!(visible(4, Some("2,0")), [2, 0]);
        assert_eq!(visible(4, Some("1,7,2")), [1]);
        assert_eq!(visible(4, Some("")), [] as [usize; 0]);
        assert_eq!(visible(4, Some("MIG-76697274-7561-6c20-4750-552020203032")), [2]);
        assert_eq!(visible(4, Some("MIG-00000000-7561-6c20-4750-552020203032")), [] as [usize; 0]);
    }
}
