//! Buffers of steps on a GPU: inputs that are copied while the previous step computes, scalars that a replayed graph reads,
//! captured graphs, and outcomes that are read one step late.
//!
//! The host blocks only on work that is one step old: pinned memory that is reused, and the outcome of the previous step, which the
//! update writes to mapped host memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::cuda::{Event, Gpu, Graph, Mapped};
use ddp_kernels::ops::{
    self, LossSums, STEP_SCALARS_LEN, STEP_SUMS_LEN, ScalarsOutput, StepReport, StepScalars,
};
use ddp_kernels::{DType, MemoryUse, Tensor, TensorRef};
use tracing::warn;

use crate::data::datasets::batch::Batch;
use crate::data::device_rows::{DeviceRows, DeviceShape};
use crate::data::step_rows::StepRows;
use crate::exchange::bucket_plan::STEP_VOTE;
use crate::model::Network;
use crate::train::error::{Result, TrainError};
use crate::train::options::GraphMode;
use crate::train::step_info::{StepInfo, StepOutcome, StepShape};
use crate::train::withheld::{self, NonFinite, Withheld};

/// Input slots: one is copied while the other computes.
pub const N_SLOTS: usize = 2;
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
    pending: VecDeque<Pending>,
}

/// Rows and scalars of a step on the device.
#[derive(Debug)]
pub(crate) struct InputSlot {
    rows: DeviceRows,
    scalars: Tensor,
    /// The scalars with the learning rate of each schedule of a group.
    group_scalars: Option<Tensor>,
}

/// An enqueued step with an unread outcome.
#[derive(Debug, Clone, Copy)]
struct Pending {
    slot: usize,
    shape: StepShape,
    scalars: StepScalars,
    info: StepInfo,
}

/// Captured steps.
#[derive(Debug)]
struct Graphs {
    mode: GraphMode,
    /// Runs of each shape; the first one compiles, plans and allocates, which a capture must not do.
    n_runs: HashMap<StepShape, usize>,
    captured: HashMap<(StepShape, usize), Graph>,
    /// Rows of the largest global batch so far: only full steps are captured.
    full_rows: usize,
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
    pub(crate) fn new(gpu: &'static Gpu, mode: GraphMode) -> Result<Self> {
        let outcome = || Mapped::new(gpu, StepReport::LEN_BYTES);
        Ok(GpuStep {
            gpu,
            slots: Vec::new(),
            outcomes: vec![outcome()?, outcome()?],
            graphs: Graphs { mode, n_runs: HashMap::new(), captured: HashMap::new(), full_rows: 0 },
            chosen: HashSet::new(),
            pending: VecDeque::with_capacity(N_SLOTS + 1),
        })
    }

    /// Starts the copy of a step's rows to slot `slot` on the device, and writes its scalars there.
    ///
    /// - `input`: the format of gathered rows
    /// - `group_lrs`: the learning rate of each schedule of a group
    pub(crate) fn send(
        &mut self,
        slot: usize,
        rows: &mut impl StepRows,
        input: DType,
        scalars: StepScalars,
        group_lrs: &[f64],
    ) -> Result<()> {
        let n_own = rows.n_own_rows();
        let shape = rows.device_shape().gathered_in(input);
        if self.slots.first().is_none_or(|slot| !slot.rows.holds(n_own, shape)) {
            self.make_slots(n_own, shape, group_lrs.len())?;
        }
        let slot = &mut self.slots[slot];
        for (n, &lr) in group_lrs.iter().enumerate() {
            let Some(group_scalars) = &mut slot.group_scalars else { continue };
            let to = group_scalars.view_mut().range(n * STEP_SCALARS_LEN, (n + 1) * STEP_SCALARS_LEN)?;
            ops::begin_step(Some(ScalarsOutput { scalars: StepScalars { lr, ..scalars }, to }), None)?;
        }
        let scalars = ScalarsOutput { scalars, to: slot.scalars.view_mut() };
        Ok(rows.send(&mut slot.rows, Some(scalars))?)
    }

    fn make_slots(&mut self, n_own: usize, shape: DeviceShape, n_schedules: usize) -> Result<()> {
        // Graphs hold the old slots' addresses.
        self.graphs.captured.clear();
        self.slots.clear();
        for _ in 0..N_SLOTS {
            let scalars = |n: usize| {
                Tensor::zeros_for(MemoryUse::Data, &[n * STEP_SCALARS_LEN], DType::F64, self.gpu.device())
            };
            self.slots.push(InputSlot {
                rows: DeviceRows::new(self.gpu, n_own, shape)?,
                scalars: scalars(1)?,
                group_scalars: (n_schedules > 0).then(|| scalars(n_schedules)).transpose()?,
            });
        }
        Ok(())
    }

    /// The inputs in slot `slot`.
    pub(crate) fn slot(&self, slot: usize) -> &InputSlot {
        &self.slots[slot]
    }

    /// The device.
    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Whether this is the first step of its shape, so that its matmuls have yet to be chosen.
    pub(crate) fn is_first_of(&mut self, shape: StepShape) -> bool {
        // Scales are not part of the matmuls.
        self.chosen.insert(StepShape { loss_scale: None, has_norm: false, ..shape })
    }

    /// Waits for all work of the device so far.
    ///
    /// # Errors
    /// `TrainError::Comm`, also if a rank does not join a collective.
    pub(crate) fn wait(&self, world: &World) -> Result<()> {
        let done = Event::new(self.gpu)?;
        done.record(self.gpu.compute())?;
        Ok(world.tensor_group().wait_until(|| done.is_done())?)
    }

    /// Decides whether a step of this shape runs eagerly, captures a graph or replays one.
    pub(crate) fn graph_plan(&mut self, shape: StepShape, slot: usize) -> GraphPlan {
        let graphs = &mut self.graphs;
        // The loss scale is a kernel argument, and an old scale rarely returns.
        graphs.captured.retain(|(captured, _), _| captured.loss_scale == shape.loss_scale);
        graphs.full_rows = graphs.full_rows.max(shape.global_rows);
        let n_runs = graphs.n_runs.entry(shape).or_default();
        *n_runs += 1;
        match graphs.mode {
            GraphMode::Off => GraphPlan::Eager,
            _ if *n_runs == 1 || shape.global_rows < graphs.full_rows => GraphPlan::Eager,
            _ if graphs.captured.contains_key(&(shape, slot)) => GraphPlan::Replay,
            _ => GraphPlan::Capture,
        }
    }

    /// Checks that the model's layers and the ranks' collectives can be part of a graph, before the first step; if not, as
    /// [`Graphs::give_up`]. Collective.
    pub(crate) fn try_capture(&mut self, world: &World, model: &Network) -> Result<()> {
        if self.graphs.mode == GraphMode::Off {
            return Ok(());
        }
        if let Some(layer) = model.layers().find(|layer| !layer.is_capturable()) {
            let reason = format!("layer \"{}\" does not say that it can be captured", layer.describe());
            return self.graphs.give_up(world, reason);
        }
        world.try_graph_capture()?.map_or(Ok(()), |reason| self.graphs.give_up(world, reason))
    }

    /// Keeps a captured step if all ranks have captured theirs; else as [`Graphs::give_up`]. Returns whether it was kept. Collective.
    ///
    /// # Errors
    /// The error of the capture, if it has ended the communicator.
    pub(crate) fn keep(
        &mut self,
        world: &World,
        shape: StepShape,
        slot: usize,
        captured: Result<Graph>,
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

    pub(crate) fn replay(&mut self, shape: StepShape, slot: usize) -> Result<()> {
        let graph = self.graphs.captured.get_mut(&(shape, slot));
        Ok(graph.expect("`graph_plan` replays only captured graphs").launch()?)
    }

    /// Captured graphs.
    pub(crate) fn n_graphs(&self) -> usize {
        self.graphs.captured.len()
    }

    /// Memory for the outcome of the step in slot `slot`.
    pub(crate) fn outcome_of(&self, slot: usize) -> &Mapped {
        &self.outcomes[slot]
    }

    /// Registers the enqueued step in slot `slot`: its outcome is there after it, and its inputs may be overwritten after it.
    pub(crate) fn enqueued(
        &mut self,
        slot: usize,
        shape: StepShape,
        scalars: StepScalars,
        info: StepInfo,
    ) -> Result<()> {
        self.outcomes[slot].record()?;
        self.slots[slot].rows.consumed()?;
        self.pending.push_back(Pending { slot, shape, scalars, info });
        Ok(())
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
        let Some(Pending { slot, shape, scalars, info }) = self.pending.pop_front() else {
            return Ok(None);
        };
        let outcome = &self.outcomes[slot];
        world.tensor_group().wait_until(|| outcome.is_there())?;
        outcome.wait()?;
        let tail: [f32; STEP_SUMS_LEN] = outcome.read(0);
        let (sums, votes) = (LossSums::load(&tail), tail[STEP_VOTE] as u64);
        let scale = sums.mean_scale(scalars.expected_weight) * scalars.unscale;
        let grad_norm = shape.has_norm.then(|| {
            let [squares] = outcome.read::<f64, 1>(SUMS_BYTES);
            squares.sqrt() * scale
        });
        let limit = scalars.loss_limit;
        let mut withheld = withheld::by_loss(&sums, limit);
        let overflows = shape.loss_scale.is_some() && grad_norm.is_some_and(|norm| !norm.is_finite());
        let skipped = withheld.is_none() && overflows;
        if !skipped {
            // A fused ReLU maps NaN to zero, so NaN weights can leave the loss finite: the gradient shows them.
            withheld = withheld.or_else(|| withheld::by_gradient(&sums, grad_norm, limit));
        }
        let check = |withheld: Withheld| withheld.check(nonfinite, info.step, &sums, grad_norm);
        let withheld = withheld.map(check).transpose()?;
        Ok(Some((info, StepOutcome { sums, grad_norm, votes, skipped, withheld })))
    }
}

/// Execution mode of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GraphPlan {
    Eager,
    Capture,
    Replay,
}

impl InputSlot {
    /// Batch of this rank's rows `rows`, on the device.
    pub(crate) fn batch(&self, rows: Range<usize>) -> Result<Batch<'_>> {
        Ok(self.rows.batch(rows)?)
    }

    /// [`StepScalars`] on the device.
    pub(crate) fn scalars(&self) -> &Tensor {
        &self.scalars
    }

    /// The scalars with the learning rate of each schedule of a group, one after the other.
    pub(crate) fn group_scalars(&self) -> Option<TensorRef<'_>> {
        self.group_scalars.as_ref().map(Tensor::view)
    }
}
