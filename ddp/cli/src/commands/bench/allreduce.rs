//! `ddp-train bench allreduce`: all-reduce over all ranks, on the host and through NCCL, in several ways.
//!
//! Bandwidths are defined as in nccl-tests: `algbw = bytes / time`, `busbw = algbw · 2(n - 1)/n`, which is the traffic of the
//! slowest link for any algorithm and can be compared with the link speed. The time is that of the slowest rank.
//!
//! Source: `doc/PERFORMANCE.md` of NVIDIA's nccl-tests.

use std::time::Instant;

use ddp_comm::{CommError, Group, ReduceOp, World, threads};
use ddp_kernels::cuda::{Event, Gpu, Timer};
use ddp_kernels::ops::{self, UniformStream, uniform};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};

use super::place::{Place, Work};
use super::report::{self, Row, bytes, number};
use super::timing::{Effort, Times};
use crate::cli::{AllreducePath, BenchAllreduceArgs};
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;

/// Number of buckets in [`AllreducePath::Scope`].
const N_BUCKETS: usize = 4;

/// Number of elements of the first result that are checked.
const N_CHECKED: usize = 1024;

/// Result of one size on one group.
#[derive(Debug)]
pub(in crate::commands) struct Measured {
    path: &'static str,
    transport: &'static str,
    /// Memory of the buffers: `host` or `gpu`.
    memory: &'static str,
    size_bytes: usize,
    times: Times,
    algbw_gb_per_s: f64,
    busbw_gb_per_s: f64,
    /// Wrong elements of the first, untimed result; expected 0.
    wrong_elements: usize,
}

impl Measured {
    /// Size, time and bandwidth in words, such as `8 MiB in 2.1 ms (3.9 GB/s)`.
    pub(in crate::commands) fn words(&self) -> String {
        let Measured { size_bytes, times, busbw_gb_per_s, .. } = self;
        format!("{} in {} ms ({} GB/s)", bytes(*size_bytes), number(times.median), number(*busbw_gb_per_s))
    }
}

impl From<Measured> for Row {
    fn from(measured: Measured) -> Row {
        Row::default()
            .plain("<path", "path", measured.path)
            .plain("<transport", "transport", measured.transport)
            .plain("<memory", "memory", measured.memory)
            .bytes("size", "size_bytes", measured.size_bytes)
            .times(measured.times)
            .number("algbw GB/s", "algbw_gb_per_s", measured.algbw_gb_per_s)
            .number("busbw GB/s", "busbw_gb_per_s", measured.busbw_gb_per_s)
            .plain("wrong", "wrong_elements", measured.wrong_elements)
    }
}

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn allreduce(world: &World, args: &BenchAllreduceArgs) -> Result<(), Stop> {
    if let Some(n_threads) = args.rank_threads
        && world.world_size() > 1
    {
        return Err(
            CommandError::RankThreadsUnderLauncher { n_threads, world_size: world.world_size() }.into()
        );
    }
    let mut place = Place::pin(world, &args.place, Work::Operations, &[])?;
    let rows = match args.rank_threads {
        Some(n_ranks) => {
            (place.world_size, place.threads) = (n_ranks, (place.threads / n_ranks).max(1));
            let mut results = threads::run(n_ranks, |world| measure_all(&world, None, args));
            // All ranks have the same times.
            results.swap_remove(0)?
        }
        None => measure_all(world, place.gpu().map_err(Error::from)?, args)?,
    };
    let rows: Vec<Row> = rows.into_iter().map(Row::from).collect();
    report::print(world, "allreduce", &place, args.place.json, &rows)?;
    Ok(())
}

/// Measures each path and size in host memory, then, on a GPU, the paths that are available there.
fn measure_all(world: &World, gpu: Option<&'static Gpu>, args: &BenchAllreduceArgs) -> Result<Vec<Measured>> {
    let effort = Effort::new(args.timing);
    let mut rows = Vec::new();
    for place in std::iter::once(None).chain(gpu.map(Some)) {
        let is_there = |path: &&AllreducePath| {
            place.is_none() || matches!(path, AllreducePath::Group | AllreducePath::Scope)
        };
        for &path in args.path.iter().filter(is_there) {
            for &size in &args.sizes {
                rows.push(measure(world, path, place, (size / 4).max(1), effort)?);
            }
        }
    }
    Ok(rows)
}

/// Times the all-reduce of `size_bytes` a few times, on the host or between GPUs. Collective.
pub(in crate::commands) fn time_briefly(
    world: &World,
    gpu: Option<&'static Gpu>,
    size_bytes: usize,
) -> Result<Measured> {
    let effort = Effort { repeats: 3, repeat_ms: 5.0 };
    measure(world, AllreducePath::Group, gpu, size_bytes / 4, effort)
}

/// Times the all-reduce of `n` f32.
fn measure(
    world: &World,
    path: AllreducePath,
    gpu: Option<&'static Gpu>,
    n: usize,
    effort: Effort,
) -> Result<Measured> {
    let group = if gpu.is_some() { world.tensor_group() } else { world.group() };
    let device = gpu.map_or(Device::Cpu, Gpu::device);
    let source = random(world.rank().0, n, device)?;
    let mut buf = source.zeros_like()?;
    ops::copy(source.view(), buf.view_mut())?;
    path.reduce(group, &source, &mut buf)?;
    let wrong_elements = n_wrong(world, &buf)?;

    let mut time = |n_calls: usize| -> Result<f64> {
        // Repeated in-place sums grow by a factor of the number of ranks each time.
        ops::copy(source.view(), buf.view_mut())?;
        gpu.map_or(Ok(()), Gpu::synchronize)?;
        world.group().barrier()?;
        let ms = timed(group, gpu, || (0..n_calls).try_for_each(|_| path.reduce(group, &source, &mut buf)))?;
        slowest(world, ms)
    };
    time(1)?;
    let n_calls = effort.n_calls(time(1)?).min(max_calls(world.world_size()));
    let times = effort.times(n_calls, || time(n_calls))?;

    let (size_bytes, n_ranks) = (4 * n, world.world_size() as f64);
    let algbw_gb_per_s = times.giga_per_s(size_bytes as f64);
    Ok(Measured {
        path: path.name(),
        transport: path.transport(group),
        memory: if gpu.is_some() { "gpu" } else { "host" },
        size_bytes,
        times,
        algbw_gb_per_s,
        busbw_gb_per_s: algbw_gb_per_s * 2.0 * (n_ranks - 1.0) / n_ranks,
        wrong_elements,
    })
}

impl AllreducePath {
    fn transport(self, group: &Group) -> &'static str {
        match self {
            AllreducePath::Group | AllreducePath::Scope => group.transport(),
            AllreducePath::Messages | AllreducePath::Mpi => "mpi",
        }
    }

    /// Sums `buf` over all ranks, in place; `MPI_Allreduce` sums `source` into it.
    fn reduce(self, group: &Group, source: &Tensor, buf: &mut Tensor) -> ddp_comm::Result<()> {
        let sum = ReduceOp::Sum;
        match self {
            AllreducePath::Group => group.all_reduce(sum, buf.view_mut()),
            AllreducePath::Messages => group.all_reduce_by_messages(sum, buf.view_mut()),
            AllreducePath::Mpi => group.mpi_all_reduce(sum, source.view(), buf.view_mut()),
            AllreducePath::Scope => {
                let bucket_len = buf.numel().div_ceil(N_BUCKETS);
                let view = buf.view_mut();
                group.scope(|scope| {
                    let mut rest = view;
                    while rest.numel() > bucket_len {
                        let (bucket, others) = rest.split_at(bucket_len)?;
                        scope.all_reduce(sum, bucket)?;
                        rest = others;
                    }
                    scope.all_reduce(sum, rest)?;
                    Ok::<_, CommError>(())
                })
            }
        }
    }
}

/// Random numbers in `-1..1` that depend only on rank and index.
fn random(rank: usize, n: usize, device: Device) -> Result<Tensor, KernelError> {
    let mut tensor = Tensor::zeros(&[n], DType::F32, device)?;
    uniform(tensor.view_mut(), -1.0, 1.0, UniformStream { seed: 11, stream: [rank as u32, 0] })?;
    Ok(tensor)
}

/// Counts the wrong elements at the start of the first result.
fn n_wrong(world: &World, sum: &Tensor) -> Result<usize> {
    let n = sum.numel().min(N_CHECKED);
    let got = sum.view().range(0, n)?.to_vec::<f32>()?;
    let mut want = vec![0f64; n];
    for rank in 0..world.world_size() {
        let brought = random(rank, n, Device::Cpu)?.to_vec::<f32>()?;
        want.iter_mut().zip(brought).for_each(|(sum, v)| *sum += f64::from(v));
    }
    // Each addition rounds by at most 2^-24 of a partial sum, which is at most the number of ranks.
    let bound = (world.world_size() as f64).powi(2) * 2f64.powi(-24);
    // NaN counts as wrong.
    let is_right = |(got, want): &(&f32, &f64)| (f64::from(**got) - **want).abs() <= bound;
    Ok(n - got.iter().zip(&want).filter(is_right).count())
}

/// Maximum number of consecutive in-place sums without f32 overflow.
fn max_calls(world_size: usize) -> usize {
    match world_size {
        1 => usize::MAX,
        // f32 holds values up to 2^127, and each sum adds this many bits.
        n => 120 / n.next_power_of_two().trailing_zeros() as usize,
    }
}

/// Times `work` in ms: by the host clock, or by events in the GPU's compute stream, which waits for each all-reduce.
fn timed(
    group: &Group,
    gpu: Option<&'static Gpu>,
    work: impl FnOnce() -> ddp_comm::Result<()>,
) -> Result<f64> {
    let Some(gpu) = gpu else {
        let started = Instant::now();
        work()?;
        return Ok(started.elapsed().as_secs_f64() * 1e3);
    };
    let (timer, done) = (Timer::new(gpu)?, Event::untimed(gpu)?);
    timer.start(gpu.compute())?;
    work()?;
    timer.stop(gpu.compute())?;
    done.record(gpu.compute())?;
    // Unlike the timer, this detects ranks that are gone.
    group.wait_until(|| done.is_done())?;
    Ok(timer.elapsed_ms()?)
}

/// Maximum time over all ranks.
fn slowest(world: &World, ms: f64) -> Result<f64> {
    let mut ms = [ms];
    world.group().all_reduce(ReduceOp::Max, TensorMut::from_slice(&mut ms, &[1])?)?;
    Ok(ms[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_and_bandwidths_those_of_nccl_tests() {
        let effort = Effort { repeats: 2, repeat_ms: 0.0 };
        for path in [AllreducePath::Group, AllreducePath::Scope] {
            // One length that is not a multiple of the number of buckets, and one with fewer elements than buckets.
            for n in [257, 2] {
                for row in threads::run(4, |world| measure(&world, path, None, n, effort).unwrap()) {
                    assert_eq!((row.size_bytes, row.memory, row.wrong_elements), (4 * n, "host", 0));
                    assert!((row.busbw_gb_per_s / row.algbw_gb_per_s - 1.5).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn wrong_elements_are_counted() {
        threads::run(2, |world| {
            let mut sum = random(0, 8, Device::Cpu).unwrap();
            let other = random(1, 8, Device::Cpu).unwrap();
            ops::add_assign(sum.view_mut(), other.view()).unwrap();
            assert_eq!(n_wrong(&world, &sum).unwrap(), 0);
            let elements = sum.view_mut().into_slice::<f32>("test", "sum").unwrap();
            (elements[5], elements[7]) = (elements[5] + 1e-5, f32::NAN);
            assert_eq!(n_wrong(&world, &sum).unwrap(), 2);
        });
    }

    #[test]
    fn sums_in_a_row_stay_finite() {
        assert_eq!([2, 4, 5, 8].map(max_calls), [120, 60, 40, 40]);
    }
}
