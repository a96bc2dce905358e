use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device};

use super::*;
use crate::config::WeightInit;
use crate::data::Label;
use crate::model::{ModelSpec, init};

fn model(dims: Vec<usize>) -> (ParamLayout, Tensor) {
    let spec = ModelSpec {
        dims,
        activation: Activation::Relu,
        layer_norm: true,
        dropout: 0.0,
        residual: false,
        bias: true,
        embeddings: Vec::new(),
        layers: Vec::new(),
    };
    drawn(&spec)
}

fn drawn(spec: &ModelSpec) -> (ParamLayout, Tensor) {
    let layout = ParamLayout::new(spec);
    let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
    init::initialize(&layout, &mut weights, WeightInit::Pytorch, 3).unwrap();
    (layout, weights)
}

fn info() -> ModelInfo {
    ModelInfo {
        config: "[data]\n".to_owned(),
        preprocessor: SavedPreprocessor {
            normalizer: Some(Normalizer {
                offset: Some(vec![0.0, 1.7e18, 0.0]),
                shift: vec![1.0, 2.0, 0.1],
                scale: vec![0.5; 3],
            }),
            target_scale: Some(TargetScale { shift: vec![3e5, 0.1], scale: vec![1e5, 1.0] }),
            labels: Some(Arc::new(LabelVocabulary::new(["no", "-1", "a\"b"].map(Label::from)))),
            ..SavedPreprocessor::identity(vec!["a\"b".to_owned(), "c".to_owned(), "d".to_owned()])
        },
        n_steps: Some(80),
        held_out: Some(7),
    }
}

#[test]
fn round_trips_bit_for_bit() {
    let (layout, weights) = model(vec![3, 5, 2]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    std::fs::write(&path, to_bytes(&layout, &weights.to_vec::<f32>().unwrap(), &info())).unwrap();
    let file = ModelFile::read(&path).unwrap();
    assert_eq!(file.info().unwrap(), info());
    let loaded = file.weights(&layout).unwrap();
    assert_eq!(loaded.to_vec::<f32>().unwrap(), weights.to_vec::<f32>().unwrap());
}

#[test]
fn a_file_that_is_changed_in_place_is_refused() {
    let (layout, weights) = model(vec![3, 5, 2]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let bytes = to_bytes(&layout, &weights.to_vec::<f32>().unwrap(), &info());
    std::fs::write(&path, &bytes).unwrap();
    let file = ModelFile::read(&path).unwrap();
    // A replaced file is another one: the old one is still mapped.
    std::fs::write(dir.path().join("new"), [0]).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    assert!(file.weights(&layout).is_ok());

    std::fs::write(&path, &bytes).unwrap();
    let file = ModelFile::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let message = file.weights(&layout).unwrap_err().to_string();
    assert!(message.contains("changed while it was in use"), "{message}");
    assert!(file.info().is_err() && file.labels().is_err() && file.statistics(&layout).is_err());
}

#[test]
fn every_difference_is_listed() {
    let (layout, weights) = model(vec![3, 5, 2]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    std::fs::write(&path, to_bytes(&layout, &weights.to_vec::<f32>().unwrap(), &info())).unwrap();
    let (other, _) = model(vec![3, 6, 4, 2]);
    let message = ModelFile::read(&path).unwrap().weights(&other).unwrap_err().to_string();
    for part in [
        "layers.0.weight is [5, 3] in the file, [6, 3] in the model",
        "layers.2.weight [2, 4] is not in the file",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

fn embedding(name: &str, n_codes: usize, dim: usize) -> EmbeddingSpec {
    EmbeddingSpec { name: name.to_owned(), n_codes, dim }
}

#[test]
fn embeddings_round_trip_and_a_difference_is_told_by_name() {
    let embeddings = vec![embedding("zip.code \"a\"", 7, 3), embedding("type", 4, 2)];
    let plain = ModelSpec::plain(&[3, 5, 2], Activation::Relu);
    let spec = plain.clone().with_embeddings(embeddings.clone());
    let (layout, weights) = drawn(&spec);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    std::fs::write(&path, to_bytes(&layout, &weights.to_vec::<f32>().unwrap(), &info())).unwrap();
    let file = ModelFile::read(&path).unwrap();
    assert_eq!(file.embeddings().unwrap(), embeddings);
    let preprocessor = SavedPreprocessor { embeddings: embeddings.clone(), ..info().preprocessor };
    assert_eq!(file.info().unwrap(), ModelInfo { preprocessor, ..info() });
    let rebuilt = plain.clone().with_embeddings(file.embeddings().unwrap());
    assert_eq!(rebuilt, spec);
    let loaded = file.weights(&ParamLayout::new(&rebuilt)).unwrap();
    assert_eq!(loaded.to_vec::<f32>().unwrap(), weights.to_vec::<f32>().unwrap());

    let other = plain.with_embeddings(vec![embedding("zip.code \"a\"", 9, 3), embedding("kind", 4, 2)]);
    let message = file.weights(&ParamLayout::new(&other)).unwrap_err().to_string();
    for part in [
        "embeddings.zip%2Ecode%20%22a%22.weight is [7, 3] in the file, [9, 3] in the model",
        "embeddings.kind.weight [4, 2] is not in the file",
        "embeddings.type%.weight is not in the model",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn embeddings_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let weights: Vec<(String, safetensors::tensor::TensorView<'_>)> = Vec::new();
    for text in ["[", "[{}]", r#"[{"name": "a", "n_codes": 0, "dim": 1}]"#] {
        let metadata = [(FEATURES_KEY, r#"["a"]"#), (EMBEDDINGS_KEY, text)];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let bytes = safetensors::serialize(weights.clone(), Some(HashMap::from(metadata))).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let message = ModelFile::read(&path).unwrap().embeddings().unwrap_err().to_string();
        assert!(message.contains("ddp_train.embeddings"), "{message}");
    }
}

#[test]
fn a_file_cut_at_any_length_is_refused() {
    let (layout, weights) = model(vec![2, 2]);
    let bytes = to_bytes(&layout, &weights.to_vec::<f32>().unwrap(), &info());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(
            matches!(ModelFile::read(&path), Err(ModelError::ModelFile { .. })),
            "{len} of {}",
            bytes.len()
        );
    }
}
