//! Ranks join a world, verify that they run the same program, and sum their tensors. Without a launcher the world is only this
//! process, and MPI is not used.
//!
//!     cargo build --release -p ddp-examples
//!     mpirun -n 4 target/release/mpi_all_reduce
//!     target/release/mpi_all_reduce

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use ddp::distributed::{CommError, ReduceOp, World, failure};
use ddp::{DType, Device, Tensor};

fn main() -> Result<(), CommError> {
    let world = World::init()?;
    // From here on, a panic on one rank ends all ranks with a message that names the rank.
    failure::install_panic_hook(&world);

    // Every rank passes the values that must be equal everywhere; a difference is an error that names rank and key.
    let length = 1_000_000;
    world.agree(&[("length".to_owned(), length.to_string())])?;

    let rank = world.rank().0;
    let mut x = Tensor::full(&[length], rank as f64, DType::F32, Device::Cpu)?;
    world.group().all_reduce(ReduceOp::Sum, x.view_mut())?;
    let sum = x.to_vec::<f32>()?[length - 1];

    // The same while the rank computes: buffers are borrowed until the scope ends.
    let mut largest = Tensor::full(&[length], rank as f64, DType::F32, Device::Cpu)?;
    world.group().scope(|scope| {
        scope.all_reduce(ReduceOp::Max, largest.view_mut())?;
        for _part_of_the_work in 0..10 {
            scope.progress()?;
        }
        Ok::<_, CommError>(())
    })?;

    if rank == 0 {
        println!(
            "world of {} ({}): sum of ranks {sum}, largest {}",
            world.world_size(),
            world.group().transport(),
            largest.to_vec::<f32>()?[0]
        );
    }
    world.close()
}
