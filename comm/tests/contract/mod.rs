//! What every group must do, whatever carries it: one body for a single process, threads and MPI.
//!
//! Each rank makes every rank's data, so it knows the answer.

use ddp_comm::{CommError, Rank, ReduceOp, World};
use ddp_kernels::{Element, TensorMut, TensorRef};

/// Whether sums must be those of rank order to the last bit; MPI's own only promises the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    InRankOrder,
    Rounded,
}

/// Runs every collective on `len` elements of each type.
pub(crate) fn check(world: &World, len: usize, sums: Sums) -> Result<(), CommError> {
    check_type::<f32>(world, len, sums, 1e-5)?;
    check_type::<f64>(world, len, sums, 1e-13)?;
    check_type::<i64>(world, len, Sums::InRankOrder, 0.0)?;
    check_bytes(world, len)?;
    check_scope(world, len, sums)?;
    world.group().agree_lengths(&[len, 3, 0])?;
    world.group().barrier()
}

/// Element `i` of rank `rank`: of mixed sign and size, so that the order of a sum shows in its last bits.
fn value<T: Element>(rank: usize, i: usize) -> T {
    let hash = (rank as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((i as u64).wrapping_mul(0xd134_2543_de82_ef95));
    let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    let magnitude = [1e-3, 1.0, 1e3][i % 3];
    T::from_f64((mixed as f64 / f64::from(1 << 23) - 1.0) * magnitude * 1000.0)
}

fn data<T: Element>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// `values[0] op values[1] op ...`, from left to right.
fn fold<T: Element + std::ops::Add<Output = T>>(op: ReduceOp, values: impl Iterator<Item = T>) -> T {
    let combine = |a: T, b: T| match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Max => {
            if b > a {
                b
            } else {
                a
            }
        }
        ReduceOp::Min => {
            if b < a {
                b
            } else {
                a
            }
        }
    };
    values.reduce(combine).expect("a world has a rank")
}

fn check_type<T: Element + std::ops::Add<Output = T>>(
    world: &World,
    len: usize,
    sums: Sums,
    rtol: f64,
) -> Result<(), CommError> {
    let (rank, n_ranks, group) = (world.rank().0, world.world_size(), world.group());
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
        let mut buf = data::<T>(rank, len);
        group.all_reduce(op, TensorMut::from_slice(&mut buf, &[len])?)?;
        let want: Vec<T> = (0..len).map(|i| fold(op, (0..n_ranks).map(|r| value::<T>(r, i)))).collect();
        assert_same(&buf, &want, sums, rtol, &format!("all_reduce {op}"));
        assert_same_bits_everywhere(world, &buf)?;

        let input = data::<T>(rank, len * n_ranks);
        let mut output = vec![T::ZERO; len];
        group.reduce_scatter(
            op,
            TensorRef::from_slice(&input, &[len * n_ranks])?,
            TensorMut::from_slice(&mut output, &[len])?,
        )?;
        let mine = |i: usize| rank * len + i;
        let want: Vec<T> = (0..len).map(|i| fold(op, (0..n_ranks).map(|r| value::<T>(r, mine(i))))).collect();
        assert_same(&output, &want, sums, rtol, &format!("reduce_scatter {op}"));
        let mut buf = input.clone();
        group.reduce_scatter_in_place(op, TensorMut::from_slice(&mut buf, &[len * n_ranks])?)?;
        let own = &buf[rank * len..][..len];
        assert_same(own, &want, sums, rtol, &format!("reduce_scatter_in_place {op}"));
    }
    for root in 0..n_ranks {
        let mut buf = data::<T>(rank, len);
        group.broadcast(Rank(root), TensorMut::from_slice(&mut buf, &[len])?)?;
        assert_eq!(buf, data::<T>(root, len), "broadcast from {root}");
    }
    let mut output = vec![T::ZERO; len * n_ranks];
    let input = data::<T>(rank, len);
    group.all_gather(
        TensorRef::from_slice(&input, &[len])?,
        TensorMut::from_slice(&mut output, &[len * n_ranks])?,
    )?;
    let want: Vec<T> = (0..n_ranks).flat_map(|r| data::<T>(r, len)).collect();
    assert_eq!(output, want, "all_gather");
    let mut buf = vec![T::ZERO; len * n_ranks];
    buf[rank * len..][..len].copy_from_slice(&input);
    group.all_gather_in_place(TensorMut::from_slice(&mut buf, &[len * n_ranks])?)?;
    assert_eq!(buf, want, "all_gather_in_place");
    Ok(())
}

fn check_bytes(world: &World, len: usize) -> Result<(), CommError> {
    let bytes_of = |rank: usize| -> Vec<u8> { (0..(len % 100) * rank).map(|i| (i + rank) as u8).collect() };
    let all = world.group().all_gather_bytes(&bytes_of(world.rank().0))?;
    let want: Vec<_> = (0..world.world_size()).map(bytes_of).collect();
    assert_eq!(all, want, "all_gather_bytes");
    Ok(())
}

/// Buckets of one flat buffer in flight, with a synchronous collective between them.
fn check_scope(world: &World, len: usize, sums: Sums) -> Result<(), CommError> {
    let n_ranks = world.world_size();
    let mut flat = data::<f32>(world.rank().0, len);
    let group = world.group();
    let (first, second) = (len / 3, len / 2);
    for _ in 0..2 {
        flat.copy_from_slice(&data::<f32>(world.rank().0, len));
        let view = TensorMut::from_slice(&mut flat, &[len])?;
        group.scope(|scope| {
            let (low, high) = view.split_at(second)?;
            let (a, b) = low.split_at(first)?;
            let first = scope.all_reduce(ReduceOp::Sum, high)?;
            scope.progress()?;
            scope.all_reduce(ReduceOp::Sum, a)?;
            group.barrier()?;
            scope.wait(first)?;
            scope.all_reduce(ReduceOp::Sum, b)?;
            scope.progress()
        })?;
    }
    let want: Vec<f32> =
        (0..len).map(|i| fold(ReduceOp::Sum, (0..n_ranks).map(|r| value::<f32>(r, i)))).collect();
    assert_same(&flat, &want, sums, 1e-5, "scope");
    assert_same_bits_everywhere(world, &flat)
}

/// The same on every rank, by the bits of each element.
fn assert_same_bits_everywhere<T: Element>(world: &World, values: &[T]) -> Result<(), CommError> {
    let mut bits: Vec<i64> = values.iter().map(|v| v.to_f64().to_bits() as i64).collect();
    let mine = bits.clone();
    let len = bits.len();
    world.group().broadcast(Rank(0), TensorMut::from_slice(&mut bits, &[len])?)?;
    assert!(bits == mine, "rank {} has other bits than rank 0", world.rank());
    Ok(())
}

fn assert_same<T: Element>(got: &[T], want: &[T], sums: Sums, rtol: f64, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let (g, w) = (got.to_f64(), want.to_f64());
        // Terms are up to 1e6, whatever remains of them.
        let near = sums == Sums::Rounded && (g - w).abs() <= rtol * 1e6;
        assert!(got == want || near, "{what}: element {i} is {g}, expected {w}");
    }
}
