//! Compiles CUDA C at run time for the architecture of the device.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use cudarc::nvrtc::sys::nvrtcProgram;

use super::library::{self, Library};

/// `nvrtcResult`, with any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(c_int);

type SizeOf = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> Status;
type CopyOf = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> Status;

crate::library_functions! {
    /// NVRTC's functions, looked up in the library that [`library`] opened. Arguments as in nvrtc.h.
    pub(super) struct Nvrtc {
        get_version = "nvrtcVersion": fn(*mut c_int, *mut c_int) -> Status;
        error_text = "nvrtcGetErrorString": fn(Status) -> *const c_char;
        n_architectures = "nvrtcGetNumSupportedArchs": fn(*mut c_int) -> Status;
        architectures = "nvrtcGetSupportedArchs": fn(*mut c_int) -> Status;
        create = "nvrtcCreateProgram":
            fn(*mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char)
                -> Status;
        destroy = "nvrtcDestroyProgram": fn(*mut nvrtcProgram) -> Status;
        compile_program = "nvrtcCompileProgram": fn(nvrtcProgram, c_int, *const *const c_char) -> Status;
        ptx_size = "nvrtcGetPTXSize": fn(nvrtcProgram, *mut usize) -> Status;
        ptx = "nvrtcGetPTX": fn(nvrtcProgram, *mut c_char) -> Status;
        cubin_size = "nvrtcGetCUBINSize": fn(nvrtcProgram, *mut usize) -> Status;
        cubin = "nvrtcGetCUBIN": fn(nvrtcProgram, *mut c_char) -> Status;
        log_size = "nvrtcGetProgramLogSize": fn(nvrtcProgram, *mut usize) -> Status;
        log = "nvrtcGetProgramLog": fn(nvrtcProgram, *mut c_char) -> Status;
    }
}

impl Nvrtc {
    /// The library's functions; `driver_version` as in [`library::open`].
    ///
    /// # Errors
    /// The reason that there is no library, or no usable one.
    pub(super) fn open(driver_version: i32) -> Result<&'static Nvrtc, &'static str> {
        static FUNCTIONS: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let load = || {
            let library = library::open(Library::Nvrtc, driver_version)?;
            Self::find(library).map_err(|name| format!("{} has no function {name}", library.path.display()))
        };
        FUNCTIONS.get_or_init(load).as_ref().map_err(String::as_str)
    }

    /// The version, `(major, minor)`.
    pub(super) fn version(&self) -> Option<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for an int.
        let status = unsafe { (self.get_version)(&raw mut major, &raw mut minor) };
        status.result().ok().map(|()| (major, minor))
    }

    /// Architectures that it supports, such as 80, 90, 100.
    pub(super) fn supported_architectures(&self) -> Vec<i32> {
        let mut n: c_int = 0;
        // SAFETY: the pointer is valid for an int.
        if unsafe { (self.n_architectures)(&raw mut n) }.result().is_err() {
            return Vec::new();
        }
        let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
        // SAFETY: the array has the length just queried.
        let listed = unsafe { (self.architectures)(all.as_mut_ptr()) };
        if listed.result().is_err() { Vec::new() } else { all }
    }

    fn text_of(&self, status: Status) -> String {
        // SAFETY: any value is allowed.
        let text = unsafe { (self.error_text)(status) };
        if text.is_null() {
            return format!("result {}", status.0);
        }
        // SAFETY: NVRTC's texts are constants that end in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Status {
    fn result(self) -> Result<(), Status> {
        if self.0 == 0 { Ok(()) } else { Err(self) }
    }
}

/// Result of a compilation: machine code (or PTX for a `compute_` architecture) and the compiler's log.
pub(super) struct Compiled {
    pub(super) image: Vec<u8>,
    pub(super) log: String,
}

impl Nvrtc {
    /// Compiles `source`, which messages call `name`.
    ///
    /// # Errors
    /// The compiler's log.
    pub(super) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled, String> {
        let text = |s: &str| CString::new(s).map_err(|_| format!("{name}: a zero byte in the source"));
        let (source, c_name) = (text(source)?, text(name)?);
        let options: Vec<CString> = options.iter().map(|o| text(o)).collect::<Result<_, _>>()?;
        let failed = |call, status| format!("{name}: {call}: {}", self.text_of(status));
        let program =
            Program::new(self, &source, &c_name).map_err(|status| failed("nvrtcCreateProgram", status))?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: the program is alive; the options are zero-terminated and counted correctly.
        let status =
            unsafe { (self.compile_program)(program.raw, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.log();
        if let Err(status) = status.result() {
            return Err(format!("{}\n{log}", self.text_of(status)));
        }
        let is_ptx = options.iter().any(|o| o.to_bytes().starts_with(b"--gpu-architecture=compute_"));
        let image = if is_ptx {
            program.output(self.ptx_size, self.ptx)
        } else {
            program.output(self.cubin_size, self.cubin)
        };
        let image = image.map_err(|status| format!("no image: {}\n{log}", self.text_of(status)))?;
        Ok(Compiled { image, log })
    }
}

struct Program<'a> {
    nvrtc: &'a Nvrtc,
    raw: nvrtcProgram,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, source: &CStr, name: &CStr) -> Result<Self, Status> {
        let mut raw = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both texts are zero-terminated, and there are no headers.
        unsafe { (nvrtc.create)(&raw mut raw, source.as_ptr(), name.as_ptr(), 0, none, none) }.result()?;
        Ok(Program { nvrtc, raw })
    }

    fn output(&self, size_of: SizeOf, copy_of: CopyOf) -> Result<Vec<u8>, Status> {
        let mut size = 0;
        // SAFETY: the program is alive.
        unsafe { size_of(self.raw, &raw mut size) }.result()?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size just queried.
        unsafe { copy_of(self.raw, bytes.as_mut_ptr().cast()) }.result()?;
        Ok(bytes)
    }

    fn log(&self) -> String {
        let bytes = self.output(self.nvrtc.log_size, self.nvrtc.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
    }
}
