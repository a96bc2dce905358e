//! Device of a benchmark.

use ddp::config::precision::Precision;
use ddp_comm::World;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, KernelError};
use serde::{Serialize, Serializer};

use crate::cli::{BenchDtype, BenchPlaceArgs};
use crate::commands::devices::Cpu;
use crate::commands::train::{Pinning, pin_device};
use crate::error::Result;
use crate::exit::Stop;

/// Environment variable that lets the project's tests run benchmarks on their virtual GPU.
const ALLOW_VIRTUAL: &str = "DDP_TRAIN_BENCH_VIRTUAL";

/// Device of the rank and size of the world.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Place {
    #[serde(serialize_with = "as_text")]
    pub(super) device: Device,
    pub(super) device_name: String,
    /// Written only if true; the timings are then meaningless.
    #[serde(rename = "virtual", skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_virtual: bool,
    pub(super) world_size: usize,
    /// CPU threads of this rank.
    pub(super) threads: usize,
}

fn as_text<S: Serializer>(device: &Device, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(device)
}

/// Kinds of work that are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Matmuls and other operations by themselves, which the CPU has in f32 only.
    Operations,
    /// Layers, which the CPU also has in bf16.
    Layers,
}

impl Place {
    /// Pins the rank to the requested device and checks that `work` can be done there in `dtypes`; every rank calls it.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if the device is missing, lacks a data type, or is virtual.
    pub(super) fn pin(
        world: &World,
        args: &BenchPlaceArgs,
        work: Work,
        dtypes: &[BenchDtype],
    ) -> Result<Self, Stop> {
        let BenchPlaceArgs { share_gpu, deterministic, threads: n_threads, bind, safe, .. } = *args;
        let pinning =
            Pinning { share_gpu, deterministic, overlap: !safe, n_threads, bind, ..Pinning::default() };
        let pinning = if safe { pinning.without_features() } else { pinning };
        let device = pin_device(world, &args.device, pinning)?.device;
        Ok(world.collective_result(Self::check(world, device, work, dtypes))?)
    }

    fn check(world: &World, device: Device, work: Work, dtypes: &[BenchDtype]) -> Result<Self> {
        let gpu = gpu_of(device)?;
        let is_virtual = gpu.is_some_and(|gpu| gpu.info().is_virtual());
        let refuse = |reason: String, hint: &str| {
            Err(KernelError::DeviceUnavailable { device, reason, hint: hint.to_owned() }.into())
        };
        if is_virtual && std::env::var_os(ALLOW_VIRTUAL).is_none_or(|value| value != "1") {
            let reason = "it is a virtual GPU, which computes on the CPU: its timings are meaningless";
            return refuse(reason.to_owned(), "use a real GPU, or --device cpu");
        }
        let is_on_cpu = |dtype: BenchDtype| match dtype {
            BenchDtype::F32 => true,
            BenchDtype::Bf16 => work == Work::Layers,
            BenchDtype::F32x3 | BenchDtype::Tf32 => false,
        };
        if let (None, Some(dtype)) = (gpu, dtypes.iter().find(|dtype| !is_on_cpu(**dtype))) {
            let reason = format!("only GPUs have matmuls in {}", dtype.precision().name());
            return refuse(reason, "--dtype f32, or --device cuda to see why there is no GPU");
        }
        if let Some(gpu) = gpu.filter(|gpu| !gpu.info().has_bf16_matmuls())
            && dtypes.contains(&BenchDtype::Bf16)
        {
            let reason =
                format!("{} has no matmuls in bf16, which need compute capability 8.0", gpu.info().name);
            return refuse(reason, "--dtype f32");
        }
        Ok(Place {
            device,
            device_name: gpu.map_or_else(|| Cpu::new().model, |gpu| gpu.info().name.clone()),
            is_virtual,
            world_size: world.world_size(),
            threads: threads::current(),
        })
    }

    /// The GPU, if the device is one; errors as [`Gpu::get`].
    pub(super) fn gpu(&self) -> Result<Option<&'static Gpu>, KernelError> {
        gpu_of(self.device)
    }

    pub(super) fn is_cpu(&self) -> bool {
        self.device == Device::Cpu
    }

    /// Data types to measure: the requested ones, else those of `all` that the device supports.
    pub(super) fn dtypes(&self, requested: &[BenchDtype], all: &[BenchDtype]) -> Vec<BenchDtype> {
        match (requested, self.is_cpu()) {
            ([], true) => vec![BenchDtype::F32],
            ([], false) => all.to_vec(),
            (requested, _) => requested.to_vec(),
        }
    }
}

fn gpu_of(device: Device) -> Result<Option<&'static Gpu>, KernelError> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda(index) => Gpu::get(index).map(Some),
    }
}

impl BenchDtype {
    /// The precision of the trainer.
    pub(super) fn precision(self) -> Precision {
        match self {
            BenchDtype::F32 => Precision::F32,
            BenchDtype::F32x3 => Precision::F32x3,
            BenchDtype::Tf32 => Precision::Tf32,
            BenchDtype::Bf16 => Precision::Bf16,
        }
    }
}
