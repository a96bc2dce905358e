//! Helpers of the whole-program tests: running the binary alone or under mpirun, and reading what it wrote.

// Each test program is its own crate and uses only part of this file.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any run here takes, even on a busy machine: a run that is not done by then hangs.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Path of the program under test: the environment variable `DDP_TRAIN`, as in launch/build, or the program that cargo built with
/// the tests.
pub fn ddp_train() -> &'static str {
    static GIVEN: LazyLock<Option<String>> = LazyLock::new(|| {
        let path = std::env::var("DDP_TRAIN").ok()?;
        assert!(Path::new(&path).is_absolute(), "DDP_TRAIN is not an absolute path: {path}");
        Some(path)
    });
    match (&*GIVEN, option_env!("CARGO_BIN_EXE_ddp-train")) {
        (Some(path), _) => path,
        (None, Some(built)) => built,
        (None, None) => panic!("only the program's own tests start it"),
    }
}

/// The folder of the crate `ddp`, whose tests share this file with those of the program.
pub fn ddp_folder() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("cli") { folder.parent().unwrap() } else { folder }
}

/// A folder that is deleted when the test ends.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("ddp-test-").tempdir().unwrap()
}

/// Writes a file and returns its path.
pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// `path` as a TOML string; the escapes of JSON are valid in TOML too.
pub fn quoted(path: &Path) -> String {
    Value::from(path.to_str().unwrap()).to_string()
}

/// The program, alone, with these arguments.
pub fn single(args: &[&str]) -> Command {
    let mut command = Command::new(ddp_train());
    command.args(args);
    command
}

/// `ranks` copies of the program under mpirun; one rank runs alone, without MPI.
pub fn ranks(ranks: usize, args: &[&str]) -> Command {
    match ranks {
        1 => single(args),
        _ => mpirun(&[(ranks, args)]),
    }
}

/// Several groups of ranks, each with its own arguments, as one job.
pub fn mpirun(groups: &[(usize, &[&str])]) -> Command {
    let mut command = Command::new("mpirun");
    if is_open_mpi() {
        // Allow two ranks on one core; a rank's threads share all cores.
        command.args(["--oversubscribe", "--bind-to", "none"]);
        let mut set = |name: &str, value: &str| {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        };
        set("OMPI_ALLOW_RUN_AS_ROOT", "1");
        set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // Without a remote shell Open MPI fails even on one host; under seccomp it fills stderr with its attempts to read another
        // rank's memory. Same settings as in launch/mpi-env.
        if !["ssh", "rsh"].iter().any(|name| is_on_path(name)) {
            set("OMPI_MCA_plm", "isolated");
        }
        set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    }
    for (index, (n, args)) in groups.iter().enumerate() {
        if index > 0 {
            command.arg(":");
        }
        command.arg("-n").arg(n.to_string()).arg(ddp_train()).args(*args);
    }
    command
}

/// Whether mpirun is Open MPI's.
///
/// # Panics
/// If there is no mpirun, because these tests are the only check that it works.
fn is_open_mpi() -> bool {
    static OPEN_MPI: OnceLock<Option<bool>> = OnceLock::new();
    let found = OPEN_MPI.get_or_init(|| {
        let output = Command::new("mpirun").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.contains("Open MPI") || text.contains("OpenRTE"))
    });
    found.expect("mpirun is not there, and this test needs it; hint: ./launch/deps installs it")
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// A running job, killed with all its ranks if the test drops it.
pub struct Job {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    what: String,
    pub started: Instant,
}

/// Result of a job.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub ended: Instant,
    pub elapsed: Duration,
}

/// Starts a job.
pub fn start(mut command: Command) -> Job {
    let what = format!("{command:?}");
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    Job { stdout: Some(reader(stdout)), stderr: Some(reader(stderr)), child, what, started }
}

fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Job {
    /// Process id of the program, or of mpirun.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the job ends.
    ///
    /// # Panics
    /// If it takes longer than any run here does; then the job is killed.
    pub fn wait(mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > TIMEOUT {
                let what = self.what.clone();
                drop(self);
                panic!("{what} still ran after {TIMEOUT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let ended = Instant::now();
        let text = |reader: &mut Option<JoinHandle<String>>| reader.take().unwrap().join().unwrap();
        Outcome {
            status,
            stdout: text(&mut self.stdout),
            stderr: text(&mut self.stderr),
            ended,
            elapsed: ended - self.started,
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            for pid in children(self.child.id()) {
                kill_9(pid);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Kills a process that this test started.
pub fn kill_9(pid: u32) {
    signal("KILL", pid);
}

/// Sends a process the signal of this name, such as "STOP", unless it has ended.
pub fn signal(name: &str, pid: u32) {
    // The shell's built-in `kill`, because the program of that name may not be installed.
    let _ = Command::new("sh").args(["-c", &format!("kill -{name} {pid} 2>/dev/null")]).status();
}

/// The processes whose parent is `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // State and parent follow the name, which may contain anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&candidate| parent_of(candidate) == Some(pid)).collect()
}

/// Runs a job to its end.
pub fn run(command: Command) -> Outcome {
    start(command).wait()
}

/// Runs a job that must succeed.
#[track_caller]
pub fn run_ok(command: Command) -> Outcome {
    let what = format!("{command:?}");
    let outcome = run(command);
    assert!(outcome.status.success(), "{what}: {}\n{}", outcome.status, outcome.stderr);
    outcome
}

/// Runs a process that must succeed; returns its peak memory in KiB, pages of mapped files included.
#[cfg(target_os = "linux")]
#[track_caller]
pub fn run_with_peak(command: Command) -> (Outcome, u64) {
    let job = start(command);
    let status = format!("/proc/{}/status", job.pid());
    let waiting = std::thread::spawn(move || job.wait());
    // The peak never falls, so the last value lacks at most the growth of the last milliseconds.
    let mut peak = 0;
    while !waiting.is_finished() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.trim().trim_end_matches(" kB").parse().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
    let outcome = waiting.join().unwrap();
    assert!(outcome.status.success(), "{}", outcome.stderr);
    (outcome, peak)
}

/// Runs the program in `folder` with the words of `line`.
pub fn run_line(folder: &Path, line: &str) -> Outcome {
    let args: Vec<&str> = line.split_whitespace().collect();
    let mut command = single(&args);
    command.current_dir(folder);
    run(command)
}

/// Same as [`run_line`], for a command that must succeed.
#[track_caller]
pub fn run_line_ok(folder: &Path, line: &str) -> Outcome {
    let outcome = run_line(folder, line);
    assert!(outcome.status.success(), "{line}: {}", outcome.stderr);
    outcome
}

/// Runs the program in `folder` with the words of `line`; it must fail with status 2 and a message that contains these parts.
#[track_caller]
pub fn refused(folder: &Path, line: &str, parts: &[&str]) {
    let outcome = run_line(folder, line);
    assert_eq!(outcome.status.code(), Some(2), "{line}: {outcome:?}");
    for part in parts {
        assert!(outcome.stderr.contains(part), "{line}: no {part:?} in {}", outcome.stderr);
    }
}

/// One training run in its own folder.
pub struct Run {
    folder: TempDir,
}

/// Trains on `n_ranks` ranks with this config and these further arguments, successfully.
#[track_caller]
pub fn train(n_ranks: usize, config: &str, args: &[&str]) -> Run {
    let folder = temp_dir();
    let config = write(folder.path(), "run.toml", config);
    let out = folder.path().join("out");
    let (config, out) = (config.to_str().unwrap(), out.to_str().unwrap());
    let mut all = vec!["train", config, "--out", out, "--quiet"];
    all.extend(args);
    run_ok(ranks(n_ranks, &all));
    Run { folder }
}

impl Run {
    /// The run's output folder.
    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// The lines of `metrics.jsonl` for one event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out().join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == event).collect()
    }

    /// The value of one field in each line of an event.
    #[track_caller]
    pub fn numbers(&self, event: &str, key: &str) -> Vec<f64> {
        let number =
            |line: &Value| line[key].as_f64().unwrap_or_else(|| panic!("no number `{key}` in {line}"));
        self.events(event).iter().map(number).collect()
    }

    /// The value of one field in the last line.
    #[track_caller]
    pub fn end(&self, key: &str) -> f64 {
        let ends = self.numbers("end", key);
        assert_eq!(ends.len(), 1, "a run ends once");
        ends[0]
    }

    /// The trained model's tensors.
    pub fn weights(&self) -> Weights {
        read_weights(&self.out().join("model.safetensors"))
    }
}

/// Tensors by name.
pub type Weights = BTreeMap<String, Tensor>;

/// Shape and values of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The tensors of a safetensors file; f64 tensors next to the weights are rounded to f32.
pub fn read_weights(path: &Path) -> Weights {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |view: &safetensors::tensor::TensorView<'_>| {
        let values = match view.dtype() {
            safetensors::Dtype::F32 => {
                view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            safetensors::Dtype::F64 => {
                view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
            }
            other => panic!("{}: {other:?}", path.display()),
        };
        Tensor { shape: view.shape().to_vec(), values }
    };
    file.tensors().iter().map(|(name, view)| (name.clone(), tensor(view))).collect()
}

/// Whether two models have the same tensors, bit for bit.
pub fn same_bits(a: &Weights, b: &Weights) -> bool {
    let bits = |t: &Tensor| t.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    a.keys().eq(b.keys()) && a.values().zip(b.values()).all(|(a, b)| a.shape == b.shape && bits(a) == bits(b))
}

/// The largest difference between two models' weights, and its position.
///
/// # Panics
/// If their tensors have different names or shapes, or a difference is NaN.
#[track_caller]
pub fn largest_gap(got: &Weights, want: &Weights) -> (f64, String) {
    assert!(got.keys().eq(want.keys()), "{:?} against {:?}", got.keys(), want.keys());
    let mut largest = (0.0, "nowhere".to_owned());
    for (name, want) in want {
        let got = &got[name];
        assert_eq!(got.shape, want.shape, "{name}");
        for (i, (&g, &w)) in got.values.iter().zip(&want.values).enumerate() {
            let gap = (f64::from(g) - f64::from(w)).abs();
            assert!(!gap.is_nan(), "{name}[{i}]: {g} against {w}");
            if gap > largest.0 {
                largest = (gap, format!("{name}[{i}]: {g} against {w}"));
            }
        }
    }
    largest
}

/// Asserts `|got - want| <= rtol·|want|` for each number; NaN never passes.
#[track_caller]
pub fn assert_all_close(what: &str, got: &[f64], want: &[f64], rtol: f64) {
    assert_eq!(got.len(), want.len(), "{what}: {got:?} against {want:?}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let gap = (g - w).abs();
        assert!(
            gap <= rtol * w.abs(),
            "{what}[{i}]: {g} against {w}, {:e} apart relatively, allowed {rtol:e}",
            gap / w.abs()
        );
    }
}

/// Synthetic but learnable rows as CSV: features `f0`.. and the target columns, computed from the row number alone.
pub fn made_up_csv(n_rows: usize, n_features: usize, task: &str, first_row: usize) -> String {
    let mut csv = (0..n_features).map(|i| format!("f{i},")).collect::<String>();
    csv += match task {
        "classification" => "label\n",
        "regression" => "t0,t1\n",
        _ => "t0,t1,t2\n",
    };
    for row in first_row..first_row + n_rows {
        let x = |i: usize| ((row * 31 + i * 17 + row * i * 7) as f64 * 0.37).sin();
        for i in 0..n_features {
            write!(csv, "{:.6},", x(i)).unwrap();
        }
        let score = |t: usize| x(t) + 0.5 * x(t + 1) * x(t + 2);
        match task {
            "classification" => {
                let label = usize::from(score(0) > 0.0) + 2 * usize::from(score(2) > 0.1);
                writeln!(csv, "{label}").unwrap();
            }
            "regression" => writeln!(csv, "{:.6},{:.6}", score(0), score(1)).unwrap(),
            _ => {
                let on = |t: usize| u8::from(score(t) > 0.0);
                writeln!(csv, "{},{},{}", on(0), on(1), on(2)).unwrap();
            }
        }
    }
    csv
}
