//! Where one GPU updates the weights: after backward, or bucket by bucket on a second stream while backward computes the
//! gradients of others; and where it computes the gradients of weights: between those of inputs, or beside them on a third stream. An update
//! moves bytes and backward multiplies, so that both can be done in less than the sum of their times; how much less, and how many
//! multiprocessors matmuls should leave free for it, differs by model and GPU, and so does what two small products gain beside each
//! other. So whole steps are timed, once, before the first one, on the state of the run, which is then put back.

use ddp_kernels::cuda::{BesideMatmuls, Gpu, GpuFeature, Graph, Timer};
use ddp_kernels::{KernelError, MemoryUse, Tensor, memory, ops};
use tracing::debug;

use crate::model::has_small_products;
use crate::train::error::{Result, TrainError};
use crate::train::step::{Replica, StepPurpose, UpdatePlace};
use crate::train::step_info::StepShape;
use crate::train::step_inputs::StepInputs;

/// The place of the update, and whether gradients of weights are computed beside those of inputs.
type Place = (UpdatePlace, bool);

/// The places, the first of which is taken where nothing can be timed.
const PLACES: [Place; 6] = [
    (UpdatePlace::AfterBackward, false),
    (UpdatePlace::BesideBackward { n_free: 0 }, false),
    (UpdatePlace::BesideBackward { n_free: 8 }, false),
    (UpdatePlace::BesideBackward { n_free: 16 }, false),
    (UpdatePlace::AfterBackward, true),
    (UpdatePlace::BesideBackward { n_free: 0 }, true),
];
/// Gradients are computed beside others only where as many times their scratch memory is free: what is allocated after the first step, such
/// as the rows of an evaluation, has room then.
const FREE_PER_SCRATCH: usize = 8;
/// Measurements of each place, of which the shortest counts; of steps that take [`LONG_US`] one.
const N_REPEATS: usize = 5;
const LONG_US: f64 = 50e3;
/// Steps of this time are not measured in other places: the start would be long, and the update is a small part of them.
const TOO_LONG_US: f64 = 500e3;
/// A measurement takes as many steps as fill this time, µs.
const REPEAT_US: f64 = 1000.0;
const MAX_STEPS: f64 = 10.0;

/// Chooses the place for a world of one rank that may overlap work, by the time of a whole step, or as an earlier process has
/// chosen. The matmuls of the step were chosen; those for fewer multiprocessors are, here.
///
/// - `inputs`: rows and scalars of the first step
/// - `shape`: its shape, without times
/// - `in_graph`: whether steps are graphs
pub(crate) fn choose<'a>(
    replica: &mut Replica<'_>,
    gpu: &'static Gpu,
    inputs: impl Fn() -> StepInputs<'a>,
    shape: StepShape,
    in_graph: bool,
) -> Result<()> {
    // Sums along a tree must not depend on times.
    let options = replica.options;
    let is_chosen = replica.world.world_size() == 1 && options.overlap && options.micro_shards.is_none();
    if !is_chosen || gpu.is_deterministic() || !gpu.uses(GpuFeature::TimedMatmuls) {
        return Ok(());
    }
    let unscaled = StepShape { loss_scale: None, has_norm: false, ..shape };
    let updates_buckets = replica.updates_buckets(unscaled, StepPurpose::Update);
    let shape = if updates_buckets { unscaled } else { shape };
    let places = places(replica, gpu, updates_buckets, in_graph)?;
    if places.len() < 2 {
        return Ok(());
    }
    let kept = match Kept::of(replica) {
        // Then the update follows backward.
        Err(TrainError::Kernel(KernelError::OutOfMemory { .. })) => {
            return Ok(memory::empty_cache_of(gpu.device())?);
        }
        kept => kept?,
    };
    let chosen = take_fastest(replica, gpu, &inputs, shape, &places, in_graph);
    // Also a rehearsal changes the statistics of layers.
    kept.put_back(replica)?;
    match chosen {
        Err(TrainError::Kernel(KernelError::OutOfMemory { .. })) => take(replica, PLACES[0])?,
        chosen => chosen?,
    }
    memory::empty_cache_of(gpu.device())?;
    gpu.store_matmul_choices()?;
    let place = (replica.update_place, replica.model.is_beside());
    debug!("update, and gradients of weights beside others: {place:?}");
    Ok(())
}

/// The places that this run can have.
fn places(replica: &Replica<'_>, gpu: &Gpu, updates_buckets: bool, in_graph: bool) -> Result<Vec<Place>> {
    let may_be_beside = in_graph
        && has_small_products(replica.model.layers(), replica.model.max_rows())
        && gpu.memory_in_use()?.free / FREE_PER_SCRATCH >= BesideMatmuls::WORKSPACE_BYTES;
    let is_possible = |(update, is_beside): &Place| {
        (updates_buckets || *update == UpdatePlace::AfterBackward) && (may_be_beside || !is_beside)
    };
    Ok(PLACES.into_iter().filter(is_possible).collect())
}

/// Lets steps have this place.
fn take(replica: &mut Replica<'_>, (update, is_beside): Place) -> Result<()> {
    replica.update_place = update;
    Ok(replica.model.set_beside(is_beside)?)
}

/// Takes the fastest place. Changes the state of the run.
fn take_fastest<'a>(
    replica: &mut Replica<'_>,
    gpu: &'static Gpu,
    inputs: &impl Fn() -> StepInputs<'a>,
    shape: StepShape,
    places: &[Place],
    in_graph: bool,
) -> Result<()> {
    // Of a run and of what resumes it, whatever the rows of their first steps.
    let max_rows = replica.model.max_rows();
    let (config, n_state) = (replica.optimizer.config(), replica.optimizer.state().len());
    let options = format!(
        "{places:?} {} {n_state} {:?} {in_graph} {} {}",
        config.kind,
        replica.model.precision(),
        shape.partition.n_micro_batches(shape.global_rows),
        replica.options.bucket_bytes,
    );
    let mut best = f64::INFINITY;
    let index = gpu.choose_update(max_rows, replica.model.layout().flat_len(), &options, || {
        let mut times = Vec::with_capacity(places.len());
        for &place in places {
            let time = step_us(replica, gpu, inputs, (shape, place), in_graph, best)?;
            times.push(time);
            best = best.min(time.unwrap_or(best));
            if best > TOO_LONG_US {
                break;
            }
        }
        Ok::<_, TrainError>(times)
    })?;
    choose_matmuls(replica, gpu, inputs, shape, *places.get(index).unwrap_or(&PLACES[0]))
}

/// Takes a place, and chooses the matmuls of a step there, where they were not.
fn choose_matmuls<'a>(
    replica: &mut Replica<'_>,
    gpu: &'static Gpu,
    inputs: &impl Fn() -> StepInputs<'a>,
    shape: StepShape,
    place: Place,
) -> Result<()> {
    take(replica, place)?;
    if let UpdatePlace::BesideBackward { n_free: 1.. } = place.0 {
        gpu.choose_matmuls(|| replica.step(inputs(), shape, StepPurpose::Rehearsal))?;
    }
    Ok(())
}

/// Shortest time of a step in µs in this place; None if no graph can be captured of it, or its scratch memory does not fit next to the copies
/// of the state. Of a place that is far from the `best` time, the time of one step.
fn step_us<'a>(
    replica: &mut Replica<'_>,
    gpu: &'static Gpu,
    inputs: &impl Fn() -> StepInputs<'a>,
    (shape, place): (StepShape, Place),
    in_graph: bool,
    best: f64,
) -> Result<Option<f64>> {
    match choose_matmuls(replica, gpu, inputs, shape, place) {
        Err(TrainError::Kernel(KernelError::OutOfMemory { .. })) if place.1 => return Ok(None),
        chosen => chosen?,
    }
    let timer = Timer::new(gpu)?;
    let mut step = || replica.step(inputs(), shape, StepPurpose::Update);
    step()?;
    let mut graph = match in_graph.then(|| Graph::capture(gpu, &mut step)) {
        Some(Ok(graph)) => Some(graph),
        Some(Err(_)) => return Ok(None),
        None => None,
    };
    let mut us_of = |n_steps: usize| -> Result<f64> {
        timer.start(gpu.compute())?;
        for _ in 0..n_steps {
            match &mut graph {
                Some(graph) => graph.launch()?,
                None => step()?,
            }
        }
        timer.stop(gpu.compute())?;
        Ok(timer.elapsed_ms()? * 1e3 / n_steps as f64)
    };
    let once = us_of(1)?;
    if once > LONG_US {
        return Ok(Some(once));
    }
    let once = once.min(us_of(1)?);
    if once > 1.5 * best {
        return Ok(Some(once));
    }
    let n_steps = (REPEAT_US / once).clamp(1.0, MAX_STEPS) as usize;
    let mut shortest = f64::INFINITY;
    for _ in 0..N_REPEATS {
        shortest = shortest.min(us_of(n_steps)?);
    }
    Ok(Some(shortest))
}

/// Copies of what a step changes. No graph of the trainer is alive while they are, so that their memory is free again afterwards.
struct Kept {
    /// Weights, optimizer state and averages.
    tensors: Vec<Tensor>,
    buffers: Vec<Tensor>,
}

impl Kept {
    fn of(replica: &mut Replica<'_>) -> Result<Self> {
        let buffers = replica.model.copy_of_buffers()?;
        let mut tensors = Vec::new();
        each_changed(replica, &mut |tensor| {
            let mut copy =
                Tensor::zeros_for(MemoryUse::Workspace, tensor.dims(), tensor.dtype(), tensor.device())?;
            ops::copy(tensor.view(), copy.view_mut())?;
            tensors.push(copy);
            Ok(())
        })?;
        Ok(Kept { tensors, buffers })
    }

    fn put_back(self, replica: &mut Replica<'_>) -> Result<()> {
        replica.model.restore_buffers(&self.buffers)?;
        let mut copies = self.tensors.iter();
        each_changed(replica, &mut |tensor| {
            let copy = copies.next().expect("a step adds no tensor");
            Ok(ops::copy(copy.view(), tensor.view_mut())?)
        })
    }
}

/// Calls `work` with each tensor that an update changes.
fn each_changed(replica: &mut Replica<'_>, work: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
    replica.model.weight_tensors_mut().try_for_each(&mut *work)?;
    replica.optimizer.state_mut().into_iter().try_for_each(|(_, tensor)| work(tensor))
}
