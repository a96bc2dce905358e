//! Gated linear unit: a linear layer and the gate after it.

use ddp_kernels::ops::{self, Activation, Gate};
use ddp_kernels::{TensorMut, TensorRef};

use crate::model::layer::{Layer, Result};
use crate::model::layer_list::LayerList;
use crate::model::operator::{Operator, OperatorInput};
use crate::model::pass::{BackwardPass, ForwardPass, InputGradientPass};

pub(super) fn add(list: &mut LayerList, out_features: usize, gate: Gate, bias: bool) {
    super::linear::add(list, 2 * out_features, None, bias);
    list.push(Gated::new(gate, out_features));
}

/// `y = f(a) · b`, where `a` and `b` are the halves of the input's rows.
///
/// Source: arXiv:2002.05202.
#[derive(Debug)]
pub struct Gated {
    gate: Gate,
    features: usize,
}

impl Gated {
    /// Maps rows of `2 · features` to rows of `features`.
    pub fn new(gate: Gate, features: usize) -> Self {
        Gated { gate, features }
    }
}

impl Layer for Gated {
    fn describe(&self) -> String {
        self.gate.to_string()
    }

    fn out_features(&self) -> usize {
        self.features
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

    /// The input; [`Layer::backward_input`] reads and writes the gradients.
    fn backward_values(&self) -> usize {
        2 * self.features
    }

    fn operators(&self) -> Option<Vec<Operator>> {
        use OperatorInput::{Ints, Result, X};
        let (middle, end) = (self.features as i64, 2 * self.features as i64);
        let half =
            |start, end| Operator::new("Slice", vec![X, Ints(vec![start]), Ints(vec![end]), Ints(vec![-1])]);
        let (a, b) = (Result(0), Result(1));
        let mut operators = vec![half(0, middle), half(middle, end)];
        match self.gate.activation() {
            Activation::Silu => {
                operators.push(Operator::new("Sigmoid", vec![a.clone()]));
                operators.push(Operator::new("Mul", vec![a, Result(2)]));
            }
            Activation::Gelu => operators.push(Operator::new("Gelu", vec![a])),
            _ => operators.push(Operator::new("Relu", vec![a])),
        }
        let gate = Result(operators.len() - 1);
        operators.push(Operator::new("Mul", vec![gate, b]));
        Some(operators)
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        ops::glu_forward(self.gate, x, y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        ops::glu_backward(self.gate, pass.x, d, d_x)
    }
}
