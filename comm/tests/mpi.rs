//! Ranks as processes: this program starts itself under `mpirun`, once for each case, and looks at what comes out.
//!
//! Without `mpirun` the cases are skipped, and say so.

// A test program reports on its standard output, and its ranks fail by panicking.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod contract;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use contract::Sums;
use ddp_comm::{CommError, ReduceOp, Voice, World, WorldOptions, failure};
use ddp_kernels::{DType, Device, Tensor, TensorMut};

/// Says which case a rank runs.
const CASE: &str = "DDP_COMM_TEST_CASE";
/// A failing rank must have taken the job with it by then; mpirun's own start counts, too.
const END_WITHIN: Duration = Duration::from_secs(2);

fn main() {
    if let Ok(case) = std::env::var(CASE) {
        return run_rank(&case);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: needs mpirun, found none");
        return;
    }
    let wanted = |name: &str| {
        let mut filters = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str()))
    };
    let tests: Vec<_> = TESTS.iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let mut n_failed = 0;
    for (name, test) in &tests {
        let passed = std::panic::catch_unwind(test).is_ok();
        n_failed += usize::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let result = if n_failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} passed; {n_failed} failed; 0 ignored; 0 measured; 0 filtered out\n",
        tests.len() - n_failed
    );
    std::process::exit(i32::from(n_failed > 0));
}

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("contract_in_shared_memory", || contract_holds("contract")),
    ("contract_by_mpi", || contract_holds("contract_by_mpi")),
    ("without_launcher_mpi_is_not_initialised", || {
        let output = Command::new(std::env::current_exe().unwrap()).env(CASE, "alone").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }),
    ("world_is_known", || assert_eq!(mpirun(3, "world").code, 0)),
    ("disagreement_is_the_same_everywhere", || {
        let run = mpirun(3, "agree");
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    }),
    ("different_calls_are_errors", || {
        assert_eq!(mpirun(3, "mismatch").code, 0);
        assert_eq!(mpirun(3, "mismatch_by_mpi").code, 0);
    }),
    ("a_panic_ends_the_job", || {
        let run = mpirun(3, "panic");
        run.ended_by(101, "disk on fire");
        assert!(run.stderr.contains("[rank 1 ") && run.stderr.contains("panicked at"), "{}", run.stderr);
    }),
    ("a_panic_by_mpi_ends_the_job", || mpirun(2, "panic_by_mpi").ended_by(101, "disk on fire")),
    ("a_panic_of_another_thread_ends_the_job", || {
        mpirun(2, "panic_of_a_thread").ended_by(101, "disk on fire")
    }),
    ("an_error_ends_the_job", || {
        let run = mpirun(4, "error");
        run.ended_by(2, "no such file");
        assert!(run.stderr.starts_with("[rank 2 "), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }),
    ("an_error_of_all_is_told_once", || {
        let run = mpirun(3, "error_of_all");
        run.ended_by(2, "unknown key");
        assert_eq!(run.stderr, "unknown key\n");
    }),
    ("an_error_of_one_is_told_by_it", || {
        let run = mpirun(3, "error_of_one");
        run.ended_by(2, "unreadable");
        assert!(run.stderr.starts_with("[rank 1 "), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }),
    ("a_rank_that_leaves_is_named", || {
        let run = mpirun(3, "leave");
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    }),
    ("four_ranks_on_few_cores_do_not_collapse", || {
        let run = mpirun(4, "many_small");
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.elapsed < Duration::from_secs(20), "{:?}", run.elapsed);
    }),
];

fn contract_holds(case: &str) {
    for n_ranks in [2, 3, 4] {
        let run = mpirun(n_ranks, case);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{n_ranks} ranks");
    }
}

/// What came of one job.
struct Run {
    code: i32,
    stderr: String,
    elapsed: Duration,
}

impl Run {
    fn ended_by(&self, code: i32, last_words: &str) {
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.contains(last_words), "the last line is '{last}' of:\n{}", self.stderr);
        assert_eq!(self.code, code, "{}", self.stderr);
        assert!(self.elapsed < END_WITHIN + start_up(), "took {:?}", self.elapsed);
    }
}

/// How long a job takes that does nothing; a loaded machine may need seconds.
fn start_up() -> Duration {
    static START_UP: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    *START_UP.get_or_init(|| mpirun(2, "world").elapsed)
}

/// Runs a case on `n_ranks` processes.
fn mpirun(n_ranks: usize, case: &str) -> Run {
    let start = Instant::now();
    let mut command = Command::new("mpirun");
    // A hang is a failure, not the end of all tests.
    command.args(["--timeout", "120"]);
    command.args(["-n", &n_ranks.to_string(), "--oversubscribe", "--bind-to", "none"]);
    command.arg(std::env::current_exe().unwrap()).env(CASE, case).stdin(Stdio::null());
    // Without these, Open MPI refuses root, and, where there is no ssh, to start at all.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_plm", "isolated");
    // Ranks in containers may not read each other's memory, and Open MPI complains of it.
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command.env_remove("RUST_BACKTRACE");
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Run { code: output.status.code().unwrap_or(-1), stderr, elapsed: start.elapsed() }
}

/// A rank's part of a case.
fn run_rank(case: &str) {
    let shared_memory = !case.ends_with("by_mpi");
    let world = World::init_with(WorldOptions { shared_memory, ..WorldOptions::default() }).unwrap();
    if case != "alone" {
        let transport = if shared_memory { "shared memory" } else { "mpi" };
        assert_eq!(world.group().transport(), transport);
    }
    failure::install_panic_hook(&world);
    let rank = world.rank().0;
    match case {
        "alone" => {
            assert_eq!((world.world_size(), world.group().transport()), (1, "single"));
            assert!(!mpi::environment::is_initialized());
        }
        "contract" | "contract_by_mpi" => {
            let sums = if shared_memory { Sums::InRankOrder } else { Sums::Rounded };
            for len in [0, 1, 7, 1000, 40_001, 300_000] {
                contract::check(&world, len, sums).unwrap();
            }
        }
        "world" => {
            assert_eq!(
                (world.world_size(), world.local_size()),
                (3.min(world.world_size()), world.world_size())
            );
            assert_eq!(world.local_rank().0, rank);
            assert!(world.launcher().is_some());
        }
        "agree" => {
            let entry = |value: &str| [("seed".to_owned(), value.to_owned())];
            world.agree(&entry("7")).unwrap();
            let error = world.agree(&entry(if rank == 2 { "8" } else { "7" })).unwrap_err();
            assert!(matches!(error, CommError::Disagreement { rank: 2, .. }), "{error}");
            let all = world.group().all_gather_bytes(error.to_string().as_bytes()).unwrap();
            assert!(all.iter().all(|other| *other == all[0]));
        }
        "mismatch" | "mismatch_by_mpi" => {
            let error = sum(&world, if rank == 1 { 6 } else { 5 }).unwrap_err();
            let CommError::CallMismatch { rank: 1, got, expected } = error else { panic!("{error}") };
            assert_eq!((got.len, expected.len), (6, 5));
        }
        "panic" | "panic_by_mpi" => {
            assert!(rank != 1, "disk on fire");
            let mut buf = vec![0f32; 3_000_000];
            let view = TensorMut::from_slice(&mut buf, &[3_000_000]).unwrap();
            world.group().scope(|scope| scope.all_reduce(ReduceOp::Sum, view).map(|_| ())).unwrap();
        }
        "panic_of_a_thread" => {
            if rank == 1 {
                let _ = std::thread::spawn(|| panic!("disk on fire")).join();
            }
            world.group().barrier().unwrap();
        }
        "error" => {
            if rank == 2 {
                failure::abort(&world, 2, Voice::Own, "no such file");
            }
            if let Err(error) = sum(&world, 10) {
                failure::abort(&world, 1, error.voice(), error);
            }
        }
        "error_of_all" | "error_of_one" => {
            let result: Result<(), _> = match (case, rank) {
                ("error_of_all", _) => Err("unknown key"),
                (_, 1 | 2) => Err("unreadable"),
                _ => Ok(()),
            };
            let failure = world.collective_result(result).unwrap_err();
            failure::abort(&world, 2, failure.voice(), failure);
        }
        "leave" => {
            if rank != 1 {
                let error = sum(&world, 10).unwrap_err();
                assert!(matches!(error, CommError::PeerLeft { rank: 1, .. }), "{error}");
            }
        }
        "many_small" => {
            for _ in 0..2000 {
                sum(&world, 10_000).unwrap();
            }
        }
        other => panic!("no case is called {other}"),
    }
    world.close().unwrap();
}

fn sum(world: &World, len: usize) -> Result<(), CommError> {
    let mut buf = Tensor::zeros(&[len], DType::F32, Device::Cpu)?;
    world.group().all_reduce(ReduceOp::Sum, buf.view_mut())
}
