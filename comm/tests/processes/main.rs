//! Ranks as processes: this program starts itself, once for each case, and looks at what comes out. The same cases run under `mpirun`
//! and, without it, with the variables that torchrun sets.
//!
//! Without `mpirun` its cases are skipped, and say so.

// A test program reports on its standard output, and its ranks fail by panicking.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

#[path = "../contract/mod.rs"]
mod contract;
#[path = "../contract/messages.rs"]
mod messages;
mod start;

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use contract::Sums;
use ddp_comm::peer::{self, PeerPath};
use ddp_comm::{CommError, DeviceOptions, Rank, ReduceOp, Reporter, World, WorldOptions, failure};
use ddp_kernels::cuda::{self, Gpu};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, Device, Download, KernelError, Tensor, TensorMut};
use start::{By, start, start_processes, start_with};

/// Milliseconds for which ranks wait for each other when they join.
const JOIN_LIMIT: &str = "DDP_COMM_TEST_JOIN_MS";
/// Files that a rank may open.
const N_FILES: &str = "DDP_COMM_TEST_FILES";

fn main() {
    if let Ok(case) = std::env::var(start::CASE) {
        return run_rank(&case);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let cases = |tests: &'static [Test], by, prefix: &'static str| {
        tests.iter().map(move |(name, test)| (format!("{prefix}{name}"), by, *test))
    };
    let own = cases(TESTS, By::Environment, "environment_").chain(cases(BY_ENVIRONMENT, By::Environment, ""));
    let mut tests: Vec<_> = own.collect();
    tests.extend(cases(TESTS, By::Mpirun, "mpirun_").chain(cases(BY_MPIRUN, By::Mpirun, "")));
    if args.iter().any(|arg| arg == "--list") {
        tests.iter().for_each(|(name, ..)| println!("{name}: test"));
        return;
    }
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: needs mpirun, found none");
        tests.retain(|(_, by, _)| *by == By::Environment);
    }
    let wanted = |name: &str| {
        let mut filters = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str()))
    };
    tests.retain(|(name, ..)| wanted(name));
    println!("\nrunning {} tests", tests.len());
    let mut n_failed = 0;
    for (name, by, test) in &tests {
        let passed = std::panic::catch_unwind(|| test(*by)).is_ok();
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

type Test = (&'static str, fn(By));

/// Tests that hold for ranks of any start.
const TESTS: &[Test] = &[
    ("contract_in_shared_memory", |by| contract_holds(by, "contract")),
    ("messages_arrive", |by| {
        start(by, 3, "messages").succeeded();
        start(by, 3, "ring").succeeded();
    }),
    ("world_is_known", |by| assert_eq!(start(by, 3, "world").code, 0)),
    ("disagreement_is_the_same_everywhere", |by| start(by, 3, "agree").succeeded()),
    ("different_calls_are_errors", |by| start(by, 3, "mismatch").succeeded()),
    ("a_panic_ends_the_job", |by| {
        let run = start(by, 3, "panic");
        run.ended_by(101, "disk on fire");
        assert!(run.stderr.contains("[rank 1 ") && run.stderr.contains("panicked at"), "{}", run.stderr);
    }),
    ("a_panic_of_another_thread_ends_the_job", |by| {
        start(by, 2, "panic_of_a_thread").ended_by(101, "disk on fire")
    }),
    ("an_error_ends_the_job", |by| {
        let run = start(by, 4, "error");
        run.ended_by(2, "no such file");
        assert!(run.stderr.starts_with("[rank 2 "), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }),
    ("an_error_of_all_is_reported_once", |by| {
        let run = start(by, 3, "error_of_all");
        run.ended_by(2, "unknown key");
        assert_eq!(run.stderr, "unknown key\n");
    }),
    ("an_error_of_one_is_reported_by_it", |by| {
        let run = start(by, 3, "error_of_one");
        run.ended_by(2, "unreadable");
        assert!(run.stderr.starts_with("[rank 1 "), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }),
    ("a_rank_that_leaves_is_named", |by| start(by, 3, "leave").succeeded()),
    ("four_ranks_on_few_cores_do_not_collapse", |by| {
        let run = start(by, 4, "many_small");
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.elapsed < Duration::from_secs(20), "{:?}", run.elapsed);
    }),
    ("gpu_contract", |by| {
        for n_ranks in [2, 4] {
            if has_gpus(n_ranks) {
                start(by, n_ranks, "gpu_contract").succeeded();
            }
        }
    }),
    ("gpu_copies_between_processes", |by| {
        if has_gpus(2) {
            start(by, 3, "gpu_copies").succeeded();
        }
    }),
    ("gpu_shared_by_ranks", |by| {
        if has_gpus(1) {
            start(by, 2, "gpu_shared").succeeded();
        }
    }),
];

/// Tests of ranks that met without MPI.
const BY_ENVIRONMENT: &[Test] = &[
    ("contract_by_tcp", |by| contract_holds(by, "contract_by_tcp")),
    ("messages_by_tcp_are_refused", |by| start(by, 2, "no_messages_by_tcp").succeeded()),
    ("different_calls_by_tcp_are_errors", |by| start(by, 3, "mismatch_by_tcp").succeeded()),
    ("a_rank_that_leaves_by_tcp_is_named", |by| start(by, 3, "leave_by_tcp").succeeded()),
    ("a_rank_that_dies_ends_the_others", |by| {
        for (victim, reporter) in [("1", 0), ("0", 1)] {
            let run = start_with(by, 3, "die", |_| vec![("VICTIM", victim.to_owned())]);
            assert_eq!(run.codes.iter().filter(|code| **code == 75).count(), 2, "{run:?}");
            let parts =
                [format!("[rank {reporter} "), format!("error: rank {victim} (host "), " died: ".to_owned()];
            parts.iter().for_each(|part| assert!(run.stderr.contains(part), "{}", run.stderr));
            assert_eq!(run.stderr.matches("error: ").count(), 1, "{}", run.stderr);
        }
    }),
    ("different_programs_are_refused", |by| {
        let run = start(by, 3, "programs");
        assert_eq!(run.codes, [78; 3], "{}", run.stderr);
        assert!(run.stderr.contains("ranks 0, 2 (") && run.stderr.contains("rank 1 ("), "{}", run.stderr);
        assert_eq!(run.stderr.matches("different builds").count(), 1, "{}", run.stderr);
    }),
    ("ranks_that_do_not_come_are_named", |by| {
        let missing = |rank| if rank == 2 { vec![("RANK", "1".to_owned())] } else { Vec::new() };
        let limit = |rank| [missing(rank), vec![(JOIN_LIMIT, "500".to_owned())]].concat();
        let run = start_processes(by, 4, "world", limit, |rank| rank != 2 && rank != 3);
        assert_eq!(run.codes, [78; 2], "{}", run.stderr);
        assert!(
            run.stderr.contains("waiting for 2 of 4 ranks (ranks 2, 3) at 127.0.0.1 (MASTER_ADDR), port "),
            "{}",
            run.stderr
        );
        assert!(run.stderr.contains("rank 1 was not joined by rank 0: waiting for 2 of 4"), "{}", run.stderr);
        assert_eq!(run.stderr.matches("waiting for").count(), 2, "each rank says it:\n{}", run.stderr);
        let run = start_processes(by, 2, "world", limit, |rank| rank == 1);
        assert_eq!(run.codes, [78], "{}", run.stderr);
        assert!(
            run.stderr.starts_with("rank 1 can't reach rank 0 at 127.0.0.1 (MASTER_ADDR), port "),
            "{}",
            run.stderr
        );
    }),
    ("ranks_that_contradict_each_other_are_turned_away", |by| {
        let limit = |_| vec![(JOIN_LIMIT, "7000".to_owned())];
        let run =
            start_with(
                by,
                3,
                "world",
                |rank| {
                    if rank == 2 { vec![("RANK", "1".to_owned())] } else { limit(rank) }
                },
            );
        assert!(run.codes.iter().all(|code| *code == 78), "{run:?}");
        assert!(run.stderr.contains("): RANK=1, as host "), "{}", run.stderr);
        let run = start_with(by, 2, "world", |rank| {
            let size = ("WORLD_SIZE", (rank + 2).to_string());
            limit(rank).into_iter().chain([size]).collect()
        });
        assert!(run.stderr.contains("turned away: WORLD_SIZE=3, expected 2: another job"), "{}", run.stderr);
    }),
    ("ranks_of_one_host_meet_wherever_its_name_leads", |by| {
        for host in ["127.0.1.1", "no-such-host.invalid"] {
            start_with(by, 2, "world_of_two", |_| vec![("MASTER_ADDR", host.to_owned())]).succeeded();
        }
    }),
    ("too_few_open_files_are_named", |by| {
        let run = start_processes(by, 3, "world", |_| vec![(N_FILES, "40".to_owned())], |rank| rank == 0);
        assert_eq!(run.codes, [78], "{}", run.stderr);
        assert!(
            run.stderr.contains("Too many open files") && run.stderr.contains("ulimit -n"),
            "{}",
            run.stderr
        );
    }),
    ("a_port_that_is_taken_is_named", |by| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let run = start_processes(by, 2, "world", |_| vec![("MASTER_PORT", port.clone())], |rank| rank == 0);
        assert_eq!(run.codes, [78], "{}", run.stderr);
        assert!(
            run.stderr.contains(&format!("at port {port} (MASTER_PORT) of 127.0.0.1: ")),
            "{}",
            run.stderr
        );
        // A store of torchrun itself listens there.
        let run = start_with(by, 2, "world_of_two", |_| {
            vec![("MASTER_PORT", port.clone()), ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned())]
        });
        run.succeeded();
    }),
];

/// Tests of MPI.
const BY_MPIRUN: &[Test] = &[
    ("contract_by_mpi", |by| contract_holds(by, "contract_by_mpi")),
    ("messages_by_mpi_arrive", |by| {
        start(by, 3, "messages_by_mpi").succeeded();
        start(by, 2, "ring_by_mpi").succeeded();
    }),
    ("without_launcher_mpi_is_not_initialized", |_| {
        let output =
            Command::new(std::env::current_exe().unwrap()).env(start::CASE, "alone").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }),
    ("different_calls_by_mpi_are_errors", |by| assert_eq!(start(by, 3, "mismatch_by_mpi").code, 0)),
    ("a_panic_by_mpi_ends_the_job", |by| start(by, 2, "panic_by_mpi").ended_by(101, "disk on fire")),
    ("gpu_of_a_dead_rank_is_released", |by| {
        if has_gpus(2) {
            let run = start(by, 2, "gpu_dead_rank");
            assert!(run.stderr.contains("rank 0 saw ncclRemoteError"), "{}", run.stderr);
        }
    }),
    ("gpu_failing_collective_is_reported", |by| {
        if has_virtual_gpus(2) {
            let run =
                start_with(by, 2, "gpu_fault", |_| vec![("VGPU_FAIL", "nccl:step=3,rank=1".to_owned())]);
            assert!(run.stderr.contains("rank 1 saw ncclSystemError"), "{}", run.stderr);
            assert!(run.stderr.contains("rank 0 saw ncclRemoteError"), "{}", run.stderr);
        }
    }),
    ("gpu_failing_start_is_reported_to_all", |by| {
        if has_virtual_gpus(2) {
            let run =
                start_with(by, 2, "gpu_start_fault", |_| vec![("VGPU_FAIL", "nccl:init,rank=1".to_owned())]);
            run.succeeded();
        }
    }),
    ("gpu_without_memory_is_reported_to_all_at_once", |by| {
        if has_virtual_gpus(2) {
            let run = start_with(by, 2, "gpu_without_memory", |_| {
                vec![("VGPU_FAIL", "malloc:1,rank=1".to_owned())]
            });
            assert_eq!(run.code, 0, "{}", run.stderr);
        }
    }),
    ("gpu_trial_that_hangs_is_given_up", |by| {
        if has_virtual_gpus(2) {
            let run = start_with(by, 2, "gpu_hanging_trial", |_| {
                vec![("VGPU_FAIL", "nccl:hang=2,rank=1".to_owned())]
            });
            run.succeeded();
        }
    }),
    ("gpu_abort_that_hangs_is_bounded", |by| {
        if has_virtual_gpus(2) {
            let rules = "nccl:hang=3,rank=1,nccl:abort-hang";
            let run = start_with(by, 2, "gpu_fault", |_| vec![("VGPU_FAIL", rules.to_owned())]);
            assert_eq!(run.code, 1, "{}", run.stderr);
            assert!(run.stderr.contains("waited 5 s and gave up"), "{}", run.stderr);
            assert!(
                run.stderr.contains("aborting the communicator failed too, so the job ends"),
                "{}",
                run.stderr
            );
        }
    }),
];

/// Whether there are that many GPUs; `REQUIRE_GPUS` makes it a failure if there are not.
fn has_gpus(wanted: usize) -> bool {
    let found = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    assert!(found >= wanted || wanted > required, "REQUIRE_GPUS is {required}, found {found}");
    if found < wanted {
        println!("skipped: needs {wanted} GPUs, found {found}");
    }
    found >= wanted
}

/// Whether there are that many GPUs of the kind that fails on request.
fn has_virtual_gpus(wanted: usize) -> bool {
    let are_virtual = cuda::devices().is_ok_and(|devices| devices.iter().all(|device| device.is_virtual()));
    if has_gpus(wanted) && !are_virtual {
        println!("skipped: needs {wanted} virtual GPUs");
    }
    are_virtual && Gpu::count() >= wanted
}

fn contract_holds(by: By, case: &str) {
    for n_ranks in [2, 3, 4] {
        let run = start(by, n_ranks, case);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{n_ranks} ranks");
    }
}

/// Runs a case on one rank.
fn run_rank(case: &str) {
    let shared_memory = !case.ends_with("by_mpi") && !case.ends_with("by_tcp");
    let defaults = WorldOptions::default();
    let is_second = std::env::var("RANK").as_deref() == Ok("1");
    let program = if case == "programs" && is_second { "another program" } else { defaults.program };
    let join_limit = std::env::var(JOIN_LIMIT).ok().map(|ms| Duration::from_millis(ms.parse().unwrap()));
    let join_limit = join_limit.unwrap_or(defaults.join_limit);
    if let Ok(n) = std::env::var(N_FILES) {
        let n = n.parse().unwrap();
        let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
        // SAFETY: the limit is readable.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }
    let options = WorldOptions { shared_memory, program, join_limit, lost_exit_code: 75, ..defaults };
    let world =
        World::init_with(options).unwrap_or_else(|error| failure::abort_init(&error, 78, with_hint(&error)));
    if case != "alone" {
        if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
            assert_eq!(std::env::var("OMPI_MCA_pml").as_deref(), Ok("ob1"), "all ranks are on this host");
        }
        let transport = case.rsplit_once("by_").map_or("shared memory", |(_, transport)| transport);
        assert_eq!(world.group().transport(), transport);
    }
    failure::install_panic_hook(&world);
    let rank = world.rank().0;
    match case {
        "alone" => {
            assert_eq!((world.world_size(), world.group().transport()), (1, "single"));
            #[cfg(feature = "mpi")]
            {
                let mut is_initialized = 0;
                // SAFETY: may be called at any time; the integer is writable.
                assert_eq!(unsafe { mpi::ffi::MPI_Initialized(&raw mut is_initialized) }, 0);
                assert_eq!(is_initialized, 0);
            }
        }
        "contract" | "contract_by_mpi" | "contract_by_tcp" => {
            let sums = if case == "contract_by_mpi" { Sums::Rounded } else { Sums::InRankOrder };
            for len in [0, 1, 7, 1000, 40_001, 300_000] {
                contract::check(&world, Device::Cpu, len, sums).unwrap();
            }
        }
        "messages" | "messages_by_mpi" => messages::check(&world).unwrap(),
        "ring" | "ring_by_mpi" => messages::check_ring(&world).unwrap(),
        "no_messages_by_tcp" => {
            let x = Tensor::zeros(&[1], DType::F32, Device::Cpu).unwrap();
            let error = with_hint(&world.send(&x, 1 - rank).unwrap_err());
            assert!(error.contains("tcp between hosts") && error.contains("mpirun"), "{error}");
            let error = world.connect_device(Device::Cpu, DeviceOptions::default()).unwrap_err();
            assert!(matches!(error, CommError::NoSharedMemory { .. }), "{error}");
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
        "world_of_two" => world.group().barrier().unwrap(),
        "mismatch" | "mismatch_by_mpi" | "mismatch_by_tcp" => {
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
                failure::abort(&world, 2, Reporter::ThisRank, "no such file");
            }
            if let Err(error) = sum(&world, 10) {
                failure::abort(&world, 1, error.reporter(), error);
            }
        }
        "error_of_all" | "error_of_one" => {
            let result: Result<(), _> = match (case, rank) {
                ("error_of_all", _) => Err("unknown key"),
                (_, 1 | 2) => Err("unreadable"),
                _ => Ok(()),
            };
            let failure = world.collective_result(result).unwrap_err();
            failure::abort(&world, 2, failure.reporter(), failure);
        }
        "die" => {
            if std::env::var("VICTIM").unwrap() == rank.to_string() {
                // As if the system had killed it.
                std::process::abort();
            }
            let _ = world.group().barrier();
            std::thread::sleep(Duration::from_secs(60));
        }
        "leave" | "leave_by_tcp" => {
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
        "gpu_contract" => {
            let device = connect(&world, rank, Duration::from_secs(60));
            for len in [0, 1, 1000, 40_001] {
                contract::check(&world, device, len, Sums::Rounded).unwrap();
            }
            // Ordinary memory of a GPU cannot be mapped by another process.
            let mut tensor = Tensor::full(&[9, 9], rank as f64, DType::F64, device).unwrap();
            let given = (rank == 1).then(|| Tensor::ones(&[81], DType::F64, device).unwrap());
            let taken = (rank == 0).then(|| tensor.view_mut());
            let given = given.as_ref().map(Tensor::view);
            let path = peer::copy(&world, Rank(1), Rank(0), given, taken).unwrap();
            assert_eq!(path, PeerPath::Nccl);
            let want = if rank == 0 { 1.0 } else { rank as f64 };
            assert_eq!(tensor.to_vec::<f64>().unwrap(), [want; 81]);
        }
        "gpu_copies" => copy_between_processes(&world),
        "gpu_shared" => {
            let taken = world.connect_device(Device::Cuda(0), DeviceOptions::default()).unwrap_err();
            assert!(matches!(taken, CommError::GpuTaken { ranks: [0, 1], .. }), "{taken}");
            let options = DeviceOptions {
                deterministic: false,
                share_gpu: true,
                timeout: Some(Duration::from_secs(60)),
                ..DeviceOptions::default()
            };
            world.connect_device(Device::Cuda(0), options).unwrap();
            contract::check(&world, Device::Cuda(0), 1000, Sums::Rounded).unwrap();
        }
        "gpu_dead_rank" => {
            let device = connect(&world, rank, Duration::from_secs(30));
            reduce_and_read(&world, device).unwrap();
            // A rank may have its sum before the other one has.
            world.group().barrier().unwrap();
            if rank == 1 {
                // As if the system had killed it.
                std::process::abort();
            }
            print_failure(&world, reduce_and_read(&world, device));
        }
        "gpu_fault" => {
            let device = connect(&world, rank, Duration::from_secs(5));
            let results: Result<Vec<f32>, _> = (0..3).map(|_| reduce_and_read(&world, device)).collect();
            print_failure(&world, results);
            // No rank leaves before all have printed.
            world.group().barrier().unwrap();
        }
        "gpu_hanging_trial" => {
            // In a trial of registered buffers a rank is lost; then they join anew.
            let device = connect(&world, rank, Duration::from_secs(2));
            assert!(world.registers_buffers());
            let trial = reduce_and_read(&world, device).and_then(|_| reduce_and_read(&world, device));
            assert!(matches!(trial, Err(CommError::DeviceTimeout { .. })), "{trial:?}");
            world.rejoin_devices(Some("a rank was lost".to_owned())).unwrap();
            assert!(!world.registers_buffers());
            assert_eq!(reduce_and_read(&world, device).unwrap(), 2.0);
        }
        "gpu_without_memory" => {
            let begun = Instant::now();
            let connected = world.connect_device(Device::Cuda(rank as u32), DeviceOptions::default());
            match (rank, connected.unwrap_err()) {
                (1, CommError::Kernel(KernelError::OutOfMemory { .. })) => {}
                (0, CommError::FailedElsewhere { rank: 1, .. }) => {}
                (_, error) => panic!("{error}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the others need not wait in NCCL");
        }
        "gpu_start_fault" => {
            let options = DeviceOptions { timeout: Some(Duration::from_secs(3)), ..DeviceOptions::default() };
            let connected = world.connect_device(Device::Cuda(rank as u32), options);
            match (rank, connected.unwrap_err()) {
                (1, CommError::Nccl { call: "ncclCommInitRankConfig", rank: 1, .. }) => {}
                // Whether rank 0 learns of it from NCCL, from rank 1, or not in time, is NCCL's affair.
                (0, CommError::Nccl { .. } | CommError::FailedElsewhere { rank: 1, .. }) => {}
                (0, CommError::DeviceTimeout { n_enqueued: 0, .. }) => {}
                (_, error) => panic!("{error}"),
            }
        }
        other => panic!("no case is called {other}"),
    }
    world.close().unwrap();
}

/// One rank's GPU, joined with the others'.
fn connect(world: &World, index: usize, timeout: Duration) -> Device {
    let device = Device::Cuda(index as u32);
    let options = DeviceOptions { timeout: Some(timeout), ..DeviceOptions::default() };
    world.connect_device(device, options).unwrap();
    device
}

/// A step's outcome as a trainer reads it.
fn reduce_and_read(world: &World, device: Device) -> Result<f32, CommError> {
    let Device::Cuda(index) = device else { panic!("{device} is not a GPU") };
    let mut buf = Tensor::ones(&[1000], DType::F32, device)?;
    let mut download = Download::new(Gpu::get(index)?, 4)?;
    world.tensor_group().all_reduce(ReduceOp::Sum, buf.view_mut())?;
    download.start(buf.view().range(0, 1)?)?;
    world.tensor_group().wait_until(|| download.is_there())?;
    Ok(download.wait::<f32>()?[0])
}

fn print_failure<T: std::fmt::Debug>(world: &World, result: Result<T, CommError>) {
    let error = result.unwrap_err();
    let rank = world.rank();
    let line = match &error {
        CommError::Nccl { code, .. } => format!("rank {rank} saw {code}: {error}\n"),
        CommError::DeviceTimeout { .. } => format!("rank {rank} saw a timeout: {error}\n"),
        other => panic!("{other}"),
    };
    // One write, so that lines of two ranks do not mix.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Every path of a copy between processes; rank 2 has no GPU and only joins the collectives.
fn copy_between_processes(world: &World) {
    let (rank, n) = (world.rank().0, 3000);
    let (zero, one) = (Rank(0), Rank(1));
    let values = |start: usize| (start..start + n).map(|i| i as f32).collect::<Vec<_>>();
    let device = if rank < 2 { Device::Cuda(rank as u32) } else { Device::Cpu };
    let copy = |source: Option<&Tensor>, want: &[f32], path: PeerPath| {
        let mut target = Tensor::zeros(&[n], DType::F32, device).unwrap();
        let to = (rank == 1).then(|| target.view_mut());
        assert_eq!(peer::copy(world, zero, one, source.map(Tensor::view), to).unwrap(), path);
        if rank == 1 {
            assert!(target.to_vec::<f32>().unwrap() == want);
        }
    };
    // Ordinary memory, devices that are not joined: through the host; so is a tensor of the host itself.
    let tensor = (rank == 0).then(|| Tensor::from_slice(&values(1), &[n], device).unwrap());
    copy(tensor.as_ref(), &values(1), PeerPath::Host);
    let on_host = (rank == 0).then(|| Tensor::from_slice(&values(2), &[n], Device::Cpu).unwrap());
    copy(on_host.as_ref(), &values(2), PeerPath::Host);
    // Shared memory is mapped, without a message the second time; so is a view of a row of it.
    let mut shared = (rank == 0).then(|| world.shared_zeros(&[2, n], DType::F32, device).unwrap());
    for round in 0..3 {
        if let Some(shared) = &mut shared {
            let both =
                Tensor::from_slice(&[values(round), values(round + 9)].concat(), &[2, n], device).unwrap();
            ddp_kernels::ops::copy(both.view(), shared.view_mut()).unwrap();
        }
        let row = shared.as_ref().map(|shared| shared.view().rows(1, 2).unwrap());
        let mut target = Tensor::zeros(&[n], DType::F32, device).unwrap();
        let to = (rank == 1).then(|| target.view_mut());
        assert_eq!(peer::copy(world, zero, one, row, to).unwrap(), PeerPath::Mapped);
        if rank == 1 {
            assert!(target.to_vec::<f32>().unwrap() == values(round + 9));
        }
    }
    // Memory that others have mapped outlives the tensor.
    drop(shared);
    let error = peer::copy(world, zero, one, None, None).unwrap_err();
    assert!(error.to_string().contains("the source is none, the target is none"), "{error}");
}

fn sum(world: &World, len: usize) -> Result<(), CommError> {
    let mut buf = Tensor::zeros(&[len], DType::F32, Device::Cpu)?;
    world.group().all_reduce(ReduceOp::Sum, buf.view_mut())
}
