//! Compares a model's gradients with difference quotients: a test for custom layers.

use ddp_kernels::{DType, Device, KernelError, Tensor, TensorRef, ops};

use super::{LocalGradients, ModelError, Network};
use crate::config::precision::Precision;

/// Options of [`gradcheck`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradcheckOptions {
    /// Distance by which a weight is changed in both directions.
    pub step: f64,
    /// Largest difference between gradient and difference quotient, in units of `1 + |quotient|`.
    ///
    /// A quotient has an error of about `ε · |loss| / step + step² · |third derivative| / 6`, where ε is 6e-8 for a model in f32
    /// and 1e-16 for a model in f64.
    pub tolerance: f64,
    /// Maximum number of elements checked per parameter, spread evenly over it.
    pub max_elements: usize,
    /// Seed of the gradient of the outputs.
    pub seed: u64,
}

impl Default for GradcheckOptions {
    fn default() -> Self {
        GradcheckOptions { step: 1.0 / 64.0, tolerance: 5e-3, max_elements: 64, seed: 0 }
    }
}

impl GradcheckOptions {
    /// Options for models in f64: a step of 2⁻¹⁵ and a tolerance of 1e-6.
    pub fn f64() -> Self {
        GradcheckOptions { step: 1.0 / 32768.0, tolerance: 1e-6, ..GradcheckOptions::default() }
    }
}

/// Compares the gradient of each parameter with central differences on rows `x`, `[B, n_features]`, without dropout, in f32 or,
/// with a much smaller tolerance, in f64.
///
/// A second backward pass that accumulates must double each gradient, as the micro-batches of a step add up.
///
/// The loss is the sum of the outputs times random numbers in ±1. The gradient of a layer's input is checked only through the
/// parameters of earlier layers, so put a linear layer before the layer to check. The weights are unchanged afterward.
///
/// # Errors
/// [`ModelError::Gradcheck`] with the first element that differs; [`ModelError::GradcheckAccumulated`]; [`ModelError::GradcheckPrecision`] for a model that does not
/// compute in f32 or f64; [`ModelError::Kernel`] from the passes.
///
/// Source: `torch.autograd.gradcheck`.
///
/// ```
/// use ddp::nn::{Activation, GradcheckOptions, ModelSpec, Network, Precision, gradcheck};
/// use ddp::prelude::*;
///
/// let spec = ModelSpec::plain(&[4, 5, 3], Activation::Tanh);
/// let x = Tensor::randn(&[8, 4], DType::F64, Device::Cpu, 1)?;
/// let mut network = Network::new(spec.clone(), 8, Device::Cpu, Precision::F64)?;
/// network.initialize(0)?;
/// gradcheck(&mut network, x.view(), &GradcheckOptions::f64())?;
///
/// let mut network = Network::new(spec, 8, Device::Cpu, Precision::F32)?;
/// network.initialize(0)?;
/// gradcheck(&mut network, x.to_dtype(DType::F32)?.view(), &GradcheckOptions::default())?;
/// # Ok::<(), ddp::model::ModelError>(())
/// ```
pub fn gradcheck(
    network: &mut Network,
    x: TensorRef<'_>,
    options: &GradcheckOptions,
) -> Result<(), ModelError> {
    if !matches!(network.precision(), Precision::F32 | Precision::F64) {
        return Err(ModelError::GradcheckPrecision { precision: network.precision() });
    }
    let (n_rows, _) = x.shape().rows_cols();
    let (device, format) = (network.device(), network.precision().master());
    let d_outputs = Tensor::rand(&[n_rows, network.n_outputs()], format, device, options.seed)?;
    let d_outputs = &d_outputs * 2.0 - 1.0;
    let host_d = on_host(d_outputs.view())?;

    let mut grads = Tensor::zeros(&[network.layout().flat_len()], format, device)?;
    let mut backward = |network: &mut Network, accumulate: bool| -> Result<Vec<f64>, KernelError> {
        network.forward(x)?;
        ops::copy(d_outputs.view(), network.outputs_and_gradient()?.1)?;
        network.backward(x, None, accumulate, &mut LocalGradients(grads.view_mut()))?;
        on_host(grads.view())
    };
    let grads = backward(network, false)?;
    let twice = backward(network, true)?;

    let weights = on_host(network.weights().view())?;
    let result = compare(network, x, &weights, &grads, &host_d, options);
    set_weights(network, &weights)?;
    result?;
    for entry in network.layout().entries() {
        for (element, i) in entry.range().enumerate() {
            let (once, twice) = (grads[i], twice[i]);
            let is_double = (twice - 2.0 * once).abs() <= options.tolerance * (1.0 + once.abs());
            if !is_double {
                return Err(ModelError::GradcheckAccumulated {
                    name: entry.name.clone(),
                    element,
                    once,
                    twice,
                });
            }
        }
    }
    Ok(())
}

/// The values in f64, which holds every f32.
fn on_host(values: TensorRef<'_>) -> Result<Vec<f64>, KernelError> {
    values.to_tensor()?.to_dtype(DType::F64)?.to_vec()
}

/// Sets the weights, rounded to the network's format.
fn set_weights(network: &mut Network, weights: &[f64]) -> Result<(), KernelError> {
    let weights = Tensor::from_slice(weights, &[weights.len()], Device::Cpu)?;
    network.set_weights(weights.to_dtype(network.precision().master())?.view())
}

fn compare(
    network: &mut Network,
    x: TensorRef<'_>,
    weights: &[f64],
    grads: &[f64],
    d_outputs: &[f64],
    options: &GradcheckOptions,
) -> Result<(), ModelError> {
    let mut moved = weights.to_vec();
    let is_double = network.precision() == Precision::F64;
    let rounded = |weight: f64| if is_double { weight } else { f64::from(weight as f32) };
    for entry in network.layout().entries().to_vec() {
        for element in spread(entry.numel(), options.max_elements) {
            let i = entry.start + element;
            let mut loss_at = |weight: f64| -> Result<f64, KernelError> {
                moved[i] = weight;
                let loss = loss(network, x, &moved, d_outputs);
                moved[i] = weights[i];
                loss
            };
            let (above, below) = (rounded(weights[i] + options.step), rounded(weights[i] - options.step));
            let quotient = (loss_at(above)? - loss_at(below)?) / (above - below);
            let gradient = grads[i];
            let is_close = (gradient - quotient).abs() <= options.tolerance * (1.0 + quotient.abs());
            if !is_close {
                return Err(ModelError::Gradcheck { name: entry.name.clone(), element, gradient, quotient });
            }
        }
    }
    Ok(())
}

/// `Σ outputs · d_outputs` at these weights, in f64.
fn loss(
    network: &mut Network,
    x: TensorRef<'_>,
    weights: &[f64],
    d_outputs: &[f64],
) -> Result<f64, KernelError> {
    set_weights(network, weights)?;
    network.forward(x)?;
    let outputs = on_host(network.outputs()?)?;
    Ok(outputs.iter().zip(d_outputs).map(|(y, d)| y * d).sum())
}

/// At most `max` of the indices below `n`, evenly spread.
fn spread(n: usize, max: usize) -> impl Iterator<Item = usize> {
    let count = n.min(max);
    (0..count).map(move |i| i * n / count)
}

#[cfg(test)]
mod tests {
    use ddp_kernels::TensorMut;
    use ddp_kernels::ops::{MapOp, ReduceOp};

    use super::*;
    use crate::model::layer::{Layer, Sizes};
    use crate::model::layers::Linear;
    use crate::model::linear_spec::LinearSpec;
    use crate::model::param::{Init, ParamKind, ParamSpec};
    use crate::model::pass::{BackwardPass, ForwardPass};

    /// `y = x³`, whose backward pass is correct only if `factor` is 3.
    #[derive(Debug)]
    struct Cube {
        features: usize,
        factor: f32,
    }

    impl Layer for Cube {
        fn describe(&self) -> String {
            "cube".to_owned()
        }

        fn out_features(&self) -> usize {
            self.features
        }

        fn forward(
            &mut self,
            x: TensorRef<'_>,
            y: TensorMut<'_>,
            _pass: ForwardPass<'_>,
        ) -> Result<(), KernelError> {
            let (x, y) = (x.as_slice::<f32>("cube", "x")?, y.into_slice::<f32>("cube", "y")?);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x * x);
            Ok(())
        }

        fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<(), KernelError> {
            let (x, d) = (pass.x.as_slice::<f32>("cube", "x")?, d.into_slice::<f32>("cube", "d")?);
            d.iter_mut().zip(x).for_each(|(d, x)| *d *= self.factor * x * x);
            Ok(())
        }
    }

    /// `y = w·x`, whose backward pass replaces the gradient of `w` where it should add to it.
    #[derive(Debug)]
    struct Replaced([ParamSpec; 1]);

    impl Layer for Replaced {
        fn describe(&self) -> String {
            "replaced".to_owned()
        }

        fn out_features(&self) -> usize {
            4
        }

        fn parameters(&self) -> &[ParamSpec] {
            &self.0
        }

        fn forward(
            &mut self,
            x: TensorRef<'_>,
            y: TensorMut<'_>,
            pass: ForwardPass<'_>,
        ) -> Result<(), KernelError> {
            ops::map(MapOp::Mul, x.into(), pass.params.master(0)?.into(), y)
        }

        fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<(), KernelError> {
            let (scale, from_above) = (pass.params.master(0)?.to_tensor()?, d.as_ref().to_tensor()?);
            let of_rows = from_above.mul(&pass.x.to_tensor()?)?;
            ops::reduce(ReduceOp::Sum, of_rows.view(), Some(0), pass.grads.take()?.d)?;
            ops::copy(from_above.mul(&scale)?.view(), d)
        }
    }

    #[test]
    fn a_backward_that_replaces_gradients_instead_of_adding_is_found() {
        let scale = ParamSpec::new("scale", ParamKind::NormWeight, &[4], Init::Constant(1.0));
        let layers: Vec<Box<dyn Layer>> =
            vec![Box::new(Linear::new(LinearSpec::new(0, 3, 4, true))), Box::new(Replaced([scale]))];
        let sizes = Sizes { max_rows: 6, device: Device::Cpu, precision: Precision::F32 };
        let mut network = Network::from_layers(layers, 3, sizes, 1).unwrap();
        let x = Tensor::randn(&[6, 3], DType::F32, Device::Cpu, 2).unwrap();
        let error = gradcheck(&mut network, x.view(), &GradcheckOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("gradient of `scale`, element 0: "), "{error}");
    }

    fn check(factor: f32, precision: Precision) -> Result<(), ModelError> {
        let layers: Vec<Box<dyn Layer>> = vec![
            Box::new(Linear::new(LinearSpec::new(0, 3, 4, true))),
            Box::new(Cube { features: 4, factor }),
            Box::new(Linear::new(LinearSpec::new(1, 4, 2, true))),
        ];
        let sizes = Sizes { max_rows: 6, device: Device::Cpu, precision };
        let mut network = Network::from_layers(layers, 3, sizes, 1).unwrap();
        let before = network.weights().to_vec::<f32>().unwrap();
        let x = Tensor::randn(&[6, 3], DType::F32, Device::Cpu, 2).unwrap();
        let result = gradcheck(&mut network, x.view(), &GradcheckOptions::default());
        assert_eq!(network.weights().to_vec::<f32>().unwrap(), before);
        result
    }

    #[test]
    fn a_wrong_backward_is_found_in_the_layer_before_it() {
        check(3.0, Precision::F32).unwrap();
        for factor in [2.9, f32::NAN] {
            let error = ddp_kernels::hint::with_hint(&check(factor, Precision::F32).unwrap_err());
            assert!(error.contains("gradient check: layers.0.") && error.contains("hint: "), "{error}");
        }
        let error = check(3.0, Precision::Bf16).unwrap_err().to_string();
        assert!(error.contains("needs a model in f32 or f64, got one in bf16"), "{error}");
    }

    #[test]
    fn elements_are_spread_over_the_whole_parameter() {
        assert_eq!(spread(3, 64).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(spread(0, 4).count(), 0);
    }
}
