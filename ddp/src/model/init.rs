//! Initial values of parameters: a function of the seed and of each parameter's stream, not of the world size.
//!
//! ```
//! use ddp::config::WeightInit;
//! use ddp::model::init::initialize;
//! use ddp::nn::{Activation, ModelSpec, ParamLayout};
//! use ddp::prelude::*;
//!
//! let layout = ParamLayout::new(&ModelSpec::plain(&[3, 5, 2], Activation::Relu));
//! let drawn = |seed| -> Result<Vec<f32>, KernelError> {
//!     let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu)?;
//!     initialize(&layout, &mut weights, WeightInit::Kaiming, seed)?;
//!     weights.to_vec::<f32>()
//! };
//! assert_eq!(drawn(1)?, drawn(1)?);
//! assert_ne!(drawn(1)?, drawn(2)?);
//! # Ok::<(), KernelError>(())
//! ```

use ddp_kernels::ops::{self, UniformStream};
use ddp_kernels::{DType, Device, KernelError, Philox, Tensor, TensorRef};

use super::layout::ParamLayout;
use super::orthogonal::orthonormalize;
use super::param::{Init, ParamEntry, ParamKind, RandomStream};
use crate::config::WeightInit;

/// Separates this use of the seed from other uses.
const STREAM: u32 = 0x494e_4954;
/// Separates the tables of embeddings from other uses of the seed.
const EMBEDDING_STREAM: u32 = 0x454d_4244;
/// Standard deviation of [`WeightInit::Normal`].
const NORMAL_STD: f32 = 0.02;

/// Distribution of a parameter's values.
enum Distribution {
    /// Every element is this value.
    Constant(f32),
    /// Uniform in plus or minus this bound.
    Uniform(f32, UniformStream),
    /// Normal with this standard deviation, from this seed.
    Normal(f32, u64),
    /// Orthonormal rows or columns, from this seed.
    Orthogonal(u64),
}

/// Fills the flat buffer of weights by each parameter's [`Init`]; `weight_init` replaces the init of linear layers.
///
/// # Errors
/// [`KernelError::DTypeUnsupported`] if the elements of `weights` are not floats.
pub fn initialize(
    layout: &ParamLayout,
    weights: &mut Tensor,
    weight_init: WeightInit,
    seed: u64,
) -> Result<(), KernelError> {
    for entry in layout.entries() {
        let values = weights.view_mut().range(entry.start, entry.range().end)?;
        match distribution(entry, weight_init, seed) {
            // A constant does not use the stream.
            Distribution::Constant(value) => {
                ops::uniform(values, value, value, UniformStream { seed, stream: [0, STREAM] })?;
            }
            Distribution::Uniform(bound, stream) => ops::uniform(values, -bound, bound, stream)?,
            Distribution::Normal(std, seed) => {
                let mut drawn = normal(entry, seed)?;
                if std != 1.0 {
                    let drawn = drawn.view_mut().into_slice::<f32>("initialize", "drawn")?;
                    drawn.iter_mut().for_each(|value| *value *= std);
                }
                ops::copy(drawn.view(), values)?;
            }
            Distribution::Orthogonal(seed) => {
                let rows = entry.dims.first().copied().unwrap_or(1);
                let drawn = orthonormalize(&normal(entry, seed)?.to_vec::<f32>()?, rows);
                ops::copy(TensorRef::from_slice(&drawn, &[drawn.len()])?, values)?;
            }
        }
    }
    Ok(())
}

/// Counter and use of the parameter's random stream.
fn stream(entry: &ParamEntry) -> [u32; 2] {
    match entry.stream {
        RandomStream::Layer(counter) => [counter, STREAM],
        RandomStream::Table(counter) => [counter, EMBEDDING_STREAM],
        RandomStream::Name => {
            // FNV-1a, which no build changes.
            let hash = entry.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            // Streams of layers are counted from 0.
            [(hash ^ hash >> 32) as u32 | 1 << 31, STREAM]
        }
    }
}

fn distribution(entry: &ParamEntry, weight_init: WeightInit, seed: u64) -> Distribution {
    let stream = stream(entry);
    let uniform = |bound| Distribution::Uniform(bound, UniformStream { seed, stream });
    let normal_seed = seed_of(seed, stream);
    match entry.init {
        Init::Constant(value) => Distribution::Constant(value),
        Init::Normal(std) => Distribution::Normal(std, normal_seed),
        Init::Uniform(bound) => uniform(bound),
        Init::KaimingUniform(_) if weight_init != WeightInit::Pytorch && entry.kind == ParamKind::Bias => {
            Distribution::Constant(0.0)
        }
        Init::KaimingUniform(in_features) => {
            let inputs = in_features as f32;
            match weight_init {
                WeightInit::Pytorch => uniform(1.0 / inputs.sqrt()),
                WeightInit::Xavier => uniform((6.0 / (inputs + entry.numel() as f32 / inputs)).sqrt()),
                WeightInit::Kaiming => Distribution::Normal((2.0 / inputs).sqrt(), normal_seed),
                WeightInit::Normal => Distribution::Normal(NORMAL_STD, normal_seed),
                WeightInit::Orthogonal => Distribution::Orthogonal(normal_seed),
            }
        }
    }
}

/// Standard normal numbers, computed on the host for every device, because logarithms and cosines differ between devices.
fn normal(entry: &ParamEntry, seed: u64) -> Result<Tensor, KernelError> {
    Tensor::randn(&[entry.numel()], DType::F32, Device::Cpu, seed)
}

/// The seed of one parameter's normal numbers: a random word of the run's seed.
fn seed_of(seed: u64, [counter, usage]: [u32; 2]) -> u64 {
    let words = Philox::new(seed).block([counter, 0, 0, usage]);
    u64::from(words[1]) << 32 | u64::from(words[0])
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::{LayerConfig, ModelConfig};
    use crate::model::{EmbeddingSpec, ModelSpec};

    #[test]
    fn has_the_range_and_spread_of_kaiming_uniform() {
        let spec = ModelSpec {
            dims: vec![400, 300, 10],
            activation: Activation::Relu,
            layer_norm: true,
            dropout: 0.0,
            residual: false,
            bias: true,
            embeddings: Vec::new(),
            layers: Vec::new(),
        };
        let layout = ParamLayout::new(&spec);
        let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
        initialize(&layout, &mut weights, WeightInit::Pytorch, 1).unwrap();
        let flat = weights.to_vec::<f32>().unwrap();
        let of = |name: &str| &flat[layout.entries().iter().find(|s| s.name == name).unwrap().range()];
        let w = of("layers.0.weight");
        assert!(w.iter().all(|v| v.abs() <= 0.05));
        let n = w.len() as f64;
        let (mean, square) =
            w.iter().fold((0.0, 0.0), |(m, s), &v| (m + f64::from(v) / n, s + f64::from(v).powi(2) / n));
        // The variance of a uniform on ±0.05 is 0.05²/3; five standard errors at 120,000 draws.
        assert!(mean.abs() < 5.0 * 0.0289 / n.sqrt() && (square / (0.0025 / 3.0) - 1.0).abs() < 0.013);
        assert_ne!(of("layers.0.bias")[..10], of("layers.0.weight")[..10]);
        assert!(
            of("norms.0.weight").iter().all(|&v| v == 1.0) && of("norms.0.bias").iter().all(|&v| v == 0.0)
        );
        let mut again = weights.zeros_like().unwrap();
        initialize(&layout, &mut again, WeightInit::Pytorch, 2).unwrap();
        assert_ne!(again.to_vec::<f32>().unwrap(), flat);
    }

    #[test]
    fn tables_are_small_and_change_no_other_parameter() {
        let plain = ModelSpec::plain(&[9, 4, 2], Activation::Relu);
        let embedding = |name: &str| EmbeddingSpec { name: name.to_owned(), n_codes: 5000, dim: 4 };
        let drawn = |spec: &ModelSpec, seed| {
            let layout = ParamLayout::new(spec);
            let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
            initialize(&layout, &mut weights, WeightInit::Pytorch, seed).unwrap();
            let flat = weights.to_vec::<f32>().unwrap();
            layout.entries().iter().map(|entry| flat[entry.range()].to_vec()).collect::<Vec<_>>()
        };
        let spec = ModelSpec::plain(&[3, 4, 2], Activation::Relu);
        let entries = drawn(&spec.with_embeddings(vec![embedding("a"), embedding("b")]), 1);
        let (layers, tables) = entries.split_at(4);
        assert_eq!(layers, drawn(&plain, 1));
        let n = tables[0].len() as f64;
        let sum = |f: fn(f64) -> f64| tables[0].iter().map(|&v| f(f64::from(v))).sum::<f64>() / n;
        // Five standard errors at 20,000 draws: 1/sqrt(n) of the mean, sqrt(2/n) of the square.
        let std = 0.03f64;
        assert!(sum(|v| v).abs() < 0.036 * std && (sum(|v| v * v) / (std * std) - 1.0).abs() < 0.05);
        assert_ne!(tables[0], tables[1]);
        assert_ne!(tables[0], tables[0].iter().rev().copied().collect::<Vec<_>>());
    }
    #[test]
    fn other_schemes_have_their_moments_and_biases_of_0() {
        let spec = ModelSpec::plain(&[400, 300, 10], Activation::Relu);
        let layout = ParamLayout::new(&spec);
        let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
        for (weight_init, std, bound) in [
            (WeightInit::Kaiming, (2.0f64 / 400.0).sqrt(), f32::INFINITY),
            (WeightInit::Xavier, (2.0f64 / 700.0).sqrt(), (6.0f32 / 700.0).sqrt()),
            (WeightInit::Normal, 0.02, f32::INFINITY),
        ] {
            initialize(&layout, &mut weights, weight_init, 1).unwrap();
            let flat = weights.to_vec::<f32>().unwrap();
            let of = |name: &str| &flat[layout.find(name).unwrap().range()];
            let w = of("layers.0.weight");
            let mean_of =
                |f: fn(f64) -> f64| w.iter().map(|&v| f(f64::from(v))).sum::<f64>() / w.len() as f64;
            let n = (w.len() as f64).sqrt();
            // Five standard errors: 1/sqrt(n) of the mean, at most sqrt(2/n) of the square, in units of the standard deviation.
            assert!(mean_of(|v| v).abs() < 5.0 * std / n, "{weight_init:?}");
            assert!(
                (mean_of(|v| v * v) / (std * std) - 1.0).abs() < 5.0 * 2f64.sqrt() / n,
                "{weight_init:?}"
            );
            assert!(w.iter().all(|v| v.abs() <= bound));
            assert!(of("layers.0.bias").iter().chain(of("layers.1.bias")).all(|&v| v == 0.0));
            assert_ne!(w[..10], of("layers.1.weight")[..10]);
        }
    }

    /// The schemes are those of linear layers.
    #[test]
    fn numeric_embeddings_have_their_own_scheme() {
        let layer = LayerConfig::NumericEmbedding { dim: 4, n_frequencies: 16, sigma: 0.1 };
        let spec = ModelSpec::new(&ModelConfig::from_layers(vec![layer.once()], true), 3, 1);
        let layout = ParamLayout::new(&spec);
        let drawn = |weight_init| {
            let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
            initialize(&layout, &mut weights, weight_init, 1).unwrap();
            let flat = weights.to_vec::<f32>().unwrap();
            let own = layout.entries().iter().filter(|entry| entry.name.starts_with("numeric."));
            own.flat_map(|entry| flat[entry.range()].to_vec()).collect::<Vec<_>>()
        };
        let usual = drawn(WeightInit::Pytorch);
        // Frequencies and phases of 3 columns, and what follows from 16 of them: within 1/sqrt(16).
        assert!(usual.len() == 2 * 48 + 48 * 3 + 9 && usual[96..].iter().all(|value| value.abs() <= 0.25));
        assert!(usual[96..].iter().any(|value| value.abs() > 0.2));
        for other in [WeightInit::Xavier, WeightInit::Kaiming, WeightInit::Normal, WeightInit::Orthogonal] {
            assert_eq!(drawn(other), usual, "{other:?}");
        }
    }

    #[test]
    fn orthogonal_weights_have_orthonormal_rows() {
        let spec = ModelSpec::plain(&[40, 30, 35], Activation::Relu);
        let layout = ParamLayout::new(&spec);
        let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
        initialize(&layout, &mut weights, WeightInit::Orthogonal, 1).unwrap();
        let flat = weights.to_vec::<f32>().unwrap();
        let w = &flat[layout.find("layers.0.weight").unwrap().range()];
        for i in 0..30 {
            for j in 0..30 {
                let dot: f32 = (0..40).map(|k| w[i * 40 + k] * w[j * 40 + k]).sum();
                assert!((dot - f32::from(u8::from(i == j))).abs() < 1e-6, "{i} {j} {dot}");
            }
        }
    }
}
