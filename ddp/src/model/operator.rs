//! ONNX operators, which a layer uses to describe itself for export.

/// One operator of a layer's computation after training.
///
/// ```
/// use ddp::nn::{Operator, OperatorInput};
///
/// // y = x / sqrt(x² + 1)
/// let [x, square] = [OperatorInput::X, OperatorInput::Result(0)];
/// let operators = [
///     Operator::new("Mul", vec![x.clone(), x.clone()]),
///     Operator::new("Add", vec![square, OperatorInput::Float(1.0)]),
///     Operator::new("Sqrt", vec![OperatorInput::Result(1)]),
///     Operator::new("Div", vec![x, OperatorInput::Result(2)]),
/// ];
/// # assert_eq!(operators.len(), 4);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// Type of the operator in opset 20.
    pub op_type: &'static str,
    /// Inputs in order.
    pub inputs: Vec<OperatorInput>,
}

/// An input of an operator.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorInput {
    /// The input of the layer, `[N, in_features]`.
    X,
    /// The result of an earlier operator of the layer, by its index in the list.
    Result(usize),
    /// A parameter of the layer, by its index in [`super::Layer::parameters`].
    Param(usize),
    /// A scalar.
    Float(f32),
    /// A vector of integers, such as axes.
    Ints(Vec<i64>),
}

impl Operator {
    /// Makes an operator of this type with one output.
    pub fn new(op_type: &'static str, inputs: Vec<OperatorInput>) -> Self {
        Operator { op_type, inputs }
    }
}
