//! Runs the steps of an expression by operations that write into memory of the caller.

use ddp_kernels::ops::{self, Activation, Input, MapOp, MatmulMode};
use ddp_kernels::{DType, KernelError, Tensor, TensorMut, TensorRef};

use super::graph::{Leaf, Op, Result};
use super::memory::{Holder, Place, Source, Stage, Step};
use super::shapes::{self, MAX_DIMS, numel};
use crate::model::pass::ParamViews;

/// The values that are there before a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaves<'a> {
    pub(super) input: TensorRef<'a>,
    pub(super) targets: Option<TensorRef<'a>>,
    pub(super) gradient: Option<TensorRef<'a>>,
    pub(super) params: Option<ParamViews<'a>>,
    pub(super) registered: &'a [Tensor],
    pub(super) constants: &'a [(u128, Tensor)],
}

impl<'a> Leaves<'a> {
    fn get(&self, leaf: Leaf) -> Result<TensorRef<'a>> {
        const THERE: &str = "a leaf of this kind of expression";
        match leaf {
            Leaf::Input => Ok(self.input),
            Leaf::Targets => Ok(self.targets.expect(THERE)),
            Leaf::Gradient => Ok(self.gradient.expect(THERE)),
            Leaf::Param(index) => self.params.expect(THERE).compute(index),
            Leaf::Registered(index) => Ok(self.registered[index].view()),
            Leaf::Constant(index) => Ok(self.constants[index].1.view()),
            Leaf::Invalid => unreachable!("an expression with an error is never run"),
        }
    }
}

/// Memory for a result of a stage.
#[derive(Debug)]
pub(super) struct Destination<'a> {
    pub(super) to: TensorMut<'a>,
    /// Whether to add to the values in it.
    pub(super) accumulate: bool,
}

impl Stage {
    /// Computes the stage's results.
    ///
    /// - `buffers`: one for each slot
    /// - `results`: memory for each result; `None` for those that nothing needs
    ///
    /// # Errors
    /// [`KernelError`] of the operations.
    pub(super) fn run(
        &self,
        leaves: Leaves<'_>,
        buffers: &mut [Tensor],
        mode: MatmulMode,
        results: &mut [Option<Destination<'_>>],
    ) -> Result<()> {
        for step in &self.steps {
            let is_written = match step.result.map(|number| &mut results[number]) {
                Some(Some(destination)) => step.run_into(leaves, buffers, mode, destination)?,
                _ => false,
            };
            match step.result {
                Some(number) if is_written => results[number] = None,
                _ => step.run_in_slot(leaves, buffers, mode)?,
            }
        }
        for (place, destination) in self.results.iter().zip(results) {
            let Some(Destination { to, accumulate }) = destination.take() else { continue };
            match place {
                Some(place) => {
                    let from = read(place, leaves, (buffers, &[]))?.reshape(to.shape().dims())?;
                    if accumulate { ops::add_assign(to, from)? } else { ops::convert(from, to)? }
                }
                None if accumulate => {}
                None => ops::fill(to, ops::Pattern::Line { start: 0.0, step: 0.0 })?,
            }
        }
        Ok(())
    }
}

/// The values of a place; `buffers` are those before and after the one that is being written.
fn read<'a>(
    place: &Place,
    leaves: Leaves<'a>,
    buffers: (&'a [Tensor], &'a [Tensor]),
) -> Result<TensorRef<'a>> {
    let from = match place.holder {
        Holder::Leaf(leaf) => leaves.get(leaf)?,
        Holder::Slot(slot) => match buffers.0.get(slot) {
            Some(before) => before.view(),
            None => buffers.1[slot - buffers.0.len() - 1].view(),
        },
        Holder::Nowhere => unreachable!("nothing reads a result of the pass"),
    };
    let len = numel(&place.dims);
    if place.start == 0 && from.shape().dims() == place.dims {
        return Ok(from);
    }
    from.range(place.start, place.start + len)?.reshape(kernel_dims(&place.dims, &[len]))
}

/// The shape for a kernel: `flat` if there are more dimensions than kernels take.
fn kernel_dims<'a>(dims: &'a [usize], flat: &'a [usize]) -> &'a [usize] {
    if dims.len() <= MAX_DIMS { dims } else { flat }
}

impl Step {
    /// Computes the result in its slot.
    fn run_in_slot(&self, leaves: Leaves<'_>, buffers: &mut [Tensor], mode: MatmulMode) -> Result<()> {
        let Holder::Slot(slot) = self.out.holder else {
            unreachable!("results without memory have a destination")
        };
        let (before, rest) = buffers.split_at_mut(slot);
        let (own, after) = rest.split_first_mut().expect("a buffer for each slot");
        let len = numel(&self.out.dims);
        let out = own.view_mut().range(self.out.start, self.out.start + len)?;
        let out = out.reshape(kernel_dims(&self.out.dims, &[len]))?;
        self.run(leaves, (before, after), mode, out, false)
    }

    /// Computes the result in the memory for it; returns whether the operation can.
    fn run_into(
        &self,
        leaves: Leaves<'_>,
        buffers: &mut [Tensor],
        mode: MatmulMode,
        destination: &mut Destination<'_>,
    ) -> Result<bool> {
        let Destination { to, accumulate } = destination;
        let is_sum = matches!(self.op, Op::Matmul { .. } | Op::ColumnSum);
        let is_fitting = match self.out.holder {
            Holder::Slot(slot) => buffers[slot].dtype() == to.dtype(),
            // A result that has no memory of its own fits the memory for it.
            _ => true,
        };
        let is_possible = is_sum || is_fitting && !*accumulate;
        if is_possible {
            let len = numel(&self.out.dims);
            let out = to.reborrow().reshape(kernel_dims(&self.out.dims, &[len]))?;
            self.run(leaves, (buffers, &[]), mode, out, *accumulate)?;
        }
        Ok(is_possible)
    }

    /// Computes `out` from operands in other memory.
    fn run(
        &self,
        leaves: Leaves<'_>,
        buffers: (&[Tensor], &[Tensor]),
        mode: MatmulMode,
        mut out: TensorMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let dims_of = |index: usize| match &self.args[index] {
            Source::Value(place) => &place.dims[..],
            Source::Number(_) => &[],
        };
        let value = |index: usize| match &self.args[index] {
            Source::Value(place) => read(place, leaves, buffers),
            Source::Number(_) => unreachable!("this operand is a value"),
        };
        let input = |index: usize| match &self.args[index] {
            Source::Value(_) => Ok::<_, KernelError>(Input::Tensor(value(index)?)),
            Source::Number(number) => Ok(Input::from(*number)),
        };
        let beta = if accumulate { 1.0 } else { 0.0 };
        match &self.op {
            // Or with false leaves a bool, which has no product.
            Op::Expand if out.dtype() == DType::Bool => ops::map(MapOp::Maximum, input(0)?, 0.0.into(), out),
            Op::Expand => ops::map(MapOp::Mul, input(0)?, 1.0.into(), out),
            Op::Map(_) if self.in_place.is_some() => {
                ops::add_assign(out, value(1 - self.in_place.unwrap_or_default())?)
            }
            Op::Map(op) => ops::map(*op, input(0)?, input(1)?, out),
            Op::Compare(op) => ops::compare(*op, input(0)?, input(1)?, out),
            Op::Select => ops::select(value(0)?, input(1)?, input(2)?, out),
            Op::Convert => ops::convert(value(0)?, out),
            Op::Activation(activation) => ops::activation_forward(*activation, value(0)?, out),
            Op::ActivationBackward(activation) => {
                self.take_over(1, &value, out.reborrow())?;
                through_activation(*activation, value(0)?, out)
            }
            Op::Softmax => {
                self.take_over(0, &value, out.reborrow())?;
                ops::softmax_forward(out)
            }
            Op::SoftmaxBackward => {
                self.take_over(1, &value, out.reborrow())?;
                ops::softmax_backward(value(0)?, out)
            }
            Op::Matmul { transpose: [a, b], alpha } => {
                let product = if self.out.dims.len() == 3 { ops::bmm_with } else { ops::addmm_with };
                product(mode, *alpha, value(0)?, *a, value(1)?, *b, beta, out)
            }
            Op::Permute(axes) => ops::permute(value(0)?, dims_of(0), axes, out),
            Op::Narrow { axis, start } => {
                let [outer, n, inner] = shapes::around(dims_of(0), *axis..axis + 1);
                let len = self.out.dims[*axis] * inner;
                let (from, to) = (value(0)?.reshape(&[outer, n * inner])?, out.reshape(&[outer, len])?);
                ops::copy_columns(from, start * inner, to, 0, len)
            }
            Op::Cat { axis } => {
                let [outer, n, inner] = shapes::around(&self.out.dims, *axis..axis + 1);
                let mut to = out.reshape(&[outer, n * inner])?;
                let mut first = 0;
                for index in 0..self.args.len() {
                    let len = dims_of(index)[*axis] * inner;
                    if !self.parts_in_place[index] {
                        let from = value(index)?.reshape(&[outer, len])?;
                        ops::copy_columns(from, 0, to.reborrow(), first, len)?;
                    }
                    first += len;
                }
                Ok(())
            }
            Op::ColumnSum => {
                let n = out.numel();
                ops::bias_backward(value(0)?, out.reshape(&[n])?, accumulate)
            }
            Op::Reduce { op, layout } => ops::reduce_whole(*op, value(0)?.reshape(layout)?, Some(1), out),
            Op::Fill(pattern) => ops::fill(out, *pattern),
            Op::Codes(n) => {
                let codes = value(0)?;
                check_codes(codes, *n)?;
                ops::copy(codes, out)
            }
            Op::Leaf(_) | Op::View(_) | Op::Detach => unreachable!("no step computes them"),
        }
    }

    /// Copies operand `index` to `out`, unless its memory is `out`.
    fn take_over<'a>(
        &self,
        index: usize,
        value: &impl Fn(usize) -> Result<TensorRef<'a>>,
        out: TensorMut<'_>,
    ) -> Result<()> {
        if self.in_place.is_some() {
            return Ok(());
        }
        let from = value(index)?.reshape(out.shape().dims())?;
        ops::copy(from, out)
    }
}

/// Checks that these elements, in host memory, are whole numbers in `0..n`.
fn check_codes(codes: TensorRef<'_>, n: usize) -> Result<()> {
    let is_right = |code: &f64| code.fract() == 0.0 && (0.0..n as f64).contains(code);
    let codes = codes.to_tensor()?.to_dtype(DType::F64)?.to_vec::<f64>()?;
    match codes.iter().position(|code| !is_right(code)) {
        Some(row) => Err(KernelError::Code { op: "one_hot", row, column: 0, code: codes[row], n_codes: n }),
        None => Ok(()),
    }
}

/// Turns the gradient of the activation's result into that of its operand.
fn through_activation(activation: Activation, saved: TensorRef<'_>, d: TensorMut<'_>) -> Result<()> {
    let saved = saved.reshape(d.shape().dims())?;
    ops::activation_backward(activation, saved, d, None, false)
}
