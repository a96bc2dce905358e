//! A complete model as an ONNX graph.

use ddp::config::{Loss, Task};
use ddp::data::heads_to_json;
use ddp::model::{Layer, LayerKind};
use ddp::report::visible::{MAX_NAME, cut};
use prost::Message as _;
use serde_json::json;

use crate::export::error::{ExportError, Result};
use crate::export::graph::{Graph, ML_DOMAIN};
use crate::export::inputs::Input;
use crate::export::layers::{Parameters, TrainedParam};
use crate::export::outputs::Head;
use crate::export::proto::{
    Dimension, ElementType, ModelProto, OperatorSetIdProto, StringStringEntryProto, ValueInfoProto,
};
use crate::export::{inputs, layers};
use crate::fit::preprocess::Preprocessor;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Version of the file format, from ONNX 1.15, the first release with [`OPSET`].
const IR_VERSION: i64 = 9;
/// Version of the operators.
const OPSET: i64 = 20;
/// Version of the operators for categories.
const ML_OPSET: i64 = 2;

/// Metadata key of the columns of each input, as JSON: a map from input names to column names.
const INPUTS_KEY: &str = "ddp_train.inputs";
/// Metadata key of the labels of the classes in the order of the outputs, as JSON; missing without classes.
const LABELS_KEY: &str = "ddp_train.labels";
/// Metadata key of the targets of several heads, as JSON: name, task, columns, labels; missing for a model of one head.
const HEADS_KEY: &str = "ddp_train.heads";
/// Metadata key of the names of the target columns, as JSON.
const TARGETS_KEY: &str = "ddp_train.targets";
/// Metadata key of the task.
const TASK_KEY: &str = "ddp_train.task";
/// Metadata key of the resolved config, as TOML.
const CONFIG_KEY: &str = "ddp_train.config";
/// Metadata key of the origin of the weights.
const WEIGHTS_KEY: &str = "ddp_train.weights";
/// Metadata key of the version that wrote the file.
const VERSION_KEY: &str = "ddp_train.version";

/// A trained model to export.
#[derive(Debug)]
pub struct Trained<'a> {
    /// Conversion of the data's columns to features.
    pub preprocessor: &'a Preprocessor,
    /// Texts and numbers that mark a missing value in the data, besides the usual ones.
    pub missing_values: &'a [String],
    /// Layers in forward order, before or after fusion, such as [`ddp::model::Network::layers`].
    pub layers: &'a [&'a dyn Layer],
    /// Parameters of the layers.
    pub parameters: Vec<TrainedParam>,
    /// Meaning of the outputs.
    pub task: Task,
    /// The loss that the model was trained with.
    pub loss: &'a Loss,
    /// Names of the target columns.
    pub targets: &'a [String],
    /// The resolved config, as TOML.
    pub config: &'a str,
    /// Origin of the weights, such as "weights of step 12".
    pub origin: &'a str,
}

/// A model as an ONNX graph.
#[derive(Debug)]
pub struct OnnxModel {
    pub(super) proto: ModelProto,
}

impl OnnxModel {
    /// Builds the graph: inputs, preprocessing, layers, outputs.
    ///
    /// # Errors
    /// [`ExportError::UnknownLayer`] for a layer of a custom kind; [`ExportError::Parameter`] and [`ExportError::Features`] for
    /// weights and columns of another model; [`ExportError::Unsigned`].
    pub fn new(trained: Trained<'_>) -> Result<Self> {
        let Trained { preprocessor, layers, parameters, task, loss, targets, config, origin, missing_values } =
            trained;
        let n_outputs = layers.last().map_or(0, |layer| layer.out_features());
        let head = Head::new(task, loss, preprocessor, n_outputs);
        let marks = Notation::new(DecimalMark::Either, missing_values);
        let mut graph = Graph::new("ddp-train", &head.names());
        let features = inputs::add(&mut graph, preprocessor, marks.missing_numbers())?;
        check_width(&features, layers)?;
        let mut parameters = Parameters::new(parameters);
        let outputs = layers::add(&mut graph, &features, layers, &mut parameters)?;
        head.add(&mut graph, &outputs, n_outputs);
        let columns = |input: &Input| (input.name.clone(), json!(input.columns));
        let columns: serde_json::Map<_, _> = features.inputs.iter().map(columns).collect();
        let mut metadata = vec![
            (TASK_KEY, task.to_string()),
            (INPUTS_KEY, json!(columns).to_string()),
            (TARGETS_KEY, json!(targets).to_string()),
            (CONFIG_KEY, config.to_owned()),
            (WEIGHTS_KEY, origin.to_owned()),
            (VERSION_KEY, env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if !preprocessor.heads.is_empty() {
            metadata.push((HEADS_KEY, heads_to_json(&preprocessor.heads)));
        }
        if let Some(labels) = head.labels() {
            let expected = loss.n_targets(n_outputs);
            if labels.len() != expected {
                return Err(ExportError::Labels { got: labels.len(), expected });
            }
            metadata.push((LABELS_KEY, labels.to_json()));
        }
        let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_owned()), version };
        let proto = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "ddp-train".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            doc_string: format!("{task} of {}; {origin}", targets.join(", ")),
            graph: Some(graph.into_proto()),
            opset_import: vec![opset("", OPSET), opset(ML_DOMAIN, ML_OPSET)],
            metadata_props: metadata
                .into_iter()
                .map(|(key, value)| StringStringEntryProto::new(key, value))
                .collect(),
        };
        Ok(OnnxModel { proto })
    }

    /// The bytes of the file, including the weights.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.proto.encode_to_vec()
    }

    /// Inputs and outputs with their shapes and element types, in one line.
    pub fn signature(&self) -> String {
        let Some(graph) = &self.proto.graph else { return String::new() };
        let list = |values: &[ValueInfoProto]| {
            const SHOWN: usize = 6;
            let mut shown: Vec<_> = values.iter().take(SHOWN).map(describe).collect();
            if values.len() > SHOWN {
                shown.push(format!("... {} in all", values.len()));
            }
            shown.join(", ")
        };
        format!("{} -> {}", list(&graph.input), list(&graph.output))
    }
}

/// Checks that the features have the width that the first layer expects.
fn check_width(features: &inputs::Features, layers: &[&dyn Layer]) -> Result<()> {
    let expected = match layers.first().map(|layer| layer.kind()) {
        Some(LayerKind::Linear(linear)) => linear.in_features,
        Some(LayerKind::Embedding(specs)) => {
            layers[0].out_features() - specs.iter().map(|spec| spec.dim).sum::<usize>()
        }
        _ => return Ok(()),
    };
    if features.n_values == expected {
        return Ok(());
    }
    Err(ExportError::Features {
        got: format!("{} features", features.n_values),
        expected: expected.to_string(),
    })
}

/// Name, shape and element type of an input or output: `x [N, 4] float32`.
fn describe(value: &ValueInfoProto) -> String {
    let tensor = value.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
    let dim = |dim: &Option<Dimension>| match dim {
        Some(Dimension::Value(n)) => n.to_string(),
        Some(Dimension::Param(name)) => name.clone(),
        None => "?".to_owned(),
    };
    let dims: Vec<_> = dims.iter().map(|value| dim(&value.value)).collect();
    let element = match tensor.map_or(ElementType::Undefined, |tensor| tensor.elem_type()) {
        ElementType::Float => "float32",
        ElementType::Double => "float64",
        ElementType::Int64 => "int64",
        ElementType::String => "string",
        ElementType::Bool => "bool",
        ElementType::Undefined => "unknown",
    };
    format!("{} [{}] {element}", cut(&value.name, MAX_NAME), dims.join(", "))
}
