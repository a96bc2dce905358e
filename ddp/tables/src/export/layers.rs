//! The layers of a model as operators. Dropout adds none, because it has no effect after training.

use std::collections::HashMap;

use ddp::model::{EmbeddingSpec, Layer, LayerKind, Network, Operator, OperatorInput, ParamEntry, ParamSpec};
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, KernelError};

use crate::export::error::{ExportError, Result};
use crate::export::graph::{Attribute, Graph, Value};
use crate::export::inputs::Features;

/// A trained parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedParam {
    /// Name as in the model file.
    pub name: String,
    /// Dimensions, outermost first.
    pub dims: Vec<usize>,
    /// Values in row-major order.
    pub values: Vec<f32>,
}

impl TrainedParam {
    /// The parameters of a network, and its saved f32 buffers.
    ///
    /// # Errors
    /// [`KernelError`] if the weights can't be read from their device.
    pub fn from_network(network: &Network) -> Result<Vec<Self>, KernelError> {
        let flat = network.weights().to_vec::<f32>()?;
        let param = |entry: &ParamEntry| TrainedParam {
            name: entry.name.clone(),
            dims: entry.dims.clone(),
            values: flat[entry.range()].to_vec(),
        };
        let mut params: Vec<_> = network.layout().entries().iter().map(param).collect();
        for (name, values) in network.saved_buffers().into_iter().filter(|(_, v)| v.dtype() == DType::F32) {
            let (name, dims) = (name.to_owned(), values.dims().to_vec());
            params.push(TrainedParam { name, dims, values: values.to_vec()? });
        }
        Ok(params)
    }
}

/// The trained parameters, and those of them that the graph already holds.
pub(super) struct Parameters {
    trained: HashMap<String, TrainedParam>,
    placed: HashMap<String, Value>,
}

impl Parameters {
    pub(super) fn new(trained: Vec<TrainedParam>) -> Self {
        let trained = trained.into_iter().map(|param| (param.name.clone(), param)).collect();
        Parameters { trained, placed: HashMap::new() }
    }

    /// The parameter as a constant of the graph, added at its first use.
    fn place(&mut self, graph: &mut Graph, spec: &ParamSpec) -> Result<Value> {
        self.place_named(graph, &spec.name, &spec.dims)
    }

    /// The tensor of this name and shape as a constant of the graph, added at its first use.
    fn place_named(&mut self, graph: &mut Graph, name: &str, expected: &[usize]) -> Result<Value> {
        if let Some(value) = self.placed.get(name) {
            return Ok(value.clone());
        }
        let wrong = |got: String| {
            Err(ExportError::Parameter { name: name.to_owned(), got, expected: expected.to_vec() })
        };
        let Some(TrainedParam { dims, values, .. }) = self.trained.remove(name) else {
            return wrong("missing".to_owned());
        };
        if dims != expected || values.len() != dims.iter().product::<usize>() {
            return wrong(format!("{dims:?}"));
        }
        let value = graph.floats(name, &dims, values);
        self.placed.insert(name.to_owned(), value.clone());
        Ok(value)
    }
}

/// Applies the layers, in order, to the features; returns the outputs of the last one.
///
/// # Errors
/// [`ExportError::UnknownLayer`], [`ExportError::Parameter`], [`ExportError::Features`].
pub(super) fn add(
    graph: &mut Graph,
    features: &Features,
    layers: &[&dyn Layer],
    parameters: &mut Parameters,
) -> Result<Value> {
    let is_embedding = |layer: &&dyn Layer| matches!(layer.kind(), LayerKind::Embedding(_));
    let mut x = match (&features.values, features.codes.as_slice()) {
        (Some(values), []) => values.clone(),
        // The embedding layer comes first and reads values and codes.
        (_, codes) if layers.first().is_some_and(is_embedding) => {
            let LayerKind::Embedding(specs) = layers[0].kind() else { unreachable!("as just checked") };
            add_embeddings(graph, features, codes, specs, layers[0].parameters(), parameters)?
        }
        (_, codes) => {
            let (got, expected) = (format!("{} codes to embed", codes.len()), "none".to_owned());
            return Err(ExportError::Features { got, expected });
        }
    };
    let mut skips = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let unknown = || ExportError::UnknownLayer { index, layer: layer.describe() };
        let params = layer.parameters();
        match layer.kind() {
            LayerKind::Embedding(specs) if index == 0 && specs.len() == features.codes.len() => {}
            LayerKind::Linear(linear) => {
                let name = params.last().map_or("linear", |weight| &weight.name).to_owned();
                // The bias, if there is one, precedes the weight.
                let weight = parameters.place(graph, &params[params.len() - 1])?;
                let bias = params[..params.len() - 1].iter().map(|bias| parameters.place(graph, bias)).next();
                let bias = bias.transpose()?;
                let inputs: Vec<&Value> = [&x, &weight].into_iter().chain(&bias).collect();
                let trans_b = [("transB", Attribute::Int(1))];
                x = graph.op_with("Gemm", &inputs, &trans_b, &output_of(&name));
                if let Some(activation) = linear.activation {
                    x = add_activation(graph, &x, activation);
                }
            }
            LayerKind::Activation(activation) => x = add_activation(graph, &x, activation),
            LayerKind::LayerNorm { eps } => {
                let [weight, bias] = params else { return Err(unknown()) };
                let name = output_of(&weight.name);
                let (weight, bias) = (parameters.place(graph, weight)?, parameters.place(graph, bias)?);
                let settings = [("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(eps as f32))];
                x = graph.op_with("LayerNormalization", &[&x, &weight, &bias], &settings, &name);
            }
            LayerKind::BatchNorm { eps } => {
                let ([weight, bias], [mean, var]) = (params, &layer.statistics()[..]) else {
                    return Err(unknown());
                };
                let name = output_of(&weight.name);
                let mut inputs =
                    vec![x.clone(), parameters.place(graph, weight)?, parameters.place(graph, bias)?];
                for (name, len) in [mean, var] {
                    inputs.push(parameters.place_named(graph, name, &[*len])?);
                }
                let settings = [("epsilon", Attribute::Float(eps as f32))];
                x = graph.op_with("BatchNormalization", &inputs.iter().collect::<Vec<_>>(), &settings, &name);
            }
            LayerKind::Dropout | LayerKind::Cast => {}
            LayerKind::SkipBegin => skips.push(x.clone()),
            LayerKind::SkipEnd => {
                let skip = skips.pop().ok_or_else(unknown)?;
                x = graph.op("Add", &[&x, &skip], "residual");
            }
            LayerKind::Opaque => {
                let operators = layer.operators().ok_or_else(unknown)?;
                x = add_operators(graph, &x, params, &operators, parameters)?.ok_or_else(unknown)?;
            }
            _ => return Err(unknown()),
        }
    }
    Ok(x)
}

/// Adds the operators of a layer with these parameters; returns the result of the last one, or nothing if an input is missing.
fn add_operators(
    graph: &mut Graph,
    x: &Value,
    params: &[ParamSpec],
    operators: &[Operator],
    parameters: &mut Parameters,
) -> Result<Option<Value>> {
    let mut results: Vec<Value> = Vec::new();
    for Operator { op_type, inputs } in operators {
        let name = op_type.to_lowercase();
        let mut values = Vec::new();
        for input in inputs {
            values.push(match input {
                OperatorInput::X => x.clone(),
                OperatorInput::Result(index) => match results.get(*index) {
                    Some(result) => result.clone(),
                    None => return Ok(None),
                },
                OperatorInput::Param(index) => match params.get(*index) {
                    Some(param) => parameters.place(graph, param)?,
                    None => return Ok(None),
                },
                OperatorInput::Float(number) => graph.floats(&format!("{name}.number"), &[], vec![*number]),
                OperatorInput::Ints(numbers) => graph.integers(&format!("{name}.numbers"), numbers.clone()),
            });
        }
        results.push(graph.op(op_type, &values.iter().collect::<Vec<_>>(), &name));
    }
    Ok(results.pop())
}

/// Name of the output of the layer whose weight is `weight`.
fn output_of(weight: &str) -> String {
    format!("{}.output", weight.strip_suffix(".weight").unwrap_or(weight))
}

/// Concatenates the values and the rows of the tables for the codes.
fn add_embeddings(
    graph: &mut Graph,
    features: &Features,
    codes: &[Value],
    specs: &[EmbeddingSpec],
    params: &[ParamSpec],
    parameters: &mut Parameters,
) -> Result<Value> {
    if specs.len() != codes.len() {
        return Err(ExportError::Features {
            got: format!("{} codes to embed", codes.len()),
            expected: format!("{} codes", specs.len()),
        });
    }
    let mut all: Vec<Value> = features.values.iter().cloned().collect();
    for (code, param) in codes.iter().zip(params) {
        let table = parameters.place(graph, param)?;
        all.push(graph.op("Gather", &[&table, code], &output_of(&param.name)));
    }
    Ok(graph.side_by_side(&all, "embedded"))
}

fn add_activation(graph: &mut Graph, x: &Value, activation: Activation) -> Value {
    let name = activation.to_string();
    let gelu = |approximate| [("approximate", Attribute::Text(approximate))];
    match activation {
        Activation::Relu => graph.op("Relu", &[x], &name),
        Activation::Gelu => graph.op_with("Gelu", &[x], &gelu("none"), &name),
        Activation::GeluTanh => graph.op_with("Gelu", &[x], &gelu("tanh"), &name),
        Activation::Silu => {
            let gate = graph.op("Sigmoid", &[x], "silu.gate");
            graph.op("Mul", &[x, &gate], &name)
        }
        Activation::Tanh => graph.op("Tanh", &[x], &name),
        Activation::Sigmoid => graph.op("Sigmoid", &[x], &name),
        Activation::SmoothClip => {
            let [three, one] = [3.0, 1.0].map(|number| graph.floats("smooth_clip.number", &[], vec![number]));
            let third = graph.op("Div", &[x, &three], "smooth_clip.third");
            let square = graph.op("Mul", &[&third, &third], "smooth_clip.square");
            let sum = graph.op("Add", &[&square, &one], "smooth_clip.sum");
            let root = graph.op("Sqrt", &[&sum], "smooth_clip.root");
            graph.op("Div", &[x, &root], &name)
        }
    }
}
