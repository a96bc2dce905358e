//! Steps over ranges, and the names of the state.

use ddp_kernels::ops::Activation;

use super::*;
use crate::config::precision::Precision;
use crate::config::{OptimizerKind, ParamGroup};
use crate::model::ModelSpec;

fn model() -> Network {
    let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[3, 20, 2], Activation::Relu) };
    let mut model = Network::new(spec, 1, Device::Cpu, Precision::F32).unwrap();
    model.initialize(1).unwrap();
    model
}

fn config(kind: OptimizerKind) -> OptimizerConfig {
    let group = |pattern: &str, lr_scale, weight_decay| ParamGroup {
        pattern: pattern.to_owned(),
        lr_scale,
        weight_decay,
        schedule: None,
    };
    OptimizerConfig {
        groups: vec![group("layers.0.*", 0.5, Some(0.3)), group("*.bias", 2.0, None)],
        decay_bias_norm: false,
        weight_decay: 0.1,
        ema_decay: 0.9,
        ..OptimizerConfig::new(kind, 0.1)
    }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Weights and state tensors after three steps, each split into ranges with these ends.
fn stepped(config: &OptimizerConfig, ends: &[usize]) -> Vec<Vec<u32>> {
    let mut model = model();
    let mut optimizer = Optimizer::for_model(config, &model).unwrap();
    let grads = Tensor::from_slice(
        &(0..model.layout().flat_len()).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>(),
        &[model.layout().flat_len()],
        Device::Cpu,
    )
    .unwrap();
    for step in 0..3 {
        optimizer.set_lr(0.1 / f64::from(step + 1));
        optimizer.begin_step();
        let mut start = 0;
        for &end in ends {
            let own = grads.view().range(start, end).unwrap();
            let scale = UpdateScale::Host(0.5);
            let weights = model.weights_mut().range(&(start..end)).unwrap();
            optimizer.step_on(weights, own, scale, start..end, start).unwrap();
            start = end;
        }
    }
    let mut all = vec![bits(model.weights())];
    all.extend(optimizer.state().into_iter().map(|(_, tensor)| bits(tensor)));
    all
}

#[test]
fn updates_by_range_equal_one_update_of_the_whole() {
    for kind in [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW] {
        let n = model().layout().flat_len();
        // Ranges end within segments and at their ends.
        let cuts = [1, 16, 50, n];
        assert_eq!(stepped(&config(kind), &cuts), stepped(&config(kind), &[n]), "{kind}");
    }
}

#[test]
fn a_part_of_the_state_serves_a_part_of_the_weights() {
    for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let config = config(kind);
        let (mut whole, mut part) = (model(), model());
        let layout = whole.layout().clone();
        let own = 17..layout.flat_len() - 5;
        let grads = Tensor::full(&[layout.flat_len()], 0.25, DType::F32, Device::Cpu).unwrap();
        let mut all = Optimizer::for_model(&config, &whole).unwrap();
        // The first two elements belong to another range.
        let groups = ParamGroups::new(&config, &layout).unwrap();
        let mut some = Optimizer::new(&config, groups, own.len() + 2, Device::Cpu).unwrap();
        for _ in 0..2 {
            all.begin_step();
            some.begin_step();
            let scale = UpdateScale::Host(1.0);
            all.step_on(whole.weights_mut(), grads.view(), scale, 0..layout.flat_len(), 0).unwrap();
            let own_grads = grads.view().range(own.start, own.end).unwrap();
            let own_weights = part.weights_mut().range(&own).unwrap();
            some.step_on(own_weights, own_grads, scale, own.clone(), 2).unwrap();
        }
        assert_eq!(bits(whole.weights())[own.clone()], bits(part.weights())[own.clone()]);
        assert_eq!(bits(part.weights())[..own.start], bits(model().weights())[..own.start]);
        for ((name, all), (same, some)) in all.state().into_iter().zip(some.state()) {
            assert_eq!(name, same);
            assert_eq!(bits(all)[own.clone()], bits(some)[2..], "{name}");
        }
    }
}

#[test]
fn state_has_names_and_a_frozen_group_stays() {
    let names = |config: &OptimizerConfig| -> Vec<_> {
        let optimizer = Optimizer::for_model(config, &model()).unwrap();
        assert_eq!(
            optimizer.state().len(),
            Optimizer::n_moments(config) + usize::from(config.ema_decay > 0.0)
        );
        optimizer.state().into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&config(OptimizerKind::AdamW)), ["m", "v", "ema"]);
    assert_eq!(names(&OptimizerConfig::new(OptimizerKind::Sgd, 0.1)), ["velocity"]);
    let still = OptimizerConfig { momentum: 0.0, ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1) };
    assert_eq!(names(&still), [""; 0]);

    let mut frozen = config(OptimizerKind::AdamW);
    frozen.groups[0].lr_scale = 0.0;
    let n = model().layout().flat_len();
    let (before, after) = (bits(model().weights()), stepped(&frozen, &[n]).swap_remove(0));
    for entry in model().layout().entries() {
        let is_same = before[entry.range()] == after[entry.range()];
        assert_eq!(is_same, entry.name.starts_with("layers.0."), "{}", entry.name);
    }
}

#[test]
#[should_panic(expected = "`begin_step` comes before the updates of a step")]
fn an_update_before_the_first_step_is_refused() {
    let mut model = model();
    let n = model.layout().flat_len();
    let mut optimizer = Optimizer::for_model(&config(OptimizerKind::AdamW), &model).unwrap();
    let grads = Tensor::full(&[n], 0.5, DType::F32, Device::Cpu).unwrap();
    let _ = optimizer.step_on(model.weights_mut(), grads.view(), UpdateScale::Host(1.0), 0..n, 0);
}
