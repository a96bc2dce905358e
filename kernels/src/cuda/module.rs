//! Modules of kernels: compiled for the device on first use, cached on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::{result, sys};

use super::cache::{Cache, Key};
use super::context::Context;
use super::driver::{check_driver, driver};
use super::info::GpuInfo;
use super::library::Library;
use super::nvrtc::Nvrtc;
use super::source::{KernelFormat, Source};
use crate::{Device, KernelError, Result};

/// Kernels loaded on a device.
#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<(&'static str, KernelFormat), sys::CUmodule>,
    /// By source and name.
    functions: HashMap<(&'static str, &'static str), sys::CUfunction>,
}

impl Modules {
    /// Returns the kernel `name` of `source`; the first use of a source in a format compiles or loads it.
    ///
    /// # Errors
    /// [`KernelError::Compile`]; [`KernelError::DeviceUnavailable`] if the compiler is missing; [`KernelError::Cuda`].
    pub(super) fn kernel(
        &self,
        context: Context,
        info: &GpuInfo,
        source: &Source,
        name: &'static str,
    ) -> Result<sys::CUfunction> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&(source.name, name)) {
            return Ok(function);
        }
        context.bind()?;
        let format = KernelFormat::of(name);
        let module = match loaded.modules.get(&(source.name, format)) {
            Some(&module) => module,
            None => {
                let module = load(info, source, format)?;
                loaded.modules.insert((source.name, format), module);
                module
            }
        };
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = check_driver(context.index(), name, function)?;
        loaded.functions.insert((source.name, name), function);
        Ok(function)
    }
}

/// Loads the kernels of one format from the cache, or compiles them.
fn load(info: &GpuInfo, source: &Source, format: KernelFormat) -> Result<sys::CUmodule> {
    let device = Device::Cuda(info.index);
    let fail = |log: String| KernelError::Compile { device, kernel: source.name, log };
    let driver_version = driver().map_or(0, |driver| driver.library_version);
    let nvrtc = Nvrtc::open(driver_version).map_err(|why| KernelError::DeviceUnavailable {
        device,
        reason: format!("its kernels cannot be compiled: {why}"),
        hint: Library::Nvrtc.hint().to_owned(),
    })?;
    let (major, minor) = info.compute_capability;
    let options = options(&architecture(nvrtc, major as i32 * 10 + minor as i32));
    let text = source.for_format(format);
    let key = cache_key(nvrtc, &text, &options);
    let cache = Cache::for_user();
    // A cached image that the driver rejects is rebuilt.
    let cached = || load_image(&cache.as_ref()?.read(&key)?).ok();
    if let Some(module) = cached() {
        return Ok(module);
    }
    let _reserved = cache.as_ref().and_then(|cache| cache.reserve(&key));
    // Another process may have made it meanwhile.
    if let Some(module) = cached() {
        return Ok(module);
    }
    let compiled = nvrtc.compile(&format!("{}.cu", source.name), &text, &options).map_err(fail)?;
    let module = check_driver(info.index, "cuModuleLoadData", load_image(&compiled.image))?;
    if let Some(cache) = cache {
        cache.write(&key, &compiled.image);
    }
    Ok(module)
}

/// The key of an image: its text, the compiler's version, and its options, among them the architecture.
fn cache_key(nvrtc: &Nvrtc, text: &str, options: &[String]) -> Key {
    let version = format!("nvrtc {:?}", nvrtc.version());
    let mut parts = vec![text.as_bytes(), version.as_bytes()];
    parts.extend(options.iter().map(String::as_bytes));
    Key::new(&parts)
}

fn load_image(image: &[u8]) -> std::result::Result<sys::CUmodule, result::DriverError> {
    // PTX is zero-terminated text; one more byte is harmless for machine code.
    let mut image = image.to_vec();
    image.push(0);
    // SAFETY: the image is complete: it comes from the compiler or matches its hash.
    unsafe { result::module::load_data(image.as_ptr().cast()) }
}

/// The compiler option for the architecture: the device's own, or, for a device newer than the compiler, the newest PTX that it
/// supports.
fn architecture(nvrtc: &Nvrtc, device: i32) -> String {
    let known = nvrtc.supported_architectures();
    if known.is_empty() || known.contains(&device) {
        return format!("--gpu-architecture=sm_{device}");
    }
    let newest = known.iter().copied().filter(|&arch| arch <= device).max().unwrap_or(device);
    format!("--gpu-architecture=compute_{newest}")
}

/// The compiler's options. It contracts no multiplication and addition into one rounding: it would do so where it likes, in one of two loops
/// over the same formula or in one lane of four (sm_90, NVRTC 13.0), so that a result would depend on the position and the address of a
/// number. Kernels say `fused` where they want it.
fn options(architecture: &str) -> Vec<String> {
    [architecture, "--std=c++17", "--fmad=false"].map(str::to_owned).to_vec()
}

/// Result of compiling one file's kernels of one format.
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    /// File name without extension.
    pub name: &'static str,
    /// The format: `f32`, `f64`, `bf16`, `f16` or `int`.
    pub format: &'static str,
    /// Compile time in seconds, part of the first start on a machine.
    pub compile_s: f64,
    /// Bytes of machine code.
    pub image_bytes: usize,
    /// The compiler's report: registers, spills, shared memory of each kernel.
    pub log: String,
}

/// Compiles these sources in every format for `architecture` (such as `sm_90`); needs no GPU.
///
/// # Errors
/// The reason that there is no compiler, or the log of the first file that fails.
pub(crate) fn compile(
    sources: impl Iterator<Item = &'static Source>,
    architecture: &str,
) -> std::result::Result<Vec<CompiledKernel>, String> {
    let nvrtc = Nvrtc::open(i32::MAX)?;
    let mut all = Vec::new();
    for source in sources {
        let mut options = options(&format!("--gpu-architecture={architecture}"));
        options.push("--ptxas-options=-v".to_owned());
        for format in KernelFormat::ALL {
            let file = format!("{}.cu", source.name);
            let started = Instant::now();
            let compiled = nvrtc.compile(&file, &source.for_format(format), &options);
            let compiled = compiled.map_err(|log| format!("{file}: {log}"))?;
            all.push(CompiledKernel {
                name: source.name,
                format: format.name(),
                compile_s: started.elapsed().as_secs_f64(),
                image_bytes: compiled.image.len(),
                log: compiled.log,
            });
        }
    }
    Ok(all)
}

/// Kernels that were compiled ahead of the first start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilledCache {
    /// The compiler's version, such as `12.8`: an entry serves this one alone.
    pub nvrtc_version: String,
    /// Architectures, such as `sm_90`, that the compiler supports.
    pub architectures: Vec<String>,
    /// Entries for them.
    pub n_entries: usize,
    /// Bytes of these entries.
    pub bytes: usize,
}

/// Compiles these sources in every format for those of `architectures` (such as 90) that the compiler supports, all of them if there
/// are none, into the cache that a first start on such a device reads; needs no GPU. Entries that are there stay.
///
/// # Errors
/// The reason that there is no compiler or no cache, or the log of the first file that fails.
pub(crate) fn fill_cache(
    architectures: &[i32],
    sources: &[&Source],
) -> std::result::Result<FilledCache, String> {
    let nvrtc = Nvrtc::open(i32::MAX)?;
    let cache =
        Cache::for_user().ok_or("the folder of the cache cannot be made, or others can write to it")?;
    fill(nvrtc, &cache, architectures, sources)
}

fn fill(
    nvrtc: &Nvrtc,
    cache: &Cache,
    architectures: &[i32],
    sources: &[&Source],
) -> std::result::Result<FilledCache, String> {
    let (major, minor) = nvrtc.version().ok_or("NVRTC does not report its version")?;
    let mut filled = FilledCache {
        nvrtc_version: format!("{major}.{minor}"),
        architectures: Vec::new(),
        n_entries: 0,
        bytes: 0,
    };
    let known = nvrtc.supported_architectures();
    let wanted = if architectures.is_empty() { &known[..] } else { architectures };
    for &device in wanted.iter().filter(|device| known.contains(device)) {
        let architecture = architecture(nvrtc, device);
        for (source, format) in sources.iter().flat_map(|s| KernelFormat::ALL.map(|format| (*s, format))) {
            let options = options(&architecture);
            let text = source.for_format(format);
            let key = cache_key(nvrtc, &text, &options);
            let image = match cache.read(&key) {
                Some(image) => image,
                None => {
                    let file = format!("{}.cu", source.name);
                    let compiled = nvrtc.compile(&file, &text, &options);
                    let image = compiled.map_err(|log| format!("{file}: {log}"))?.image;
                    cache.write(&key, &image);
                    image
                }
            };
            filled.n_entries += 1;
            filled.bytes += image.len();
        }
        filled.architectures.push(format!("sm_{device}"));
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the virtual compiler where there is no other.
    #[test]
    fn a_filled_cache_has_the_entries_that_devices_look_up() {
        static SOURCE: Source = Source::new("test", "extern \"C\" __global__ void nothing_f32() {}\n");
        let Ok(nvrtc) = Nvrtc::open(i32::MAX) else {
            assert!(std::env::var_os("REQUIRE_NVRTC").is_none());
            return;
        };
        let folder = std::env::temp_dir().join(format!("ddp-kernels-filled-{}", std::process::id()));
        let cache = Cache::at(&folder).unwrap();
        let image = |device| {
            let options = options(&architecture(nvrtc, device));
            cache.read(&cache_key(nvrtc, &SOURCE.for_format(KernelFormat::F32), &options))
        };
        let filled = fill(nvrtc, &cache, &[90, 7], &[&SOURCE]).unwrap();
        // An unknown architecture is left out; each file has a module of each format.
        assert_eq!((filled.architectures, filled.n_entries), (vec!["sm_90".to_owned()], 5));
        let of_sm_90 = image(90).unwrap();
        assert!(!of_sm_90.is_empty() && image(80).is_none());
        fill(nvrtc, &cache, &[80, 90], &[&SOURCE]).unwrap();
        assert!(image(80).is_some_and(|image| image != of_sm_90) && image(90) == Some(of_sm_90));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
