//! A layer whose forward pass is an expression.

use std::collections::HashMap;
use std::io::Write as _;
use std::{fmt, io};

use ddp_kernels::{DType, KernelError, Shape, Tensor, TensorMut, TensorRef};
use tracing::dispatcher::has_been_set;
use tracing::warn;

use super::constants::Constants;
use super::graph::{Leaf, Op};
use super::memory::{Slot, Stage};
use super::program::{Recorded, ResultsOf};
use super::run::{Destination, Leaves};
use super::var::{Own, Var};
use crate::config::precision::Precision;
use crate::model::layer::{BufferSpec, Layer, RegisteredBuffer, Result, Sizes};
use crate::model::param::{Init, ParamEntry, ParamKind, ParamSpec};
use crate::model::pass::{BackwardPass, ForwardPass, InputGradientPass};

/// Numbers of rows whose plans are kept: full and last batches, in training and in evaluation.
const MAX_PLANS: usize = 64;
/// Numbers of rows below the most rows of a pass that are tried if the expression refuses that one.
const MAX_TRIES: usize = 4096;

/// A layer that computes its rows by a function of values ([`Var`]); its gradients follow from the function.
///
/// The function gets the rows, `[n, in_features]`, and the layer's [own](Own) parameters and buffers by name, and returns rows `[n, out_features]`.
/// It is called when the model is created and once for each number of rows, and records operations; a pass runs them by kernels. So it
/// must not depend on anything that changes. The memory of all values is part of the model's and is allocated with it.
///
/// Rows are computed in the format of activations; each operation rounds its result to it once. Gradients of parameters keep sums in f32.
/// For one model on any number of ranks, rows must not depend on each other, unless a `GroupSampler` keeps them together.
///
/// ```
/// use ddp::nn::{Expression, GradcheckOptions, Init, ParamKind, Precision, Sequential, Sizes, gradcheck};
/// use ddp::prelude::*;
///
/// // y = x · sigmoid(b · x) with a trained b for each column.
/// let swish = Expression::new("swish", 8, 8, |x, own| x * (x * &own["b"]).sigmoid())
///     .parameter("b", ParamKind::NormWeight, &[8], Init::Constant(1.0));
/// let sizes = Sizes { max_rows: 16, device: Device::Cpu, precision: Precision::F64 };
/// let mut model = Sequential::new(4).linear(8).layer(swish).linear(2).build(sizes, 0)?;
/// let x = Tensor::randn(&[16, 4], DType::F64, Device::Cpu, 1)?;
/// gradcheck(&mut model, x.view(), &GradcheckOptions::f64())?;
/// # Ok::<(), ddp::model::ModelError>(())
/// ```
pub struct Expression {
    name: String,
    in_features: usize,
    out_features: usize,
    /// The names by which the function knows the parameters.
    param_names: Vec<String>,
    params: Vec<ParamSpec>,
    buffers: Vec<Buffer>,
    f: Function,
    plans: Option<Plans>,
}

/// A registered buffer of the layer.
#[derive(Debug)]
struct Buffer {
    name: String,
    values: Tensor,
    is_saved: bool,
}

/// The function of an expression.
type Function = Box<dyn Fn(&Var, &Own) -> Var + Send>;

/// Steps of the passes, by their number of rows.
#[derive(Debug)]
struct Plans {
    sizes: Sizes,
    slots: Vec<Slot>,
    constants: Constants,
    largest: Recorded,
    largest_rows: usize,
    stages: HashMap<usize, Vec<Stage>>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expression { name, in_features, out_features, params, .. } = self;
        let mut shown = f.debug_struct("Expression");
        shown.field("name", name).field("in_features", in_features).field("out_features", out_features);
        shown.field("params", params).finish_non_exhaustive()
    }
}

impl Expression {
    /// A layer of this name that maps rows of `in_features` to rows of `out_features`.
    pub fn new(
        name: impl Into<String>,
        in_features: usize,
        out_features: usize,
        f: impl Fn(&Var, &Own) -> Var + Send + 'static,
    ) -> Self {
        Expression {
            name: name.into(),
            in_features,
            out_features,
            param_names: Vec::new(),
            params: Vec::new(),
            buffers: Vec::new(),
            f: Box::new(f),
            plans: None,
        }
    }

    /// Adds a parameter: `own[name]` in the function, `{layer}.{name}` in files.
    #[must_use]
    pub fn parameter(mut self, name: &str, kind: ParamKind, dims: &[usize], init: Init) -> Self {
        self.params.push(ParamSpec::new(format!("{}.{name}", self.name), kind, dims, init));
        self.param_names.push(name.to_owned());
        self
    }

    /// Shares the parameter that was added last with all layers that declare the same one as shared (tied weights): its name in files is
    /// `name` alone.
    ///
    /// ```
    /// use ddp::nn::{Expression, Init, ParamKind, Sequential, Sizes};
    /// use ddp::prelude::*;
    ///
    /// let tied = |layer: Expression| layer.parameter("table", ParamKind::Weight, &[9, 4], Init::Normal(0.1)).shared();
    /// let encode = tied(Expression::new("encode", 9, 4, |x, own| x.matmul(&own["table"])));
    /// let decode = tied(Expression::new("decode", 4, 9, |x, own| x.matmul(&own["table"].t())));
    /// let model = Sequential::new(9).layer(encode).layer(decode).build(Sizes::new(8, Device::Cpu), 0)?;
    /// assert_eq!(model.n_parameters(), 36);
    /// # Ok::<(), KernelError>(())
    /// ```
    ///
    /// # Panics
    /// If no parameter was added.
    #[must_use]
    pub fn shared(mut self) -> Self {
        let (name, spec) = self.param_names.last().zip(self.params.last_mut()).expect("a parameter to share");
        (spec.name, spec.is_shared) = (name.clone(), true);
        self
    }

    /// Adds a registered buffer, which is saved with the model: `own[name]` in the function, `{layer}.{name}` in files. Floats become the
    /// format of activations.
    #[must_use]
    pub fn buffer(mut self, name: &str, values: Tensor) -> Self {
        self.buffers.push(Buffer { name: name.to_owned(), values, is_saved: true });
        self
    }

    /// Adds a registered buffer that is not saved, because the program makes it anew, such as a mask.
    #[must_use]
    pub fn constant(mut self, name: &str, values: Tensor) -> Self {
        self.buffers.push(Buffer { name: name.to_owned(), values, is_saved: false });
        self
    }

    /// Records the function for `n` rows.
    fn record(&self, n: usize, sizes: Sizes, constants: &Constants) -> Result<Recorded> {
        let Sizes { precision, device, .. } = sizes;
        let format = precision.activations();
        let params: Vec<Leaf> = (0..self.params.len()).map(Leaf::Param).collect();
        let of =
            ResultsOf { params: &params, input: Some(Leaf::Input), is_output_exact: !precision.is_short() };
        let within = |error: KernelError| error.within(&format!("expression {}", self.name));
        let recorded = Recorded::new(device, of, constants, |recording| {
            let leaf = |leaf: Leaf, dims: &[usize], dtype: DType| {
                let id = recording.borrow_mut().graph.push(Op::Leaf(leaf), Vec::new(), dims, dtype);
                Var::of(recording, id)
            };
            let x = leaf(Leaf::Input, &[n, self.in_features], format);
            let mut values = Vec::new();
            for (index, (name, spec)) in self.param_names.iter().zip(&self.params).enumerate() {
                values.push((name.clone(), leaf(Leaf::Param(index), &spec.dims, format)));
            }
            for (index, Buffer { name, values: own, .. }) in self.buffers.iter().enumerate() {
                // A model in f64 widens its registered buffers.
                let dtype = match own.dtype() {
                    DType::F32 if precision == Precision::F64 => DType::F64,
                    dtype => dtype,
                };
                let value = leaf(Leaf::Registered(index), own.dims(), dtype);
                values.push((name.clone(), if dtype.is_float() { value.to_dtype(format) } else { value }));
            }
            (self.f)(&x, &Own { values })
        })
        .map_err(within)?;
        if recorded.graph.dims(recorded.y) != [n, self.out_features] {
            let operand = recorded.graph.operand(recorded.y, "the result").into();
            let expected = Shape::matrix(n, self.out_features);
            return Err(within(KernelError::Shape { op: "rows", operand, expected }));
        }
        Ok(recorded)
    }

    /// Names the parameters on which the rows do not depend: on stderr, if the program has no subscriber of events.
    fn name_unused(&self, recorded: &Recorded) {
        let used = recorded.graph.leaves_of(recorded.y);
        let params = self.param_names.iter().enumerate();
        for (_, name) in params.filter(|(index, _)| !used.contains(&Leaf::Param(*index))) {
            let text = format!(
                "expression {}: the rows do not depend on its parameter `{name}`, which keeps its initial values",
                self.name
            );
            if has_been_set() {
                warn!("{text}");
            } else {
                // A closed stderr cannot be reported.
                let _ = writeln!(io::stderr(), "warning: {text}");
            }
        }
    }

    /// The stages of a pass over `n` rows, which is more than 0, and the tensors that they read.
    fn stages(&mut self, n: usize) -> Result<(&[Stage], &Constants)> {
        let plans = self.plans.as_ref().expect("made with the model");
        if !plans.stages.contains_key(&n) {
            let stages = plans.constants.unless_failed(|| {
                self.record(n, plans.sizes, &plans.constants)?.stages_within(&plans.largest, &plans.slots)
            })?;
            let plans = self.plans.as_mut().expect("made with the model");
            if plans.stages.len() >= MAX_PLANS {
                plans.stages.clear();
            }
            plans.stages.insert(n, stages);
        }
        let plans = self.plans.as_ref().expect("made with the model");
        Ok((&plans.stages[&n], &plans.constants))
    }
}

impl Layer for Expression {
    fn describe(&self) -> String {
        format!("expression {}, {} -> {}", self.name, self.in_features, self.out_features)
    }

    fn out_features(&self) -> usize {
        self.out_features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Memory of the values, which [`Layer::prepare`] has counted.
    fn buffers(&self, _sizes: Sizes) -> Vec<BufferSpec> {
        let slots = self.plans.iter().flat_map(|plans| &plans.slots);
        slots.map(|slot| BufferSpec::activations(&[slot.len], slot.dtype)).collect()
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        let register = |Buffer { name, values, is_saved }: &Buffer| {
            let buffer = RegisteredBuffer::new(format!("{}.{name}", self.name), values.try_clone()?);
            Ok(if *is_saved { buffer } else { buffer.not_saved() })
        };
        self.buffers.iter().map(register).collect()
    }

    fn is_capturable(&self) -> bool {
        true
    }

    /// The multiply-adds of all matmuls of the expression.
    fn matmul_size(&self) -> usize {
        self.plans.as_ref().map_or(0, |plans| plans.largest.multiply_adds() / plans.largest_rows.max(1))
    }

    fn reads_master(&self, _index: usize, _outputs: DType) -> bool {
        self.plans.as_ref().is_none_or(|plans| !plans.sizes.precision.is_short())
    }

    /// Records the expression for the most rows that it takes, and counts its memory.
    fn prepare(&mut self, _entries: &[&ParamEntry], sizes: Sizes) -> Result<()> {
        // An expression that reshapes groups of rows refuses other numbers of them; some multiple of a group is above half of the most rows.
        let constants = Constants::default();
        let record =
            |n| constants.unless_failed(|| self.record(n, sizes, &constants)).map(|recorded| (n, recorded));
        let mut found = record(sizes.max_rows.max(1));
        for n in (sizes.max_rows / 2 + 1..sizes.max_rows).rev().take(MAX_TRIES) {
            let Err(error) = found else { break };
            found = record(n).map_err(|_| error);
        }
        let (largest_rows, largest) = found?;
        self.name_unused(&largest);
        let mut slots = Vec::new();
        let stages = HashMap::from([(largest_rows, largest.stages(&mut slots))]);
        self.plans = Some(Plans { sizes, slots, constants, largest, largest_rows, stages });
        Ok(())
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let (n, _) = x.shape().rows_cols();
        if n == 0 {
            return Ok(());
        }
        let ForwardPass { params, buffers, registered, matmul_mode, .. } = pass;
        let (stages, constants) = self.stages(n)?;
        let constants = &constants.kept()[..];
        let leaves =
            Leaves { input: x, targets: None, gradient: None, params: Some(params), registered, constants };
        let mut results = [Some(Destination { to: y, accumulate: false })];
        stages[0].run(leaves, buffers, matmul_mode, &mut results)
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let mut results = Vec::with_capacity(self.params.len());
        for _ in &self.params {
            let gradient = pass.grads.take()?;
            results.push(Some(Destination { to: gradient.d, accumulate: gradient.accumulate }));
        }
        let BackwardPass { x, params, buffers, registered, matmul_mode, .. } = pass;
        let (n, _) = x.shape().rows_cols();
        let no_rows;
        let no_constants = Constants::default();
        let (stage, constants) = if n == 0 {
            no_rows = Stage { steps: Vec::new(), results: self.params.iter().map(|_| None).collect() };
            (&no_rows, &no_constants)
        } else {
            let (stages, constants) = self.stages(n)?;
            (&stages[1], constants)
        };
        let (gradient, params, constants) = (Some(d.as_ref()), Some(params), &constants.kept()[..]);
        let leaves = Leaves { input: x, targets: None, gradient, params, registered, constants };
        stage.run(leaves, buffers, matmul_mode, &mut results)
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let (n, _) = d.shape().rows_cols();
        if n == 0 {
            return Ok(());
        }
        let InputGradientPass { x, params, buffers, registered, matmul_mode, accumulate, .. } = pass;
        let (stages, constants) = self.stages(n)?;
        let (gradient, params, constants) = (Some(d), Some(params), &constants.kept()[..]);
        let leaves = Leaves { input: x, targets: None, gradient, params, registered, constants };
        let mut results = [Some(Destination { to: d_x, accumulate })];
        stages[2].run(leaves, buffers, matmul_mode, &mut results)
    }
}
