//! The fields of an ONNX file that the tests read.
//!
//! Source: `onnx/onnx.proto` of ONNX 1.15. The library's messages are not used, so that a wrong field number is detected.

use std::path::Path;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<Opset>,
    #[prost(message, repeated, tag = "14")]
    pub(super) metadata_props: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Opset {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Constant>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) s: Vec<u8>,
    #[prost(int64, repeated, tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(super) strings: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Constant {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "9")]
    pub(super) raw_data: Vec<u8>,
    #[prost(message, repeated, tag = "13")]
    pub(super) external_data: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Type {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int32, tag = "1")]
    pub(super) element: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub(super) value: i64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
}

impl Model {
    pub(super) fn read(path: &Path) -> Self {
        Model::decode(&*std::fs::read(path).unwrap()).unwrap()
    }

    pub(super) fn graph(&self) -> &Graph {
        self.graph.as_ref().unwrap()
    }

    pub(super) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata_props.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }
}

impl Graph {
    pub(super) fn operators(&self) -> Vec<&str> {
        self.node.iter().map(|node| node.op_type.as_str()).collect()
    }

    pub(super) fn constant(&self, name: &str) -> &Constant {
        self.initializer.iter().find(|constant| constant.name == name).unwrap()
    }
}

impl ValueInfo {
    /// Name, type and shape, such as `x f32 [N, 4]`.
    pub(super) fn describe(&self) -> String {
        let tensor = self.r#type.as_ref().unwrap().tensor.as_ref().unwrap();
        let element = match tensor.element {
            1 => "f32",
            7 => "i64",
            8 => "text",
            11 => "f64",
            other => panic!("element type {other}"),
        };
        let dim = |dim: &Dim| if dim.name.is_empty() { dim.value.to_string() } else { dim.name.clone() };
        let dims: Vec<_> = tensor.shape.as_ref().unwrap().dim.iter().map(dim).collect();
        format!("{} {element} [{}]", self.name, dims.join(", "))
    }
}
