//! The virtual descriptors against those of a real cuBLASLt, which need neither a GPU nor a driver: sizes, defaults, refusals.
//!
//! The real library is that of the wheel `nvidia-cublas` of the Python on the path, or `VGPU_REAL_CUBLASLT`. Without one the test
//! compares nothing and says so.
#![allow(clippy::print_stderr, reason = "a comparison that is left out is reported")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a table of answers is one sequence of calls under one contract"
)]
use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

type Get = unsafe extern "C" fn(*mut c_void, c_uint, *mut u8, usize, *mut usize) -> c_int;
type Set = unsafe extern "C" fn(*mut c_void, c_uint, *const u8, usize) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 7;
/// Above every attribute of cublasLt.h.
const N_ATTRIBUTES: u32 = 64;

/// The functions of one descriptor, and a descriptor.
struct Kind {
    name: &'static str,
    descriptor: *mut c_void,
    get: Get,
    set: Set,
    destroy: Destroy,
}

/// Answer of a descriptor for one attribute.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    size: usize,
    default: Vec<u8>,
    /// Statuses of setting the default with its size, one byte more, four bytes more, and a null pointer, then of getting it with
    /// four bytes more, without a place for the size, and without a buffer.
    statuses: [c_int; 7],
}

impl Kind {
    /// The answer for an attribute; `None` if the library does not know it.
    fn ask(&self, attribute: u32) -> Option<Answer> {
        let mut size = 0;
        // SAFETY: the descriptor is alive, and a size of zero writes nothing but `size`.
        let known = unsafe { (self.get)(self.descriptor, attribute, std::ptr::null_mut(), 0, &mut size) };
        if known != SUCCESS {
            assert_eq!(known, INVALID_VALUE, "{} {attribute}", self.name);
            return None;
        }
        // Room for an attribute that is written with more bytes than it has.
        let mut buffer = vec![0; size + 16];
        let (at, mut written) = (buffer.as_mut_ptr(), 0);
        let Kind { get, set, descriptor, .. } = *self;
        // SAFETY: as above; `buffer` has more bytes than any call is given.
        let (got, statuses) = unsafe {
            let got = get(descriptor, attribute, at, size, &mut written);
            let statuses = [
                set(descriptor, attribute, at, size),
                set(descriptor, attribute, at, size + 1),
                set(descriptor, attribute, at, size + 4),
                set(descriptor, attribute, std::ptr::null(), size),
                get(descriptor, attribute, at, size + 4, &mut written),
                get(descriptor, attribute, at, size, std::ptr::null_mut()),
                get(descriptor, attribute, std::ptr::null_mut(), size, &mut written),
            ];
            (got, statuses)
        };
        assert_eq!((got, written), (SUCCESS, size), "{} {attribute}", self.name);
        buffer.truncate(size);
        Some(Answer { size, default: buffer, statuses })
    }

    /// Statuses for null descriptors: getting, setting, destroying.
    fn ask_null(&self) -> [c_int; 3] {
        let (mut bytes, mut written) = ([0; 16], 0);
        let null = std::ptr::null_mut();
        // SAFETY: the library checks for null before it follows the pointer.
        unsafe {
            [
                (self.get)(null, 0, bytes.as_mut_ptr(), 4, &mut written),
                (self.set)(null, 0, bytes.as_ptr(), 4),
                (self.destroy)(null),
            ]
        }
    }
}

/// A library that is never closed.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: opening runs the initializers of NVIDIA's library or of the virtual one.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} can't be opened", path.display());
        Library(handle)
    }

    /// The function `cublasLt{name}`.
    ///
    /// # Safety
    /// `F` is its type.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let symbol = CString::new(format!("cublasLt{name}")).unwrap();
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "no function cublasLt{name}");
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: `F` is a function pointer of that symbol's type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    fn version(&self) -> usize {
        // SAFETY: the type in cublasLt.h.
        unsafe { self.function::<unsafe extern "C" fn() -> usize>("GetVersion")() }
    }

    /// An operation of TF32 and f32, a layout of 10 x 32 in f32, a preference.
    fn kinds(&self) -> [Kind; 3] {
        type CreateOperation = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_uint) -> c_int;
        type CreateLayout = unsafe extern "C" fn(*mut *mut c_void, c_uint, u64, u64, i64) -> c_int;
        type CreatePreference = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        let mut made = [std::ptr::null_mut(); 3];
        // SAFETY: the types in cublasLt.h; each call writes one pointer.
        unsafe {
            let statuses = [
                self.function::<CreateOperation>("MatmulDescCreate")(&mut made[0], 68, 0),
                self.function::<CreateLayout>("MatrixLayoutCreate")(&mut made[1], 0, 10, 32, 10),
                self.function::<CreatePreference>("MatmulPreferenceCreate")(&mut made[2]),
            ];
            assert_eq!(statuses, [SUCCESS; 3]);
            let kind = |name: &'static str, descriptor| Kind {
                name,
                descriptor,
                get: self.function(&format!("{name}GetAttribute")),
                set: self.function(&format!("{name}SetAttribute")),
                destroy: self.function(&format!("{name}Destroy")),
            };
            [kind("MatmulDesc", made[0]), kind("MatrixLayout", made[1]), kind("MatmulPreference", made[2])]
        }
    }
}

/// A real cuBLASLt.
fn real() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("VGPU_REAL_CUBLASLT") {
        return Some(path.into());
    }
    let search = "import glob, sysconfig; print(*glob.glob(sysconfig.get_path('purelib') + '/nvidia/*/lib/libcublasLt.so.1[23]'), sep='\\n')";
    let output = Command::new("python3").args(["-c", search]).output().ok()?;
    let found = String::from_utf8(output.stdout).ok()?;
    found.lines().find(|line| !line.is_empty()).map(PathBuf::from)
}

#[test]
fn descriptors_answer_as_those_of_the_real_library() {
    let Some(path) = real() else {
        eprintln!("skipped: needs the wheel nvidia-cublas, or a libcublasLt in VGPU_REAL_CUBLASLT");
        return;
    };
    let real = Library::open(&path);
    let virtual_library = std::env::var_os("VGPU_LIBRARY")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libvgpu.so"), PathBuf::from);
    let ours = Library::open(&virtual_library);
    let mut n_compared = 0;
    for (real_kind, our_kind) in real.kinds().iter().zip(&ours.kinds()) {
        assert_eq!(our_kind.ask_null(), real_kind.ask_null(), "{} of null", our_kind.name);
        for attribute in 0..N_ATTRIBUTES {
            // The virtual library need not know all.
            let Some(answer) = our_kind.ask(attribute) else { continue };
            let expected = real_kind.ask(attribute);
            assert_eq!(Some(answer), expected, "{} {attribute} in {}", our_kind.name, real.version());
            n_compared += 1;
        }
    }
    assert!(n_compared > 30, "only {n_compared} attributes are known");
    eprintln!("{n_compared} attributes as in cuBLASLt {}", real.version());
}
