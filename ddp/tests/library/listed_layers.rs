//! Models that a config defines as a list of layers: gradients, the data-parallel law, and the same bits as a perceptron with the
//! same layers.

#![allow(clippy::unwrap_used)]

use ddp::config::precision::Precision;
use ddp::config::{
    Activation, Gate, LayerConfig, LayerEntry, ModelConfig, OptimizerConfig, OptimizerKind, WeightInit,
    ZeroStage,
};
use ddp::model::layer::{Layer, Sizes};
use ddp::model::{
    BufferPlan, GradcheckOptions, GradientWrites, LocalGradients, LossHead, ModelSpec, Network, ParamLayout,
    PassTraffic, Sequential, gradcheck, layers,
};
use ddp::train::trainer::{Trainer, TrainerOptions};
use ddp_comm::World;
use ddp_kernels::{DType, Device, Tensor, ops};

use crate::made_up::gpus::cpu_and_gpu;
use crate::made_up::{Setup, assert_close, embeddings};

fn linear(out_features: usize, activation: Option<Activation>) -> LayerEntry {
    LayerConfig::Linear { out_features, activation, bias: true }.once()
}

fn spec(layers: Vec<LayerEntry>) -> ModelSpec {
    ModelSpec::new(&ModelConfig::from_layers(layers, true), 5, 3)
}

#[test]
fn gradients_of_every_kind_agree_with_difference_quotients_on_cpu_and_gpu() {
    let gated = |gate| LayerConfig::Glu { out_features: 6, gate, bias: true }.once();
    let block = |layers| LayerConfig::Residual { layers }.once();
    let (devices, _lock) = cpu_and_gpu();
    for (name, layers) in [
        ("rms norm", vec![linear(6, None), LayerConfig::RmsNorm.once()]),
        ("swiglu", vec![linear(6, None), gated(Gate::SwiGlu)]),
        ("geglu", vec![gated(Gate::GeGlu)]),
        ("reglu", vec![gated(Gate::ReGlu)]),
        ("a gate after a skip", vec![linear(6, None), block(vec![gated(Gate::SwiGlu)])]),
        (
            "a norm and a gate",
            vec![linear(6, None), block(vec![LayerConfig::RmsNorm.once(), gated(Gate::GeGlu)])],
        ),
        ("features of a norm", vec![LayerConfig::RmsNorm.once(), linear(4, Some(Activation::Silu))]),
        ("everything", Setup::listed().spec.layers),
        ("scale", vec![linear(6, None), LayerConfig::Scale.once()]),
        ("smooth clip", vec![linear(6, Some(Activation::SmoothClip))]),
        ("numeric embedding", vec![linear(4, None), numeric_embedding()]),
        ("layers for tables", tabular()),
    ] {
        for &device in &devices {
            let mut network = Network::new(spec(layers.clone()), 8, device, Precision::F32).unwrap();
            network.initialize_as(WeightInit::Xavier, 1).unwrap();
            let x = Tensor::randn(&[8, 5], DType::F32, device, 2).unwrap();
            // After two gates the third derivative is large, so the step is shorter than for one or two layers.
            let options = GradcheckOptions { step: 1.0 / 256.0, ..GradcheckOptions::default() };
            let checked = gradcheck(&mut network, x.view(), &options);
            checked.unwrap_or_else(|error| panic!("{name} on {device}: {error}"));
            let mut network = Network::new(spec(layers.clone()), 8, device, Precision::F64).unwrap();
            network.initialize_as(WeightInit::Xavier, 1).unwrap();
            let x = x.to_dtype(DType::F64).unwrap();
            let checked = gradcheck(&mut network, x.view(), &GradcheckOptions::f64());
            checked.unwrap_or_else(|error| panic!("{name} in f64 on {device}: {error}"));
        }
    }
}

/// Frequencies low enough that difference quotients of two consecutive embeddings are smooth.
fn numeric_embedding() -> LayerEntry {
    LayerConfig::NumericEmbedding { dim: 3, n_frequencies: 5, sigma: 0.1 }.once()
}

/// The layers of `periodic_mlp`.
pub(crate) fn tabular() -> Vec<LayerEntry> {
    let clip = LayerConfig::Activation(Activation::SmoothClip);
    vec![clip.once(), numeric_embedding(), LayerConfig::Scale.once(), linear(9, Some(Activation::Silu))]
}

/// With the same weights in both formats, outputs differ only by f32 rounding: sums of tens of products near 1.
#[test]
fn a_model_in_f64_is_the_one_in_f32_without_its_rounding_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for &device in &devices {
        let layers = [
            tabular(),
            vec![LayerConfig::BatchNorm { eps: 1e-5, momentum: 0.1 }.once(), LayerConfig::LayerNorm.once()],
        ]
        .concat();
        let outputs = |precision: Precision| {
            let mut network = Network::new(spec(layers.clone()), 8, device, precision).unwrap();
            network.initialize(1).unwrap();
            let x = Tensor::randn(&[8, 5], DType::F32, device, 2).unwrap().to_dtype(precision.master());
            network.forward(x.unwrap()).unwrap();
            assert_eq!(network.input_format(), precision.master());
            let outputs = network.outputs().unwrap().to_tensor().unwrap();
            assert_eq!(outputs.dtype(), precision.master());
            let weights = network.weights().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            (weights, outputs.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap())
        };
        let ((weights, short), (same, long)) = (outputs(Precision::F32), outputs(Precision::F64));
        assert_eq!(weights, same);
        for (short, long) in short.iter().zip(&long) {
            assert!((short - long).abs() < 2e-5 * (1.0 + long.abs()), "{device}: {short}, {long}");
        }
        assert_ne!(short, long);
    }
}

/// Trainers exchange f32, and a pass over a model in f64 requires f64 input.
#[test]
fn what_is_not_for_f64_says_so() {
    let sizes = Sizes { max_rows: 4, device: Device::Cpu, precision: Precision::F64 };
    let (world, adamw) = (World::single(), OptimizerConfig::new(OptimizerKind::AdamW, 1e-2));
    let layers = Sequential::new(3).linear(2);
    let options = TrainerOptions::default();
    let trainer = Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &adamw, options);
    let error = ddp_kernels::hint::with_hint(&trainer.unwrap_err());
    assert!(error.contains("the model is in f64\nhint: ") && error.contains("Precision::F32"), "{error}");
    let mut network = Sequential::new(3).linear(2).build(sizes, 0).unwrap();
    let x = Tensor::zeros(&[4, 3], DType::F32, Device::Cpu).unwrap();
    let error = network.forward(&x).unwrap_err().to_string();
    assert!(error.contains("[4, 3] f32") && error.contains("f64 in a model in f64"), "{error}");
}

#[test]
fn layers_for_tables_train_on_any_number_of_ranks_and_resume_to_the_bit() {
    let usual = Setup::usual();
    let reglu = LayerConfig::Glu { out_features: 8, gate: Gate::ReGlu, bias: true }.once();
    for (optimizer, layers) in [
        (OptimizerKind::AdamW, tabular()),
        (OptimizerKind::Muon, tabular()),
        (OptimizerKind::Lion, vec![linear(8, Some(Activation::Tanh)), reglu]),
    ] {
        let spec = ModelSpec::new(&ModelConfig::from_layers(layers, true), 6, usual.spec.n_outputs());
        let setup = Setup { spec, optimizer, ..usual.clone() };
        let alone = setup.train_on(1);
        assert!(alone.losses[11] < alone.losses[0], "{optimizer}: {:?}", alone.losses);
        for (world_size, zero) in [(2, ZeroStage::Off), (3, ZeroStage::Optimizer), (4, ZeroStage::Gradients)]
        {
            let options = TrainerOptions { zero, ..setup.options };
            let trained = Setup { options, ..setup.clone() }.train_on(world_size);
            assert_close(&format!("{optimizer}, {world_size} ranks"), &trained, &alone);
        }
        assert!(
            Setup { restart_after: Some(5), ..setup.clone() }.train_on(2) == setup.train_on(2),
            "{optimizer}"
        );
    }
}

#[test]
fn a_list_trains_on_any_number_of_ranks_as_on_one() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let setup = Setup { optimizer, ..Setup::listed() };
        let alone = setup.train_on(1);
        assert!(alone.losses.len() == 12 && alone.losses[11] < alone.losses[0], "{alone:?}");
        for world_size in 2..=4 {
            assert_close(&format!("{optimizer}, {world_size} ranks"), &setup.train_on(world_size), &alone);
        }
    }
    let setup = Setup::listed();
    let two = setup.train_on(2);
    for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        let options = TrainerOptions { zero, ..setup.options };
        let sharded = Setup { options, n_micro: 1, ..setup.clone() }.train_on(2);
        let whole = Setup { n_micro: 1, ..setup.clone() }.train_on(2);
        assert_close(&format!("{zero:?}"), &sharded, &whole);
    }
    let embedded = Setup { spec: setup.spec.clone().with_embeddings(embeddings([7, 5])), ..setup };
    let alone = embedded.train_on(1);
    assert_close("embeddings", &embedded.train_on(3), &alone);
    assert!(two.weights != alone.weights);
}

#[test]
fn a_list_of_a_perceptrons_layers_trains_to_its_bits() {
    let usual = Setup::usual();
    let of_width = |width, is_residual| {
        let [norm, activation] = [LayerConfig::LayerNorm, LayerConfig::Activation(Activation::Gelu)];
        let layers = vec![
            linear(width, None),
            norm.once(),
            activation.once(),
            LayerConfig::Dropout { p: 0.25 }.once(),
        ];
        if is_residual { vec![LayerConfig::Residual { layers }.once()] } else { layers }
    };
    let layers = [of_width(16, false), of_width(16, true), of_width(9, false)].concat();
    let spec = ModelSpec::new(&ModelConfig::from_layers(layers, true), 6, usual.spec.n_outputs());
    assert_eq!(spec.flop_per_row(), usual.spec.flop_per_row());
    let listed = Setup { spec, ..usual.clone() };
    assert!(listed.train_on(2) == usual.train_on(2));
}

#[test]
fn blocks_of_a_program_are_those_of_a_list() {
    let built = Sequential::new(5)
        .linear(6)
        .residual(|body| body.rms_norm().glu(Gate::SwiGlu, 4).dropout(0.5).linear(6))
        .layer_norm()
        .linear(3);
    let block = vec![
        LayerConfig::RmsNorm.once(),
        LayerConfig::Glu { out_features: 4, gate: Gate::SwiGlu, bias: true }.once(),
        LayerConfig::Dropout { p: 0.5 }.once(),
        linear(6, None),
    ];
    let listed =
        vec![linear(6, None), LayerConfig::Residual { layers: block }.once(), LayerConfig::LayerNorm.once()];
    let described = |layers: Vec<Box<dyn Layer>>| -> Vec<_> {
        layers.iter().map(|layer| (layer.describe(), layer.parameters().to_vec())).collect()
    };
    let listed = described(layers::from_spec(&spec(listed)));
    assert_eq!(described(built.into_layers()), listed);
    let names: Vec<_> =
        listed.iter().flat_map(|(_, params)| params).map(|param| param.name.as_str()).collect();
    let want = [
        "layers.0.bias",
        "layers.0.weight",
        "norms.0.weight",
        "layers.1.bias",
        "layers.1.weight",
        "layers.2.bias",
        "layers.2.weight",
        "norms.1.weight",
        "norms.1.bias",
        "layers.3.bias",
        "layers.3.weight",
    ];
    assert_eq!(names, want);
}

/// The reports count the bytes that the operations of a norm and of a gate move.
#[test]
fn traffic_counts_norms_and_gates() {
    let moved = |layers: Vec<LayerEntry>| {
        let spec = spec(layers);
        let (layout, device, precision) = (ParamLayout::new(&spec), Device::Cpu, Precision::F32);
        let plan = BufferPlan { spec: &spec, layout: &layout, max_rows: 8, device, precision };
        PassTraffic::of(plan, 8, 0, GradientWrites::Singles).activations
    };
    let values = |n: usize| 8 * n * size_of::<f32>();
    let plain = moved(vec![linear(6, None)]);
    // Forward x and y; backward twice x and d for the two passes, and d once more.
    assert_eq!(moved(vec![linear(6, None), LayerConfig::RmsNorm.once()]) - plain, values(2 * 6 + 5 * 6));
    // A linear layer with 12 instead of 6 outputs writes 6 more values, and reads 6 more of d twice, for its bias and its weight.
    // The gate reads 12 and writes 6 forward, and reads 12 and 6 and writes 12 backward.
    let gated = moved(vec![LayerConfig::Glu { out_features: 6, gate: Gate::SwiGlu, bias: true }.once()]);
    assert_eq!(gated - plain, values(6 + 2 * 6 + 18 + 30));
}

/// In 16-bit formats gradients agree with f32 up to rounding.
#[test]
fn short_formats_compute_the_same_gradients_on_cpu_and_gpu() {
    let spec = Setup::listed().spec;
    let (devices, _lock) = cpu_and_gpu();
    let x = Tensor::randn(&[8, spec.n_features()], DType::F32, Device::Cpu, 2).unwrap();
    let gradients = |precision, device| {
        let sizes = Sizes { max_rows: 8, device, precision };
        let mut network =
            Network::from_parts(layers::from_spec(&spec), ParamLayout::new(&spec), spec.n_features(), sizes)
                .unwrap();
        network.initialize(1).unwrap();
        let x = x.to(device).unwrap();
        network.forward(&x).unwrap();
        let (_, d) = network.outputs_and_gradient().unwrap();
        let quarters = Tensor::full(&[8, 3], 0.25, d.dtype(), device).unwrap();
        ops::copy(quarters.view(), d).unwrap();
        let mut grads = Tensor::zeros(&[network.layout().flat_len()], DType::F32, device).unwrap();
        network.backward(x.view(), None, false, &mut LocalGradients(grads.view_mut())).unwrap();
        grads.to_vec::<f32>().unwrap()
    };
    let exact = gradients(Precision::F32, Device::Cpu);
    let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    for &device in &devices {
        // A few roundings of 2^-8 and 2^-11 in each of about ten layers.
        for (precision, rtol) in [(Precision::F32, 1e-5), (Precision::Bf16, 0.05), (Precision::F16, 0.007)] {
            let got = gradients(precision, device);
            let gap: Vec<f32> = got.iter().zip(&exact).map(|(a, b)| a - b).collect();
            assert!(
                norm(&gap) <= rtol * norm(&exact),
                "{precision:?} on {device}: {}",
                norm(&gap) / norm(&exact)
            );
        }
    }
}
