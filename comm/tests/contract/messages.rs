//! Messages between ranks: the same over threads, shared memory and MPI.

use ddp_comm::{CommError, Rank, ReduceOp, World};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, Device, Tensor};

fn filled(len: usize, dtype: DType, seed: usize) -> Result<Tensor, CommError> {
    Ok(Tensor::arange(len, DType::I64, Device::Cpu)?.add(seed as i64)?.to_dtype(dtype)?)
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>, CommError> {
    Ok(tensor.view().as_bytes("test", "tensor")?.to_vec())
}

/// Each rank sends to each other one; errors of one message leave the others as they are.
pub(crate) fn check(world: &World) -> Result<(), CommError> {
    let (rank, n) = (world.rank().0, world.world_size());
    for from in 0..n {
        for to in (0..n).filter(|to| *to != from) {
            for (dtype, len) in [
                (DType::F32, 1),
                (DType::F64, 100_003),
                (DType::BF16, 301),
                (DType::Bool, 7),
                (DType::I64, 0),
            ] {
                let sent = filled(len, dtype, 10 * from + to)?;
                let mut got = sent.zeros_like()?;
                if rank == from {
                    world.send(&sent, to)?;
                } else if rank == to {
                    world.receive(&mut got, from)?;
                    assert_eq!(bytes(&got)?, bytes(&sent)?, "{dtype} {len} from {from} to {to}");
                }
            }
        }
    }
    if n < 2 {
        return Ok(());
    }
    // No rank, and this one.
    let mut x = Tensor::ones(&[2, 3], DType::F32, Device::Cpu)?;
    let errors = [world.send(&x, n), world.receive(&mut x, n)]
        .map(|result| result.expect_err("there is no such rank"));
    assert!(errors.iter().all(|error| matches!(error, CommError::NoSuchRank { .. })), "{errors:?}");
    let errors = [world.send(&x, rank), world.receive(&mut x, rank)]
        .map(|result| result.expect_err("there is no such rank"));
    assert!(errors.iter().all(|error| error.to_string().contains("is this rank itself")), "{errors:?}");
    // Another shape or type: the same error on both, and the next message arrives.
    for other in
        [Tensor::zeros(&[3, 2], DType::F32, Device::Cpu)?, Tensor::zeros(&[2, 3], DType::I32, Device::Cpu)?]
    {
        let mut other = other;
        let error = match rank {
            0 => world.send(&x, 1).expect_err("the shapes or types differ"),
            1 => world.receive(&mut other, 0).expect_err("the shapes or types differ"),
            _ => continue,
        };
        let text = with_hint(&error);
        let received = format!("the receiver {} {}", other.shape(), other.dtype());
        assert!(
            text.contains("from rank 0 to rank 1: the sender has [2, 3] f32") && text.contains(&received),
            "{text}"
        );
        assert!(text.contains("hint: "), "{text}");
    }
    match rank {
        0 => world.send(&x, 1)?,
        1 => world.receive(&mut x, 0)?,
        _ => {}
    }
    // Beside collectives that were started before.
    let mut sum = Tensor::ones(&[50_000], DType::F32, Device::Cpu)?;
    world.group().scope(|scope| {
        let ticket = scope.all_reduce(ReduceOp::Sum, sum.view_mut())?;
        match rank {
            0 => world.group().send(Rank(n - 1), x.view())?,
            _ if rank == n - 1 => world.group().receive(Rank(0), x.view_mut())?,
            _ => {}
        }
        scope.wait(ticket)
    })?;
    assert_eq!(sum.to_vec::<f32>()?[49_999], n as f32);
    world.barrier()
}

/// All ranks send to the next one first.
pub(crate) fn check_ring(world: &World) -> Result<(), CommError> {
    let x = Tensor::ones(&[4], DType::F32, Device::Cpu)?;
    let next = (world.rank().0 + 1) % world.world_size();
    let error = world.send(&x, next).expect_err("no rank receives");
    let CommError::NoReceiver { op: "send", ranks } = &error else { panic!("{error}") };
    assert_eq!(*ranks, (0..world.world_size()).collect::<Vec<_>>());
    assert!(with_hint(&error).contains("an odd rank"), "{error}");
    Ok(())
}
