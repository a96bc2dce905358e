//! This crate's kernels: sources in the binary, compiled for the device when first used, kept on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::cache::{Cache, Key};
use super::call::check_driver;
use super::driver::driver;
use super::library::{self, Library};
use super::{Gpu, nvrtc};
use crate::{KernelError, Result};

/// What all kernels share: reductions, formats, random numbers.
const PRELUDE: &str = include_str!("prelude.cuh");

/// One file of kernels.
#[derive(Debug)]
pub(crate) struct Source {
    name: &'static str,
    text: &'static str,
}

impl Source {
    /// The kernels of operation `name`.
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Source { name, text }
    }

    fn whole(&self) -> String {
        format!("{PRELUDE}\n#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }
}

/// Kernels that a device has loaded.
#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
}

impl Gpu {
    /// The kernel `name` of `source`; the first use of a source compiles or loads it.
    ///
    /// # Errors
    /// [`KernelError::Compile`] where it cannot be compiled, [`KernelError::DeviceUnavailable`] where the compiler is
    /// missing, [`KernelError::Cuda`].
    pub(crate) fn kernel(&self, source: &Source, name: &'static str) -> Result<sys::CUfunction> {
        let mut loaded = self.modules.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(name) {
            return Ok(function);
        }
        self.bind()?;
        let module = match loaded.modules.get(source.name) {
            Some(&module) => module,
            None => {
                let module = self.load(source)?;
                loaded.modules.insert(source.name, module);
                module
            }
        };
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = check_driver(self.index(), name, function)?;
        loaded.functions.insert(name, function);
        Ok(function)
    }

    fn load(&self, source: &Source) -> Result<sys::CUmodule> {
        let fail = |log: String| KernelError::Compile { device: self.device(), kernel: source.name, log };
        let driver_version = driver().map_or(0, |driver| driver.version);
        library::open(Library::Nvrtc, driver_version).map_err(|why| KernelError::DeviceUnavailable {
            device: self.device(),
            reason: format!("its kernels cannot be compiled: {why}"),
            hint: Library::Nvrtc.hint().to_owned(),
        })?;
        let (major, minor) = self.info().compute_capability;
        let options = options(&architecture(major as i32 * 10 + minor as i32));
        let text = source.whole();
        let version = format!("nvrtc {:?}", nvrtc::version());
        let mut parts = vec![text.as_bytes(), version.as_bytes()];
        parts.extend(options.iter().map(String::as_bytes));
        let key = Key::new(&parts);
        let cache = Cache::of_user();
        let kept = cache.as_ref().and_then(|cache| cache.read(&key));
        // A kept image that the driver refuses is built anew.
        if let Some(Ok(module)) = kept.map(|image| load_image(&image)) {
            return Ok(module);
        }
        let compiled = nvrtc::compile(&format!("{}.cu", source.name), &text, &options).map_err(fail)?;
        let module = check_driver(self.index(), "cuModuleLoadData", load_image(&compiled.image))?;
        if let Some(cache) = cache {
            cache.write(&key, &compiled.image);
        }
        Ok(module)
    }
}

fn load_image(image: &[u8]) -> std::result::Result<sys::CUmodule, result::DriverError> {
    // PTX is text that ends in zero; machine code does not mind one more byte.
    let mut image = image.to_vec();
    image.push(0);
    // SAFETY: the image is whole, by the compiler's word or by its hash.
    unsafe { result::module::load_data(image.as_ptr().cast()) }
}

/// The option that names the architecture: the device's own, or the newest PTX that the compiler knows for a device that is
/// newer than it.
fn architecture(device: i32) -> String {
    let known = nvrtc::supported_architectures();
    if known.is_empty() || known.contains(&device) {
        return format!("--gpu-architecture=sm_{device}");
    }
    let newest = known.iter().copied().filter(|&arch| arch <= device).max().unwrap_or(device);
    format!("--gpu-architecture=compute_{newest}")
}

fn options(architecture: &str) -> Vec<String> {
    vec![architecture.to_owned(), "--std=c++17".to_owned()]
}

/// Names and whole texts of all files of kernels.
pub fn kernel_sources() -> Vec<(&'static str, String)> {
    crate::ops::CUDA_SOURCES.iter().map(|source| (source.name, source.whole())).collect()
}

/// What the compiler made of one file of kernels.
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    /// The file's name without its ending.
    pub name: &'static str,
    /// Bytes of machine code.
    pub image_bytes: usize,
    /// The compiler's report: registers, spills, shared memory of each kernel.
    pub log: String,
}

/// Compiles every file of kernels for `architecture` (as `sm_90`), which needs no GPU.
///
/// # Errors
/// The reason why there is no compiler, or the log of the first file that fails.
pub fn compile_all(architecture: &str) -> std::result::Result<Vec<CompiledKernel>, String> {
    library::open(Library::Nvrtc, i32::MAX)?;
    let mut options = options(&format!("--gpu-architecture={architecture}"));
    options.push("--ptxas-options=-v".to_owned());
    let compile = |source: &&Source| {
        let file = format!("{}.cu", source.name);
        let compiled =
            nvrtc::compile(&file, &source.whole(), &options).map_err(|log| format!("{file}: {log}"))?;
        Ok(CompiledKernel { name: source.name, image_bytes: compiled.image.len(), log: compiled.log })
    };
    crate::ops::CUDA_SOURCES.iter().map(compile).collect()
}
