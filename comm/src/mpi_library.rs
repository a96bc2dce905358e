//! The MPI library of the launcher: linked in a build with the feature `mpi`, else opened when the ranks join.
//!
//! A library that is opened is of one of two families with a stable binary interface: Open MPI (`libmpi.so.40`), whose handles are
//! addresses of its symbols, or the MPICH ABI (`libmpi.so.12`), whose handles are integers. A handle is a word here; functions of the
//! second family read its lower half, as the calling conventions of x86-64 and AArch64 pass it.
//!
//! Source: Open MPI 4.1 and 5.0, `ompi/include/mpi.h`; MPICH 4, `src/include/mpi.h.in`, "MPICH ABI Compatibility Initiative".

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::launcher_process::launcher_folder;
use crate::{CommError, Launcher, ReduceOp, Result};

/// A communicator, type, operation or request of MPI, whichever type its library gives them.
pub(crate) type Handle = usize;

/// A result, or why a library cannot be used.
type Found<T> = std::result::Result<T, String>;

/// The library, once it was needed. MPI is one per process.
static LIBRARY: OnceLock<Mpi> = OnceLock::new();

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// Functions of MPI, each as the standard declares it, with words as handles.
        #[allow(non_snake_case, reason = "names of the standard")]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn new(find: impl Fn(&'static str) -> Found<*mut c_void>) -> Found<Self> {
                Ok(Functions {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                        let symbol = find(stringify!($name))?;
                        // SAFETY: the symbol is MPI's function of this name; its arguments have the sizes of these, or are integers
                        // in place of words, which are passed in the same registers.
                        unsafe { std::mem::transmute::<*mut c_void, Function>(symbol) }
                    },)*
                })
            }

            #[cfg(feature = "mpi")]
            fn linked() -> Self {
                let address = |name| match name {
                    $(stringify!($name) => Ok(mpi::ffi::$name as *mut c_void),)*
                    _ => Err(String::new()),
                };
                Self::new(address).expect("all names are listed")
            }
        }
    };
}

functions! {
    MPI_Initialized(*mut c_int);
    MPI_Finalized(*mut c_int);
    MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    MPI_Finalize();
    MPI_Abort(Handle, c_int);
    MPI_Get_library_version(*mut c_char, *mut c_int);
    MPI_Error_string(c_int, *mut c_char, *mut c_int);
    MPI_Comm_rank(Handle, *mut c_int);
    MPI_Comm_size(Handle, *mut c_int);
    MPI_Comm_dup(Handle, *mut Handle);
    MPI_Comm_split_type(Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Comm_free(*mut Handle);
    MPI_Comm_set_errhandler(Handle, Handle);
    MPI_Allreduce(*const c_void, *mut c_void, c_int, Handle, Handle, Handle);
    MPI_Allgather(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle);
    MPI_Reduce_scatter_block(*const c_void, *mut c_void, c_int, Handle, Handle, Handle);
    MPI_Bcast(*mut c_void, c_int, Handle, c_int, Handle);
    MPI_Barrier(Handle);
    MPI_Send(*const c_void, c_int, Handle, c_int, c_int, Handle);
    MPI_Recv(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    MPI_Sendrecv(*const c_void, c_int, Handle, c_int, c_int, *mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    MPI_Iallreduce(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    MPI_Iallgather(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    MPI_Ireduce_scatter_block(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    MPI_Testsome(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    MPI_Waitsome(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
}

/// Constants of MPI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Constants {
    pub(crate) comm_world: Handle,
    pub(crate) comm_type_shared: c_int,
    pub(crate) thread_funneled: c_int,
    pub(crate) info_null: Handle,
    pub(crate) errors_return: Handle,
    pub(crate) request_null: Handle,
    pub(crate) statuses_ignore: Handle,
    pub(crate) float: Handle,
    pub(crate) double: Handle,
    pub(crate) int32: Handle,
    pub(crate) int64: Handle,
    pub(crate) uint8: Handle,
    pub(crate) uint16: Handle,
    sum: Handle,
    max: Handle,
    min: Handle,
    /// Bytes of a handle in an array.
    pub(crate) handle_bytes: usize,
}

/// Constants of the MPICH ABI.
const MPICH: Constants = Constants {
    comm_world: 0x4400_0000,
    comm_type_shared: 1,
    thread_funneled: 1,
    info_null: 0x1c00_0000,
    errors_return: 0x5400_0001,
    request_null: 0x2c00_0000,
    statuses_ignore: 1,
    float: 0x4c00_040a,
    double: 0x4c00_080b,
    int32: 0x4c00_0439,
    int64: 0x4c00_083a,
    uint8: 0x4c00_013b,
    uint16: 0x4c00_023c,
    sum: 0x5800_0003,
    max: 0x5800_0001,
    min: 0x5800_0002,
    handle_bytes: size_of::<c_int>(),
};

impl Constants {
    fn for_open_mpi(find: impl Fn(&'static str) -> Found<*mut c_void>) -> Found<Self> {
        let address = |name| find(name).map(|symbol| symbol as Handle);
        Ok(Constants {
            comm_world: address("ompi_mpi_comm_world")?,
            comm_type_shared: 0,
            thread_funneled: 1,
            info_null: address("ompi_mpi_info_null")?,
            errors_return: address("ompi_mpi_errors_return")?,
            request_null: address("ompi_request_null")?,
            statuses_ignore: 0,
            float: address("ompi_mpi_float")?,
            double: address("ompi_mpi_double")?,
            int32: address("ompi_mpi_int32_t")?,
            int64: address("ompi_mpi_int64_t")?,
            uint8: address("ompi_mpi_uint8_t")?,
            uint16: address("ompi_mpi_uint16_t")?,
            sum: address("ompi_mpi_op_sum")?,
            max: address("ompi_mpi_op_max")?,
            min: address("ompi_mpi_op_min")?,
            handle_bytes: size_of::<Handle>(),
        })
    }

    /// The constants of the library that this build is linked to, whichever it is.
    #[cfg(feature = "mpi")]
    fn linked() -> Self {
        use mpi::ffi;

        fn word<T: Copy>(handle: T) -> Handle {
            const { assert!(size_of::<T>() <= size_of::<Handle>()) }
            let mut word: Handle = 0;
            // SAFETY: a handle is an integer or an address, of no more bytes than the word.
            unsafe { (&raw mut word).cast::<T>().write_unaligned(handle) };
            word
        }
        // SAFETY: constants of the MPI library.
        unsafe {
            Constants {
                comm_world: word(ffi::RSMPI_COMM_WORLD),
                comm_type_shared: ffi::RSMPI_COMM_TYPE_SHARED,
                thread_funneled: ffi::RSMPI_THREAD_FUNNELED,
                info_null: word(ffi::RSMPI_INFO_NULL),
                errors_return: word(ffi::RSMPI_ERRORS_RETURN),
                request_null: word(ffi::RSMPI_REQUEST_NULL),
                statuses_ignore: word(ffi::RSMPI_STATUSES_IGNORE),
                float: word(ffi::RSMPI_FLOAT),
                double: word(ffi::RSMPI_DOUBLE),
                int32: word(ffi::RSMPI_INT32_T),
                int64: word(ffi::RSMPI_INT64_T),
                uint8: word(ffi::RSMPI_UINT8_T),
                uint16: word(ffi::RSMPI_UINT16_T),
                sum: word(ffi::RSMPI_SUM),
                max: word(ffi::RSMPI_MAX),
                min: word(ffi::RSMPI_MIN),
                handle_bytes: size_of::<ffi::MPI_Request>(),
            }
        }
    }

    pub(crate) fn operation(&self, op: ReduceOp) -> Handle {
        match op {
            ReduceOp::Sum => self.sum,
            ReduceOp::Max => self.max,
            ReduceOp::Min => self.min,
        }
    }
}

/// The library of MPI.
pub(crate) struct Mpi {
    pub(crate) calls: Functions,
    pub(crate) constants: Constants,
}

impl Mpi {
    /// The library, opened for the ranks of `launcher` if this build is not linked to one.
    ///
    /// # Errors
    /// [`CommError::NoMpiLibrary`].
    pub(crate) fn open(launcher: Launcher, n_ranks: Option<usize>) -> Result<&'static Self> {
        if let Some(library) = Self::get() {
            return Ok(library);
        }
        let opened = open(launcher);
        let library = opened.map_err(|reason| CommError::NoMpiLibrary { launcher, n_ranks, reason })?;
        Ok(LIBRARY.get_or_init(|| library))
    }

    /// The library, if this build is linked to one or has opened one.
    pub(crate) fn get() -> Option<&'static Self> {
        #[cfg(feature = "mpi")]
        return Some(
            LIBRARY.get_or_init(|| Mpi { calls: Functions::linked(), constants: Constants::linked() }),
        );
        #[cfg(not(feature = "mpi"))]
        LIBRARY.get()
    }

    /// Whether MPI is initialized and not yet finalized.
    pub(crate) fn is_running(&self) -> bool {
        let (mut initialized, mut finalized): (c_int, c_int) = (0, 0);
        // SAFETY: may be called at any time; the integer is writable.
        let first = unsafe { (self.calls.MPI_Initialized)(&raw mut initialized) };
        // SAFETY: as above.
        let second = unsafe { (self.calls.MPI_Finalized)(&raw mut finalized) };
        (first, second) == (0, 0) && initialized != 0 && finalized == 0
    }

    /// The first line of the library's name and version.
    pub(crate) fn version(&self) -> String {
        // MPI_MAX_LIBRARY_VERSION_STRING is 256 in Open MPI, 8192 in MPICH.
        let mut text = vec![0u8; 1 << 14];
        let mut len: c_int = 0;
        // SAFETY: may be called at any time; the buffer is longer than the longest name, and `len` is writable.
        unsafe { (self.calls.MPI_Get_library_version)(text.as_mut_ptr().cast(), &raw mut len) };
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
impl Mpi {
    /// A library whose functions all fail.
    pub(crate) fn failing() -> Self {
        extern "C" fn fail() -> c_int {
            1
        }
        let calls = Functions::new(|_| Ok(fail as *mut c_void)).expect("all are found");
        Mpi { calls, constants: MPICH }
    }
}

/// Opens the library of the launcher: next to its program, else where the system looks for libraries, else next to the mpirun on the PATH.
fn open(launcher: Launcher) -> Found<Mpi> {
    const OPEN_MPI: &[&str] = &["libmpi.so.40"];
    // Debian's has its own name.
    const MPICH_ABI: &[&str] = &["libmpi.so.12", "libmpich.so.12"];
    let names = match launcher {
        Launcher::OpenMpi => OPEN_MPI.to_vec(),
        Launcher::Pmi => [MPICH_ABI, OPEN_MPI].concat(),
        _ => [OPEN_MPI, MPICH_ABI].concat(),
    };
    let mut folders: Vec<Option<PathBuf>> = Vec::new();
    folders.extend(launcher_folder().iter().flat_map(|bin| lib_folders(bin)).map(Some));
    folders.push(None);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_mpirun = std::env::split_paths(&path).find(|folder| folder.join("mpirun").is_file());
    folders.extend(of_mpirun.iter().flat_map(|bin| lib_folders(bin)).map(Some));
    let mut problem = None;
    for folder in &folders {
        for &name in &names {
            let path = folder.as_ref().map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
            if folder.is_some() && !path.exists() {
                continue;
            }
            match open_file(&path, name == OPEN_MPI[0]) {
                Ok(library) => return Ok(library),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
    }
    Err(problem.unwrap_or_default())
}

fn lib_folders(bin: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let prefix = bin.parent().unwrap_or(bin).to_owned();
    ["lib", "lib64"].into_iter().map(move |name| prefix.join(name))
}

fn open_file(path: &Path, is_open_mpi: bool) -> Found<Mpi> {
    let error = || {
        // SAFETY: a C string of the loader, or null, which is copied before the next call of the loader.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return path.display().to_string();
        }
        // SAFETY: not null, as checked above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // Global, since components of Open MPI look for its symbols there.
    // SAFETY: a C string; the library's constructors are those that it has in each program that is linked to it. It is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(error());
    }
    let find = |name: &'static str| {
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the library is open, the name a C string.
        let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        if found.is_null() { Err(error()) } else { Ok(found) }
    };
    let constants = if is_open_mpi { Constants::for_open_mpi(find)? } else { MPICH };
    Ok(Mpi { calls: Functions::new(find)?, constants })
}
