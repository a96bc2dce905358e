//! Runs the body of a test in a process of its own, under `tests/vgpu/run`.
//!
//! A test calls [`run!`] with options and a closure. The first time the test starts itself again, under the virtual
//! GPU and with a filter for its own name; there the closure runs and the process ends.

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig, sys};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The name of the test that this is used in, as its filter.
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap().trim_end_matches("::{{closure}}");
        name.split_once("::").unwrap().1.to_string()
    }};
}

/// `run!(["-n", "2"], || client())`: what came of the client under the virtual GPU.
#[macro_export]
macro_rules! run {
    ($options:expr, $client:expr) => {
        $crate::support::in_child(&$crate::this_test!(), &$options, &[], $client)
    };
    ($options:expr, $environment:expr, $client:expr) => {
        $crate::support::in_child(&$crate::this_test!(), &$options, &$environment, $client)
    };
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) findings: Vec<String>,
}

const CHILD: &str = "VGPU_TEST_CHILD";
/// Printed by the child, so that a filter that matches no test is not taken for a success.
const BEGAN: &str = "the client has begun";

/// Runs `client` in a process of its own; never returns there.
pub(crate) fn in_child(
    test: &str,
    options: &[&str],
    environment: &[(&str, &str)],
    client: impl FnOnce(),
) -> Got {
    if std::env::var_os(CHILD).is_some() {
        println!("{BEGAN}");
        client();
        std::process::exit(0);
    }
    let exe = std::env::current_exe().unwrap();
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
    let mut command = Command::new(run);
    command.args(options).arg("--").arg(&exe).args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").env("VGPU_LIBRARY", library(&exe)).env_remove("CUDA_VISIBLE_DEVICES");
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.contains(BEGAN), "the client of {test} was not run: {stdout} {stderr}");
    let findings = stderr.split_once("the virtual GPU found:\n").map_or("", |(_, list)| list);
    let findings = findings.lines().map(String::from).collect();
    Got { code: output.status.code(), stdout, stderr, findings }
}

/// cargo builds the library beside the test.
fn library(exe: &Path) -> PathBuf {
    exe.parent().unwrap().join("libvgpu.so")
}

impl Got {
    /// The client succeeded and nothing was found.
    #[track_caller]
    pub(crate) fn clean(&self) -> &Got {
        assert!(self.code == Some(0) && self.findings.is_empty(), "{self:#?}");
        self
    }

    /// The client went on to its end, and the only findings are ones with these words.
    #[track_caller]
    pub(crate) fn found(&self, words: &str) -> &Got {
        assert!(self.code == Some(86), "expected the code for findings: {self:#?}");
        assert!(!self.findings.is_empty() && self.findings.iter().all(|f| f.contains(words)), "{self:#?}");
        self
    }

    /// One of the findings has these words; the client may have ended in any way.
    #[track_caller]
    pub(crate) fn told(&self, words: &str) -> &Got {
        assert!(self.code != Some(0), "{self:#?}");
        assert!(self.findings.iter().any(|f| f.contains(words)), "{self:#?}");
        self
    }
}

/// A device with the kernels of these tests.
pub(crate) struct Gpu {
    pub(crate) ctx: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Gpu {
    pub(crate) fn new(ordinal: usize) -> Gpu {
        let ctx = CudaContext::new(ordinal).unwrap();
        // Events are these tests' own affair.
        unsafe { ctx.disable_event_tracking() };
        let stream = ctx.new_stream().unwrap();
        let module =
            ctx.load_module(cudarc::nvrtc::compile_ptx(include_str!("kernels.cu")).unwrap()).unwrap();
        Gpu { ctx, stream, module }
    }

    pub(crate) fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }
}

/// One block of `n` threads.
pub(crate) fn threads(n: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (n, 1, 1), shared_mem_bytes: 0 }
}

/// The error of a raw call must be this one.
#[track_caller]
pub(crate) fn expect(got: sys::CUresult, want: sys::CUresult) {
    assert_eq!(got, want);
}

/// The raw call must succeed.
#[track_caller]
pub(crate) fn ok(got: sys::CUresult) {
    assert_eq!(got, sys::CUresult::CUDA_SUCCESS);
}

/// Plain memory, as `cuMemAlloc` gives it.
pub(crate) fn plain(bytes: usize) -> u64 {
    let mut p = 0;
    ok(unsafe { sys::cuMemAlloc_v2(&mut p, bytes) });
    p
}

/// `n` floats from the device, at once.
pub(crate) fn read(p: u64, n: usize) -> Vec<f32> {
    let mut host = vec![0f32; n];
    ok(unsafe { sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), p, n * 4) });
    host
}
