//! The graph of each kind of model: inputs, operators, outputs, metadata.

use serde_json::Value;

use super::cases::{case, cases};
use super::proto::{Graph, Model};

fn model(name: &str) -> Model {
    Model::read(&case(name).onnx)
}

fn inputs(graph: &Graph) -> Vec<String> {
    graph.input.iter().map(|input| input.describe()).collect()
}

fn outputs(graph: &Graph) -> Vec<String> {
    graph.output.iter().map(|output| output.describe()).collect()
}

/// The operators of a model whose numbers are filled, flagged if missing, and normalized; one column has an offset.
const NUMBERS: [&str; 11] =
    ["Sub", "Cast", "Concat", "IsNaN", "Where", "Gather", "Cast", "Cast", "Sub", "Mul", "Cast"];

#[test]
fn all_use_the_same_operator_sets_and_known_operators() {
    const KNOWN: [&str; 34] = [
        "Add",
        "ArgMax",
        "BatchNormalization",
        "Cast",
        "Concat",
        "Cos",
        "Div",
        "Equal",
        "Exp",
        "Gather",
        "Gelu",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "IsNaN",
        "LabelEncoder",
        "LayerNormalization",
        "MatMul",
        "Max",
        "Mul",
        "Pad",
        "ReduceMean",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Slice",
        "Softmax",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "Unsqueeze",
        "Where",
    ];
    let mut used = Vec::new();
    for case in cases() {
        let model = Model::read(&case.onnx);
        let sets: Vec<_> = model.opset_import.iter().map(|set| (set.domain.as_str(), set.version)).collect();
        assert_eq!((model.ir_version, sets), (9, vec![("", 20), ("ai.onnx.ml", 2)]), "{}", case.name);
        for node in &model.graph().node {
            assert!(KNOWN.contains(&node.op_type.as_str()), "{}: {}", case.name, node.op_type);
            let domain = if node.op_type == "LabelEncoder" { "ai.onnx.ml" } else { "" };
            assert_eq!(node.domain, domain);
            used.push(node.op_type.clone());
        }
        let config = model.metadata("ddp_train.config").unwrap();
        assert!(config.contains("[model]"), "{config}");
        assert!(model.metadata("ddp_train.weights").unwrap().starts_with("weights of "));
    }
    for activation in ["Relu", "Gelu", "Sigmoid", "Tanh"] {
        assert!(used.iter().any(|op| op == activation), "no case has {activation}");
    }
}

#[test]
fn columns_of_numbers_are_one_input() {
    let model = model("csv");
    let graph = model.graph();
    assert_eq!(inputs(graph), ["x f32 [N, 64]"]);
    assert_eq!(outputs(graph), ["probabilities f32 [N, 10]", "label i64 [N]"]);
    let hidden = ["Gemm", "LayerNormalization", "Gelu"];
    let want =
        [&["Cast", "Sub", "Mul", "Cast"][..], &hidden, &hidden, &["Gemm", "Softmax", "ArgMax"]].concat();
    assert_eq!(graph.operators(), want);
    assert_eq!(graph.constant("layers.0.weight").dims, [128, 64]);
    let columns: Value = serde_json::from_str(model.metadata("ddp_train.inputs").unwrap()).unwrap();
    assert_eq!(columns["x"].as_array().unwrap().len(), 64);
    assert_eq!(model.metadata("ddp_train.labels"), Some("[0,1,2,3,4,5,6,7,8,9]"));
    assert_eq!(model.metadata("ddp_train.targets"), Some("[\"label\"]"));
    assert_eq!(model.metadata("ddp_train.task"), Some("classification"));
}

#[test]
fn categories_become_one_hot_columns() {
    let model = model("one-hot");
    let graph = model.graph();
    // A column has the same name as an output.
    let want =
        ["age f32 [N, 1]", "label_2 f32 [N, 1]", "height f64 [N, 1]", "city text [N, 1]", "code text [N, 1]"];
    assert_eq!(inputs(graph), want);
    let columns: Value = serde_json::from_str(model.metadata("ddp_train.inputs").unwrap()).unwrap();
    assert_eq!(columns["label_2"], Value::from(vec!["label"]));
    let one_hot = ["LabelEncoder", "Equal", "Cast"];
    let hidden = ["Gemm", "Sigmoid", "Mul"];
    let want = [
        &NUMBERS[..],
        &one_hot,
        &one_hot,
        &["Concat"],
        &hidden,
        // Only the second layer has equal input and output widths.
        &hidden,
        &["Add", "Gemm", "Softmax", "ArgMax"],
    ];
    assert_eq!(graph.operators(), want.concat());
    let encoder = graph.node.iter().find(|node| node.op_type == "LabelEncoder").unwrap();
    let texts = encoder.attribute.iter().find(|attribute| attribute.name == "keys_strings").unwrap();
    let texts: Vec<_> = texts.strings.iter().map(|text| String::from_utf8(text.clone()).unwrap()).collect();
    assert_eq!(texts, ["Bern", "Köln", "New York, NY", "São Paulo", "a\u{1F600}b"]);
    let codes = encoder.attribute.iter().find(|attribute| attribute.name == "values_int64s").unwrap();
    assert_eq!(codes.ints, [1, 2, 3, 4, 5]);
}

#[test]
fn categories_become_rows_of_tables() {
    let model = model("embedding");
    let graph = model.graph();
    let code = ["LabelEncoder", "Squeeze"];
    let want = [
        &NUMBERS[..],
        &code,
        &code,
        // Numbers and indicators, followed by the tables.
        &["Concat", "Gather", "Gather", "Concat"],
        &["Gemm", "LayerNormalization", "Gelu", "Gemm", "LayerNormalization", "Gelu", "Add"],
        &["Gemm", "Softmax", "ArgMax"],
    ];
    assert_eq!(graph.operators(), want.concat());
    assert!(
        graph.node.iter().filter(|node| node.op_type == "Gemm").all(|node| node.input.len() == 2),
        "no bias"
    );
    assert_eq!(graph.constant("embeddings.city.weight").dims[0], 6);
    let gelu = graph.node.iter().find(|node| node.op_type == "Gelu").unwrap();
    assert_eq!(gelu.attribute[0].s, b"tanh");

    let model = self::model("only-categories");
    let want =
        [&code[..], &code, &["Gather", "Gather", "Concat", "Gemm", "Relu", "Gemm", "Softmax", "ArgMax"]];
    assert_eq!(model.graph().operators(), want.concat());
    assert_eq!(inputs(model.graph()), ["city text [N, 1]", "code text [N, 1]"]);
}

#[test]
fn outputs_follow_the_task() {
    let model = model("multilabel");
    assert_eq!(outputs(model.graph()), ["probabilities f32 [N, 2]", "label i64 [N, 2]"]);
    assert!(model.graph().operators().ends_with(&["Gemm", "Sigmoid", "GreaterOrEqual", "Cast"]));
    assert_eq!(model.metadata("ddp_train.labels"), None);
    assert_eq!(model.metadata("ddp_train.targets"), Some("[\"yes\",\"no\"]"));
    let model = self::model("ordinal");
    assert_eq!(outputs(model.graph()), ["probabilities f32 [N, 5]", "label text [N]"]);
    let want = ["Sigmoid", "Gemm", "Max", "ReduceSum", "Div", "Greater", "Cast", "ReduceSum", "Gather"];
    assert!(model.graph().operators().ends_with(&want), "{:?}", model.graph().operators());
    let labels = r#"["São Paulo","Bern","a😀b","Köln","New York, NY"]"#;
    assert_eq!(model.metadata("ddp_train.labels"), Some(labels));
    let model = self::model("regression");
    assert_eq!(outputs(model.graph()), ["prediction f64 [N, 2]"]);
    let want = ["IsNaN", "Where", "Gather", "Cast", "Cast", "Sub", "Mul", "Cast", "Concat", "Gemm"];
    // Converts back to the units of the targets.
    assert_eq!(model.graph().operators(), [&want[..], &["Cast", "Mul", "Add"]].concat());
    assert_eq!(model.graph().constant("target.shift").dims, [2]);
}

#[test]
fn columns_with_many_digits_are_inputs_of_many_digits() {
    let model = model("times");
    let graph = model.graph();
    assert_eq!(inputs(graph), ["ns i64 [N, 1]", "s f64 [N, 1]", "small f32 [N, 1]"]);
    assert_eq!(graph.operators()[..5], ["Sub", "Cast", "Sub", "Cast", "Concat"]);
    let offset = graph.constant("ns.offset");
    let bytes: [u8; 8] = offset.raw_data.as_slice().try_into().unwrap();
    assert!((i64::from_le_bytes(bytes) - 1_700_000_000_000_000_200).abs() < 1000);
    // The smallest integer marks a missing value.
    let model = self::model("filled-times");
    let want = ["ns i64 [N, 1]", "s f64 [N, 1]", "small f32 [N, 1]", "gaps i64 [N, 1]"];
    assert_eq!(inputs(model.graph()), want);
    assert_eq!(model.graph().operators()[..4], ["Sub", "Cast", "Equal", "Where"]);
    assert_eq!(model.graph().constant("gaps.missing").raw_data, i64::MIN.to_le_bytes());
}

#[test]
fn labels_are_those_of_the_data() {
    let labels = |name: &str| {
        let model = model(name);
        let graph = model.graph();
        assert!(graph.operators().ends_with(&["Softmax", "ArgMax", "Gather"]), "{name}");
        (outputs(graph)[1].clone(), model.metadata("ddp_train.labels").unwrap().to_owned())
    };
    let of = |output: &str, json: &str| (output.to_owned(), json.to_owned());
    assert_eq!(labels("texts"), of("label text [N]", r#"["Iris setosa","a, b","Öl"]"#));
    assert_eq!(labels("integers"), of("label i64 [N]", "[-1,7,200000]"));
    assert_eq!(labels("mixed"), of("label text [N]", r#"[9,10,"none of both"]"#));
}
