//! `libnvrtc`: the host's C++ compiler compiles the kernels.
//!
//! - [`source`]: translation of CUDA C to C++
//! - [`compile`]: the compiler, and the cache of its results
//! - [`static_shared`]: static shared memory of each kernel
//! - [`image`]: stand-in for PTX and cubins
//! - [`module`]: loading an image, and running a kernel
//! - [`stacks`]: the stacks of the threads of a kernel

pub(crate) mod compile;
pub(crate) mod image;
pub(crate) mod module;
pub(crate) mod options;
pub(crate) mod source;
mod stacks;
mod static_shared;

use crate::abi::{api, lock, put, slice, text};
use crate::fault;
use image::Image;
use options::Options;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Arc, Mutex};

const INVALID_INPUT: i32 = 3;
const INVALID_PROGRAM: i32 = 4;
const INVALID_OPTION: i32 = 5;
const COMPILATION: i32 = 6;

/// The architectures that NVRTC 13.0 can compile for.
const ARCHITECTURES: [c_int; 11] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 120, 121];

/// One program, from its source to its image.
struct Program {
    source: String,
    name: String,
    result: Mutex<Compiled>,
}

#[derive(Default)]
struct Compiled {
    log: CString,
    ptx: CString,
    /// Empty unless a real architecture was requested.
    cubin: CString,
}

static PROGRAMS: crate::driver::handle::Registry<Program> = crate::driver::handle::Registry::new("a program");

fn program(handle: usize) -> Result<Arc<Program>, i32> {
    PROGRAMS.get(handle).map_err(|_| INVALID_PROGRAM)
}

api! {
    /// 13.0, the same as the version in [`crate::driver::error`].
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        put(major, 13)?;
        put(minor, 0)?;
    }

    fn nvrtcGetNumSupportedArchs(n: *mut c_int) {
        put(n, ARCHITECTURES.len() as c_int)?;
    }

    fn nvrtcGetSupportedArchs(list: *mut [c_int; ARCHITECTURES.len()]) {
        put(list, ARCHITECTURES)?;
    }

    /// Headers in memory are not modeled.
    fn nvrtcCreateProgram(
        handle: *mut usize, source: *const c_char, name: *const c_char, n_headers: c_int,
        _headers: *const *const c_char, _names: *const *const c_char,
    ) {
        if n_headers != 0 {
            return Err(INVALID_INPUT);
        }
        let source = text(source)?.to_string_lossy().into_owned();
        let name = if name.is_null() { "default_program".into() } else { text(name)?.to_string_lossy().into_owned() };
        put(handle, PROGRAMS.insert(Arc::new(Program { source, name, result: Mutex::default() })))?;
    }

    fn nvrtcCompileProgram(handle: usize, n: c_int, options: *const *const c_char) {
        let program = program(handle)?;
        let mut result = lock(&program.result);
        *result = Compiled::default();
        let options: Vec<String> = slice(options, n.max(0) as usize)?
            .iter()
            .map(|&option| Ok(text(option)?.to_string_lossy().into_owned()))
            .collect::<Result<_, i32>>()?;
        let options = Options::parse(&options).map_err(|option| {
            result.log = cstring(format!("nvrtc: error: unrecognized option {option} found"));
            INVALID_OPTION
        })?;
        if fault::rule("nvrtc").is_some() {
            result.log = cstring(format!("{}(1): error: a compilation that fails on request", program.name));
            return Err(COMPILATION);
        }
        let compiled = compile::compile(&program.source, &program.name, &options);
        let path = compiled.map_err(|log| {
            result.log = cstring(log);
            COMPILATION
        })?;
        let image = cstring(Image::new(path, options.arch).to_string());
        if options.is_real {
            result.cubin = image.clone();
        }
        result.ptx = image;
    }

    fn nvrtcGetPTXSize(handle: usize, n: *mut usize) {
        put(n, lock(&program(handle)?.result).ptx.as_bytes_with_nul().len())?;
    }

    fn nvrtcGetPTX(handle: usize, to: *mut c_char) {
        give(&lock(&program(handle)?.result).ptx, to)?;
    }

    /// 0 unless `--gpu-architecture` was a real one (`sm_90`).
    fn nvrtcGetCUBINSize(handle: usize, n: *mut usize) {
        let program = program(handle)?;
        let result = lock(&program.result);
        put(n, if result.cubin.is_empty() { 0 } else { result.cubin.as_bytes_with_nul().len() })?;
    }

    fn nvrtcGetCUBIN(handle: usize, to: *mut c_char) {
        let program = program(handle)?;
        let result = lock(&program.result);
        if result.cubin.is_empty() {
            return Err(INVALID_PROGRAM);
        }
        give(&result.cubin, to)?;
    }

    fn nvrtcGetProgramLogSize(handle: usize, n: *mut usize) {
        put(n, lock(&program(handle)?.result).log.as_bytes_with_nul().len())?;
    }

    fn nvrtcGetProgramLog(handle: usize, to: *mut c_char) {
        give(&lock(&program(handle)?.result).log, to)?;
    }

    fn nvrtcDestroyProgram(handle: *mut usize) {
        PROGRAMS.remove(crate::abi::get(handle)?).map_err(|_| INVALID_PROGRAM)?;
        put(handle, 0)?;
    }
}

/// The name of an `nvrtcResult`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn nvrtcGetErrorString(error: c_int) -> *const c_char {
    let name: &CStr = match error {
        0 => c"NVRTC_SUCCESS",
        1 => c"NVRTC_ERROR_OUT_OF_MEMORY",
        2 => c"NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR",
    };
    name.as_ptr()
}

fn cstring(text: String) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Copies a string to the caller, who has queried its size before.
fn give(text: &CStr, to: *mut c_char) -> Result<(), i32> {
    crate::abi::put_text(to, text.to_bytes_with_nul().len(), &text.to_string_lossy())
}
