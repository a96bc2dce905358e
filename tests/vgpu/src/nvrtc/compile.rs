//! The compiler, and the cache of its results.
//!
//! The cache is a folder that only its owner may read or write, because its contents get loaded. It is addressed by content:
//! source, options, compiler flags and headers. Objects are renamed into place, so ranks may compile at the same time.
//! The headers that translate CUDA C to C++ are compiled first, once for each set of flags.

use super::options::Options;
use super::source::{HEADER, translate};
use super::static_shared;
use crate::config::CONFIG;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles `source` unless it is in the cache. Returns the shared object.
///
/// # Errors
/// The compiler's messages.
pub(crate) fn compile(source: &str, name: &str, options: &Options) -> Result<PathBuf, String> {
    let folder = cache()?;
    let flags = flags(options);
    let mut hash = DefaultHasher::new();
    (HEADER, source, name, options, &flags).hash(&mut hash);
    let key = format!("{:016x}", hash.finish());
    let object = folder.join(format!("{key}.so"));
    if object.is_file() {
        return Ok(object);
    }
    let header = header(&folder, &flags)?;
    let unit = fresh(&folder, &key, "cu");
    let write = |text: &str| fs::write(&unit, text).map_err(|e| format!("vgpu: {}: {e}", unit.display()));
    let line = format!("#line 1 \"{}\"\n", name.replace(['"', '\\', '\n'], "_"));
    write(&format!("{line}{source}"))?;
    let preprocessed = run(Command::new(compiler()).args(preprocessor(options)).arg(&unit));
    let preprocessed = clean(preprocessed, &unit)?;
    let (text, kernels) = translate(&String::from_utf8_lossy(&preprocessed))?;
    write(&text)?;
    let run_on = |command: &mut Command, out: &Path| {
        clean(run(command.args(&flags).arg("-o").arg(out).arg(&unit)), &unit)
    };
    let out = unit.with_extension("so");
    run_on(Command::new(compiler()).args(["-x", "c++", "-S", "-include"]).arg(header), &out)?;
    let assembly = fs::read_to_string(&out).map_err(|e| format!("vgpu: {}: {e}", out.display()))?;
    let assembly = static_shared::to_section(&assembly);
    let sizes = clean(clean(static_shared::sizes(&assembly, &kernels), &out), &unit)?;
    write(&(assembly + &sizes))?;
    // check.h contains the callbacks of the sanitizer; the compiler's own library must not be linked.
    let libraries = ["-nodefaultlibs", "-lc", "-lm"];
    run_on(Command::new(compiler()).args(["-x", "assembler", "-shared"]).args(libraries), &out)?;
    let _ = fs::remove_file(&unit);
    fs::rename(&out, &object).map_err(|e| format!("vgpu: {}: {e}", object.display()))?;
    Ok(object)
}

/// The file of `HEADER`, with its precompiled form next to it. The compiler uses the precompiled form if it was made by the same
/// compiler with the same flags, and otherwise reads the file.
///
/// # Errors
/// The compiler's messages.
fn header(folder: &Path, flags: &[String]) -> Result<PathBuf, String> {
    let mut hash = DefaultHasher::new();
    (HEADER, flags).hash(&mut hash);
    let key = format!("{:016x}", hash.finish());
    let header = folder.join(format!("{key}.h"));
    let compiled = folder.join(format!("{key}.h.gch"));
    if compiled.is_file() {
        return Ok(header);
    }
    let fail = |e: std::io::Error| format!("vgpu: {}: {e}", header.display());
    let unit = fresh(folder, &key, "h");
    let out = unit.with_extension("h.gch");
    fs::write(&unit, HEADER).map_err(fail)?;
    let made =
        run(Command::new(compiler()).args(["-x", "c++-header"]).args(flags).arg("-o").arg(&out).arg(&unit));
    clean(made, &unit)?;
    fs::rename(&unit, &header).map_err(fail)?;
    fs::rename(&out, &compiled).map_err(fail)?;
    Ok(header)
}

/// A unique name for a file that will become `key`, because threads and processes may compile the same text at the same time.
fn fresh(folder: &Path, key: &str, extension: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{key}.{}.{number}.{extension}", std::process::id()))
}

/// The folder of the cache: `VGPU_CACHE`, else a folder of this user in the temporary folder.
///
/// # Errors
/// A message if the folder can't be created, or others could write to it.
pub(crate) fn cache() -> Result<PathBuf, String> {
    // SAFETY: getuid(2) has no preconditions and can't fail.
    let me = unsafe { libc::getuid() };
    let folder = match std::env::var_os("VGPU_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join(format!("vgpu-cache-{me}")),
    };
    let fail = |e: std::io::Error| format!("vgpu: {}: {e}", folder.display());
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(fail)?;
    }
    let folder = folder.canonicalize().map_err(fail)?;
    let metadata = folder.metadata().map_err(fail)?;
    if metadata.uid() != me || metadata.mode() & 0o022 != 0 {
        return Err(format!(
            "vgpu: {}: others may write to it, so nothing is loaded from there",
            folder.display()
        ));
    }
    Ok(folder)
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".into())
}

/// Like NVRTC, it finds only headers in `--include-path`.
fn preprocessor(options: &Options) -> Vec<String> {
    let mut flags: Vec<String> =
        ["-E", "-x", "c++", "-w", "-nostdinc", "-nostdinc++"].map(String::from).into();
    flags.extend(
        ["-D__CUDACC__", "-D__CUDACC_RTC__", "-D__NVCC__", "-D__CUDACC_VER_MAJOR__=13"].map(String::from),
    );
    flags.push("-D__CUDACC_VER_MINOR__=0".into());
    // For kernels that have another form of what is written in PTX.
    flags.push("-D__VGPU__".into());
    flags.push(format!("-D__CUDA_ARCH__={}", options.arch * 10));
    flags.extend(options.preprocessor.iter().cloned());
    flags
}

fn flags(options: &Options) -> Vec<String> {
    // Without -fno-gnu-unique all modules of the process would share the shared memory of templates.
    let mut flags: Vec<String> =
        ["-O1", "-fno-strict-aliasing", "-fPIC", "-fno-gnu-unique", "-w"].map(String::from).into();
    // At -O2 the compiler takes 1.6 times as long. Without this flag it would form no fused multiply-adds, as NVRTC does.
    flags.push("-fexpensive-optimizations".into());
    // The generation with AVX2 and FMA, if the CPU supports it.
    let wide = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    flags.push(if wide { "-march=x86-64-v3" } else { "-march=x86-64-v2" }.into());
    flags.push("-fno-exceptions".into());
    if CONFIG.check {
        let check = ["-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-DVGPU_CHECK"];
        flags.extend(check.map(String::from));
    }
    flags.extend(options.compiler.iter().cloned());
    flags
}

fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let got = command.output().map_err(|e| format!("vgpu: no C++ compiler ({}): {e}", compiler()))?;
    if got.status.success() {
        return Ok(got.stdout);
    }
    Err(String::from_utf8_lossy(&got.stderr).into_owned())
}

/// Removes the intermediate file if the compiler failed.
fn clean<T>(result: Result<T, String>, unit: &Path) -> Result<T, String> {
    if result.is_err() {
        let _ = fs::remove_file(unit);
    }
    result
}
