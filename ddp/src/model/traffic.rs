//! Bytes of memory that the passes of a model read and write, counted from its plan.
//!
//! Each operand of an operation counts once, as if nothing stayed in a cache, and everything that can be fused is fused.

use ddp_kernels::{DType, ops};

use super::buffers::BufferPlan;
use super::layer::{Layer, LayerKind, Sizes};
use super::layers;
use super::plan::{BackwardStep, Plan, Step, Value};

/// Bytes that a forward and a backward pass read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassTraffic {
    /// Bytes of weights, in the formats that matmuls and norms read.
    pub weights: usize,
    /// Bytes of the weights' gradients.
    pub gradients: usize,
    /// Bytes of inputs, outputs of layers, and their gradients.
    pub activations: usize,
}

/// Modes in which a backward pass writes the gradients of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientWrites {
    /// In f32, overwriting the old values.
    Singles,
    /// In f32, added to the gradients of an earlier micro-batch.
    Accumulated,
    /// In the format of activations, by layers that [can](super::Layer::can_round_gradients); else in f32.
    Rounded,
}

/// An operation of a pass: a layer forward, the loss, the gradients of a layer's parameters, or that of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassOperation {
    /// Bytes that it reads and writes.
    pub traffic: PassTraffic,
    /// Sizes `[m, n, k]` of its matmul, if it computes one.
    pub matmul: Option<[usize; 3]>,
    /// Whether it belongs to the backward pass.
    pub is_backward: bool,
    /// Width of the activation whose derivative its matmul includes where that can be fused; 0 for none.
    pub derivative_width: usize,
    /// All gradients before this element of the flat buffer are finished after it.
    pub finishes: Option<usize>,
}

/// Counts the bytes of one step after another.
struct Count<'a> {
    plan: &'a Plan,
    n_features: usize,
    n_rows: usize,
    /// Bytes of a value in the format of activations and matmuls.
    short: usize,
}

const SINGLE: usize = size_of::<f32>();

impl PassTraffic {
    /// The traffic over `n_rows` rows of the model that [`super::Network::with_layout`] builds from this plan.
    ///
    /// - `target_bytes`: bytes of the targets and the weight of a row
    pub fn of(plan: BufferPlan<'_>, n_rows: usize, target_bytes: usize, writes: GradientWrites) -> Self {
        let mut sum = PassTraffic::default();
        for PassOperation { traffic, .. } in PassOperation::list(plan, n_rows, target_bytes, writes) {
            sum.weights += traffic.weights;
            sum.gradients += traffic.gradients;
            sum.activations += traffic.activations;
        }
        sum
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.weights + self.gradients + self.activations
    }
}

impl PassOperation {
    /// The operations of a forward and a backward pass in their order; arguments as for [`PassTraffic::of`].
    pub fn list(
        plan: BufferPlan<'_>,
        n_rows: usize,
        target_bytes: usize,
        writes: GradientWrites,
    ) -> Vec<Self> {
        let BufferPlan { spec, layout, max_rows, device, precision } = plan;
        let sizes = Sizes { max_rows, device, precision };
        let plan = Plan::new(layers::from_spec(spec), layout, spec.n_features(), sizes, false);
        let short = precision.activations().size_bytes();
        let count = Count { plan: &plan, n_features: spec.n_features(), n_rows, short };
        let mut operations: Vec<_> = plan.steps.iter().map(|step| count.forward(step)).collect();
        // The loss reads outputs and targets and writes the gradient of the outputs.
        let activations = n_rows * (plan.n_outputs * (SINGLE + short) + target_bytes);
        let traffic = PassTraffic { activations, ..PassTraffic::default() };
        operations.push(PassOperation { traffic, is_backward: true, ..Self::default() });
        for (index, step) in plan.steps.iter().enumerate().rev() {
            let Some(backward) = &step.backward else { break };
            operations.push(count.backward(step, backward, writes));
            let before = index.checked_sub(1).map(|before| &plan.steps[before]);
            operations.extend(backward.d_x.map(|_| count.input_gradient(step, before, backward)));
        }
        operations
    }
}

/// Sizes `[m, n, k]` of the forward matmul of a layer over `n_rows` rows.
fn matmul(layer: &dyn Layer, n_rows: usize) -> Option<[usize; 3]> {
    let (size, width) = (layer.matmul_size(), layer.out_features().max(1));
    (size > 0).then(|| [n_rows, width, size.div_ceil(width)])
}

impl Count<'_> {
    /// Width and bytes of a value.
    fn value(&self, value: Value) -> (usize, usize) {
        match value {
            Value::Input => (self.n_features, self.n_rows * self.n_features * SINGLE),
            Value::Buffer(index) => {
                let buffer = &self.plan.values[index];
                (buffer.dims[1], self.n_rows * buffer.dims[1] * buffer.dtype.size_bytes())
            }
        }
    }

    /// Bytes of `width` values per row in the format of activations.
    fn rows(&self, width: usize) -> usize {
        self.n_rows * width * self.short
    }

    fn relu_mask(&self, width: usize) -> usize {
        ops::relu_mask_len(self.n_rows, width) * DType::I64.size_bytes()
    }

    fn forward(&self, step: &Step) -> PassOperation {
        let ((_, x), (_, y)) = (self.value(step.x), self.value(step.y));
        let n_params: usize = step.params.iter().map(|param| param.range.len()).sum();
        let is_in_place = step.x == step.y;
        let (weights, activations) = match step.layer.kind() {
            LayerKind::Linear(spec) => {
                let pre_activation =
                    if spec.keeps_pre_activation() { self.rows(spec.out_features) } else { 0 };
                let mask = if spec.keeps_relu_mask() { self.relu_mask(spec.out_features) } else { 0 };
                (n_params * self.short, x + y + pre_activation + mask)
            }
            LayerKind::LayerNorm { .. } => (n_params * SINGLE, x + y + 2 * self.n_rows * SINGLE),
            LayerKind::BatchNorm { .. } => (2 * n_params * SINGLE, 2 * x + y),
            LayerKind::Embedding(tables) => {
                let width: usize = tables.iter().map(|table| table.dim).sum();
                (self.n_rows * width * SINGLE, x + y)
            }
            LayerKind::SkipBegin => (0, 0),
            LayerKind::SkipEnd => {
                let skip = step.skip.map_or(0, |skip| self.value(skip).1);
                (0, 2 * y + skip + if is_in_place { 0 } else { x + y })
            }
            LayerKind::Dropout => (0, 2 * y + if is_in_place { 0 } else { x + y }),
            LayerKind::Opaque | LayerKind::Activation(_) | LayerKind::Cast => (n_params * self.short, x + y),
        };
        let traffic = PassTraffic { weights, activations, gradients: 0 };
        PassOperation { traffic, matmul: matmul(&*step.layer, self.n_rows), ..PassOperation::default() }
    }

    /// The gradients of the parameters of a layer, and that of its input if it is computed in place.
    fn backward(&self, step: &Step, backward: &BackwardStep, writes: GradientWrites) -> PassOperation {
        let ((_, x), width) = (self.value(step.x), step.layer.out_features());
        let d = self.rows(width);
        let n_params: usize = step.params.iter().map(|param| param.range.len()).sum();
        let of_gradient = match writes {
            GradientWrites::Singles => SINGLE,
            GradientWrites::Accumulated => 2 * SINGLE,
            GradientWrites::Rounded if step.layer.can_round_gradients() => self.short,
            GradientWrites::Rounded => SINGLE,
        };
        let gradients = n_params * of_gradient;
        let (weights, activations) = match step.layer.kind() {
            LayerKind::Linear(spec) => {
                let derivative =
                    if spec.activation.is_some() && !spec.derivative_in_next { 3 * d } else { 0 };
                let is_on_gpu = self.plan.sizes.device != ddp_kernels::Device::Cpu;
                let has_bias = step.params.len() > 1;
                // If no other pass over the gradient computes the gradient of the bias.
                let bias = if has_bias && !is_on_gpu && spec.activation.is_none() { d } else { 0 };
                (0, derivative + bias + d + x)
            }
            LayerKind::LayerNorm { .. } => {
                (step.params[0].range.len() * SINGLE, x + 2 * d + 2 * self.n_rows * SINGLE)
            }
            // The sums of columns and the gradients of rows need two passes.
            LayerKind::BatchNorm { .. } => (3 * step.params[0].range.len() * SINGLE, 2 * x + 3 * d),
            LayerKind::Activation(_) | LayerKind::Opaque => (0, self.rows(step.layer.backward_values())),
            LayerKind::Dropout => (0, 2 * d),
            LayerKind::SkipEnd => (0, backward.skip.map_or(0, |_| 2 * d)),
            LayerKind::SkipBegin => (0, backward.skip.map_or(0, |_| 3 * d)),
            LayerKind::Embedding(_) => (0, d + x),
            LayerKind::Cast => (0, 0),
        };
        let matmul = matmul(&*step.layer, self.n_rows).map(|[rows, n, k]| [n, k, rows]);
        PassOperation {
            traffic: PassTraffic { weights, gradients, activations },
            matmul,
            is_backward: true,
            finishes: backward.finishes,
            ..PassOperation::default()
        }
    }

    /// The gradient of the input of a layer, including the derivative of the activation before it.
    fn input_gradient(&self, step: &Step, before: Option<&Step>, backward: &BackwardStep) -> PassOperation {
        let (in_features, _) = self.value(step.x);
        let (through, derivative_width) = match before.map(|before| before.layer.kind()) {
            Some(LayerKind::Linear(before)) if before.keeps_relu_mask() => {
                (self.relu_mask(in_features), in_features)
            }
            Some(LayerKind::Linear(before)) if before.derivative_in_next => {
                (self.rows(in_features), in_features)
            }
            _ => (0, 0),
        };
        let d_x = self.rows(in_features) * if backward.accumulate { 2 } else { 1 };
        let weights = step.layer.matmul_size() * self.short;
        let activations = self.rows(step.layer.out_features()) + d_x + through;
        PassOperation {
            traffic: PassTraffic { weights, gradients: 0, activations },
            matmul: matmul(&*step.layer, self.n_rows).map(|[rows, n, k]| [rows, k, n]),
            is_backward: true,
            derivative_width,
            finishes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::precision::Precision;
    use crate::model::{ModelSpec, ParamLayout};

    fn traffic(
        spec: &ModelSpec,
        device: Device,
        precision: Precision,
        writes: GradientWrites,
    ) -> PassTraffic {
        let layout = ParamLayout::new(spec);
        let plan = BufferPlan { spec, layout: &layout, max_rows: 8, device, precision };
        PassTraffic::of(plan, 4, 8, writes)
    }

    #[test]
    fn a_linear_layer_is_counted_by_hand() {
        // 3 features, 2 outputs, no hidden layer: y = x W + b.
        let spec = ModelSpec::plain(&[3, 2], Activation::Relu);
        let got = traffic(&spec, Device::Cpu, Precision::F32, GradientWrites::Singles);
        // Forward x and y; loss y, targets and d; backward d for the bias, then d and x.
        let activations = 4 * ((12 + 8) + (8 + 8 + 8) + 8 + (8 + 12));
        assert_eq!(got, PassTraffic { weights: 32, gradients: 32, activations });
        let on_gpu = traffic(&spec, Device::Cuda(0), Precision::F32, GradientWrites::Accumulated);
        // On a GPU the matmul also computes the gradient of the bias.
        assert_eq!(on_gpu, PassTraffic { weights: 32, gradients: 64, activations: activations - 4 * 8 });
    }

    #[test]
    fn short_formats_move_half_as_much() {
        let spec = ModelSpec::plain(&[64, 128, 128, 10], Activation::Relu);
        let single = traffic(&spec, Device::Cuda(0), Precision::F32, GradientWrites::Singles);
        let short = traffic(&spec, Device::Cuda(0), Precision::Bf16, GradientWrites::Singles);
        assert_eq!(short.weights * 2, single.weights);
        assert_eq!(short.gradients, single.gradients);
        let rounded = traffic(&spec, Device::Cuda(0), Precision::Bf16, GradientWrites::Rounded);
        assert_eq!(rounded, PassTraffic { gradients: single.gradients / 2, ..short });
        assert!(short.activations < single.activations);
    }
}
