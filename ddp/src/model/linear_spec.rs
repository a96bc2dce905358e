//! Shape and parameters of a linear layer, which fusion rewrites.
//!
//! ```
//! use ddp::nn::LinearSpec;
//!
//! let spec = LinearSpec::new(0, 3, 5, true);
//! let names: Vec<&str> = spec.params.iter().map(|param| param.name.as_str()).collect();
//! assert_eq!(names, ["layers.0.bias", "layers.0.weight"]);
//! assert_eq!(spec.params[1].dims, [5, 3]);
//! ```

use ddp_kernels::ops::{Activation, SavedForBackward};

use crate::model::param::{Init, ParamKind, ParamSpec, RandomStream};

/// Shape and parameters of a linear layer, and the operations fused into it.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearSpec {
    /// Width of the input, I.
    pub in_features: usize,
    /// Width of the output, O.
    pub out_features: usize,
    /// The bias `[O]` if there is one, then the weight `[O, I]`.
    pub params: Vec<ParamSpec>,
    /// Activation applied to the output.
    pub activation: Option<Activation>,
    /// Whether the next layer's matmul computes the derivative of the activation.
    pub derivative_in_next: bool,
}

impl LinearSpec {
    /// Linear layer `index` of a multilayer perceptron: `layers.{index}.weight` and `layers.{index}.bias`.
    pub fn new(index: usize, in_features: usize, out_features: usize, has_bias: bool) -> Self {
        let param = |name: &str, kind, dims: &[usize], stream| {
            ParamSpec::new(format!("layers.{index}.{name}"), kind, dims, Init::KaimingUniform(in_features))
                .on_stream(RandomStream::Layer(stream))
        };
        let stream = (index as u32) << 1;
        let bias = has_bias.then(|| param("bias", ParamKind::Bias, &[out_features], stream | 1));
        let weight = param("weight", ParamKind::Weight, &[out_features, in_features], stream);
        Self::from_params(weight, bias)
    }

    /// A linear layer with these parameters, which other layers may share.
    ///
    /// # Panics
    /// If the weight is not a matrix.
    pub fn from_params(weight: ParamSpec, bias: Option<ParamSpec>) -> Self {
        let [out_features, in_features] = weight.dims[..] else { panic!("a weight is a matrix") };
        let params = bias.into_iter().chain([weight]).collect();
        LinearSpec { in_features, out_features, params, activation: None, derivative_in_next: false }
    }

    /// Whether the derivative of the activation is computed from its input, which is then kept.
    pub(crate) fn keeps_pre_activation(&self) -> bool {
        self.activation.is_some_and(|f| f.saved_for_backward() == SavedForBackward::Input)
    }

    /// Whether ReLU leaves a bit mask for the next layer's matmul.
    pub(crate) fn keeps_relu_mask(&self) -> bool {
        self.derivative_in_next && self.activation == Some(Activation::Relu)
    }
}
