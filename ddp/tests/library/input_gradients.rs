//! Gradients with respect to the rows, against difference quotients and between formats; and that training goes on as without them.

use ddp::nn::{Activation, GradientSums, LossHead, Network, Precision, Sequential, Sizes};
use ddp::optim::Optimizer;
use ddp_kernels::{DType, Device, KernelError, Tensor};

use crate::made_up::gpus::cpu_and_gpu;

type Result<T> = std::result::Result<T, KernelError>;

const N: usize = 6;
const WIDTH: usize = 4;

/// Models whose first layers differ: with parameters, without, with a shortcut from the input.
fn models() -> [(&'static str, Sequential); 6] {
    let rows = || Sequential::new(WIDTH);
    [
        ("linear", rows().linear(5).activation(Activation::Tanh).linear(2)),
        ("activation", rows().activation(Activation::Silu).linear(5).linear(2)),
        ("dropout", rows().dropout(0.5).linear(5).activation(Activation::Gelu).linear(2)),
        ("norm", rows().layer_norm().linear(2)),
        ("batch norm", rows().batch_norm().linear(5).activation(Activation::Relu).linear(2)),
        ("residual", rows().residual(|body| body.linear(WIDTH).activation(Activation::Tanh)).linear(2)),
    ]
}

fn rows(dtype: DType, device: Device) -> Result<[Tensor; 2]> {
    let draw = |n, seed| Tensor::randn(&[N, n], DType::F64, Device::Cpu, seed)?.to_dtype(dtype)?.to(device);
    Ok([draw(WIDTH, 1)?, draw(2, 2)?])
}

fn build(layers: Sequential, device: Device, precision: Precision) -> Result<Network> {
    layers.build(Sizes { max_rows: 8, device, precision }, 3)
}

#[test]
fn are_those_of_difference_quotients_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for (name, layers) in models() {
            let mut model = build(layers, device, Precision::F64).unwrap();
            let [x, y] = rows(DType::F64, device).unwrap();
            let loss = LossHead::mse();
            let got = model.input_gradient((&x, &y), &loss).unwrap().to_vec::<f64>().unwrap();
            let values = x.to_vec::<f64>().unwrap();
            for (index, got) in got.iter().enumerate() {
                let mut at = |step: f64| {
                    let mut moved = values.clone();
                    moved[index] += step;
                    let moved = Tensor::from_vec(moved, &[N, WIDTH], device).unwrap();
                    // The sums of a loss are f32: the outputs tell more.
                    let outputs = model.forward(&moved).unwrap().to_vec::<f64>().unwrap();
                    let y = y.to_vec::<f64>().unwrap();
                    outputs.iter().zip(y).map(|(o, y)| (o - y).powi(2)).sum::<f64>() / (2 * N) as f64
                };
                let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((got - expected).abs() < 1e-7, "{name} on {device:?}, {index}: {got}, {expected}");
            }
        }
    }
}

#[test]
fn are_alike_in_other_formats_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for (name, layers) in models() {
            let of = |precision: Precision, layers: Sequential| {
                let [x, y] = rows(DType::F32, device)?;
                let mut model = build(layers, device, precision)?;
                model.input_gradient((&x, &y), &LossHead::mse())?.to_vec::<f32>()
            };
            let again = models().into_iter().find(|(other, _)| *other == name).unwrap().1;
            let (exact, rounded) = (of(Precision::F32, layers).unwrap(), of(Precision::Bf16, again).unwrap());
            let most = exact.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for (exact, rounded) in exact.iter().zip(rounded) {
                assert!((exact - rounded).abs() < 0.03 * most, "{name} on {device:?}: {exact}, {rounded}");
            }
        }
    }
}

#[test]
fn training_goes_on_as_without_them_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for index in 0..models().len() {
            let trained = |looks: bool| -> ddp::Result<Vec<f32>> {
                let (_, layers) = models().into_iter().nth(index).unwrap();
                let mut model = build(layers, device, Precision::F32)?;
                let [x, y] = rows(DType::F32, device)?;
                let mut optimizer = Optimizer::adamw(&model, 0.1)?;
                let (loss, mut grads) = (LossHead::mse(), GradientSums::for_model(&model)?);
                for _ in 0..3 {
                    model.loss_and_gradients((&x, &y), &loss, &mut grads)?;
                    if looks {
                        model.input_gradient((&x, &y), &loss)?;
                    }
                    optimizer.step(&mut model, &mut grads)?;
                }
                Ok(model.weights().to_vec()?)
            };
            assert_eq!(trained(true).unwrap(), trained(false).unwrap());
        }
    }
}
