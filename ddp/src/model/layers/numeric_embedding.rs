//! Periodic embeddings of the columns.

use std::f32::consts::{PI, TAU};

use ddp_kernels::ops::{self, NumericEmbeddingGrads};
use ddp_kernels::{TensorMut, TensorRef};

use crate::model::layer::{Layer, Result};
use crate::model::layer_list::LayerList;
use crate::model::operator::{Operator, OperatorInput};
use crate::model::param::{Init, ParamKind, ParamSpec, RandomStream};
use crate::model::pass::{BackwardPass, ForwardPass, InputGradientPass, ParamViews};

/// First random stream of these layers; the streams of linear layers count from 0.
const STREAM: u32 = 0x4e45_0000;

pub(super) fn add(list: &mut LayerList, dim: usize, n_frequencies: usize, sigma: f64) {
    let index = list.next_index("numeric");
    list.push(NumericEmbeddingLayer::new(index, list.width, n_frequencies, dim, sigma));
}

/// Each column `x` becomes `dim` columns: `x`, and `W·cos(2π·w·x + b) + c` with frequencies `w`, phases `b` and a matrix of its own.
/// The parameters are f32 in every precision.
///
/// Source: PBLD ("periodic bias linear DenseNet") embeddings of arXiv:2407.04491, with their initial values: normal frequencies
/// with standard deviation `sigma`, phases uniform in ±π, `W` and `c` initialized like a linear layer.
#[derive(Debug)]
pub struct NumericEmbeddingLayer {
    in_features: usize,
    n_frequencies: usize,
    dim: usize,
    params: [ParamSpec; 4],
}

impl NumericEmbeddingLayer {
    /// Embedding `index` of a model: `numeric.{index}.frequencies`, `.phases`, `.weight` and `.bias`.
    pub fn new(index: usize, in_features: usize, n_frequencies: usize, dim: usize, sigma: f64) -> Self {
        let param = |place: u32, name: &str, kind, dims: &[usize], init| {
            let stream = RandomStream::Layer(STREAM + 4 * index as u32 + place);
            ParamSpec::new(format!("numeric.{index}.{name}"), kind, dims, init).on_stream(stream)
        };
        let (waves, outputs) = ([in_features, n_frequencies], dim - 1);
        let uniform = Init::Uniform(1.0 / (n_frequencies as f32).sqrt());
        let params = [
            param(0, "frequencies", ParamKind::Embedding, &waves, Init::Normal(sigma as f32)),
            param(1, "phases", ParamKind::Bias, &waves, Init::Uniform(PI)),
            param(2, "weight", ParamKind::Weight, &[in_features, n_frequencies, outputs], uniform),
            param(3, "bias", ParamKind::Bias, &[in_features, outputs], uniform),
        ];
        NumericEmbeddingLayer { in_features, n_frequencies, dim, params }
    }

    fn views<'a>(params: &ParamViews<'a>) -> Result<ops::NumericEmbedding<'a>> {
        Ok(ops::NumericEmbedding {
            frequencies: params.master(0)?,
            phases: params.master(1)?,
            weight: params.master(2)?,
            bias: params.master(3)?,
        })
    }
}

impl Layer for NumericEmbeddingLayer {
    fn describe(&self) -> String {
        format!(
            "embedding of {} numbers by {} cosines, {} wide",
            self.in_features, self.n_frequencies, self.dim
        )
    }

    fn out_features(&self) -> usize {
        self.in_features * self.dim
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn matmul_size(&self) -> usize {
        self.in_features * self.n_frequencies * (self.dim - 1)
    }

    fn operators(&self) -> Option<Vec<Operator>> {
        use OperatorInput::{Float, Ints, Param, Result, X};
        let outputs = self.dim as i64 - 1;
        let pad =
            |of, before, after| Operator::new("Pad", vec![Result(of), Ints(vec![0, 0, before, 0, 0, after])]);
        Some(vec![
            Operator::new("Unsqueeze", vec![X, Ints(vec![2])]),
            Operator::new("Mul", vec![Result(0), Param(0)]),
            Operator::new("Mul", vec![Result(1), Float(TAU)]),
            Operator::new("Add", vec![Result(2), Param(1)]),
            Operator::new("Cos", vec![Result(3)]),
            Operator::new("Unsqueeze", vec![Result(4), Ints(vec![2])]),
            Operator::new("MatMul", vec![Result(5), Param(2)]),
            Operator::new("Squeeze", vec![Result(6), Ints(vec![2])]),
            Operator::new("Add", vec![Result(7), Param(3)]),
            pad(0, 0, outputs),
            pad(8, 1, 0),
            Operator::new("Add", vec![Result(9), Result(10)]),
            Operator::new("Reshape", vec![Result(11), Ints(vec![0, self.out_features() as i64])]),
        ])
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        ops::numeric_embedding_forward(x, Self::views(&pass.params)?, y)
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        let BackwardPass { x, params, mut grads, .. } = pass;
        let mut next = || grads.take().map(|grad| (grad.d, grad.accumulate));
        let grads =
            NumericEmbeddingGrads { frequencies: next()?, phases: next()?, weight: next()?, bias: next()? };
        ops::numeric_embedding_backward(x, Self::views(&params)?, d.as_ref(), grads)
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let params = Self::views(&pass.params)?;
        ops::numeric_embedding_backward_input(pass.x, params, d, d_x, pass.accumulate)
    }
}
