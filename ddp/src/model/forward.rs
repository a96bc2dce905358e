//! The forward pass: walks the plan from the first layer to the last.

use ddp_kernels::{AsView, KernelError, Shape, Tensor, TensorRef};

use super::all_ranks::{AllRanks, reborrow};
use super::buffers::Buffers;
use super::layer::Layer;
use super::network::{Network, view};
use super::pass::{DropoutStep, ForwardPass, ParamViews};
use super::plan::{Step, Value};
use crate::config::precision::Precision;

impl Network {
    /// Computes and returns the outputs, `[B, n_outputs]`, of `x: [B, features]`, whose last columns are the codes of the
    /// embeddings, in evaluation: without dropout. `x` is f32 or has the format [`Network::input_format`]. The outputs stay in the
    /// model until the next pass: [`Network::outputs`].
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for other formats; [`KernelError::PassRows`] for more rows than [`Network::max_rows`];
    /// [`KernelError::Shape`] for a different number of features; on the CPU [`KernelError::Code`] for a code that an embedding
    /// does not have (on a GPU such a code makes the row's outputs NaN).
    #[doc(alias("no_grad"))]
    pub fn forward(&mut self, x: impl AsView) -> Result<TensorRef<'_>, KernelError> {
        self.forward_with(x, None)
    }

    /// The outputs of any number of rows, in passes of at most [`Network::max_rows`]; a tensor of its own.
    ///
    /// # Errors
    /// See [`Network::forward`].
    pub fn predict(&mut self, x: impl AsView) -> Result<Tensor, KernelError> {
        let (x, max_rows) = (x.as_view(), self.max_rows().max(1));
        let n = x.dims().first().copied().unwrap_or(1);
        let starts = (0..n.max(1)).step_by(max_rows);
        let outputs = starts.map(|start| {
            let rows = x.narrow(0, start, max_rows.min(n - start))?;
            self.forward(&rows)?.to_tensor()
        });
        Tensor::cat(&outputs.collect::<Result<Vec<_>, _>>()?, 0)
    }

    /// Same as [`Network::forward`], with `dropout` as in training.
    ///
    /// # Errors
    /// See [`Network::forward`].
    pub fn forward_with(
        &mut self,
        x: impl AsView,
        dropout: Option<DropoutStep<'_>>,
    ) -> Result<TensorRef<'_>, KernelError> {
        self.forward_observed(x.as_view(), dropout, |_, _| Ok(()))
    }

    /// Same as [`Network::forward`] for one of several ranks that train together.
    ///
    /// # Errors
    /// See [`Network::forward`]; [`KernelError::Exchange`].
    #[doc(hidden)]
    pub fn forward_over_ranks(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        all_ranks: Option<&mut dyn AllRanks>,
    ) -> Result<TensorRef<'_>, KernelError> {
        self.forward_steps(x, dropout, all_ranks, |_, _| Ok(()))
    }

    /// Same as [`Network::forward`], and passes the output of each layer, after fusion, to `observe` before the next layer
    /// computes.
    ///
    /// # Errors
    /// See [`Network::forward`]; the errors of `observe`.
    #[doc(hidden)]
    pub fn forward_observed(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        observe: impl FnMut(&dyn Layer, TensorRef<'_>) -> Result<(), KernelError>,
    ) -> Result<TensorRef<'_>, KernelError> {
        self.forward_steps(x, dropout, None, observe)
    }

    fn forward_steps(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        mut all_ranks: Option<&mut dyn AllRanks>,
        mut observe: impl FnMut(&dyn Layer, TensorRef<'_>) -> Result<(), KernelError>,
    ) -> Result<TensorRef<'_>, KernelError> {
        let (n_rows, n_features) = x.shape().rows_cols();
        if n_rows > self.max_rows() {
            return Err(KernelError::PassRows { n_rows, max_rows: self.max_rows() });
        }
        if n_features != self.n_features() {
            let expected = Shape::new(&[n_rows, self.n_features()]).expect("two dimensions");
            return Err(KernelError::Shape { op: "forward", operand: x.operand("x").into(), expected });
        }
        let matmul_mode = self.precision().matmul_mode();
        let is_converted = x.dtype() != self.precision().master();
        if is_converted && x.dtype() != self.input_format() {
            let takes = match self.precision() {
                Precision::F64 => "f64 in a model in f64",
                _ => "f32 and the format of activations",
            };
            let operand = x.operand("x").into();
            return Err(KernelError::DTypeUnsupported { op: "forward", operand, takes });
        }
        let Buffers { master_weights, compute_weights, values, own, workspace, .. } = &mut self.buffers;
        let master = &*master_weights;
        let compute = compute_weights.as_ref().unwrap_or(master);
        let steps = self.plan.steps.iter_mut().zip(own).zip(&mut self.registered.of_layers);
        for ((Step { layer, params, x: from, y: to, skip, .. }, buffers), registered) in steps {
            // Only a skip connection that begins at the model's input has no output buffer, and it computes nothing.
            let Value::Buffer(index) = *to else { continue };
            if is_converted && *from == Value::Input {
                continue;
            }
            let (before, after) = values.split_at_mut(index);
            let pass = ForwardPass {
                params: ParamViews { places: params, master, compute },
                buffers,
                registered,
                workspace: workspace.view_mut(),
                matmul_mode,
                dropout,
                skip: skip.map(|skip| view(before, skip, x)).transpose()?,
                all_ranks: reborrow(&mut all_ranks),
            };
            let y = after[0].view_mut().rows(0, n_rows)?;
            if from == to {
                layer.forward_in_place(y, pass)?;
            } else {
                layer.forward(view(before, *from, x)?, y, pass)?;
            }
            observe(&**layer, after[0].view().rows(0, n_rows)?)?;
        }
        self.forward_rows = n_rows;
        self.outputs()
    }
}
