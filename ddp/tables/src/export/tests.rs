//! Graphs that no config produces: custom layers, shared weights, weights that don't fit, names that clash.

use ddp::config::precision::Precision;
use ddp::config::{ElementLoss, Loss, Task};
use ddp::data::vocabulary::Vocabulary;
use ddp::data::{Label, LabelVocabulary, Normalizer};
use ddp::model::layer::Sizes;
use ddp::model::layers::{ActivationLayer, Linear};
use ddp::model::linear_spec::LinearSpec;
use ddp::model::pass::{BackwardPass, ForwardPass};
use ddp::model::{Layer, ModelSpec, Network, Operator, OperatorInput, ParamKind, ParamLayout, ParamSpec};
use ddp_kernels::ops::Activation;
use ddp_kernels::{Device, TensorMut, TensorRef, ops};
use prost::Message as _;

use crate::export::external::WeightsPlace;
use crate::export::onnx::{OnnxModel, Trained};
use crate::export::proto::{DataLocation, GraphProto, ModelProto};
use crate::export::{ExportError, TrainedParam};
use crate::fit::preprocess::{ColumnCodes, Preprocessor};

fn network(layers: Vec<Box<dyn Layer>>, n_features: usize) -> Network {
    let layout = ParamLayout::from_layers(&layers, 1);
    let sizes = Sizes { max_rows: 4, device: Device::Cpu, precision: Precision::F32 };
    let mut network = Network::from_parts(layers, layout, n_features, sizes).unwrap();
    network.initialize(1).unwrap();
    network
}

fn plain(n_columns: usize) -> Preprocessor {
    let columns = (0..n_columns).map(|column| format!("c{column}")).collect();
    Preprocessor {
        plan: ColumnCodes::plain(columns),
        normalizer: None,
        target_scale: None,
        labels: None,
        heads: Vec::new(),
    }
}

fn exported(network: &Network, preprocessor: &Preprocessor) -> Result<OnnxModel, ExportError> {
    OnnxModel::new(Trained {
        preprocessor,
        missing_values: &[],
        layers: &network.layers().collect::<Vec<_>>(),
        parameters: TrainedParam::from_network(network).unwrap(),
        task: Task::Regression,
        loss: &Loss::Element(ElementLoss::Mse),
        targets: &["y".to_owned()],
        config: "",
        origin: "weights",
    })
}

fn graph(model: &OnnxModel) -> GraphProto {
    ModelProto::decode(&*model.to_bytes()).unwrap().graph.unwrap()
}

fn operators(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|node| node.op_type.as_str()).collect()
}

/// Doubles its input.
#[derive(Debug)]
struct Double(Option<Vec<Operator>>);

impl Layer for Double {
    fn describe(&self) -> String {
        "double".to_owned()
    }

    fn out_features(&self) -> usize {
        3
    }

    fn operators(&self) -> Option<Vec<Operator>> {
        self.0.clone()
    }

    fn forward(
        &mut self,
        x: TensorRef<'_>,
        mut y: TensorMut<'_>,
        _pass: ForwardPass<'_>,
    ) -> ddp::model::layer::Result<()> {
        ops::copy(x, y.reborrow())?;
        ops::add_assign(y, x)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> ddp::model::layer::Result<()> {
        Ok(())
    }
}

/// A custom layer is exported through its own description; a layer without one is an error.
#[test]
fn operators_of_a_layer_become_those_of_the_graph() {
    let exported_as = |operators: Vec<Operator>| {
        let linear = Linear::new(LinearSpec::new(0, 3, 3, true));
        let network = network(vec![Box::new(linear), Box::new(Double(Some(operators)))], 3);
        exported(&network, &plain(3)).map(|model| graph(&model))
    };
    let add = Operator::new("Add", vec![OperatorInput::X, OperatorInput::X]);
    let scale = Operator::new("Mul", vec![OperatorInput::Result(0), OperatorInput::Float(1.0)]);
    let of_graph = exported_as(vec![add.clone(), scale]).unwrap();
    assert_eq!(operators(&of_graph), ["Gemm", "Add", "Mul", "Cast"]);
    assert_eq!(of_graph.node[1].input, ["layers.0.output", "layers.0.output"]);
    assert_eq!(of_graph.node[2].input[0], of_graph.node[1].output[0]);
    for wrong in [OperatorInput::Result(0), OperatorInput::Param(0)] {
        let error = exported_as(vec![Operator::new("Neg", vec![wrong])]).unwrap_err();
        assert!(matches!(error, ExportError::UnknownLayer { index: 1, .. }), "{error}");
    }
}

#[test]
fn a_layer_of_an_unknown_kind_is_named() {
    let linear = Linear::new(LinearSpec::new(0, 3, 3, true));
    let network = network(vec![Box::new(linear), Box::new(Double(None))], 3);
    let error = exported(&network, &plain(3)).unwrap_err();
    assert!(matches!(error, ExportError::UnknownLayer { index: 1, .. }), "{error}");
    let message = ddp_kernels::hint::with_hint(&error);
    assert!(message.contains("layer 1 of the model (double) has no ONNX form"), "{message}");
    assert!(message.contains("hint: implement `Layer::operators`"), "{message}");
}

#[test]
fn fused_layers_and_layers_of_a_spec_give_the_same_operators() {
    let spec = ModelSpec {
        residual: true,
        dropout: 0.5,
        layer_norm: true,
        ..ModelSpec::plain(&[3, 3, 3, 1], Activation::Silu)
    };
    let network = Network::new(spec, 4, Device::Cpu, Precision::Bf16).unwrap();
    let model = exported(&network, &plain(3)).unwrap();
    let hidden = ["Gemm", "LayerNormalization", "Sigmoid", "Mul", "Add"];
    assert_eq!(operators(&graph(&model)), [&hidden[..], &hidden, &["Gemm", "Cast"]].concat());
    let spec = ModelSpec::plain(&[3, 4, 1], Activation::GeluTanh);
    let network = Network::new(spec, 4, Device::Cpu, Precision::F32).unwrap();
    let model = exported(&network, &plain(3)).unwrap();
    assert_eq!(operators(&graph(&model)), ["Gemm", "Gelu", "Gemm", "Cast"]);
    assert_eq!(model.signature(), "x [N, 3] float32 -> prediction [N, 1] float64");
}

#[test]
fn a_shared_weight_is_one_constant() {
    let init = ddp::model::param::Init::Constant(0.5);
    let tied = ParamSpec::new("tied", ParamKind::Weight, &[3, 3], init).shared();
    let linear = || Box::new(Linear::new(LinearSpec::from_params(tied.clone(), None)));
    let activation = Box::new(ActivationLayer::new(Activation::Tanh, 3));
    let network = network(vec![linear(), activation, linear()], 3);
    let graph = graph(&exported(&network, &plain(3)).unwrap());
    let names: Vec<_> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["tied"]);
    assert_eq!(graph.initializer[0].raw_data, bytemuck::cast_slice::<f32, u8>(&[0.5; 9]));
    let inputs: Vec<_> = graph.node.iter().filter(|node| node.op_type == "Gemm").collect();
    assert!(inputs.len() == 2 && inputs.iter().all(|node| node.input.len() == 2 && node.input[1] == "tied"));
}

#[test]
fn weights_and_columns_of_another_model_are_refused() {
    let network = Network::new(ModelSpec::plain(&[3, 2], Activation::Relu), 4, Device::Cpu, Precision::F32);
    let network = network.unwrap();
    let layers: Vec<_> = network.layers().collect();
    let trained = |preprocessor, parameters| Trained {
        preprocessor,
        missing_values: &[],
        layers: &layers,
        parameters,
        task: Task::Classification,
        loss: &Loss::Element(ElementLoss::Mse),
        targets: &[],
        config: "",
        origin: "",
    };
    let plain_columns = plain(3);
    let with = |parameters| OnnxModel::new(trained(&plain_columns, parameters)).unwrap_err().to_string();
    let mut parameters = TrainedParam::from_network(&network).unwrap();
    parameters.iter_mut().for_each(|param| param.dims.insert(0, 1));
    assert!(with(parameters).contains("is [1, "), "the shape is named");
    assert!(with(Vec::new()).contains("layers.0.weight is missing among the weights, expected [2, 3]"));
    let labels = Some(std::sync::Arc::new(LabelVocabulary::new(["a", "b", "c"].map(Label::from))));
    let preprocessor = Preprocessor { labels, ..plain(3) };
    let error = OnnxModel::new(trained(&preprocessor, TrainedParam::from_network(&network).unwrap()));
    assert!(error.unwrap_err().to_string().starts_with("the model has 3 labels for 2 outputs"));
    let error = exported(&network, &plain(5)).unwrap_err().to_string();
    assert!(error.contains("the columns give 5 features, but the layers expect 3"), "{error}");
}

#[test]
fn columns_may_be_called_like_outputs_and_weights() {
    let columns = ["label", "prediction", "layers.0.weight", "numbers", "", "kind"].map(str::to_owned);
    let mut plan = ColumnCodes::plain(columns.to_vec());
    plan.vocabularies.push(Vocabulary::new("kind".to_owned(), vec!["a".to_owned(), "b".to_owned()]));
    let preprocessor =
        Preprocessor { plan, normalizer: None, target_scale: None, labels: None, heads: Vec::new() };
    let network =
        Network::new(ModelSpec::plain(&[8, 1], Activation::Relu), 4, Device::Cpu, Precision::F32).unwrap();
    let model = exported(&network, &preprocessor).unwrap();
    let graph = graph(&model);
    let inputs: Vec<_> = graph.input.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(inputs, ["label", "prediction_2", "layers.0.weight", "numbers", "_", "kind"]);
    let mut written: Vec<_> = graph.node.iter().flat_map(|node| &node.output).collect();
    written.extend(graph.input.iter().map(|input| &input.name));
    written.extend(graph.initializer.iter().map(|tensor| &tensor.name));
    let n = written.len();
    written.sort();
    written.dedup();
    assert_eq!(written.len(), n, "each value has one origin");
    let metadata = &model.proto.metadata_props;
    let of_inputs = &metadata.iter().find(|entry| entry.key == "ddp_train.inputs").unwrap().value;
    assert!(
        of_inputs.contains(r#""prediction_2":["prediction"]"#) && of_inputs.contains(r#""_":[""]"#),
        "{of_inputs}"
    );
}

#[test]
fn an_input_is_renamed_only_for_an_output_of_its_name() {
    let columns = ["label", "prediction", "probabilities", "far"].map(str::to_owned);
    let inputs = |task, n_outputs| {
        let plan = ColumnCodes::plain(columns.to_vec());
        // An offset gives each column an input of its own.
        let offset = Some(vec![0.0, 0.0, 0.0, 1e9]);
        let normalizer = Some(Normalizer { offset, shift: vec![0.0; 4], scale: vec![1.0; 4] });
        let preprocessor =
            Preprocessor { plan, normalizer, target_scale: None, labels: None, heads: Vec::new() };
        let spec = ModelSpec::plain(&[4, n_outputs], Activation::Relu);
        let network = Network::new(spec, 4, Device::Cpu, Precision::F32).unwrap();
        let model = OnnxModel::new(Trained {
            preprocessor: &preprocessor,
            missing_values: &[],
            layers: &network.layers().collect::<Vec<_>>(),
            parameters: TrainedParam::from_network(&network).unwrap(),
            task,
            loss: &Loss::Element(ElementLoss::Mse),
            targets: &[],
            config: "",
            origin: "",
        });
        graph(&model.unwrap()).input.into_iter().map(|input| input.name).collect::<Vec<_>>()
    };
    assert_eq!(inputs(Task::Regression, 1), ["label", "prediction_2", "probabilities", "far"]);
    for task in [Task::Classification, Task::Multilabel] {
        assert_eq!(inputs(task, 2), ["label_2", "prediction", "probabilities_2", "far"]);
    }
}

#[test]
fn a_column_far_from_0_has_the_type_that_holds_its_numbers() {
    let element = |offset: f64| {
        let normalizer = Some(Normalizer { offset: Some(vec![offset]), shift: vec![0.0], scale: vec![1.0] });
        let preprocessor = Preprocessor { normalizer, ..plain(1) };
        let spec = ModelSpec::plain(&[1, 1], Activation::Relu);
        let network = Network::new(spec, 4, Device::Cpu, Precision::F32).unwrap();
        exported(&network, &preprocessor).map(|model| model.signature())
    };
    for (offset, expected) in [
        (1.7e9, "float64"),
        (1.7e18, "int64"),
        (-1.7e18, "int64"),
        (-9_223_372_036_854_775_808.0, "int64"),
        (-1e19, "float64"),
        (1.9e19, "float64"),
        (2.687e25, "float64"),
        (-2.687e25, "float64"),
    ] {
        let signature = element(offset).unwrap();
        assert!(signature.starts_with(&format!("c0 [N, 1] {expected} -> ")), "{offset}: {signature}");
    }
    for offset in [9_223_372_036_854_775_808.0, 1.2e19] {
        let error = element(offset).unwrap_err();
        assert!(matches!(error, ExportError::Unsigned(_)), "{error}");
        assert!(error.to_string().contains("column \"c0\""), "{error}");
    }
}

#[test]
fn large_weights_lie_in_a_second_file() {
    let network =
        Network::new(ModelSpec::plain(&[300, 7, 1], Activation::Relu), 4, Device::Cpu, Precision::F32);
    let mut network = network.unwrap();
    network.initialize(3).unwrap();
    let model = || exported(&network, &plain(300)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (path, data) = (dir.path().join("m.onnx"), dir.path().join("m.onnx.data"));
    assert_eq!(model().second_file(&path, WeightsPlace::Auto), None);
    assert_eq!(model().second_file(&path, WeightsPlace::SecondFile), Some(data.clone()));

    model().write(&path, WeightsPlace::Auto).unwrap();
    assert!(path.exists() && !data.exists());
    let whole = graph(&model());
    model().write(&path, WeightsPlace::SecondFile).unwrap();
    let proto = ModelProto::decode(&*std::fs::read(&path).unwrap()).unwrap();
    let values = std::fs::read(&data).unwrap();
    let mut n_external = 0;
    for (tensor, in_one) in proto.graph.unwrap().initializer.iter().zip(&whole.initializer) {
        if tensor.data_location() == DataLocation::Default {
            assert_eq!(tensor, in_one);
            continue;
        }
        n_external += 1;
        let entry = |key: &str| {
            let found = tensor.external_data.iter().find(|entry| entry.key == key);
            found.unwrap().value.clone()
        };
        let (start, len): (usize, usize) =
            (entry("offset").parse().unwrap(), entry("length").parse().unwrap());
        assert_eq!(entry("location"), "m.onnx.data");
        assert!(start.is_multiple_of(4096) && tensor.raw_data.is_empty());
        assert_eq!(values[start..start + len], in_one.raw_data);
    }
    assert_eq!(n_external, 1, "the first matrix alone is large");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no half file is left");
}
