//! `ddp-train bench copy`: copies on every path that training uses.

use ddp_comm::World;
use ddp_kernels::cuda::peer::{self, PeerPath};
use ddp_kernels::cuda::{Gpu, StreamKind, Timer};
use ddp_kernels::{DType, Device, Download, KernelError, Upload, ops};

use super::buffers::{Rotating, n_sets};
use super::place::{Place, Work};
use super::report::{self, Row};
use super::timing::{Clock, Effort, Times};
use crate::cli::BenchCopyArgs;
use crate::error::Error;
use crate::exit::Stop;

type Result<T> = std::result::Result<T, KernelError>;

/// The result of the path `way`, such as `host to gpu, pinned`, at one size.
///
/// Bytes count once per pass over them: read plus written within one memory; transferred between two.
fn measured(way: &str, size_bytes: usize, passes: usize, times: Times) -> Row {
    let counted_bytes = passes * size_bytes;
    Row::default()
        .plain("<copy", "way", way)
        .bytes("size", "size_bytes", size_bytes)
        .bytes("counted", "counted_bytes", counted_bytes)
        .times(times)
        .number("GB/s", "gb_per_s", times.giga_per_s(counted_bytes as f64))
}

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn copy(world: &World, args: &BenchCopyArgs) -> std::result::Result<(), Stop> {
    let place = Place::pin(world, &args.place, Work::Operations, &[])?;
    let effort = Effort::new(args.timing);
    let mut rows = Vec::new();
    let gpu = place.gpu().map_err(Error::from)?;
    for &size in &args.sizes {
        // At least one f32.
        let n = (size / 4).max(1);
        let measured = match gpu {
            None => within(&place, "host to host", n, effort).map(|row| vec![row]),
            Some(gpu) => on_gpu(&place, gpu, n, effort),
        };
        rows.extend(measured.map_err(Error::from)?);
    }
    rows.sort_by(Row::by_name);
    report::print(world, "copy", &place, args.place.json, &rows)?;
    Ok(())
}

fn on_gpu(place: &Place, gpu: &'static Gpu, n: usize, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = vec![
        pageable(place, n, effort, true)?,
        pageable(place, n, effort, false)?,
        pinned_up(gpu, n, effort)?,
        pinned_down(place, gpu, n, effort)?,
        within(place, "gpu to itself", n, effort)?,
    ];
    // With several ranks the other GPUs are used by other ranks.
    let others = if place.world_size == 1 { Gpu::count() as u32 } else { 0 };
    for other in (0..others).filter(|&index| index != gpu.index()) {
        rows.push(to_peer(place, gpu, Gpu::get(other)?, n, effort)?);
    }
    Ok(rows)
}

/// Times a copy within the memory of the device.
fn within(place: &Place, way: &str, n: usize, effort: Effort) -> Result<Row> {
    let sets = n_sets(place, 2 * 4 * n);
    let from = Rotating::random(place, &[n], DType::F32, sets, 1)?;
    let mut to = Rotating::random(place, &[n], DType::F32, sets, 2)?;
    let times = Clock::of(place)?.time(effort, |call| ops::copy(from.get(call)?, to.get_mut(call)?))?;
    Ok(measured(way, 4 * n, 2, times))
}

/// Times a synchronous copy between pageable host memory and the GPU.
fn pageable(place: &Place, n: usize, effort: Effort, up: bool) -> Result<Row> {
    let host = Place { device: Device::Cpu, ..place.clone() };
    let (source, target) = if up { (&host, place) } else { (place, &host) };
    let from = Rotating::random(source, &[n], DType::F32, 1, 1)?;
    let mut to = Rotating::random(target, &[n], DType::F32, 1, 2)?;
    let times = Clock::Host.time_eagerly(effort, |call| ops::copy(from.get(call)?, to.get_mut(call)?))?;
    let way = if up { "host to gpu, pageable" } else { "gpu to host, pageable" };
    Ok(measured(way, 4 * n, 1, times))
}

/// Times a copy from pinned host memory in the copy stream, as for batches.
fn pinned_up(gpu: &'static Gpu, n: usize, effort: Effort) -> Result<Row> {
    let mut upload = Upload::new(gpu, &[n], DType::F32)?;
    let host = upload.host()?.into_slice::<f32>("bench", "host")?;
    host.iter_mut().enumerate().for_each(|(i, v)| *v = (i as f32 * 0.37).sin());
    let (timer, stream) = (Timer::new(gpu)?, gpu.stream(StreamKind::Copy));
    let time = |n_calls: usize| {
        timer.start(stream)?;
        (0..n_calls).try_for_each(|_| upload.send(n))?;
        timer.stop(stream)?;
        timer.elapsed_ms()
    };
    Ok(measured("host to gpu, pinned", 4 * n, 1, repeat(effort, time)?))
}

/// Times a copy to pinned host memory in the compute stream, as for results.
fn pinned_down(place: &Place, gpu: &'static Gpu, n: usize, effort: Effort) -> Result<Row> {
    let from = Rotating::random(place, &[n], DType::F32, 1, 1)?;
    let mut download = Download::new(gpu, 4 * n)?;
    let (timer, stream) = (Timer::new(gpu)?, gpu.compute());
    let time = |n_calls: usize| {
        timer.start(stream)?;
        (0..n_calls).try_for_each(|_| download.start(from.get(0)?))?;
        timer.stop(stream)?;
        timer.elapsed_ms()
    };
    Ok(measured("gpu to host, pinned", 4 * n, 1, repeat(effort, time)?))
}

/// Returns the time of one call; `time` measures the ms of several calls.
fn repeat(effort: Effort, mut time: impl FnMut(usize) -> Result<f64>) -> Result<Times> {
    time(1)?;
    let n_calls = effort.n_calls(time(1)?);
    effort.times(n_calls, || time(n_calls))
}

/// Times a copy to another GPU of this process.
fn to_peer(place: &Place, gpu: &'static Gpu, other: &'static Gpu, n: usize, effort: Effort) -> Result<Row> {
    let there = Place { device: other.device(), ..place.clone() };
    let sets = n_sets(place, 2 * 4 * n);
    let from = Rotating::random(place, &[n], DType::F32, sets, 1)?;
    let mut to = Rotating::random(&there, &[n], DType::F32, sets, 2)?;
    let path = peer::path(gpu, other)?;
    let clock = match path {
        PeerPath::Staged => Clock::Host,
        // The copy runs in a stream of its target.
        PeerPath::Direct | PeerPath::SameDevice => Clock::of(&there)?,
    };
    let times = clock.time_eagerly(effort, |call| ops::copy(from.get(call)?, to.get_mut(call)?))?;
    Ok(measured(&format!("{} to {}, {path}", gpu.device(), other.device()), 4 * n, 1, times))
}
