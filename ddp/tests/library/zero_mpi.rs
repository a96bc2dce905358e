//! ZeRO on ranks that are processes: this program starts itself under `mpirun`, once with memory that the ranks share and once
//! with MPI only, as between hosts.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::process::{Command, Stdio};

use crate::made_up::{Setup, assert_close};
use ddp::config::{OptimizerKind, ZeroStage};
use ddp::train::trainer::TrainerOptions;
use ddp_comm::{World, WorldOptions};

/// Environment variable that selects how a rank reaches the others.
const TRANSPORT: &str = "DDP_TEST_TRANSPORT";

#[test]
fn processes_train_as_threads_do() {
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: needs mpirun, found none");
        return;
    }
    for transport in ["shared memory", "mpi"] {
        for n_ranks in ["2", "3"] {
            let mut command = Command::new("mpirun");
            command.args(["--timeout", "120", "-n", n_ranks, "--oversubscribe", "--bind-to", "none"]);
            command.arg(std::env::current_exe().unwrap());
            command.args(["--exact", "zero_mpi::rank_of_a_job", "--test-threads=1", "--nocapture"]);
            command.env(TRANSPORT, transport).stdin(Stdio::null());
            // Without these, Open MPI refuses to run as root, and, without ssh, to start at all.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("OMPI_MCA_plm", "isolated").env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
            let output = command.output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{n_ranks} ranks by {transport}: {stdout}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let n_done = stdout.matches("this rank is done").count();
            assert_eq!(n_done.to_string(), n_ranks, "{stdout}");
        }
    }
}

/// One rank of the jobs above; does nothing unless it was started as such.
#[test]
fn rank_of_a_job() {
    let Ok(transport) = std::env::var(TRANSPORT) else { return };
    let shared_memory = transport == "shared memory";
    let world = World::init_with(WorldOptions { shared_memory, ..WorldOptions::default() }).unwrap();
    assert_eq!(world.group().transport(), transport);
    for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
        let mut setup = Setup { optimizer: OptimizerKind::AdamW, ema_decay: 0.9, ..Setup::embedded() };
        setup.options = TrainerOptions { zero, ..setup.options };
        let before = world.group().traffic();
        let trained = setup.train(&world);
        let traffic = world.group().traffic().since(&before);
        assert_eq!(traffic.n_reduce_scatters > 0, zero != ZeroStage::Off, "{traffic:?}");
        let threads = setup.train_on(world.world_size());
        // MPI sums in a different order.
        assert!(!shared_memory || trained == threads, "{zero:?}");
        assert_close(&format!("{zero:?} by {transport}"), &trained, &threads);
        // The fixed tree gives the same sums over any transport.
        if zero != ZeroStage::Gradients {
            setup.options.micro_shards = Some(4);
            let (trained, alone) = (setup.train(&world), setup.train_on(1));
            assert!((trained.weights, trained.losses) == (alone.weights, alone.losses), "{zero:?}: the tree");
        }
    }
    world.close().unwrap();
    println!("this rank is done");
}
