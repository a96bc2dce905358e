//! This crate's kernels: sources in the binary, compiled for the device on first use, cached on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::{result, sys};

use super::Gpu;
use super::cache::{Cache, Key};
use super::call::check_driver;
use super::driver::driver;
use super::library::Library;
use super::nvrtc::Nvrtc;
use crate::{KernelError, Result};

/// Code shared by all kernels: reductions, formats, random numbers.
const PRELUDE: &str = include_str!("prelude.cuh");

/// One kernel file.
#[derive(Debug)]
pub(crate) struct Source {
    name: &'static str,
    preamble: &'static str,
    text: &'static str,
}

impl Source {
    /// The kernels of operation `name`.
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Source { name, preamble: "", text }
    }

    /// The same kernels with row weights, compiled with `ROW_WEIGHTS` 1: in a module of their own, so that the other kernels use no
    /// more registers and a run without weights compiles nothing more.
    pub(crate) const fn with_row_weights(name: &'static str, text: &'static str) -> Self {
        Self::with_preamble(name, "#define ROW_WEIGHTS 1\n", text)
    }

    /// The same with `preamble` between the prelude and `text`.
    pub(crate) const fn with_preamble(
        name: &'static str,
        preamble: &'static str,
        text: &'static str,
    ) -> Self {
        Source { name, preamble, text }
    }

    /// The lines before the text, where kernels of this format are wanted, or of all.
    fn head(&self, wanted: Option<KernelFormat>) -> String {
        let mut head = format!("{PRELUDE}\n");
        for format in KernelFormat::ALL {
            let is_wanted = wanted.is_none_or(|wanted| wanted == format);
            let body = if is_wanted { "__VA_ARGS__" } else { "" };
            head += &format!("#define ONLY_{}(...) {body}\n", format.name().to_uppercase());
        }
        head + &format!("{}#line 1 \"{}.cu\"\n", self.preamble, self.name)
    }

    fn whole(&self) -> String {
        self.head(None) + self.text
    }

    /// The text with the kernels of one format only, which compiles in a fraction of the time: a line that consists of a macro call
    /// instantiates kernels of the format that its arguments name, and a macro for kernels of several formats wraps those of each in
    /// `ONLY_F32(...)` and its like.
    fn of_format(&self, format: KernelFormat) -> String {
        let mut text = self.head(Some(format));
        for line in self.text.lines() {
            let is_wanted = instance_arguments(line).is_none_or(|args| KernelFormat::of(args) == format);
            text += if is_wanted { line } else { "" };
            text.push('\n');
        }
        text
    }
}

/// The arguments of a line that instantiates kernels, such as `UPDATE(sgd, f32, float, float)`; None for other lines, among them
/// macro calls whose arguments name no format.
fn instance_arguments(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once('(')?;
    let is_macro = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let args = rest.trim_end().strip_suffix(')').filter(|_| is_macro)?;
    ["f32", "f64", "f16", "float", "double", "int"].iter().any(|format| args.contains(format)).then_some(args)
}

/// Format of a module's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum KernelFormat {
    F32,
    F64,
    /// Includes conversions between bf16 and another format.
    Bf16,
    /// Includes conversions between f16 and a format other than bf16.
    F16,
    /// Integers and truth values, as `int32` in names.
    Int,
}

impl KernelFormat {
    const ALL: [KernelFormat; 5] =
        [KernelFormat::F32, KernelFormat::F64, KernelFormat::Bf16, KernelFormat::F16, KernelFormat::Int];

    fn name(self) -> &'static str {
        match self {
            KernelFormat::F32 => "f32",
            KernelFormat::F64 => "f64",
            KernelFormat::Bf16 => "bf16",
            KernelFormat::F16 => "f16",
            KernelFormat::Int => "int",
        }
    }

    /// The format of the module that a kernel is loaded from, by the kernel's name or the arguments of its macro.
    fn of(name: &str) -> Self {
        Self::named(name).unwrap_or(KernelFormat::F32)
    }

    /// The format in a kernel's name, or in the arguments of its macro.
    fn named(name: &str) -> Option<Self> {
        // Not within "fingerprint".
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        match name {
            _ if name.contains("bf16") => Some(KernelFormat::Bf16),
            _ if name.contains("f16") => Some(KernelFormat::F16),
            _ if name.contains("f64") => Some(KernelFormat::F64),
            _ if words.any(|word| word.starts_with("int")) => Some(KernelFormat::Int),
            _ => name.contains("f32").then_some(KernelFormat::F32),
        }
    }
}

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

impl Gpu {
    /// Returns the kernel `name` of `source`; the first use of a source in a format compiles or loads it.
    ///
    /// # Errors
    /// [`KernelError::Compile`]; [`KernelError::DeviceUnavailable`] if the compiler is missing; [`KernelError::Cuda`].
    pub(crate) fn kernel(&self, source: &Source, name: &'static str) -> Result<sys::CUfunction> {
        let mut loaded = self.modules.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&(source.name, name)) {
            return Ok(function);
        }
        self.bind()?;
        let format = KernelFormat::of(name);
        let module = match loaded.modules.get(&(source.name, format)) {
            Some(&module) => module,
            None => {
                let module = self.load(source, format)?;
                loaded.modules.insert((source.name, format), module);
                module
            }
        };
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = check_driver(self.index(), name, function)?;
        loaded.functions.insert((source.name, name), function);
        Ok(function)
    }

    fn load(&self, source: &Source, format: KernelFormat) -> Result<sys::CUmodule> {
        let fail = |log: String| KernelError::Compile { device: self.device(), kernel: source.name, log };
        let driver_version = driver().map_or(0, |driver| driver.version);
        let nvrtc = Nvrtc::open(driver_version).map_err(|why| KernelError::DeviceUnavailable {
            device: self.device(),
            reason: format!("its kernels cannot be compiled: {why}"),
            hint: Library::Nvrtc.hint().to_owned(),
        })?;
        let (major, minor) = self.info().compute_capability;
        let options = options(&architecture(nvrtc, major as i32 * 10 + minor as i32));
        let text = source.of_format(format);
        let key = cache_key(nvrtc, &text, &options);
        let cache = Cache::of_user();
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
        let module = check_driver(self.index(), "cuModuleLoadData", load_image(&compiled.image))?;
        if let Some(cache) = cache {
            cache.write(&key, &compiled.image);
        }
        Ok(module)
    }
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

fn options(architecture: &str) -> Vec<String> {
    vec![architecture.to_owned(), "--std=c++17".to_owned()]
}

/// Names and complete texts of all kernel files.
pub fn kernel_sources() -> Vec<(&'static str, String)> {
    crate::ops::cuda_sources().map(|source| (source.name, source.whole())).collect()
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

/// Compiles every kernel file in every format for `architecture` (such as `sm_90`); needs no GPU.
///
/// # Errors
/// The reason that there is no compiler, or the log of the first file that fails.
pub fn compile_all(architecture: &str) -> std::result::Result<Vec<CompiledKernel>, String> {
    let nvrtc = Nvrtc::open(i32::MAX)?;
    let mut options = options(&format!("--gpu-architecture={architecture}"));
    options.push("--ptxas-options=-v".to_owned());
    let mut all = Vec::new();
    for source in crate::ops::cuda_sources() {
        for format in KernelFormat::ALL {
            let file = format!("{}.cu", source.name);
            let started = Instant::now();
            let compiled = nvrtc.compile(&file, &source.of_format(format), &options);
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

/// Result of [`fill_cache`].
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

/// Compiles every kernel file in every format for those of `architectures` (such as 90) that the compiler supports, all of them if there
/// are none, into the cache that a first start on such a device reads; needs no GPU. Entries that are there stay.
///
/// # Errors
/// The reason that there is no compiler or no cache, or the log of the first file that fails.
pub fn fill_cache(architectures: &[i32]) -> std::result::Result<FilledCache, String> {
    let nvrtc = Nvrtc::open(i32::MAX)?;
    let cache =
        Cache::of_user().ok_or("the folder of the cache cannot be made, or others can write to it")?;
    fill(nvrtc, &cache, architectures, &crate::ops::cuda_sources().collect::<Vec<_>>())
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
        let options = options(&architecture(nvrtc, device));
        for (source, format) in sources.iter().flat_map(|s| KernelFormat::ALL.map(|format| (*s, format))) {
            let text = source.of_format(format);
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
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_module_holds_the_kernels_of_its_format() {
        static SOURCE: Source =
            Source::new("test", "#define SGD(name, T) x\nSGD(f32, float)\nSGD(f64, double)\n  SGD(f32)\n");
        let text = SOURCE.of_format(KernelFormat::F64);
        let own = text.rsplit_once("\"test.cu\"\n").unwrap().1;
        assert_eq!(
            own, "#define SGD(name, T) x\n\nSGD(f64, double)\n  SGD(f32)\n",
            "lines keep their numbers"
        );
    }

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
            cache.read(&cache_key(nvrtc, &SOURCE.of_format(KernelFormat::F32), &options))
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

    #[test]
    fn each_kernel_of_a_format_is_in_one_module() {
        for source in crate::ops::cuda_sources() {
            for line in source.text.lines() {
                if instance_arguments(line).is_none() {
                    continue;
                }
                let n = KernelFormat::ALL
                    .into_iter()
                    .filter(|&f| source.of_format(f).lines().any(|l| l == line))
                    .count();
                assert_eq!(n, 1, "{}: {line}", source.name);
            }
        }
    }
    /// Names of the kernels in `text`, by the preprocessor of a C++ compiler.
    fn kernel_names(compiler: &str, text: &str) -> Vec<String> {
        let mut command = Command::new(compiler);
        command.args(["-E", "-P", "-x", "c++", "-D__launch_bounds__(...)=", "-"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let preprocessed = String::from_utf8(output.stdout).unwrap();
        let kernels = preprocessed.split("extern \"C\" __global__ void").skip(1);
        kernels.map(|rest| rest.split('(').next().unwrap().trim().to_owned()).collect()
    }

    /// Also those that one macro makes for several formats.
    #[test]
    #[allow(clippy::print_stdout)] // A skipped test prints its reason.
    fn the_modules_of_all_formats_together_hold_each_kernel_once() {
        let compiler = &std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        if Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: needs a C++ compiler, g++ or CXX");
            return;
        }
        let mut faults = Vec::new();
        for source in crate::ops::cuda_sources() {
            // A kernel whose name has no format is in each module.
            let names = |text: String| {
                let mut names = kernel_names(compiler, &text.replacen(PRELUDE, "", 1));
                names.retain(|name| KernelFormat::named(name).is_some());
                names
            };
            let mut all = names(source.whole());
            let by_format = KernelFormat::ALL.map(|format| (format, names(source.of_format(format))));
            for (format, names) in &by_format {
                let others = names.iter().filter(|name| KernelFormat::of(name) != *format);
                faults.extend(others.map(|name| format!("{name} of {}.cu is in {format:?}", source.name)));
            }
            let mut found: Vec<String> = by_format.into_iter().flat_map(|(_, names)| names).collect();
            all.sort();
            found.sort();
            if found != all {
                faults.push(format!(
                    "the kernels of {}.cu are {all:?}, but {found:?} are in modules",
                    source.name
                ));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
