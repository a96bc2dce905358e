//! The backward pass: walks the plan from the last layer to the first and reports the gradients of each layer as soon as they are
//! finished.

use std::cell::Cell;
use std::ops::Range;

use ddp_kernels::cuda::BesideMatmuls;
use ddp_kernels::{KernelError, Tensor, TensorMut, TensorRef, ops};

use super::all_ranks::{AllRanks, reborrow};
use super::buffers::Buffers;
use super::layer::LayerKind;
use super::network::{Network, head, view};
use super::pass::{
    BackwardPass, DropoutStep, GradientPlace, InputGradientPass, ParamGradients, ParamPlace, ParamViews,
};
use super::plan::{BackwardStep, Step};

/// Destination of the gradients of parameters; the backward pass reports them to it as finished.
///
/// Each range is requested once per pass, in the order of the flat buffer. The last micro-batch of a step and the earlier ones
/// differ only in their sink. Gradients are f32; a layer that [can round them](super::Layer::can_round_gradients) may write the
/// format of activations, unless layers share the parameter or gradients accumulate.
pub trait GradientSink {
    /// Error of the sink, such as a failed collective.
    type Error: From<KernelError>;

    /// The gradients of the flat range `start..end`, which lies in one unit of layers.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for a range that was finished already or reaches into another bucket.
    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>, Self::Error>;

    /// Reports that all gradients before `end` are finished.
    ///
    /// # Errors
    /// A failure of a collective that this call starts.
    fn finished(&mut self, end: usize) -> Result<(), Self::Error>;

    /// Called between operations, for collectives that must be polled to advance.
    ///
    /// # Errors
    /// A failure of a collective in flight.
    fn progress(&mut self) -> Result<(), Self::Error>;

    /// Whether finished gradients are left alone until the next call of [`GradientSink::gradients`] or the end of the pass: a GPU may still
    /// compute them until then.
    #[doc(hidden)]
    fn leaves_finished(&self) -> bool {
        false
    }
}

/// A sink for gradients that are not reduced: of all micro-batches but the last, or on a single rank. `[flat_len]`.
#[derive(Debug)]
pub struct LocalGradients<'a>(pub TensorMut<'a>);

impl GradientSink for LocalGradients<'_> {
    type Error = KernelError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>, KernelError> {
        let len = self.0.shape().numel();
        if end > len {
            return Err(KernelError::OutOfRange { op: "gradients of all parameters", start, end, len });
        }
        self.0.reborrow().range(start, end)
    }

    fn finished(&mut self, _end: usize) -> Result<(), KernelError> {
        Ok(())
    }

    fn progress(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    fn leaves_finished(&self) -> bool {
        true
    }
}

impl Network {
    /// Writes the gradients of all parameters to `sink`, starting from the gradient in [`Network::outputs_and_gradient`].
    ///
    /// - `x`: the same rows as in the last [`Network::forward`], with the same `dropout`
    /// - `accumulate`: whether to add to the values that the sink's gradients already hold
    ///
    /// # Errors
    /// [`KernelError::Backward`] for a different number of rows than the last forward pass had;
    /// [`KernelError::GradientsNotTaken`] of a layer of one's own; [`KernelError`] from an operation, or the sink's error.
    pub fn backward<S: GradientSink>(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        accumulate: bool,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        self.backward_over_ranks(x, dropout, accumulate, None, sink)
    }

    /// Same as [`Network::backward`] for one of several ranks that train together, after [`Network::forward_over_ranks`].
    ///
    /// # Errors
    /// See [`Network::backward`]; [`KernelError::Exchange`].
    #[doc(hidden)]
    pub fn backward_over_ranks<S: GradientSink>(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        accumulate: bool,
        all_ranks: Option<&mut dyn AllRanks>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let (n_rows, _) = x.shape().rows_cols();
        if n_rows != self.forward_rows {
            return Err(KernelError::Backward { n_rows, forward_rows: self.forward_rows }.into());
        }
        let beside = self.beside.take();
        let of_pass = beside.as_ref().filter(|_| sink.leaves_finished());
        let done = self.backward_beside(x, dropout, accumulate, all_ranks, sink, of_pass);
        // Also after an error: a capture must join its streams.
        let joined = of_pass.map_or(Ok(()), BesideMatmuls::join);
        self.beside = beside;
        done?;
        Ok(joined?)
    }

    /// The pass, with the gradients of weights `beside` those of inputs, if so requested.
    fn backward_beside<S: GradientSink>(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        accumulate: bool,
        mut all_ranks: Option<&mut dyn AllRanks>,
        sink: &mut S,
        beside: Option<&BesideMatmuls>,
    ) -> Result<(), S::Error> {
        let (n_rows, n_features) = x.shape().rows_cols();
        let join = || beside.map_or(Ok(()), BesideMatmuls::join);
        let matmul_mode = self.precision().matmul_mode();
        let Buffers { master_weights, compute_weights, values, own, gradients, shares, workspace } =
            &mut self.buffers;
        let master = &*master_weights;
        let compute = compute_weights.as_ref().unwrap_or(master);
        for index in (0..self.plan.steps.len()).rev() {
            let (before, rest) = self.plan.steps.split_at_mut(index);
            let Step { layer, params, x: from, y, backward: Some(backward), .. } = &mut rest[0] else {
                break;
            };
            let BackwardStep { d, d_x, skip, finishes, .. } = backward;
            let Range { start, end } = backward.flat;
            let (n_outputs, views) = (layer.out_features(), ParamViews { places: params, master, compute });

            let mut flat = if start < end { Some(sink.gradients(start, end)?) } else { None };
            let n_taken = Cell::new(0);
            let own_flat = flat.as_mut().map(|flat| (start, flat.reborrow()));
            let grads = with_shares(params, own_flat, shares, backward.shares.clone(), accumulate, &n_taken)?;
            let (d_y, skip) = one_or_two(gradients, *d, *skip);
            // Other layers may change the gradient of their outputs after a linear layer within them.
            let of_layer = beside.filter(|_| matches!(layer.kind(), LayerKind::Linear(_)));
            let pass = BackwardPass {
                x: view(values, *from, x)?,
                y: view(values, *y, x)?,
                params: views,
                grads,
                buffers: &mut own[index],
                registered: &self.registered.of_layers[index],
                workspace: workspace.view_mut(),
                matmul_mode,
                dropout,
                skip: skip.map(|skip| head(skip, n_rows, n_outputs)).transpose()?,
                all_ranks: reborrow(&mut all_ranks),
                beside: of_layer,
            };
            layer.backward(head(d_y, n_rows, n_outputs)?, pass)?;
            if n_taken.get() < params.len() {
                let (layer, n_taken, n_params) = (layer.describe(), n_taken.get(), params.len());
                return Err(KernelError::GradientsNotTaken { layer, n_taken, n_params }.into());
            }
            if let (Some(shift), Some(flat), true) = (&backward.cancelled, &mut flat, dropout.is_some()) {
                join()?;
                // Of the sum over all rows rounding errors would be left, of which Adam makes steps of full size.
                let shift = flat.reborrow().range(shift.start - start, shift.end - start)?;
                ops::fill(shift, ops::Pattern::Line { start: 0.0, step: 0.0 })?;
            }
            sink.progress()?;

            if let Some(end) = *finishes {
                sink.finished(end)?;
            }
            if let (d_y, Some(d_x)) = one_or_two(gradients, *d, *d_x) {
                let (own_before, own) = own.split_at_mut(index);
                let (through, in_features) = match (before.last(), own_before.last_mut()) {
                    (Some(before), Some(buffers)) => (
                        before.layer.activation_of(view(values, before.y, x)?, buffers)?,
                        before.layer.out_features(),
                    ),
                    _ => (None, n_features),
                };
                let pass = InputGradientPass {
                    x: view(values, *from, x)?,
                    params: views,
                    buffers: &mut own[0],
                    registered: &self.registered.of_layers[index],
                    workspace: workspace.view_mut(),
                    matmul_mode,
                    through,
                    accumulate: backward.accumulate,
                };
                let d_y = d_y.view().range(0, n_rows * n_outputs)?.reshape(&[n_rows, n_outputs])?;
                layer.backward_input(d_y, head(d_x, n_rows, in_features)?, pass)?;
                sink.progress()?;
            }
            // The gradient of the layer before takes the place of this layer's.
            join()?;
        }
        Ok(())
    }
}

/// The gradients of the layer; for shared parameters they are added to the shares of the later layers.
fn with_shares<'a>(
    places: &'a [ParamPlace],
    mut flat: Option<(usize, TensorMut<'a>)>,
    shares: &'a mut [Tensor],
    own_shares: Range<usize>,
    accumulate: bool,
    n_taken: &'a Cell<usize>,
) -> Result<ParamGradients<'a>, KernelError> {
    if let Some((start, flat)) = &mut flat {
        for place in places {
            let GradientPlace::FlatOnShares(of_others) = &place.gradient else { continue };
            for (n_added, &share) in of_others.iter().enumerate() {
                let range = place.range.start - *start..place.range.end - *start;
                let d = flat.reborrow().range(range.start, range.end)?;
                if accumulate || n_added > 0 {
                    ops::add_assign(d, shares[share].view())?;
                } else {
                    ops::copy(shares[share].view(), d)?;
                }
            }
        }
    }
    Ok(ParamGradients { places, flat, shares: &mut shares[own_shares], accumulate, n_taken })
}

/// Returns buffer `first`, and buffer `second` if it is given, which must be a different one.
fn one_or_two(
    buffers: &mut [Tensor],
    first: usize,
    second: Option<usize>,
) -> (&mut Tensor, Option<&mut Tensor>) {
    match second {
        None => (&mut buffers[first], None),
        Some(second) => {
            let [first, second] = buffers.get_disjoint_mut([first, second]).expect("two buffers of the plan");
            (first, Some(second))
        }
    }
}
