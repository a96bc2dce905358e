//! Starts ranks as processes of this program, under `mpirun` or with the variables of torchrun.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_comm::rank_variables;

/// Says which case a rank runs.
pub(crate) const CASE: &str = "DDP_COMM_TEST_CASE";
/// A failing rank must have taken the job with it by then; mpirun's own start counts, too.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The start of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Mpirun,
    Environment,
}

/// The outcome of one job.
#[derive(Debug)]
pub(crate) struct Run {
    /// That of mpirun, or the first one of a rank that is not 0.
    pub(crate) code: i32,
    /// Statuses of all processes that were started, as a shell gives them.
    pub(crate) codes: Vec<i32>,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

impl Run {
    pub(crate) fn succeeded(&self) {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
    }

    pub(crate) fn ended_by(&self, code: i32, last_words: &str) {
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.contains(last_words), "the last line is '{last}' of:\n{}", self.stderr);
        assert!(self.codes.iter().all(|each| *each == code), "{self:?}");
        assert!(self.elapsed < END_WITHIN + start_up(), "took {:?}", self.elapsed);
    }
}

/// Duration of a job that does nothing; a loaded machine may need seconds.
fn start_up() -> Duration {
    static START_UP: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    *START_UP.get_or_init(|| start(By::Mpirun, 2, "world").elapsed)
}

/// Runs a case on `n_ranks` processes.
pub(crate) fn start(by: By, n_ranks: usize, case: &str) -> Run {
    start_with(by, n_ranks, case, |_| Vec::new())
}

pub(crate) type Variables = Vec<(&'static str, String)>;

/// Same as [`start`], with some variables set on each rank.
pub(crate) fn start_with(by: By, n_ranks: usize, case: &str, variables: impl Fn(usize) -> Variables) -> Run {
    start_processes(by, n_ranks, case, variables, |_| true)
}

/// Same as [`start_with`], of the ranks that `is_started`.
pub(crate) fn start_processes(
    by: By,
    n_ranks: usize,
    case: &str,
    variables: impl Fn(usize) -> Variables,
    is_started: impl Fn(usize) -> bool,
) -> Run {
    let began = Instant::now();
    let commands: Vec<Command> = match by {
        By::Mpirun => vec![mpirun(n_ranks, &variables(0))],
        By::Environment => {
            let of_ranks = rank_variables(n_ranks).unwrap();
            let command = |rank: usize| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.envs(of_ranks[rank].iter().cloned()).envs(variables(rank));
                command
            };
            (0..n_ranks).filter(|rank| is_started(*rank)).map(command).collect()
        }
    };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let spawn = |mut command: Command| {
        command.env(CASE, case).stdin(Stdio::null()).stderr(writer.try_clone().unwrap());
        // A virtual GPU says what it is; what it finds it says all the same.
        command.env_remove("RUST_BACKTRACE").env("VGPU_QUIET", "1").spawn().unwrap()
    };
    let mut children: Vec<Child> = commands.into_iter().map(spawn).collect();
    drop(writer);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let code_of = |child: &mut Child| loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        // A hang is a failure, not the end of all tests.
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let codes: Vec<i32> = children.iter_mut().map(code_of).collect();
    let elapsed = began.elapsed();
    let code = codes.iter().copied().find(|code| *code != 0).unwrap_or(0);
    Run { code, codes, stderr: without_reports(&reading.join().unwrap()), elapsed }
}

/// Lines of the ranks: mpirun of Open MPI 5 adds reports between lines of dashes.
fn without_reports(text: &str) -> String {
    let mut is_report = false;
    let mut is_of_rank = |line: &str| {
        let is_border = line.len() > 20 && line.bytes().all(|byte| byte == b'-');
        is_report ^= is_border;
        !is_border && !is_report
    };
    text.split_inclusive('\n').filter(|line| is_of_rank(line.trim_end())).collect()
}

fn mpirun(n_ranks: usize, variables: &Variables) -> Command {
    let mut command = Command::new("mpirun");
    // A hang is a failure, not the end of all tests.
    command.args(["--timeout", "120"]);
    command.args(["-n", &n_ranks.to_string(), "--oversubscribe", "--bind-to", "none"]);
    command.arg(std::env::current_exe().unwrap());
    // Without these, Open MPI refuses root, and, where there is no ssh, to start at all.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_plm", "isolated");
    // Ranks in containers may not read each other's memory, and Open MPI complains of it.
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command.envs(variables.iter().cloned());
    command
}
