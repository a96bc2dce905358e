//! A loss that is an expression of outputs and targets.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use ddp_kernels::ops::{self, MatmulMode, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Shape, Tensor, TensorMut, TensorRef};

use super::constants::Constants;
use super::graph::{Leaf, Op, Result};
use super::memory::{Slot, Stage};
use super::program::{Recorded, ResultsOf};
use super::run::{Destination, Leaves};
use super::shapes::numel;
use super::var::{Recording, Var};
use crate::model::loss_head::{LossFunction, LossHead};

/// The function of a loss.
type Function = Box<dyn Fn(&Var, &Var) -> Var + Send + Sync>;

/// The loss, and memory for each kind of batch that it has had.
struct ExpressionLoss {
    f: Function,
    programs: Mutex<(Vec<Program>, Constants)>,
}

impl fmt::Debug for ExpressionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpressionLoss").finish_non_exhaustive()
    }
}

impl LossHead {
    /// A loss that is a function of the outputs, `[n, n_outputs]`, and of the targets, `[n, n_targets]` or class indices `[n]` in i64. It
    /// returns the loss of each row, `[n]`; or the mean over the rows, a value without dimensions, which rows with weights do not
    /// allow and a sum is not. A step takes the mean over all rows of its global batch.
    ///
    /// The function is called once for each number of rows and records operations, as that of an
    /// [`Expression`](super::Expression). Memory is allocated with the first batch and with each larger one. An error of
    /// the function is that of the first step.
    ///
    /// ```
    /// use ddp::nn::{LossHead, Var};
    ///
    /// // The squared error relative to the target.
    /// let relative = LossHead::expression(|outputs: &Var, targets: &Var| {
    ///     let error = (outputs - targets) / (targets.abs() + 1.0);
    ///     (&error * &error).mean(1)
    /// });
    /// assert!(!relative.is_weighted(false) && relative.is_weighted(true));
    /// ```
    pub fn expression(f: impl Fn(&Var, &Var) -> Var + Send + Sync + 'static) -> Self {
        LossHead::other(ExpressionLoss { f: Box::new(f), programs: Mutex::default() })
    }

    /// Mean absolute error; targets must have the shape of the outputs.
    ///
    /// Source: `torch.nn.L1Loss`, which broadcasts.
    #[doc(alias("mae"))]
    pub fn l1() -> Self {
        Self::expression(|outputs, targets| {
            if outputs.dims() != targets.dims() {
                let problem = format!("outputs {:?} and targets {:?}", outputs.dims(), targets.dims());
                let remedy = "targets must have the shape of the outputs";
                return outputs.failed(KernelError::misuse("l1", problem, remedy));
            }
            (outputs - targets).abs().mean(1)
        })
    }
}

/// Properties of a batch, except for its number of rows, on which the operations depend.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    device: Device,
    n_outputs: usize,
    outputs: DType,
    /// Dimensions of the targets after the first.
    of_targets: Vec<usize>,
    targets: DType,
    has_weights: bool,
}

/// Operations on batches of one kind with up to `max_rows` rows, and their memory.
#[derive(Debug)]
struct Program {
    kind: Kind,
    max_rows: usize,
    largest: Recorded,
    slots: Vec<Slot>,
    stages: HashMap<usize, Vec<Stage>>,
    buffers: Vec<Tensor>,
    losses: Tensor,
    d_losses: Tensor,
}

impl ExpressionLoss {
    /// Records the loss of each of `n` rows.
    fn record(&self, kind: &Kind, n: usize, constants: &Constants) -> Result<Recorded> {
        let of = ResultsOf { params: &[], input: Some(Leaf::Input), is_output_exact: true };
        Recorded::new(kind.device, of, constants, |recording| {
            let leaf = |leaf: Leaf, dims: &[usize], dtype: DType| {
                let id = recording.borrow_mut().graph.push(Op::Leaf(leaf), Vec::new(), dims, dtype);
                Var::of(recording, id)
            };
            let outputs = leaf(Leaf::Input, &[n, kind.n_outputs], kind.outputs);
            let targets = leaf(Leaf::Targets, &[&[n], &kind.of_targets[..]].concat(), kind.targets);
            let loss = (self.f)(&outputs, &targets);
            let dims = loss.dims();
            let mut recording = recording.borrow_mut();
            let Recording { graph, error, .. } = &mut *recording;
            let id = if dims.is_empty() && !kind.has_weights {
                if n > 1 && graph.is_sum(loss.id(), n) {
                    let problem =
                        "the loss is a sum over the rows, and one without dimensions counts as their mean";
                    let remedy = "return the loss of each row, as `.mean(1)` does, or the mean, `.mean(None)`; a sum that is meant is `.sum(None) * 1.0`";
                    error.get_or_insert(KernelError::misuse("loss", problem, remedy));
                }
                graph.expand(loss.id(), &[n])
            } else if numel(&dims) == n && dims.first() == Some(&n) {
                graph.view(loss.id(), &[n])
            } else {
                let (operand, expected) = (graph.operand(loss.id(), "the loss").into(), Shape::vector(n));
                error.get_or_insert(KernelError::Shape { op: "loss", operand, expected });
                loss.id()
            };
            drop(recording);
            loss.with_id(id)
        })
    }

    /// The index of the program for `n` rows of this kind, made if there is none.
    fn find(
        &self,
        programs: &mut Vec<Program>,
        constants: &Constants,
        kind: &Kind,
        n: usize,
    ) -> Result<usize> {
        let is_own = |program: &Program| program.kind == *kind;
        if let Some(index) = programs.iter().position(|own| is_own(own) && own.stages.contains_key(&n)) {
            return Ok(index);
        }
        let recorded = constants.unless_failed(|| self.record(kind, n, constants))?;
        for (index, program) in programs.iter_mut().enumerate().filter(|(_, own)| is_own(own)) {
            let fits = n <= program.max_rows;
            if let (true, Ok(stages)) = (fits, recorded.stages_within(&program.largest, &program.slots)) {
                program.stages.insert(n, stages);
                return Ok(index);
            }
        }
        // Smaller programs stay, because a captured step uses their memory.
        let mut slots = Vec::new();
        let stages = HashMap::from([(n, recorded.stages(&mut slots))]);
        let zeros = |len, dtype| Tensor::zeros_for(MemoryUse::Workspace, &[len], dtype, kind.device);
        programs.push(Program {
            kind: kind.clone(),
            max_rows: n,
            buffers: slots.iter().map(|slot| zeros(slot.len, slot.dtype)).collect::<Result<_>>()?,
            losses: zeros(n, kind.outputs)?,
            d_losses: zeros(n, kind.outputs)?,
            largest: recorded,
            slots,
            stages,
        });
        Ok(programs.len() - 1)
    }
}

impl LossFunction for ExpressionLoss {
    fn apply(
        &self,
        outputs: TensorRef<'_>,
        targets: TensorRef<'_>,
        row_weights: Option<TensorRef<'_>>,
        scale: f64,
        d_outputs: Option<TensorMut<'_>>,
        sums: SumsOutput<'_>,
    ) -> Result<()> {
        let (n, n_outputs) = outputs.shape().rows_cols();
        if n == 0 {
            return ops::sum_losses(outputs.reshape(&[0])?, row_weights, scale, None, sums);
        }
        let shape = targets.shape();
        let [n_targets, of_targets @ ..] = shape.dims() else {
            let (operand, expected) = (targets.operand("targets").into(), Shape::vector(n));
            return Err(KernelError::Shape { op: "loss", operand, expected });
        };
        if *n_targets != n {
            let (operand, expected) =
                (targets.operand("targets").into(), Shape::matrix(n, numel(of_targets)));
            return Err(KernelError::Shape { op: "loss", operand, expected });
        }
        let kind = Kind {
            device: outputs.device(),
            n_outputs,
            outputs: outputs.dtype(),
            of_targets: of_targets.to_vec(),
            targets: targets.dtype(),
            has_weights: row_weights.is_some(),
        };
        let (programs, constants) = &mut *self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.find(programs, constants, &kind, n)?;
        let Program { stages, buffers, losses, d_losses, .. } = &mut programs[index];
        let stages = &stages[&n];
        let mode = MatmulMode::Strict;
        let (targets, registered, constants) = (Some(targets), &[][..], &constants.kept()[..]);
        let leaves = Leaves { input: outputs, targets, gradient: None, params: None, registered, constants };
        let to = losses.view_mut().range(0, n)?;
        stages[0].run(leaves, buffers, mode, &mut [Some(Destination { to, accumulate: false })])?;
        let losses = losses.view().range(0, n)?;
        let Some(to) = d_outputs else { return ops::sum_losses(losses, row_weights, scale, None, sums) };
        let mut d = d_losses.view_mut().range(0, n)?;
        ops::sum_losses(losses, row_weights, scale, Some(d.reborrow()), sums)?;
        let leaves = Leaves { gradient: Some(d.as_ref()), ..leaves };
        stages[2].run(leaves, buffers, mode, &mut [Some(Destination { to, accumulate: false })])
    }

    fn expected_weight(&self, n_rows: usize, _n_outputs: usize) -> f64 {
        n_rows as f64
    }

    fn is_weighted(&self, has_row_weights: bool) -> bool {
        has_row_weights
    }
}
