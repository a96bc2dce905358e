//! Compiles CUDA C at run time for the architecture of the device.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys;

/// The version of the loaded NVRTC, `(major, minor)`.
pub(super) fn version() -> Option<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open, and both pointers are valid for an int.
    let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    status.result().ok().map(|()| (major, minor))
}

/// Architectures that it supports, such as 80, 90, 100.
pub(super) fn supported_architectures() -> Vec<i32> {
    let mut n: c_int = 0;
    // SAFETY: the pointer is valid for an int.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&mut n) };
    if counted.result().is_err() {
        return Vec::new();
    }
    let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
    // SAFETY: the array has the length just queried.
    let listed = unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) };
    if listed.result().is_err() { Vec::new() } else { all }
}

/// Result of a compilation: machine code (or PTX for a `compute_` architecture) and the compiler's log.
pub(super) struct Compiled {
    pub(super) image: Vec<u8>,
    pub(super) log: String,
}

/// Compiles `source`, which messages call `name`.
///
/// # Errors
/// The compiler's log.
pub(super) fn compile(name: &str, source: &str, options: &[String]) -> Result<Compiled, String> {
    let text = |s: &str| CString::new(s).map_err(|_| format!("{name}: a zero byte in the source"));
    let (source, c_name) = (text(source)?, text(name)?);
    let options: Vec<CString> = options.iter().map(|o| text(o)).collect::<Result<_, _>>()?;
    let program =
        Program::new(&source, &c_name).map_err(|e| format!("{name}: nvrtcCreateProgram: {:?}", e.0))?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    // SAFETY: the program is alive; the options are zero-terminated and counted correctly.
    let status = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    let log = program.log();
    if let Err(error) = status.result() {
        return Err(format!("{:?}\n{log}", error.0));
    }
    let is_ptx = options.iter().any(|o| o.to_bytes().starts_with(b"--gpu-architecture=compute_"));
    let image = if is_ptx {
        program.output(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
    } else {
        program.output(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
    };
    let image = image.map_err(|error| format!("no image: {:?}\n{log}", error.0))?;
    Ok(Compiled { image, log })
}

type SizeOf = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
type CopyOf = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;

struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &CStr, name: &CStr) -> Result<Self, NvrtcError> {
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both texts are zero-terminated, and there are no headers.
        let created =
            unsafe { sys::nvrtcCreateProgram(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none) };
        created.result().map(|()| Program(program))
    }

    fn output(&self, size_of: SizeOf, copy_of: CopyOf) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program is alive.
        unsafe { size_of(self.0, &mut size) }.result()?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size just queried.
        unsafe { copy_of(self.0, bytes.as_mut_ptr().cast()) }.result()?;
        Ok(bytes)
    }

    fn log(&self) -> String {
        let bytes = self.output(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}
