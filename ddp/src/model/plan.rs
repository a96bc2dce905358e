//! The plan of a model: its layers after fusion, and the values that each of them reads and writes, forward and backward.
//!
//! A value is the output of a layer. A layer works in place if it can, unless another layer still reads the value that it would
//! overwrite. Gradients of values share as few buffers as the skip connections allow, mostly two.

use std::collections::HashMap;
use std::ops::Range;

use ddp_kernels::{DType, Device, KernelError};

use super::fusion::fuse;
use super::layer::{BufferSpec, Layer, LayerKind, Sizes};
use super::layers::Cast;
use super::layout::ParamLayout;
use super::param::{ParamEntry, ParamKind};
use super::pass::{GradientPlace, ParamPlace};

/// Formats of a model's flat buffers of weights and gradients.
#[derive(Debug, Clone)]
pub struct FlatFormats {
    /// Where the model computes.
    pub device: Device,
    /// Number format of activations.
    pub activations: DType,
    /// Ranges whose gradients layers write in f32 in every precision, in their order; elsewhere they
    /// [can round them](Layer::can_round_gradients). A parameter that several layers share is among them.
    pub unrounded: Vec<Range<usize>>,
    /// Ranges of weights that passes read in f32, disjoint and in order; of the others they read the copy in the format of activations
    /// alone.
    pub master_reads: Vec<Range<usize>>,
}

/// The steps of a forward pass in their order; the backward pass goes through them from the last to the first.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) sizes: Sizes,
    /// Width of the model's input.
    pub(crate) n_features: usize,
    /// The value that holds the model's outputs.
    pub(crate) output: usize,
    pub(crate) n_outputs: usize,
    pub(crate) values: Vec<BufferSpec>,
    /// Number of buffers for gradients of values, and the number of elements of each.
    pub(crate) n_gradients: usize,
    pub(crate) gradient_len: usize,
    /// Buffer with the gradient of the model's input after a backward pass, if it is computed.
    pub(crate) input_gradient: Option<usize>,
    /// Elements of the buffers for gradients of shared parameters.
    pub(crate) shares: Vec<usize>,
    pub(crate) workspace_len: usize,
}

/// One layer with its inputs and outputs.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) layer: Box<dyn Layer>,
    pub(crate) params: Vec<ParamPlace>,
    pub(crate) x: Value,
    pub(crate) y: Value,
    /// The value at the start of the skip connection that ends here.
    pub(crate) skip: Option<Value>,
    /// `None` if nothing needs it: no parameter, and not the gradient of the input.
    pub(crate) backward: Option<BackwardStep>,
}

/// Location of a layer's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// The model's input.
    Input,
    /// The value with this index.
    Buffer(usize),
}

/// The converted input, if the first layer converts it.
pub(crate) const CONVERTED: Value = Value::Buffer(0);

/// The backward pass of one layer.
#[derive(Debug, Default)]
pub(crate) struct BackwardStep {
    /// Buffer with the gradient of the layer's output.
    pub(crate) d: usize,
    /// Buffer for the gradient of its input, if it is needed and is a different buffer.
    pub(crate) d_x: Option<usize>,
    /// Whether to add to the values in that buffer: the gradient of a skip connection that begins before the layer.
    pub(crate) accumulate: bool,
    /// Buffer with the gradient of the skip connection that begins or ends here.
    pub(crate) skip: Option<usize>,
    /// Elements of the flat buffer whose gradients the layer writes.
    pub(crate) flat: Range<usize>,
    /// Elements of the layer's shift, if a batch norm subtracts it again: its gradient is 0 in a pass of training.
    pub(crate) cancelled: Option<Range<usize>>,
    /// Buffers for the layer's shares of gradients that other layers complete.
    pub(crate) shares: Range<usize>,
    /// After the layer, all gradients before this element are finished.
    pub(crate) finishes: Option<usize>,
}

impl Plan {
    /// The plan of these layers, of which `layout` was made, on rows of `n_features`; with the gradient of the input, if
    /// `to_input`.
    ///
    /// # Panics
    /// If there is no layer, or if skip connections do not end correctly.
    pub(crate) fn new(
        mut layers: Vec<Box<dyn Layer>>,
        layout: &ParamLayout,
        n_features: usize,
        sizes: Sizes,
        to_input: bool,
    ) -> Self {
        let has_tables = matches!(layers.first().map(|first| first.kind()), Some(LayerKind::Embedding(_)));
        if sizes.precision.is_short() && !has_tables {
            layers.insert(0, Box::new(Cast::new(n_features)));
        }
        let layers = fuse(layers, sizes.device);
        let widths = layers.iter().map(|layer| layer.out_features());
        let gradient_len = sizes.max_rows * widths.chain([n_features]).max().unwrap_or(0);
        let workspace_len = layers.iter().map(|layer| layer.workspace_len(sizes)).max().unwrap_or(0);
        let (mut steps, values) = forward_steps(layers, sizes);
        let last = steps.last().expect("a model has layers");
        let (n_outputs, Value::Buffer(output)) = (last.layer.out_features(), last.y) else {
            panic!("a model computes something");
        };
        let mut values = values;
        // The loss is computed from the outputs.
        values[output].dtype = sizes.precision.master();
        let shares = place_parameters(&mut steps, layout);
        find_cancelled_shifts(&mut steps);
        let (n_gradients, d) = plan_backward(&mut steps, layout, to_input);
        Plan {
            steps,
            sizes,
            n_features,
            output,
            n_outputs,
            values,
            n_gradients,
            gradient_len,
            input_gradient: to_input.then_some(d),
            shares,
            workspace_len,
        }
    }

    /// The layers from which the plan was made, with activations fused; a plan made of them is the same.
    pub(crate) fn take_layers(&mut self) -> Vec<Box<dyn Layer>> {
        let begins_with_cast = self.steps.first().is_some_and(|first| first.layer.kind() == LayerKind::Cast);
        let n_inserted = usize::from(begins_with_cast && self.sizes.precision.is_short());
        self.steps.drain(..).skip(n_inserted).map(|step| step.layer).collect()
    }

    /// The formats of the flat buffers.
    pub(crate) fn flat_formats(&self) -> FlatFormats {
        let (unrounded, master_reads) = (self.unrounded_gradients(), self.master_reads());
        let Sizes { device, precision, .. } = self.sizes;
        FlatFormats { device, activations: precision.activations(), unrounded, master_reads }
    }

    /// See [`FlatFormats::unrounded`].
    fn unrounded_gradients(&self) -> Vec<Range<usize>> {
        let writes = |step: &Step| {
            let is_flat = step.params.iter().all(|param| param.gradient == GradientPlace::Flat);
            let is_rounded = step.layer.can_round_gradients() && is_flat;
            step.backward.as_ref().filter(|_| !is_rounded).map(|backward| backward.flat.clone())
        };
        self.steps.iter().rev().filter_map(writes).filter(|range| !range.is_empty()).collect()
    }

    /// Format, besides f32, of input that needs no conversion: the format of activations, if only the conversion writes its
    /// buffer.
    pub(crate) fn short_input(&self) -> Option<DType> {
        let [cast, rest @ ..] = &self.steps[..] else { return None };
        let is_overwritten = |step: &Step| step.y == cast.y && step.layer.kind() != LayerKind::SkipBegin;
        let is_first = cast.layer.kind() == LayerKind::Cast && cast.y == CONVERTED;
        let precision = self.sizes.precision;
        (is_first && precision.is_short() && !rest.iter().any(is_overwritten))
            .then_some(precision.activations())
    }

    /// See [`FlatFormats::master_reads`].
    fn master_reads(&self) -> Vec<Range<usize>> {
        let mut reads: Vec<_> = self.steps.iter().flat_map(|step| self.master_reads_of(step)).collect();
        reads.sort_unstable_by_key(|range| range.start);
        reads.dedup();
        reads
    }

    fn master_reads_of(&self, step: &Step) -> impl Iterator<Item = Range<usize>> {
        let outputs = match step.y {
            Value::Input => self.sizes.precision.master(),
            Value::Buffer(index) => self.values[index].dtype,
        };
        let params = step.params.iter().enumerate();
        params
            .filter(move |(index, _)| step.layer.reads_master(*index, outputs))
            .map(|(_, param)| param.range.clone())
    }

    /// Prepares what the layers need for their passes.
    ///
    /// # Errors
    /// Out of memory, or no such device.
    pub(crate) fn prepare(&mut self, layout: &ParamLayout) -> Result<(), KernelError> {
        for Step { layer, .. } in &mut self.steps {
            let entries: Vec<_> =
                layer.parameters().iter().filter_map(|param| layout.find(&param.name)).collect();
            layer.prepare(&entries, self.sizes)?;
        }
        Ok(())
    }
}

/// The steps without their backward pass, and the values between them.
fn forward_steps(layers: Vec<Box<dyn Layer>>, sizes: Sizes) -> (Vec<Step>, Vec<BufferSpec>) {
    let (mut steps, mut values) = (Vec::with_capacity(layers.len()), Vec::new());
    let mut open_skips = Vec::new();
    let mut x = Value::Input;
    // Whether a later layer than the next one still reads the value.
    let mut is_kept = true;
    for layer in layers {
        let kind = layer.kind();
        let begins_skip = kind == LayerKind::SkipBegin;
        let skip =
            (kind == LayerKind::SkipEnd).then(|| open_skips.pop().expect("a skip ends after it began"));
        let y = if begins_skip || layer.can_overwrite_input() && !is_kept {
            x
        } else {
            let dims = [sizes.max_rows, layer.out_features()];
            values.push(BufferSpec::activations(&dims, sizes.precision.activations()));
            Value::Buffer(values.len() - 1)
        };
        if begins_skip {
            open_skips.push(x);
        }
        is_kept = begins_skip || layer.keeps_output();
        steps.push(Step { layer, params: Vec::new(), x, y, skip, backward: None });
        x = y;
    }
    assert!(open_skips.is_empty(), "every skip ends");
    (steps, values)
}

/// Finds the parameters of each layer; returns the sizes of the buffers for shares of shared parameters.
fn place_parameters(steps: &mut [Step], layout: &ParamLayout) -> Vec<usize> {
    let mut shares = Vec::new();
    let mut shares_of: Vec<(String, Vec<usize>)> = Vec::new();
    let entries: HashMap<&str, &ParamEntry> =
        layout.entries().iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let mut first_uses: HashMap<String, usize> = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        for param in step.layer.parameters() {
            first_uses.entry(param.name.clone()).or_insert(index);
        }
    }
    for (index, step) in steps.iter_mut().enumerate().rev() {
        let mut backward = BackwardStep { shares: shares.len()..shares.len(), ..BackwardStep::default() };
        for param in step.layer.parameters() {
            let entry = entries.get(param.name.as_str()).expect("the layout was made of these layers");
            let is_last_use = first_uses[&param.name] == index;
            let known = shares_of.iter_mut().find(|(name, _)| *name == param.name);
            let gradient = match (is_last_use, known) {
                (true, None) => GradientPlace::Flat,
                (true, Some((_, of_param))) => GradientPlace::FlatOnShares(of_param.clone()),
                (false, known) => {
                    match known {
                        Some((_, of_param)) => of_param.push(shares.len()),
                        None => shares_of.push((param.name.clone(), vec![shares.len()])),
                    }
                    shares.push(entry.numel());
                    GradientPlace::Share
                }
            };
            if gradient != GradientPlace::Share {
                let start = if backward.flat.is_empty() { entry.start } else { backward.flat.start };
                backward.flat = start..entry.range().end;
            }
            step.params.push(ParamPlace { range: entry.range(), dims: entry.dims.clone(), gradient });
        }
        backward.shares.end = shares.len();
        step.backward = Some(backward);
    }
    shares
}

/// Finds the shifts that have no effect on training, since a later batch norm subtracts the mean of all rows and nothing but linear maps is in
/// between.
fn find_cancelled_shifts(steps: &mut [Step]) {
    let mut is_mean_subtracted = false;
    for Step { layer, params, backward, .. } in steps.iter_mut().rev() {
        let kind = layer.kind();
        let adds_shift = match kind {
            LayerKind::Linear(linear) => linear.activation.is_none(),
            LayerKind::BatchNorm { .. } => true,
            LayerKind::Cast | LayerKind::SkipEnd => continue,
            _ => false,
        };
        if let Some(backward) = backward.as_mut().filter(|_| adds_shift && is_mean_subtracted) {
            let is_shift = |kind: ParamKind| matches!(kind, ParamKind::Bias | ParamKind::NormBias);
            let shift = layer.parameters().iter().position(|param| is_shift(param.kind));
            let place = shift.map(|index| &params[index]);
            backward.cancelled =
                place.filter(|place| place.gradient == GradientPlace::Flat).map(|place| place.range.clone());
        }
        is_mean_subtracted = matches!(kind, LayerKind::BatchNorm { .. }) || adds_shift && is_mean_subtracted;
    }
}

/// Assigns buffers to the backward pass of each layer, of all of them if the gradient of the input is needed; returns their number and the
/// buffer with the gradient that the pass ends with.
fn plan_backward(steps: &mut [Step], layout: &ParamLayout, to_input: bool) -> (usize, usize) {
    let mut open_skips: Vec<Option<usize>> = Vec::new();
    let mut n_gradients = 2;
    let mut d = 0;
    for index in (0..steps.len()).rev() {
        let has_params_before = to_input || has_params(&steps[..index]);
        let begins_in_front = index > 0 && steps[index - 1].layer.kind() == LayerKind::SkipBegin;
        let skip_needs_gradient =
            begin_of_skip(steps, index).is_some_and(|begin| to_input || has_params(&steps[..begin]));
        let next_flat = steps[..index].iter().rev().map(flat_of).find(|flat| !flat.is_empty());
        let step = &mut steps[index];
        if !has_params_before && step.params.is_empty() {
            step.backward = None;
            continue;
        }
        let backward = step.backward.as_mut().expect("made with the parameters");
        backward.d = d;
        let mut free = |taken: &[Option<usize>]| {
            let is_free = |buffer: &usize| *buffer != d && !taken.contains(&Some(*buffer));
            let buffer = (0..).find(is_free).expect("numbers do not end");
            n_gradients = n_gradients.max(buffer + 1);
            buffer
        };
        match step.layer.kind() {
            LayerKind::SkipEnd => {
                backward.skip = skip_needs_gradient.then(|| free(&open_skips));
                open_skips.push(backward.skip);
            }
            LayerKind::SkipBegin => backward.skip = open_skips.pop().expect("every skip ends"),
            // The matmul adds to the gradient along the shortcut, so the start of the skip has nothing to do.
            LayerKind::Linear(_) if begins_in_front && has_params_before => {
                let skip = open_skips.last_mut().expect("every skip ends");
                (backward.d_x, backward.accumulate) = (skip.take(), true);
            }
            _ if step.layer.backward_is_in_place() => {}
            _ => backward.d_x = has_params_before.then(|| free(&open_skips)),
        }
        d = backward.d_x.unwrap_or(d);
        if !backward.flat.is_empty() {
            let unit = |flat: &Range<usize>| layout.layer_ends().partition_point(|end| *end <= flat.start);
            let of_step = unit(&backward.flat);
            if next_flat.is_none_or(|next| unit(&next) != of_step) {
                backward.finishes = Some(layout.layer_ends()[of_step]);
            }
        }
    }
    (n_gradients, d)
}

fn has_params(steps: &[Step]) -> bool {
    steps.iter().any(|step| !step.params.is_empty())
}

/// Start of the skip connection that ends at `end`, if one does.
fn begin_of_skip(steps: &[Step], end: usize) -> Option<usize> {
    let mut n_open = 0;
    (0..=end).rev().find(|&index| {
        match steps[index].layer.kind() {
            LayerKind::SkipEnd => n_open += 1,
            LayerKind::SkipBegin if n_open > 0 => n_open -= 1,
            _ => {}
        }
        n_open == 0
    })
}

fn flat_of(step: &Step) -> Range<usize> {
    step.backward.as_ref().map_or(0..0, |backward| backward.flat.clone())
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::precision::Precision;
    use crate::model::{ModelSpec, layers};

    fn plan(spec: &ModelSpec, device: Device, precision: Precision) -> Plan {
        let sizes = Sizes { max_rows: 8, device, precision };
        Plan::new(layers::from_spec(spec), &ParamLayout::new(spec), spec.n_features(), sizes, false)
    }

    /// The layers, and the value that each writes.
    fn written(plan: &Plan) -> Vec<(String, Option<usize>)> {
        let index = |value| match value {
            Value::Input => None,
            Value::Buffer(index) => Some(index),
        };
        plan.steps.iter().map(|step| (step.layer.describe(), index(step.y))).collect()
    }

    fn named<const N: usize>(steps: [(&str, Option<usize>); N]) -> Vec<(String, Option<usize>)> {
        steps.map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[test]
    fn activations_are_fused_and_layers_work_in_place_where_nothing_reads_what_they_overwrite() {
        let spec = |activation| ModelSpec {
            dropout: 0.5,
            residual: true,
            ..ModelSpec::plain(&[4, 4, 2], activation)
        };
        // The derivative of tanh needs its output, that of GELU its input.
        let skip = "plus the value where the skip began";
        assert_eq!(
            written(&plan(&spec(Activation::Tanh), Device::Cpu, Precision::F32)),
            named([
                ("skip begins", None),
                ("linear 4 -> 4, tanh", Some(0)),
                ("dropout 0.5", Some(1)),
                (skip, Some(1)),
                ("linear 4 -> 2", Some(2)),
            ])
        );
        assert_eq!(
            written(&plan(&spec(Activation::Gelu), Device::Cpu, Precision::Bf16)),
            named([
                ("cast", Some(0)),
                ("skip begins", Some(0)),
                ("linear 4 -> 4, gelu", Some(1)),
                ("dropout 0.5", Some(1)),
                (skip, Some(1)),
                ("linear 4 -> 2", Some(2)),
            ])
        );
    }

    #[test]
    fn derivatives_are_part_of_the_next_matmul_on_a_gpu_where_nothing_is_in_between() {
        let fused = |spec: &ModelSpec, device| {
            let plan = plan(spec, device, Precision::F32);
            let in_next = |step: &Step| matches!(step.layer.kind(), LayerKind::Linear(linear) if linear.derivative_in_next);
            plan.steps.iter().filter(|step| in_next(step)).count()
        };
        let plain = ModelSpec::plain(&[4, 5, 5, 5, 2], Activation::Relu);
        assert_eq!([Device::Cpu, Device::Cuda(0)].map(|device| fused(&plain, device)), [0, 3]);
        for (spec, want) in [
            (ModelSpec { layer_norm: true, ..plain.clone() }, 0),
            (ModelSpec { dropout: 0.1, ..plain.clone() }, 0),
            // Only the second and third layer have one, so only the first two meet.
            (ModelSpec { residual: true, ..plain.clone() }, 0),
            (ModelSpec { residual: true, ..ModelSpec::plain(&[4, 5, 6, 6, 2], Activation::Relu) }, 1),
        ] {
            assert_eq!(fused(&spec, Device::Cuda(0)), want, "{spec:?}");
        }
    }

    #[test]
    fn gradients_take_turns_in_two_buffers_also_with_residuals() {
        for residual in [false, true] {
            let spec = ModelSpec {
                residual,
                layer_norm: true,
                ..ModelSpec::plain(&[4, 6, 6, 6, 2], Activation::Relu)
            };
            let plan = plan(&spec, Device::Cpu, Precision::F32);
            assert_eq!(plan.n_gradients, 2);
            let ends = plan.steps.iter().rev().filter_map(|step| step.backward.as_ref()?.finishes);
            assert_eq!(ends.collect::<Vec<_>>(), ParamLayout::new(&spec).layer_ends());
            // The shortcut's gradient is part of the matmul's.
            let sums = plan.steps.iter().filter(|step| step.backward.as_ref().is_some_and(|b| b.accumulate));
            assert_eq!(sums.count(), if residual { 2 } else { 0 });
        }
    }

    #[test]
    fn nothing_in_front_of_the_first_parameter_has_a_backward_pass() {
        let plan = plan(&ModelSpec::plain(&[4, 2], Activation::Relu), Device::Cpu, Precision::Bf16);
        let has_backward: Vec<_> = plan.steps.iter().map(|step| step.backward.is_some()).collect();
        assert_eq!(has_backward, [false, true]);
        // A shortcut around the first layer needs no gradient either.
        let spec = ModelSpec { residual: true, ..ModelSpec::plain(&[4, 4, 4, 2], Activation::Relu) };
        let plan = self::plan(&spec, Device::Cpu, Precision::F32);
        let ends = plan.steps.iter().filter(|step| step.skip.is_some());
        let skips: Vec<_> = ends.map(|step| step.backward.as_ref().and_then(|b| b.skip)).collect();
        assert_eq!(skips, [None, Some(0)]);
        assert_eq!(plan.values[plan.output].dtype, DType::F32);
    }
}
