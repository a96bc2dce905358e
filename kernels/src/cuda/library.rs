//! Finds and opens NVIDIA's libraries, and looks up their functions by name.
//!
//! Search order: the loader's path (`LD_LIBRARY_PATH`, `ld.so.cache`), `CUDA_HOME` and `CUDA_PATH`, `/usr/local/cuda`, the active conda
//! environment, the wheels `nvidia/*/lib` of the active Python and of the user (`pip install --user`). Functions of NVRTC, cuBLASLt and NCCL are looked up in the library that was opened.
//! Functions of the driver are called by cudarc, which opens it by name: `Open::differs_from` compares the two.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

crate::named_enum! {
    /// An NVIDIA library opened at run time.
    pub enum Library {
        /// `libcuda`: part of the driver.
        Driver = "cuda",
        /// `libnvrtc`: compiles kernels.
        Nvrtc = "nvrtc",
        /// `libcublasLt`: matmuls.
        CublasLt = "cublasLt",
        /// `libnccl`: collectives between GPUs.
        Nccl = "nccl",
    }
}

impl Library {
    /// File names to try, in order of preference, for a driver of this CUDA version: libraries of CUDA 13 need a driver of 13.
    fn file_names(self, driver_version: i32) -> Vec<String> {
        let name = self.name();
        match self {
            Library::Driver => vec!["libcuda.so.1".into(), "libcuda.so".into()],
            Library::Nccl => vec!["libnccl.so.2".into(), "libnccl.so".into()],
            Library::Nvrtc | Library::CublasLt => {
                let majors: &[u32] = if driver_version >= 13000 { &[13, 12] } else { &[12] };
                majors.iter().map(|major| format!("lib{name}.so.{major}")).collect()
            }
        }
    }

    /// Installation hint.
    pub fn hint(self) -> &'static str {
        match self {
            Library::Driver => "install NVIDIA's driver; in a container, start it with --gpus all",
            Library::Nvrtc | Library::CublasLt => {
                "install the CUDA toolkit or the wheels nvidia-cuda-nvrtc and nvidia-cublas (for libraries of CUDA 12: \
                 nvidia-cuda-nvrtc-cu12 and nvidia-cublas-cu12), or set CUDA_HOME"
            }
            Library::Nccl => "install libnccl2 or the wheel nvidia-nccl-cu13 (-cu12), or set LD_LIBRARY_PATH",
        }
    }
}

/// An open library and its path.
#[derive(Debug)]
pub struct Open {
    handle: Handle,
    /// The path or name under which the loader found it.
    pub path: PathBuf,
}

impl Open {
    /// The address of a function, if the library has it.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub unsafe fn symbol<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller guarantees that `F` is its type; the library is never closed, so the copy stays valid.
        let symbol = unsafe { self.handle.get::<F>(name.as_bytes()) };
        symbol.ok().map(|symbol| *symbol)
    }

    /// The file that holds the function `name` as `other` resolves it, if that is another function than this library's.
    pub(super) fn differs_from(&self, other: &libloading::Library, name: &str) -> Option<PathBuf> {
        // SAFETY: the addresses are compared and looked up, never called.
        let own = unsafe { self.symbol::<*const c_void>(name) };
        // SAFETY: as above.
        let theirs = unsafe { other.get::<*const c_void>(name.as_bytes()) }.ok().map(|symbol| *symbol);
        if own == theirs { None } else { Some(theirs.map_or_else(PathBuf::new, file_of)) }
    }
}

/// The file from which the code at `address` was loaded; empty if the loader does not know.
fn file_of(address: *const c_void) -> PathBuf {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address is allowed, and the pointer is valid for one result.
    let is_known = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !is_known || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader's name of an open file ends in a zero byte and stays while the file is open.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(OsStr::from_bytes(name.to_bytes()))
}

/// Returns the library, opened once per process and never closed.
///
/// - `driver_version`: as `cuDriverGetVersion` returns it; the first call of a process decides
///
/// # Errors
/// The places searched, with the loader's message for a file that exists but could not be opened.
pub fn open(library: Library, driver_version: i32) -> Result<&'static Open, &'static str> {
    static OPEN: [OnceLock<Result<Open, String>>; 4] = [const { OnceLock::new() }; 4];
    let cell = &OPEN[library as usize];
    cell.get_or_init(|| find(library, driver_version)).as_ref().map_err(String::as_str)
}

fn find(library: Library, driver_version: i32) -> Result<Open, String> {
    let names = library.file_names(driver_version);
    let mut broken = Vec::new();
    let mut try_open = |path: &Path| {
        // SAFETY: opening runs the initializers of NVIDIA's library, assumed sound; a file of another origin under that name is as
        // trusted as the loader's path.
        match unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(handle) => Some(Open { handle, path: path.to_owned() }),
            Err(error) => {
                if path.is_absolute() {
                    broken.push(format!("{}: {error}", path.display()));
                }
                None
            }
        }
    };
    if let Some(open) = names.iter().find_map(|name| try_open(Path::new(name))) {
        return Ok(open);
    }
    let folders = if library == Library::Driver { Vec::new() } else { folders(Environment::from_process()) };
    let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    if let Some(open) = files.filter(|file| file.exists()).find_map(|file| try_open(&file)) {
        return Ok(open);
    }
    let mut text = format!("{} is not in the loader's path", names.join(" or "));
    if library != Library::Driver {
        text += ", CUDA_HOME, /usr/local/cuda, the active conda environment or Python's nvidia/*/lib";
    }
    for broken in broken {
        text += "; ";
        text += &broken;
    }
    Err(text)
}

/// The folder of a toolkit's libraries within its root.
const TARGET_LIBRARIES: &str =
    if cfg!(target_arch = "aarch64") { "targets/sbsa-linux/lib" } else { "targets/x86_64-linux/lib" };

/// Environment variables that the search reads.
struct Environment {
    /// Roots of CUDA installations.
    cuda_roots: Vec<PathBuf>,
    /// Roots of Python installations and virtual environments.
    python_roots: Vec<PathBuf>,
}

impl Environment {
    fn from_process() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut cuda_roots: Vec<_> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect();
        cuda_roots.push("/usr/local/cuda".into());
        // Conda's packages of CUDA have a toolkit's layout.
        cuda_roots.extend(path("CONDA_PREFIX"));
        let mut python_roots: Vec<_> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect();
        // The one that this program was installed with: <root>/bin/ddp-train.
        let program = std::env::current_exe().ok();
        python_roots.extend(program.as_deref().and_then(|path| Some(path.parent()?.parent()?.to_owned())));
        // The Python on the PATH: <root>/bin/python3.
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let python = std::env::split_paths(&on_path).find(|folder| folder.join("python3").exists());
        python_roots.extend(python.and_then(|bin| bin.parent().map(Path::to_owned)));
        python_roots.extend(path("PYTHONUSERBASE").or_else(|| Some(path("HOME")?.join(".local"))));
        Environment { cuda_roots, python_roots }
    }
}

/// Folders that may hold the libraries.
fn folders(environment: Environment) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for root in environment.cuda_roots {
        folders.extend(["lib64", TARGET_LIBRARIES, "lib"].map(|leaf| root.join(leaf)));
    }
    for root in environment.python_roots {
        for python in entries(&root.join("lib")) {
            if !python.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")) {
                continue;
            }
            for packages in ["site-packages", "dist-packages"] {
                let wheels = entries(&python.join(packages).join("nvidia"));
                folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    folders
}

/// Entries of a folder, sorted by name; none if it does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_by(|a, b| a.file_name().map(OsStr::to_owned).cmp(&b.file_name().map(OsStr::to_owned)));
    paths
}

/// Defines a table of function pointers and `find`, which looks each up by its name in an
/// [`Open`](crate::cuda::library::Open) library; its error is the name of a missing function.
///
/// Types must match the library's header; use an integer for a status, since newer libraries may return other values.
#[doc(hidden)]
#[macro_export]
macro_rules! library_functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident {
            $($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $table {
            $($visibility $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            fn find(library: &$crate::cuda::library::Open) -> ::std::result::Result<Self, &'static str> {
                Ok($table {
                    // SAFETY: for each function: the type matches the library's header.
                    $($field: unsafe { library.symbol($name) }.ok_or($name)?,)*
                })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_12_gets_no_library_of_13() {
        assert_eq!(Library::Nvrtc.file_names(12080), ["libnvrtc.so.12"]);
        assert_eq!(Library::CublasLt.file_names(13000), ["libcublasLt.so.13", "libcublasLt.so.12"]);
        assert_eq!(Library::Nccl.file_names(13000)[0], "libnccl.so.2");
    }

    #[test]
    fn wheels_of_a_virtual_environment_are_found() {
        let root = std::env::temp_dir().join(format!("ddp-kernels-library-{}", std::process::id()));
        let wheel = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&wheel).unwrap();
        std::fs::create_dir_all(root.join("lib/pkgconfig")).unwrap();
        let found = folders(Environment { cuda_roots: vec!["/x".into()], python_roots: vec![root.clone()] });
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found[0], Path::new("/x/lib64"));
        assert_eq!(found.last(), Some(&wheel));
    }
}
