//! Operators of ONNX, as which a layer describes itself for export.

/// One operator of the computation of a layer after training.
///
/// ```
/// use ddp::model::{Operator, OperatorInput};
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
    /// Its type in opset 20.
    pub op_type: &'static str,
    /// Its inputs, in order.
    pub inputs: Vec<OperatorInput>,
}

/// An input of an operator.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorInput {
    /// The input of the layer, `[N, in_features]`.
    X,
    /// The result of an operator of the layer, by its place in the list.
    Result(usize),
    /// A parameter of the layer, by its place in [`super::Layer::parameters`].
    Param(usize),
    /// A number.
    Float(f32),
    /// A vector of whole numbers, such as axes.
    Ints(Vec<i64>),
}

impl Operator {
    /// An operator of this type with one output.
    pub fn new(op_type: &'static str, inputs: Vec<OperatorInput>) -> Self {
        Operator { op_type, inputs }
    }
}
