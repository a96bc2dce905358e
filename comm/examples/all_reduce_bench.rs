//! Times all-reduces (sum of f32) of several sizes; one JSON object a line from rank 0.
//!
//! ```text
//! mpirun -n 2 --bind-to none all_reduce_bench            shared memory where the ranks are on one host
//! mpirun -n 2 --bind-to none all_reduce_bench --by-mpi   MPI all the same
//! all_reduce_bench --threads 2                           ranks as threads
//! ```
//! `group`: [`ddp_comm::Group::all_reduce`]; `scope`: in four buckets by [`ddp_comm::Scope`]; `mpi_whole`: one
//! call of `MPI_Allreduce`; `mpi_chunked`: calls of 1 MiB. Times are of the slowest rank.

use std::time::Instant;

use ddp_comm::{CommError, ReduceOp, World, WorldOptions, threads};
use ddp_kernels::{DType, Device, Tensor, TensorMut};

/// A loss, the gradients of digits' MLP, and of larger ones.
const SIZES_BYTES: [usize; 7] = [128, 38 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20, 100_000_000];
const MAX_SECONDS: f64 = 0.5;

fn main() -> Result<(), CommError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, n] = &args[..]
        && flag == "--threads"
    {
        let n = n.parse().expect("--threads takes a number");
        return threads::run(n, |world| bench(&world)).into_iter().collect();
    }
    let shared_memory = !args.iter().any(|arg| arg == "--by-mpi");
    let world = World::init_with(WorldOptions { shared_memory, ..WorldOptions::default() })?;
    bench(&world)?;
    world.close()
}

fn bench(world: &World) -> Result<(), CommError> {
    for n_bytes in SIZES_BYTES {
        let n = n_bytes / 4;
        let mut grads = Tensor::zeros(&[n], DType::F32, Device::Cpu)?;
        report(world, "group", n_bytes, || world.group().all_reduce(ReduceOp::Sum, grads.view_mut()))?;
        report(world, "scope", n_bytes, || {
            let view = grads.view_mut();
            world.group().scope(|scope| {
                let (low, high) = view.split_at(n / 2)?;
                for half in [low, high] {
                    let (a, b) = half.split_at(n / 4)?;
                    scope.all_reduce(ReduceOp::Sum, a)?;
                    scope.all_reduce(ReduceOp::Sum, b)?;
                }
                Ok(())
            })
        })?;
        by_mpi(world, n_bytes)?;
    }
    Ok(())
}

#[cfg(feature = "mpi")]
fn by_mpi(world: &World, n_bytes: usize) -> Result<(), CommError> {
    use mpi::collective::SystemOperation;
    use mpi::traits::CommunicatorCollectives;

    if world.launcher().is_none() {
        return Ok(());
    }
    let comm = mpi::topology::SimpleCommunicator::world();
    let (send, mut receive) = (vec![0f32; n_bytes / 4], vec![0f32; n_bytes / 4]);
    report(world, "mpi_whole", n_bytes, || {
        comm.all_reduce_into(&send[..], &mut receive[..], SystemOperation::sum());
        Ok(())
    })?;
    report(world, "mpi_chunked", n_bytes, || {
        for (send, receive) in send.chunks(1 << 18).zip(receive.chunks_mut(1 << 18)) {
            comm.all_reduce_into(send, receive, SystemOperation::sum());
        }
        Ok(())
    })
}

#[cfg(not(feature = "mpi"))]
fn by_mpi(_: &World, _: usize) -> Result<(), CommError> {
    Ok(())
}

/// Repeats `body` for a while and prints the median and best time.
#[allow(clippy::print_stdout, reason = "an example's result")]
fn report(
    world: &World,
    method: &str,
    n_bytes: usize,
    mut body: impl FnMut() -> Result<(), CommError>,
) -> Result<(), CommError> {
    for _ in 0..3 {
        body()?;
    }
    let start = Instant::now();
    body()?;
    let mut estimate = [start.elapsed().as_secs_f64()];
    world.group().all_reduce(ReduceOp::Max, TensorMut::from_slice(&mut estimate, &[1])?)?;
    let n_times = (MAX_SECONDS / estimate[0].max(1e-7)).clamp(10.0, 20_000.0) as usize;
    let mut times_s = Vec::with_capacity(n_times);
    for _ in 0..n_times {
        let start = Instant::now();
        body()?;
        times_s.push(start.elapsed().as_secs_f64());
    }
    times_s.sort_by(f64::total_cmp);
    let mut summary = [times_s[n_times / 2] * 1e3, times_s[0] * 1e3];
    world.group().all_reduce(ReduceOp::Max, TensorMut::from_slice(&mut summary, &[2])?)?;
    if world.rank().0 == 0 {
        println!(
            "{{\"method\":\"{method}\",\"transport\":\"{}\",\"world_size\":{},\"bytes\":{n_bytes},\
             \"n\":{n_times},\"median_ms\":{:.5},\"best_ms\":{:.5}}}",
            world.group().transport(),
            world.world_size(),
            summary[0],
            summary[1],
        );
    }
    Ok(())
}
