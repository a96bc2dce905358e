//! Plans of layers that no config produces: a custom layer, skip connections of any length, a weight that two layers share.
//! Gradients are compared with central differences.

#![allow(clippy::unwrap_used)]

use ddp::config::precision::Precision;
use ddp::error::Error;
use ddp::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
use ddp::exchange::buckets::{ReducedGradients, Reduction};
use ddp::exchange::zero2::{ShardedGradients, Zero2};
use ddp::exchange::{BufferSize, Exchange as _, MicroStep};
use ddp::model::layer::{Layer, Result, Sizes};
use ddp::model::layers::{ActivationLayer, Linear, SkipBegin, SkipEnd};
use ddp::model::linear_spec::LinearSpec;
use ddp::model::param::{Init, ParamKind, ParamSpec};
use ddp::model::pass::{BackwardPass, ForwardPass};
use ddp::model::{GradientSink, LocalGradients, Network, ParamLayout};
use ddp_comm::threads;
use ddp_kernels::ops::{self, Activation};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut, TensorRef};

use crate::made_up::gpus::cpu_and_gpu;

const N_ROWS: usize = 6;
const N_FEATURES: usize = 4;
const N_OUTPUTS: usize = 3;

type Layers = Vec<Box<dyn Layer>>;

fn linear(index: usize, in_features: usize, out_features: usize) -> Box<dyn Layer> {
    Box::new(Linear::new(LinearSpec::new(index, in_features, out_features, true)))
}

fn activation(activation: Activation, features: usize) -> Box<dyn Layer> {
    Box::new(ActivationLayer::new(activation, features))
}

fn skip_begin() -> Box<dyn Layer> {
    Box::new(SkipBegin::new(N_FEATURES))
}

fn skip_end() -> Box<dyn Layer> {
    Box::new(SkipEnd::new(N_FEATURES))
}

/// A layer as a user would write it, on the CPU: a learned factor for each column.
#[derive(Debug)]
struct Scale {
    params: [ParamSpec; 1],
}

impl Scale {
    fn boxed(name: &str, features: usize) -> Box<dyn Layer> {
        let init = Init::Constant(1.0);
        Box::new(Scale { params: [ParamSpec::new(name, ParamKind::NormWeight, &[features], init)] })
    }
}

impl Layer for Scale {
    fn describe(&self) -> String {
        "scale".to_owned()
    }

    fn out_features(&self) -> usize {
        self.params[0].dims[0]
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let scale = pass.params.master(0)?.as_slice::<f32>("scale", "scale")?;
        let (x, y) = (x.as_slice::<f32>("scale", "x")?, y.into_slice::<f32>("scale", "y")?);
        for (x, y) in x.chunks_exact(scale.len()).zip(y.chunks_exact_mut(scale.len())) {
            y.iter_mut().zip(x).zip(scale).for_each(|((y, x), s)| *y = x * s);
        }
        Ok(())
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let scale = pass.params.master(0)?.as_slice::<f32>("scale", "scale")?;
        let (x, d) = (pass.x.as_slice::<f32>("scale", "x")?, d.into_slice::<f32>("scale", "d")?);
        let grad = pass.grads.take()?;
        let d_scale = grad.d.into_slice::<f32>("scale", "d_scale")?;
        if !grad.accumulate {
            d_scale.fill(0.0);
        }
        for (x, d) in x.chunks_exact(scale.len()).zip(d.chunks_exact_mut(scale.len())) {
            for (i, s) in scale.iter().enumerate() {
                d_scale[i] += d[i] * x[i];
                d[i] *= s;
            }
        }
        Ok(())
    }
}

/// The model of these layers, with weights that depend only on their positions.
fn network(layers: Layers, n_ranks: usize, device: Device) -> Network {
    let layout = ParamLayout::from_layers(&layers, n_ranks);
    let mut weights = vec![0.0; layout.flat_len()];
    for entry in layout.forward_order() {
        for (i, w) in weights[entry.range()].iter_mut().enumerate() {
            *w = ((entry.name.len() * 7 + entry.layer * 3 + i * i) as f32 * 0.37).sin();
        }
    }
    let sizes = Sizes { max_rows: N_ROWS, device, precision: Precision::F32 };
    let mut network = Network::from_parts(layers, layout, N_FEATURES, sizes).unwrap();
    network.set_weights(TensorRef::from_slice(&weights, &[weights.len()]).unwrap()).unwrap();
    network
}

fn described(network: &Network) -> Vec<String> {
    network.layers().map(|layer| layer.describe()).collect()
}

/// Rows `start..end` of the input, or of the gradient of the outputs.
fn rows(start: usize, end: usize, cols: usize, device: Device) -> Tensor {
    let values: Vec<f32> = (start * cols..end * cols).map(|i| ((i * i + cols) as f32 * 0.61).cos()).collect();
    Tensor::from_slice(&values, &[end - start, cols], device).unwrap()
}

/// Writes the gradients of rows `start..end` to `sink`.
fn backward<S: GradientSink>(
    network: &mut Network,
    (start, end): (usize, usize),
    accumulate: bool,
    sink: &mut S,
) where
    S::Error: std::fmt::Debug,
{
    let device = network.device();
    let x = rows(start, end, N_FEATURES, device);
    network.forward(&x).unwrap();
    let (_, d) = network.outputs_and_gradient().unwrap();
    ops::copy(rows(start, end, N_OUTPUTS, device).view(), d).unwrap();
    network.backward(x.view(), None, accumulate, sink).unwrap();
}

/// The flat gradients, accumulated in passes over parts of the rows.
fn gradients(network: &mut Network, n_passes: usize) -> Vec<f32> {
    let flat_len = network.layout().flat_len();
    let mut grads = Tensor::full(&[flat_len], f64::NAN, DType::F32, network.device()).unwrap();
    for pass in 0..n_passes {
        let part = (pass * N_ROWS / n_passes, (pass + 1) * N_ROWS / n_passes);
        backward(network, part, pass > 0, &mut LocalGradients(grads.view_mut()));
    }
    grads.to_vec().unwrap()
}

/// `Σ outputs · d_outputs` at these weights, in f64.
fn loss(network: &mut Network, weights: &[f32]) -> f64 {
    let device = network.device();
    network.set_weights(TensorRef::from_slice(weights, &[weights.len()]).unwrap()).unwrap();
    network.forward(rows(0, N_ROWS, N_FEATURES, device)).unwrap();
    let outputs = network.outputs().unwrap().to_vec::<f32>().unwrap();
    let d = rows(0, N_ROWS, N_OUTPUTS, Device::Cpu).to_vec::<f32>().unwrap();
    outputs.iter().zip(&d).map(|(y, d)| f64::from(*y) * f64::from(*d)).sum()
}

#[track_caller]
fn assert_close(what: &str, got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{what}: {got} against {want}");
}

/// Compares every parameter's gradient with central differences, and passes over parts of the rows with one pass.
#[track_caller]
fn check_gradients(what: &str, network: &mut Network) {
    const STEP: f32 = 1.0 / 64.0;
    let grads = gradients(network, 1);
    let in_parts = gradients(network, 3);
    let weights = network.weights().to_vec::<f32>().unwrap();
    for entry in network.layout().entries().to_vec() {
        for i in entry.range() {
            let mut moved = weights.clone();
            moved[i] = weights[i] + STEP;
            let above = loss(network, &moved);
            moved[i] = weights[i] - STEP;
            let below = loss(network, &moved);
            let want = (above - below) / f64::from(2.0 * STEP);
            let what = format!("{what}, {}: {}, element {}", network.device(), entry.name, i - entry.start);
            // Losses up to 100, in f32, over a difference of 1/32, and a third derivative of a few hundred times STEP²/6.
            assert_close(&what, f64::from(grads[i]), want, 5e-3);
            // Sums of about ten terms in different orders.
            assert_close(&what, f64::from(in_parts[i]), f64::from(grads[i]), 1e-5);
        }
    }
    network.set_weights(TensorRef::from_slice(&weights, &[weights.len()]).unwrap()).unwrap();
}

#[test]
fn a_layer_of_ones_own_is_trained_and_not_fused() {
    let layers = |own: bool| -> Layers {
        let own = own.then(|| Scale::boxed("scales.0", 5));
        let hidden = [linear(0, N_FEATURES, 5)].into_iter().chain(own);
        hidden.chain([activation(Activation::Tanh, 5), linear(1, 5, N_OUTPUTS)]).collect()
    };
    let fused = network(layers(false), 1, Device::Cpu);
    assert_eq!(described(&fused), ["linear 4 -> 5, tanh", "linear 5 -> 3"]);
    let mut own = network(layers(true), 1, Device::Cpu);
    assert_eq!(described(&own), ["linear 4 -> 5", "scale", "tanh", "linear 5 -> 3"]);
    assert_eq!(own.layout().find("scales.0").unwrap().numel(), 5);
    check_gradients("own layer", &mut own);
    // Skip connections before all other layers, and at the end.
    let mut ends = network(
        vec![
            Scale::boxed("first", N_FEATURES),
            linear(0, N_FEATURES, N_OUTPUTS),
            Scale::boxed("last", N_OUTPUTS),
        ],
        1,
        Device::Cpu,
    );
    check_gradients("own layers at both ends", &mut ends);
}

#[test]
fn skip_connections_of_any_length_have_the_right_gradients_on_cpu_and_gpu() {
    let (f, tanh) = (N_FEATURES, Activation::Tanh);
    let last = move || linear(9, f, N_OUTPUTS);
    type Plan = (&'static str, Box<dyn Fn() -> Layers>);
    let plans: Vec<Plan> = vec![
        ("from the input", Box::new(move || vec![skip_begin(), linear(0, f, f), skip_end(), last()])),
        ("around nothing", Box::new(move || vec![linear(0, f, f), skip_begin(), skip_end(), last()])),
        (
            "around an activation",
            Box::new(move || vec![linear(0, f, f), skip_begin(), activation(tanh, f), skip_end(), last()]),
        ),
        (
            "around two linear layers",
            Box::new(move || {
                let body = vec![linear(1, f, 6), activation(tanh, 6), linear(2, 6, f), activation(tanh, f)];
                let layers = [linear(0, f, f), skip_begin()].into_iter().chain(body);
                layers.chain([skip_end(), last()]).collect()
            }),
        ),
        (
            "one within another",
            Box::new(move || {
                let inner = vec![skip_begin(), linear(2, f, f), activation(tanh, f), skip_end()];
                let layers = [linear(0, f, f), skip_begin(), linear(1, f, f)].into_iter().chain(inner);
                layers.chain([skip_end(), last()]).collect()
            }),
        ),
    ];
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for (what, layers) in &plans {
            check_gradients(what, &mut network(layers(), 1, device));
        }
    }
    let own = vec![linear(0, f, f), skip_begin(), Scale::boxed("s", f), linear(1, f, f), skip_end(), last()];
    check_gradients("around a layer of one's own", &mut network(own, 1, Device::Cpu));
}

/// Two linear layers that share one weight, or have two equal weights, with separate biases, and a third layer.
fn tied(is_tied: bool) -> Layers {
    let f = N_FEATURES;
    let linear_of = |index: usize| -> Box<dyn Layer> {
        let LinearSpec { params, .. } = LinearSpec::new(index, f, f, true);
        let [bias, mut weight] = <[ParamSpec; 2]>::try_from(params).unwrap();
        if is_tied {
            weight = weight.shared();
            "tied.weight".clone_into(&mut weight.name);
            weight.init = Init::Constant(0.0);
        }
        Box::new(Linear::new(LinearSpec::from_params(weight, Some(bias))))
    };
    let tanh = || activation(Activation::Tanh, f);
    vec![linear_of(0), tanh(), linear_of(1), tanh(), linear(2, f, N_OUTPUTS)]
}

/// The model with the shared weight and its twin with two weights, all with the same values.
fn twins(n_ranks: usize, device: Device) -> [Network; 2] {
    let tied_model = network(tied(true), n_ranks, device);
    let mut twin = network(tied(false), n_ranks, device);
    let from = tied_model.weights().to_vec::<f32>().unwrap();
    let mut weights = vec![0.0; twin.layout().flat_len()];
    for entry in twin.layout().entries() {
        let source =
            tied_model.layout().find(&entry.name).or(tied_model.layout().find("tied.weight")).unwrap();
        weights[entry.range()].copy_from_slice(&from[source.range()]);
    }
    twin.set_weights(TensorRef::from_slice(&weights, &[weights.len()]).unwrap()).unwrap();
    [tied_model, twin]
}

/// The expected gradients of the model with the shared weight, from those of its twin: the shared weight's gradient is the sum of
/// both.
fn expected([tied_model, twin]: &mut [Network; 2]) -> Vec<f64> {
    let grads = gradients(twin, 1);
    let of = |name: &str| &grads[twin.layout().find(name).unwrap().range()];
    let mut want = vec![0.0; tied_model.layout().flat_len()];
    for entry in tied_model.layout().entries() {
        let uses = match entry.name.as_str() {
            "tied.weight" => vec![of("layers.0.weight"), of("layers.1.weight")],
            name => vec![of(name)],
        };
        for (i, want) in want[entry.range()].iter_mut().enumerate() {
            *want = uses.iter().map(|of_use| f64::from(of_use[i])).sum();
        }
    }
    want
}

#[track_caller]
fn assert_gradients(what: &str, layout: &ParamLayout, got: &[f32], want: &[f64]) {
    for entry in layout.entries() {
        for i in entry.range() {
            // Sums of about ten products below 4 in different orders.
            assert_close(&format!("{what}: {}", entry.name), f64::from(got[i]), want[i], 1e-5);
        }
    }
}

#[test]
fn a_shared_weight_has_the_sum_of_the_gradients_of_its_uses_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let mut models = twins(1, device);
        let want = expected(&mut models);
        let [tied_model, twin] = &mut models;
        let layout = tied_model.layout().clone();
        assert_eq!(layout.n_params() + N_FEATURES * N_FEATURES, twin.layout().n_params());
        for n_passes in [1, 3] {
            assert_gradients("local", &layout, &gradients(tied_model, n_passes), &want);
        }
        check_gradients("shared weight", tied_model);
    }
}

/// Records gradients, and the ranges that were requested and finished, in order.
struct Recorder {
    grads: Tensor,
    asked: Vec<(usize, usize)>,
    finished: Vec<usize>,
}

impl GradientSink for Recorder {
    type Error = KernelError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        let done = self.finished.last().copied().unwrap_or(0);
        assert!(start >= done && self.asked.last().is_none_or(|last| last.1 <= start), "{start}..{end}");
        self.asked.push((start, end));
        self.grads.view_mut().range(start, end)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        self.finished.push(end);
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_shared_weight_is_finished_after_its_last_use() {
    let mut model = network(tied(true), 1, Device::Cpu);
    let layout = model.layout().clone();
    let grads = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
    let mut sink = Recorder { grads, asked: Vec::new(), finished: Vec::new() };
    backward(&mut model, (0, N_ROWS), false, &mut sink);
    assert_eq!(sink.finished, layout.layer_ends());
    let range = |name: &str| layout.find(name).unwrap().range();
    // The middle layer requests only its bias.
    let (middle, first) = (range("layers.1.bias"), (range("layers.0.bias").start, range("tied.weight").end));
    assert_eq!(sink.asked[1..], [(middle.start, middle.end), first]);
    assert!(sink.finished[1] <= range("tied.weight").start);
}

#[test]
fn a_shared_weight_is_reduced_over_ranks() {
    let mut models = twins(2, Device::Cpu);
    let want = expected(&mut models);
    for overlap in [false, true] {
        for reduction in [Reduction::ToAll, Reduction::ToOwners] {
            threads::run(2, |world| {
                let [mut model, _] = twins(2, Device::Cpu);
                let layout = model.layout().clone();
                // Each layer is its own bucket.
                let plan = BucketPlan::new(&layout, 4);
                assert_eq!(plan.ranges().len(), 3);
                let len = layout.flat_len() + TAIL_ELEMENTS;
                let mut grads = Tensor::zeros(&[len], DType::F32, Device::Cpu).unwrap();
                let rank = world.rank().0;
                let part = |index: usize| (rank * 3 + index, rank * 3 + index + 1);
                let flat = grads.view_mut().range(0, layout.flat_len()).unwrap();
                let mut local = LocalGradients(flat);
                backward(&mut model, part(0), false, &mut local);
                backward(&mut model, part(1), true, &mut local);
                world
                    .tensor_group()
                    .scope(|scope| {
                        let mut sink =
                            ReducedGradients::new(scope, &plan, grads.view_mut(), overlap, reduction)?;
                        backward(&mut model, part(2), true, &mut sink);
                        sink.finish()
                    })
                    .unwrap();
                let mut got = grads.to_vec::<f32>().unwrap();
                if reduction == Reduction::ToOwners {
                    // The other rank's half of each bucket is not checked.
                    for bucket in plan.without_tail().ranges() {
                        let half = bucket.len() / 2;
                        let other = bucket.start + (1 - rank) * half;
                        for i in other..other + half {
                            got[i] = want[i] as f32;
                        }
                    }
                }
                assert_gradients("reduced", &layout, &got, &want);
            });
        }
    }
}

#[test]
fn a_shared_weight_is_reduced_where_no_rank_keeps_all_gradients() {
    let mut models = twins(2, Device::Cpu);
    let want = expected(&mut models);
    for overlap in [false, true] {
        threads::run(2, |world| {
            let [mut model, _] = twins(2, Device::Cpu);
            let layout = model.layout().clone();
            let plan = BucketPlan::new(&layout, 4);
            let rank = world.rank().0;
            let zero2 = Zero2::new(&layout, &plan, rank, 2, overlap);
            let mut memory = BufferSize::allocate(&zero2.buffers(), &world, Device::Cpu).unwrap();
            for index in 0..3 {
                let micro_step = MicroStep { index, is_last: false };
                world
                    .tensor_group()
                    .scope(|scope| {
                        let mut sink = ShardedGradients::new(scope, &zero2, &mut memory, micro_step)?;
                        backward(&mut model, (rank * 3 + index, rank * 3 + index + 1), false, &mut sink);
                        sink.finish()?;
                        Ok::<_, Error>(())
                    })
                    .unwrap();
            }
            let parts = memory[0].to_vec::<f32>().unwrap();
            for bucket in plan.without_tail().ranges() {
                let half = bucket.len() / 2;
                for i in 0..half {
                    let (got, place) = (parts[bucket.start / 2 + i], bucket.start + rank * half + i);
                    // Same tolerance as above; gaps are zero on both sides.
                    assert_close(&format!("element {place}"), f64::from(got), want[place], 1e-5);
                }
            }
        });
    }
}
