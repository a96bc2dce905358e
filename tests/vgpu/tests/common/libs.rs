//! Helpers of the libraries' tests: a test runs its body in a process of its own under the virtual GPU, whose
//! findings and output the test then judges.
#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each test file uses a part; the end of a body is reported on stdout"
)]
use std::path::Path;
use std::process::Command;

/// Set in the process that runs the body of a test.
const INSIDE: &str = "VGPU_TEST_INSIDE";
/// The exit status of `run` where the command ended well but there are findings.
const FINDINGS: i32 = 86;

/// Line that a body prints at its end, so that a name that names no test isn't taken for success.
const DONE: &str = "the body has come to its end";

/// Ends the process of a body, where it can't return: a device with an error can't be taken down in order.
pub(crate) fn done() -> ! {
    println!("{DONE}");
    std::process::exit(0);
}

/// The name of the test whose body this process runs.
pub(crate) fn inside() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Settings under which a body is run.
pub(crate) struct Body<'a> {
    name: String,
    devices: usize,
    timeout_s: u32,
    environment: Vec<(&'a str, String)>,
}

/// Result of the run.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
}

impl<'a> Body<'a> {
    /// The body of the test on whose thread this is called, on two devices. The harness names a test's thread after
    /// it; should it cease to, [`Ran::is_clean`] says that no body has run.
    pub(crate) fn here() -> Body<'a> {
        let name = std::thread::current().name().unwrap().to_owned();
        Body { name, devices: 2, timeout_s: 20, environment: Vec::new() }
    }

    pub(crate) fn devices(mut self, n: usize) -> Body<'a> {
        self.devices = n;
        self
    }

    /// Seconds without progress until the virtual GPU takes it for a hang.
    pub(crate) fn timeout_s(mut self, seconds: u32) -> Body<'a> {
        self.timeout_s = seconds;
        self
    }

    pub(crate) fn env(mut self, name: &'a str, value: impl ToString) -> Body<'a> {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Runs the body here if this is the process for it, and ends that process; else starts the process and returns
    /// what came of it.
    pub(crate) fn run(self, body: impl FnOnce()) -> Ran {
        if inside().is_some_and(|inside| inside == self.name) {
            body();
            done();
        }
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(package.join("run"));
        command.args(["-n", &self.devices.to_string(), "--timeout", &self.timeout_s.to_string(), "--"]);
        command.arg(std::env::current_exe().unwrap()).args([
            self.name.as_str(),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(INSIDE, &self.name).env("VGPU_QUIET", "1").env_remove("CUDA_VISIBLE_DEVICES");
        if std::env::var_os("VGPU_LIBRARY").is_none() {
            // cargo builds the library beside the test.
            command.env("VGPU_LIBRARY", std::env::current_exe().unwrap().with_file_name("libvgpu.so"));
        }
        for (name, value) in self.environment {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        Ran { code: output.status.code(), output: text }
    }
}

impl Ran {
    /// The body ended well and nothing was found.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.code, Some(0), "the body failed:\n{}", self.output);
        assert!(self.output.contains(DONE), "the body has not run:\n{}", self.output);
    }

    /// The body did not end well, and among the findings is one with these words.
    #[track_caller]
    pub(crate) fn dies_with_finding(&self, words: &str) {
        assert!(!matches!(self.code, Some(0 | FINDINGS)), "a failure was expected:\n{}", self.output);
        self.has_words(words);
    }

    /// The body ended well, and among the findings is one with these words.
    #[track_caller]
    pub(crate) fn has_finding(&self, words: &str) {
        assert_eq!(self.code, Some(FINDINGS), "a finding was expected:\n{}", self.output);
        self.has_words(words);
    }

    #[track_caller]
    fn has_words(&self, words: &str) {
        let found = self.output.split_once("the virtual GPU found:").map_or("", |(_, found)| found);
        assert!(found.contains(words), "no finding says {words:?}:\n{}", self.output);
    }
}
