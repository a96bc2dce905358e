//! Builds a graph operator by operator.

use std::collections::HashSet;

use bytes::Bytes;

use crate::export::proto::{
    AttributeProto, AttributeType, Dimension, DimensionProto, ElementType, GraphProto, NodeProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

/// Domain of the operators for categories.
pub(super) const ML_DOMAIN: &str = "ai.onnx.ml";
/// Name of the number of rows, which is the first dimension of each input and output.
const N_ROWS: &str = "N";

/// A value within a graph: an input, a constant or the output of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value(pub(super) String);

/// The value of an attribute.
pub(super) enum Attribute<'a> {
    Int(i64),
    Float(f32),
    Text(&'a str),
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

/// A graph under construction. Requested names are made unique.
#[derive(Debug, Default)]
pub(super) struct Graph {
    proto: GraphProto,
    taken: HashSet<String>,
}

/// Values in memory, used as the bytes of a constant without a copy.
struct Owned<T>(Vec<T>);

impl<T: bytemuck::NoUninit> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn bytes_of<T: bytemuck::NoUninit + Send + Sync + 'static>(values: Vec<T>) -> Bytes {
    Bytes::from_owner(Owned(values))
}

impl Graph {
    /// An empty graph whose outputs will have these names.
    pub(super) fn new(name: &str, outputs: &[String]) -> Self {
        let mut graph = Graph::default();
        graph.proto.name = name.to_owned();
        graph.taken.extend(outputs.iter().cloned());
        graph
    }

    /// Converts the graph to its protobuf message.
    pub(super) fn into_proto(self) -> GraphProto {
        self.proto
    }

    /// The name, with a number appended if it is taken.
    fn unique(&mut self, name: &str) -> String {
        let name = if name.is_empty() { "_" } else { name };
        let numbered = (2..).map(|n| format!("{name}_{n}"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        let free = names.find(|name| !self.taken.contains(name)).expect("numbers do not end");
        self.taken.insert(free.clone());
        free
    }

    /// Adds an input of shape `[N, width]`; `about` is its description.
    pub(super) fn input(&mut self, name: &str, element: ElementType, width: usize, about: &str) -> Value {
        let name = self.unique(name);
        self.proto.input.push(value_info(&name, element, Some(width), about));
        Value(name)
    }

    /// Declares the output `name` of an operator; its shape is `[N, width]`, or `[N]` without a width.
    pub(super) fn output(&mut self, name: &str, element: ElementType, width: Option<usize>, about: &str) {
        self.proto.output.push(value_info(name, element, width, about));
    }

    /// Adds an ONNX operator with one output. The output has the operator's name unless it is an output of the graph.
    pub(super) fn op(&mut self, op_type: &str, inputs: &[&Value], name: &str) -> Value {
        self.op_with(op_type, inputs, &[], name)
    }

    /// Same as [`Graph::op`] with attributes.
    pub(super) fn op_with(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
        name: &str,
    ) -> Value {
        let output = self.unique(name);
        self.add(op_type, "", inputs, attributes, output)
    }

    /// Same as [`Graph::op_with`] for an operator of [`ML_DOMAIN`].
    pub(super) fn ml_op(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
        name: &str,
    ) -> Value {
        let output = self.unique(name);
        self.add(op_type, ML_DOMAIN, inputs, attributes, output)
    }

    /// Adds an operator that computes the output `name` of the graph.
    pub(super) fn output_op(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
        name: &str,
    ) -> Value {
        self.add(op_type, "", inputs, attributes, name.to_owned())
    }

    fn add(
        &mut self,
        op_type: &str,
        domain: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
        output: String,
    ) -> Value {
        self.proto.node.push(NodeProto {
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            output: vec![output.clone()],
            name: output.clone(),
            op_type: op_type.to_owned(),
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            domain: domain.to_owned(),
        });
        Value(output)
    }

    /// Converts the elements of the value.
    pub(super) fn cast(&mut self, value: &Value, to: ElementType, name: &str) -> Value {
        self.op_with("Cast", &[value], &[("to", Attribute::Int(to as i64))], name)
    }

    /// Concatenates the columns of several values; a single value is returned as it is.
    ///
    /// # Panics
    /// If there are no values.
    pub(super) fn side_by_side(&mut self, values: &[Value], name: &str) -> Value {
        match values {
            [one] => one.clone(),
            _ => {
                assert!(!values.is_empty(), "a row has columns");
                let inputs: Vec<&Value> = values.iter().collect();
                self.op_with("Concat", &inputs, &[("axis", Attribute::Int(1))], name)
            }
        }
    }

    /// Adds a constant of f32.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> Value {
        self.constant(name, ElementType::Float, dims, bytes_of(values), Vec::new())
    }

    /// Adds a vector of f64.
    pub(super) fn doubles(&mut self, name: &str, values: Vec<f64>) -> Value {
        self.constant(name, ElementType::Double, &[values.len()], bytes_of(values), Vec::new())
    }

    /// Adds a vector of i64.
    pub(super) fn integers(&mut self, name: &str, values: Vec<i64>) -> Value {
        self.constant(name, ElementType::Int64, &[values.len()], bytes_of(values), Vec::new())
    }

    /// Adds a vector of strings.
    pub(super) fn texts(&mut self, name: &str, values: Vec<String>) -> Value {
        let dims = [values.len()];
        let texts = values.into_iter().map(Bytes::from).collect();
        self.constant(name, ElementType::String, &dims, Bytes::new(), texts)
    }

    fn constant(
        &mut self,
        name: &str,
        element: ElementType,
        dims: &[usize],
        raw_data: Bytes,
        string_data: Vec<Bytes>,
    ) -> Value {
        let name = self.unique(name);
        self.proto.initializer.push(TensorProto {
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            data_type: element.into(),
            string_data,
            name: name.clone(),
            raw_data,
            external_data: Vec::new(),
            data_location: 0,
        });
        Value(name)
    }
}

fn attribute(name: &str, value: &Attribute<'_>) -> AttributeProto {
    let mut proto = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    proto.set_type(match value {
        Attribute::Int(_) => AttributeType::Int,
        Attribute::Float(_) => AttributeType::Float,
        Attribute::Text(_) => AttributeType::String,
        Attribute::Ints(_) => AttributeType::Ints,
        Attribute::Texts(_) => AttributeType::Strings,
    });
    match value {
        Attribute::Int(value) => proto.i = Some(*value),
        Attribute::Float(value) => proto.f = Some(*value),
        Attribute::Text(value) => proto.s = Some(Bytes::copy_from_slice(value.as_bytes())),
        Attribute::Ints(values) => proto.ints.clone_from(values),
        Attribute::Texts(values) => proto.strings = values.iter().cloned().map(Bytes::from).collect(),
    }
    proto
}

fn value_info(name: &str, element: ElementType, width: Option<usize>, about: &str) -> ValueInfoProto {
    let dims = std::iter::once(Dimension::Param(N_ROWS.to_owned()))
        .chain(width.map(|width| Dimension::Value(width as i64)));
    let shape = TensorShapeProto { dim: dims.map(|dim| DimensionProto { value: Some(dim) }).collect() };
    let tensor = TensorTypeProto { elem_type: element.into(), shape: Some(shape) };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type: Some(tensor) }),
        doc_string: about.to_owned(),
    }
}
