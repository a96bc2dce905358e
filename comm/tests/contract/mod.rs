//! The contract of every group, whatever the transport: one body for a single process, threads, MPI and GPUs.
//!
//! Each rank makes every rank's data, so it knows the answer.

use ddp_comm::{CommError, Rank, ReduceOp, World};
use ddp_kernels::{DType, Device, Element, Tensor, TensorMut};
use half::{bf16, f16};

/// Whether sums must be those of rank order to the last bit; MPI's own and NCCL's are only the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    InRankOrder,
    Rounded,
}

/// Runs every collective of the group that exchanges tensors of `device` on `len` elements of each type.
pub(crate) fn check(world: &World, device: Device, len: usize, sums: Sums) -> Result<(), CommError> {
    let ctx = Context { world, device, sums };
    ctx.check_type::<f32>(len, 1e-5)?;
    ctx.check_type::<f64>(len, 1e-13)?;
    // Integers, which are exact in any order.
    ctx.check_type::<i64>(len, 0.0)?;
    ctx.check_type::<bf16>(len, 0.0)?;
    ctx.check_type::<f16>(len, 0.0)?;
    ctx.check_type::<u8>(len, 0.0)?;
    ctx.check_scope(len)?;
    ctx.check_shards_in_scope::<f32>(len, 1e-5)?;
    ctx.check_shards_in_scope::<i64>(len, 0.0)?;
    check_traffic(world, device, len)?;
    check_bytes(world, len)?;
    world.group().agree_lengths(&[len, 3, 0])?;
    world.tensor_group().barrier()?;
    world.group().barrier()
}

/// Element `i` of rank `rank`: of mixed sign and size, so that the order of a sum shows in its last bits. Of short
/// types small integers, whose sums over a few ranks are exact: 8 bits cannot tell larger values apart.
fn value<T: Element>(rank: usize, i: usize) -> T {
    let hash = (rank as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((i as u64).wrapping_mul(0xd134_2543_de82_ef95));
    let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    match T::DTYPE {
        DType::BF16 | DType::F16 => return T::from_f64((mixed % 33) as f64 - 16.0),
        DType::U8 => return T::from_f64((mixed % 17) as f64),
        _ => {}
    }
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

/// The world, device and tolerance of one run of the checks.
struct Context<'a> {
    world: &'a World,
    device: Device,
    sums: Sums,
}

impl Context<'_> {
    fn check_type<T: Element + std::ops::Add<Output = T>>(
        &self,
        len: usize,
        rtol: f64,
    ) -> Result<(), CommError> {
        let (rank, n_ranks, group) =
            (self.world.rank().0, self.world.world_size(), self.world.tensor_group());
        let tensor = |values: &[T]| Tensor::from_slice(values, &[values.len()], self.device);
        let zeros = |len: usize| Tensor::zeros(&[len], T::DTYPE, self.device);
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            let mut buf = tensor(&data::<T>(rank, len))?;
            let result = group.all_reduce(op, buf.view_mut());
            if matches!(T::DTYPE, DType::BF16 | DType::F16) && group.transport() == "mpi" {
                assert!(matches!(result, Err(CommError::NotReducible { .. })), "{result:?}");
                continue;
            }
            result?;
            let buf = buf.to_vec::<T>()?;
            let want: Vec<T> = (0..len).map(|i| fold(op, (0..n_ranks).map(|r| value::<T>(r, i)))).collect();
            self.assert_same(&buf, &want, rtol, &format!("all_reduce {op}"));
            assert_same_bits_everywhere(self.world, &buf)?;

            let input = data::<T>(rank, len * n_ranks);
            let mut output = zeros(len)?;
            group.reduce_scatter(op, tensor(&input)?.view(), output.view_mut())?;
            let mine = |i: usize| rank * len + i;
            let want: Vec<T> =
                (0..len).map(|i| fold(op, (0..n_ranks).map(|r| value::<T>(r, mine(i))))).collect();
            self.assert_same(&output.to_vec::<T>()?, &want, rtol, &format!("reduce_scatter {op}"));
            let mut buf = tensor(&input)?;
            group.reduce_scatter_in_place(op, buf.view_mut())?;
            let own = &buf.to_vec::<T>()?[rank * len..][..len];
            self.assert_same(own, &want, rtol, &format!("reduce_scatter_in_place {op}"));
        }
        for root in 0..n_ranks {
            let mut buf = tensor(&data::<T>(rank, len))?;
            group.broadcast(Rank(root), buf.view_mut())?;
            assert_eq!(buf.to_vec::<T>()?, data::<T>(root, len), "broadcast from {root}");
        }
        let mut output = zeros(len * n_ranks)?;
        let input = data::<T>(rank, len);
        group.all_gather(tensor(&input)?.view(), output.view_mut())?;
        let want: Vec<T> = (0..n_ranks).flat_map(|r| data::<T>(r, len)).collect();
        assert_eq!(output.to_vec::<T>()?, want, "all_gather");
        let mut buf = vec![T::ZERO; len * n_ranks];
        buf[rank * len..][..len].copy_from_slice(&input);
        let mut buf = tensor(&buf)?;
        group.all_gather_in_place(buf.view_mut())?;
        assert_eq!(buf.to_vec::<T>()?, want, "all_gather_in_place");
        let mut output = zeros(len)?;
        let shifted = group.shift(tensor(&input)?.view(), output.view_mut());
        if group.shares_memory() || group.transport() == "nccl" {
            shifted?;
            assert_eq!(output.to_vec::<T>()?, data::<T>((rank + n_ranks - 1) % n_ranks, len), "shift");
        } else {
            assert!(matches!(shifted, Err(CommError::NoSends { op: "shift", .. })), "{shifted:?}");
        }
        Ok(())
    }

    /// Buckets of one flat buffer in flight, with a synchronous collective between them.
    fn check_scope(&self, len: usize) -> Result<(), CommError> {
        let (rank, n_ranks, group) =
            (self.world.rank().0, self.world.world_size(), self.world.tensor_group());
        let (first, second) = (len / 3, len / 2);
        let mut flat = Tensor::zeros(&[len], DType::F32, self.device)?;
        for _ in 0..2 {
            flat = Tensor::from_slice(&data::<f32>(rank, len), &[len], self.device)?;
            let view = flat.view_mut();
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
        let flat = flat.to_vec::<f32>()?;
        let want: Vec<f32> =
            (0..len).map(|i| fold(ReduceOp::Sum, (0..n_ranks).map(|r| value::<f32>(r, i)))).collect();
        self.assert_same(&flat, &want, 1e-5, "scope");
        assert_same_bits_everywhere(self.world, &flat)
    }

    /// Reduce-scatters and all-gathers of one buffer, several in flight, and a buffer that is reused within the scope.
    fn check_shards_in_scope<T: Element + std::ops::Add<Output = T>>(
        &self,
        len: usize,
        rtol: f64,
    ) -> Result<(), CommError> {
        let (rank, n_ranks, group) =
            (self.world.rank().0, self.world.world_size(), self.world.tensor_group());
        let mut flat =
            Tensor::from_slice(&data::<T>(rank, 2 * len * n_ranks), &[2 * len * n_ranks], self.device)?;
        let view = flat.view_mut();
        group.scope(|scope| {
            let (low, high) = view.split_at(len * n_ranks)?;
            let first = scope.reduce_scatter_in_place(ReduceOp::Sum, high)?;
            scope.progress()?;
            let loan = scope.reduce_scatter_on_loan(ReduceOp::Sum, low, len * n_ranks)?;
            group.barrier()?;
            scope.wait(first)?;
            let low = scope.take_back(loan)?;
            scope.all_gather_in_place(low)?;
            scope.progress()
        })?;
        let sum = |i: usize| fold(ReduceOp::Sum, (0..n_ranks).map(|r| value::<T>(r, i)));
        let got = flat.to_vec::<T>()?;
        let want: Vec<T> = (0..len * n_ranks).map(sum).collect();
        self.assert_same(&got[..len * n_ranks], &want, rtol, "reduce_scatter and all_gather in a scope");
        assert_same_bits_everywhere(self.world, &got[..len * n_ranks])?;
        let own = (n_ranks + rank) * len;
        let want: Vec<T> = (own..own + len).map(sum).collect();
        self.assert_same(&got[own..own + len], &want, rtol, "reduce_scatter in a scope");
        Ok(())
    }

    fn assert_same<T: Element>(&self, got: &[T], want: &[T], rtol: f64, what: &str) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let (g, w) = (got.to_f64(), want.to_f64());
            // Terms are up to 1e6, even if their sum is small.
            let near = self.sums == Sums::Rounded && (g - w).abs() <= rtol * 1e6;
            assert!(got == want || near, "{what}: element {i} is {g}, expected {w}");
        }
    }
}

/// A reduce-scatter and an all-gather send what an all-reduce does.
fn check_traffic(world: &World, device: Device, len: usize) -> Result<(), CommError> {
    let (group, n_ranks) = (world.tensor_group(), world.world_size());
    let mut buf = Tensor::zeros(&[len * n_ranks], DType::F32, device)?;
    let before = group.traffic();
    group.all_reduce(ReduceOp::Sum, buf.view_mut())?;
    let whole = group.traffic().since(&before);
    let view = buf.view_mut();
    group.scope(|scope| {
        let loan = scope.reduce_scatter_on_loan(ReduceOp::Sum, view, len * n_ranks)?;
        let view = scope.take_back(loan)?;
        scope.all_gather_in_place(view)
    })?;
    let both = group.traffic().since(&before);
    assert_eq!((both.n_all_reduces, both.n_reduce_scatters, both.n_all_gathers), (1, 1, 1));
    assert_eq!(whole.bytes_sent(), (8 * len * (n_ranks - 1)) as u64);
    assert_eq!(both.bytes_sent(), 2 * whole.bytes_sent());
    Ok(())
}

fn check_bytes(world: &World, len: usize) -> Result<(), CommError> {
    let bytes_of = |rank: usize| -> Vec<u8> { (0..(len % 100) * rank).map(|i| (i + rank) as u8).collect() };
    let all = world.group().all_gather_bytes(&bytes_of(world.rank().0))?;
    let want: Vec<_> = (0..world.world_size()).map(bytes_of).collect();
    assert_eq!(all, want, "all_gather_bytes");
    Ok(())
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
