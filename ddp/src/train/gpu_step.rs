//! Steps on a GPU around `Replica::step`: inputs that are copied while the previous step computes, graphs that are captured once and
//! replayed, and outcomes that are read one step late.
//!
//! The host blocks only on work that is one step old: pinned memory that is reused, and the outcome of the previous step, which the
//! update writes to mapped host memory.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ddp_comm::{Reporter, Slice, Track, World};
use ddp_kernels::cuda::{
    DeterministicMode, Event, GateState, Gpu, GpuFeature, Graph, Labels, Mapped, Marks, Origin,
};
use ddp_kernels::ops::{STEP_SUMS_LEN, StepReport, StepScalars};
use tracing::warn;

use crate::data::batch::Batch;
use crate::data::device_rows::{DeviceRows, DeviceShape};
use crate::data::step_rows::StepRows;
use crate::exchange::trial::TrialFailure;
use crate::train::error::{Result, TrainError};
use crate::train::options::{GraphMode, NonFinite, TrainerOptions};
use crate::train::step::{Replica, StepPurpose};
use crate::train::step_info::{PlannedStep, StepInfo, StepOutcome, StepShape};
use crate::train::step_inputs::{Rows, ScalarsMemory, StepInputs};
use crate::train::step_times::{StepPart, StepTimes, name_of_mark};
use crate::train::{matmul_choices, update_place};

/// Input slots: one is copied while the other computes.
pub const N_SLOTS: usize = 2;
/// Time between two looks at a device that ends its work.
const DRAIN_PAUSE: Duration = Duration::from_micros(200);
/// Bytes of a step's sums.
const SUMS_BYTES: usize = STEP_SUMS_LEN * size_of::<f32>();

/// Inputs, graphs and outcomes of steps on one GPU.
#[derive(Debug)]
pub(crate) struct GpuStep {
    gpu: &'static Gpu,
    slots: Vec<InputSlot>,
    /// Host memory for the sums of the step in each slot and, where it has a norm, the sum of squares: its update writes them
    /// ([`StepReport`]).
    outcomes: Vec<Mapped>,
    graphs: Graphs,
    /// Shapes whose matmuls were chosen by time.
    chosen: HashSet<StepShape>,
    /// Enqueued steps with unread outcomes, and their slots.
    pending: VecDeque<(PlannedStep, usize)>,
    /// Marks of the timed step in each slot; None where steps are not timed.
    marks: Vec<Option<Marks>>,
    times: StepTimes,
    /// Where the clocks of host and device meet, in a trace.
    origin: Option<Origin>,
    /// Whether matmuls are chosen by time, which ranks do together; as all have agreed before the first step.
    chooses_matmuls: bool,
    /// Of steps in micro-shards.
    _deterministic_mode: Option<DeterministicMode>,
}

/// Rows and scalars of a step on the device.
#[derive(Debug)]
struct InputSlot {
    rows: DeviceRows,
    scalars: ScalarsMemory,
}

/// Captured steps.
#[derive(Debug)]
struct Graphs {
    mode: GraphMode,
    /// Runs of each shape, timed or not; the first one compiles, plans and allocates, which a capture must not do.
    n_runs: HashMap<StepShape, usize>,
    captured: HashMap<(StepShape, usize), Captured>,
    /// Rows of the largest global batch so far: only full steps are captured.
    full_rows: usize,
}

/// A captured step, and the labels of its marks.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    labels: Labels,
}

impl Graphs {
    /// Runs all further steps kernel by kernel, and reports the reason on rank 0.
    ///
    /// # Errors
    /// [`TrainError::NoGraph`] in the mode [`GraphMode::On`].
    fn give_up(&mut self, world: &World, reason: String) -> Result<()> {
        if self.mode == GraphMode::On {
            return Err(TrainError::NoGraph { reason });
        }
        self.mode = GraphMode::Off;
        self.captured.clear();
        if world.rank().0 == 0 {
            warn!("no CUDA graph could be captured, so steps run kernel by kernel: {reason}");
        }
        Ok(())
    }
}

impl GpuStep {
    pub(crate) fn new(gpu: &'static Gpu, options: &TrainerOptions) -> Result<Self> {
        let mode = options.graph;
        let deterministic_mode = options.micro_shards.map(|_| gpu.deterministic_mode());
        let outcome = || Mapped::new(gpu, StepReport::LEN_BYTES);
        Ok(GpuStep {
            gpu,
            slots: Vec::new(),
            outcomes: vec![outcome()?, outcome()?],
            graphs: Graphs { mode, n_runs: HashMap::new(), captured: HashMap::new(), full_rows: 0 },
            chosen: HashSet::new(),
            pending: VecDeque::with_capacity(N_SLOTS + 1),
            marks: vec![None, None],
            times: StepTimes::default(),
            origin: None,
            chooses_matmuls: !gpu.is_deterministic() && gpu.uses(GpuFeature::TimedMatmuls),
            _deterministic_mode: deterministic_mode,
        })
    }

    /// Settings that all ranks must have alike, by name.
    pub(crate) fn held_alike(&self) -> [(&'static str, String); 3] {
        [
            ("Gpu::is_deterministic", self.gpu.is_deterministic().to_string()),
            ("choices of matmuls by time", self.chooses_matmuls.to_string()),
            ("graph", format!("{:?}", self.graphs.mode)),
        ]
    }

    /// Enqueues a step on the GPU's streams; asynchronous.
    ///
    /// The first step of a shape chooses its matmuls; later ones are captured and replayed, where steps are graphs.
    pub(crate) fn enqueue(
        &mut self,
        replica: &mut Replica<'_>,
        rows: &mut dyn StepRows,
        step: PlannedStep,
    ) -> Result<()> {
        let slot = ((step.info.step - 1) % N_SLOTS as u64) as usize;
        let mut step = step;
        step.shape.is_timed &= self.marks[slot].is_some();
        step.shape.is_traced =
            step.shape.is_timed && self.origin.is_some() && replica.world.recorder().is_on();
        let PlannedStep { shape, scalars, .. } = step;
        let mut marks = if shape.is_timed { self.marks[slot].take() } else { None };
        let enqueued = self.enqueue_in(slot, replica, rows, (shape, scalars), &mut marks);
        if shape.is_timed {
            self.marks[slot] = marks;
        }
        enqueued?;
        // The outcome is there after the step, and its inputs may be overwritten after it.
        self.outcomes[slot].record()?;
        self.slots[slot].rows.consumed()?;
        self.pending.push_back((step, slot));
        Ok(())
    }

    fn enqueue_in(
        &mut self,
        slot: usize,
        replica: &mut Replica<'_>,
        rows: &mut dyn StepRows,
        (shape, scalars): (StepShape, StepScalars),
        marks: &mut Option<Marks>,
    ) -> Result<()> {
        let gpu = self.gpu;
        if let Some(marks) = marks {
            marks.clear();
            marks.mark_collectives(shape.is_traced);
        }
        gpu.marking(marks, || -> Result<()> {
            gpu.mark(StepPart::CopyToGpu as u8)?;
            self.send(slot, rows, scalars, replica)
        })?;
        // Scales are not part of the matmuls.
        let unscaled = StepShape { loss_scale: None, has_norm: false, ..shape.untimed() };
        let is_first = self.chosen.is_empty();
        if self.chosen.insert(unscaled) {
            if self.chooses_matmuls {
                matmul_choices::choose(replica, self.gpu, self.inputs(slot), shape)?;
            }
            if is_first {
                let (inputs, shape) = (|| self.inputs(slot), shape.untimed());
                update_place::choose(replica, self.gpu, inputs, shape, self.uses_graphs())?;
            }
        }
        let step = |this: &GpuStep, replica: &mut Replica<'_>, marks: &mut Option<Marks>| {
            gpu.marking(marks, || replica.step(this.inputs(slot), shape, StepPurpose::Update))
        };
        match self.graph_plan(shape, slot) {
            GraphPlan::Eager => step(self, replica, marks),
            GraphPlan::Replay => self.replay(shape, slot, marks),
            GraphPlan::Capture => {
                let labels_of =
                    |marks: &Option<Marks>| marks.as_ref().map_or_else(Labels::default, Marks::labels);
                let before = labels_of(marks);
                let captured = Graph::capture(gpu, || step(self, replica, marks));
                let labels = labels_of(marks);
                let captured = captured.map(|graph| Captured { graph, labels });
                if self.keep(replica.world, shape, slot, captured)? {
                    self.replay(shape, slot, marks)
                } else {
                    if let Some(marks) = marks {
                        marks.replayed(&before);
                    }
                    step(self, replica, marks)
                }
            }
        }
    }

    /// Starts the copy of a step's rows to slot `slot` on the device, and writes its scalars there.
    fn send(
        &mut self,
        slot: usize,
        rows: &mut dyn StepRows,
        scalars: StepScalars,
        replica: &Replica<'_>,
    ) -> Result<()> {
        let n_own = rows.n_own_rows();
        let shape = rows.device_shape().gathered_in(replica.model.input_format());
        let group_lrs = replica.optimizer.group_lrs();
        if self.slots.first().is_none_or(|slot| !slot.rows.holds(n_own, shape)) {
            self.make_slots(n_own, shape, group_lrs.len())?;
        }
        let InputSlot { rows: to, scalars: memory } = &mut self.slots[slot];
        let scalars = memory.begin(scalars, group_lrs)?;
        Ok(rows.send(to, Some(scalars))?)
    }

    fn make_slots(&mut self, n_own: usize, shape: DeviceShape, n_schedules: usize) -> Result<()> {
        // Graphs hold the old slots' addresses.
        self.graphs.captured.clear();
        self.slots.clear();
        for _ in 0..N_SLOTS {
            self.slots.push(InputSlot {
                rows: DeviceRows::new(self.gpu, n_own, shape)?,
                scalars: ScalarsMemory::new(n_schedules, self.gpu.device())?,
            });
        }
        Ok(())
    }

    /// The inputs in slot `slot`, and the memory for the outcome of their step.
    fn inputs(&self, slot: usize) -> StepInputs<'_> {
        let InputSlot { rows, scalars } = &self.slots[slot];
        StepInputs { rows: Rows::Device(rows), scalars, outcome: Some(&self.outcomes[slot]) }
    }

    /// The device.
    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Decides whether a step of this shape runs eagerly, captures a graph or replays one.
    fn graph_plan(&mut self, shape: StepShape, slot: usize) -> GraphPlan {
        let graphs = &mut self.graphs;
        // The loss scale is a kernel argument, and an old scale rarely returns.
        graphs.captured.retain(|(captured, _), _| captured.loss_scale == shape.loss_scale);
        graphs.full_rows = graphs.full_rows.max(shape.global_rows);
        let n_runs = graphs.n_runs.entry(shape.untimed()).or_default();
        *n_runs += 1;
        match graphs.mode {
            GraphMode::Off => GraphPlan::Eager,
            _ if *n_runs == 1 || shape.global_rows < graphs.full_rows => GraphPlan::Eager,
            _ if graphs.captured.contains_key(&(shape, slot)) => GraphPlan::Replay,
            _ => GraphPlan::Capture,
        }
    }

    /// Tries the collectives of a step before the first one, in registered buffers and as graphs, where steps use these; what fails is
    /// not used, and the ranks join anew. Without graphs where a layer of the model cannot be part of one. Collective.
    ///
    /// # Errors
    /// [`TrainError::NoGraph`] in the mode [`GraphMode::On`]; `TrainError::Comm` if the ranks cannot join anew, or buffers must be
    /// registered.
    pub(crate) fn try_exchange(&mut self, replica: &mut Replica<'_>) -> Result<()> {
        let world = replica.world;
        self.try_marks(world)?;
        if self.graphs.mode != GraphMode::Off
            && let Some(layer) = replica.model.layers().find(|layer| !layer.is_capturable())
        {
            let reason = format!("layer \"{}\" does not say that it can be captured", layer.describe());
            self.graphs.give_up(world, reason)?;
        }
        loop {
            let (graphs, is_registered) = (self.graphs.mode != GraphMode::Off, world.registers_buffers());
            if world.world_size() == 1 || !(graphs || is_registered) {
                return Ok(());
            }
            let Some(failure) = replica.try_exchange(self.gpu, graphs)? else { return Ok(()) };
            let unregistered = match failure {
                TrialFailure::Eager(reason) | TrialFailure::Replay(reason) if is_registered => Some(reason),
                TrialFailure::Eager(reason)
                | TrialFailure::Capture(reason)
                | TrialFailure::Replay(reason) => {
                    self.graphs.give_up(world, reason)?;
                    None
                }
            };
            world.rejoin_devices(unregistered)?;
            replica.renew_exchange()?;
        }
    }

    /// Allocates the marks of timed steps, unless the driver refuses them in graphs to a rank. Collective.
    fn try_marks(&mut self, world: &World) -> Result<()> {
        let gpu = self.gpu;
        // An earlier trainer may have turned them off on some of the GPUs.
        let is_off = (!gpu.uses(GpuFeature::StepTimes)).then(|| ("off".to_owned(), Reporter::ThisRank));
        if world.first_cause(is_off)?.is_some() {
            return Ok(());
        }
        if self.graphs.mode != GraphMode::Off {
            let tried = Marks::try_in_graph(gpu);
            if let Some(reason) = world.first_failure(tried.as_ref().err())? {
                gpu.turn_off(GpuFeature::StepTimes);
                if world.rank().0 == 0 {
                    let name = GpuFeature::StepTimes.name();
                    warn!("the driver refuses {name} (docs/gpus.md), which this run does without: {reason}");
                }
                return Ok(());
            }
        }
        for marks in &mut self.marks {
            *marks = Some(Marks::new(gpu)?);
        }
        Ok(())
    }

    /// Keeps a captured step if all ranks have captured theirs; else as [`Graphs::give_up`]. Returns whether it was kept. Collective.
    ///
    /// # Errors
    /// The error of the capture, if it has ended the communicator.
    fn keep(
        &mut self,
        world: &World,
        shape: StepShape,
        slot: usize,
        captured: Result<Captured>,
    ) -> Result<bool> {
        if captured.is_err() && world.tensor_group().is_broken() {
            return captured.map(|_| false);
        }
        match (world.first_failure(captured.as_ref().err())?, captured) {
            (None, Ok(graph)) => {
                self.graphs.captured.insert((shape, slot), graph);
                Ok(true)
            }
            (None, Err(error)) => Err(error),
            (Some(reason), captured) => {
                drop(captured);
                self.graphs.give_up(world, reason).map(|()| false)
            }
        }
    }

    fn replay(&mut self, shape: StepShape, slot: usize, marks: &mut Option<Marks>) -> Result<()> {
        let captured = self.graphs.captured.get_mut(&(shape, slot));
        let Captured { graph, labels } = captured.expect("`graph_plan` replays only captured graphs");
        if let Some(marks) = marks {
            marks.replayed(labels);
        }
        Ok(graph.launch()?)
    }

    /// Times of the timed steps whose outcomes were read.
    pub(crate) fn times(&self) -> StepTimes {
        self.times
    }

    /// Times steps by the host's clock from now on, for a trace; waits for the device. Returns the largest error in s, if steps can be timed.
    pub(crate) fn begin_trace(&mut self) -> Result<Option<f64>> {
        self.origin = match self.marks[0] {
            Some(_) => Some(Origin::record(self.gpu)?),
            None => None,
        };
        Ok(self.origin.as_ref().map(|origin| origin.error.as_secs_f64()))
    }

    /// Whether steps are captured.
    pub(crate) fn uses_graphs(&self) -> bool {
        self.graphs.mode != GraphMode::Off
    }

    /// The rows of the newest step, of which there were `n_own`.
    pub(crate) fn rows(&self, step: u64, n_own: usize) -> Result<Batch<'_>> {
        let slot = ((step - 1) % N_SLOTS as u64) as usize;
        Ok(self.slots[slot].rows.batch(0..n_own)?)
    }

    /// Captured graphs.
    pub(crate) fn n_graphs(&self) -> usize {
        self.graphs.captured.len()
    }

    /// Waits for and returns the oldest outcome, if more than `in_flight` are unread.
    pub(crate) fn outcome(
        &mut self,
        world: &World,
        nonfinite: NonFinite,
        in_flight: usize,
    ) -> Result<Option<(StepInfo, StepOutcome)>> {
        if self.pending.len() <= in_flight {
            return Ok(None);
        }
        let Some((_, slot)) = self.pending.front() else { return Ok(None) };
        let outcome = &self.outcomes[*slot];
        // Until then the step is under way.
        world.tensor_group().wait_until(|| outcome.is_there())?;
        self.take_outcome(world, nonfinite)
    }

    /// Takes the outcome of the oldest step, which is there.
    fn take_outcome(
        &mut self,
        world: &World,
        nonfinite: NonFinite,
    ) -> Result<Option<(StepInfo, StepOutcome)>> {
        let Some((step, slot)) = self.pending.pop_front() else { return Ok(None) };
        let outcome = &mut self.outcomes[slot];
        outcome.wait()?;
        let tail: [f32; STEP_SUMS_LEN] = outcome.read(0);
        if let Some(marks) = self.marks[slot].as_ref().filter(|_| step.shape.is_timed)
            && let Some(times) = marks.times_ms()?
        {
            self.times.add_marks(&times);
            if let Some(origin) = self.origin.as_ref().filter(|_| world.recorder().is_on()) {
                record(world, step.info.step, marks, origin)?;
            }
        }
        let squares = step.shape.has_norm.then(|| outcome.read::<f64, 1>(SUMS_BYTES)[0]);
        Ok(Some((step.info, step.outcome(&tail, squares, nonfinite)?)))
    }
}

/// Steps that were enqueued when another rank was lost.
pub(crate) struct Settled {
    /// Complete steps, oldest first.
    pub(crate) complete: Vec<(StepInfo, StepOutcome)>,
    /// The number of the oldest one whose update was not applied.
    pub(crate) undone: Option<u64>,
}

impl GpuStep {
    /// Ends what waits for a lost rank, and waits for the device. None if it holds no step in whole: an update was applied in part, or
    /// the device is still busy after `limit`.
    ///
    /// - `n_steps`: steps that were enqueued in whole
    ///
    /// # Errors
    /// `TrainError::Kernel` for failed work of the device; errors of an outcome.
    pub(crate) fn settle(
        &mut self,
        world: &World,
        n_steps: u64,
        nonfinite: NonFinite,
        limit: Duration,
    ) -> Result<Option<Settled>> {
        if let Some((_, newest)) = self.pending.back() {
            let outcome = &self.outcomes[*newest];
            let _ = world.tensor_group().wait_until(|| outcome.is_there());
        }
        world.tensor_group().leave_after_loss();
        let (idle, since) = (Event::untimed(self.gpu)?, Instant::now());
        idle.record(self.gpu.compute())?;
        while !idle.is_done()? {
            if since.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
        let Some(GateState { last_applied, first_stopped }) = self.gpu.gate_state()? else { return Ok(None) };
        let is_stopped = |step: u64| first_stopped.is_some_and(|first| step >= first);
        if is_stopped(last_applied) || last_applied > n_steps {
            return Ok(None);
        }
        let mut settled = Settled { complete: Vec::new(), undone: None };
        while let Some((step, _)) = self.pending.front() {
            if is_stopped(step.info.step) {
                settled.undone = Some(step.info.step);
                self.pending.clear();
                break;
            }
            settled.complete.extend(self.take_outcome(world, nonfinite)?);
        }
        Ok(Some(settled))
    }
}

/// Adds a step on the device to the trace.
fn record(world: &World, step: u64, marks: &Marks, origin: &Origin) -> Result<()> {
    let (recorder, moments) = (world.recorder(), marks.moments(origin)?);
    let start_ns = recorder.ns(origin.at);
    let add = |track, name: Cow<'static, str>, (begin, end): (f64, f64), n_bytes| {
        let [begin_ns, end_ns] = [begin, end].map(|ms| start_ns.saturating_add_signed((ms * 1e6) as i64));
        recorder.push(Slice { track, name, step, begin_ns, end_ns, n_bytes });
    };
    if let (Some((_, begin, _)), Some((_, _, end))) = (moments.work.first(), moments.work.last()) {
        add(Track::Compute, format!("step {step}").into(), (*begin, *end), None);
    }
    moments.work.iter().for_each(|&(label, begin, end)| {
        add(Track::Compute, name_of_mark(label).into(), (begin, end), None);
    });
    // A group of calls may be empty.
    moments.collectives.iter().filter(|(n_bytes, ..)| *n_bytes > 0).for_each(|&(n_bytes, begin, end)| {
        add(Track::Communication, "bucket".into(), (begin, end), Some(n_bytes));
    });
    Ok(())
}

/// Execution mode of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GraphPlan {
    Eager,
    Capture,
    Replay,
}
