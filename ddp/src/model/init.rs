//! Initial values of parameters: a function of the seed and of each parameter's stream, not of the world size.

use ddp_kernels::ops::{self, UniformStream};
use ddp_kernels::{DType, Device, KernelError, Philox, Tensor};

use super::layout::ParamLayout;
use super::param::Init;

/// Separates this use of the seed from the others.
const STREAM: u32 = 0x494e_4954;
/// The same for the tables of embeddings.
const EMBEDDING_STREAM: u32 = 0x454d_4244;

/// Fills the flat buffer of weights with each parameter's [`Init`].
///
/// # Errors
/// [`KernelError::DTypeUnsupported`] if `weights` is not of floats.
pub fn initialize(layout: &ParamLayout, weights: &mut Tensor, seed: u64) -> Result<(), KernelError> {
    for slot in layout.slots() {
        let values = weights.view_mut().range(slot.start, slot.range().end)?;
        let (low, high, stream) = match slot.init {
            Init::Normal { stream } => {
                // On the host, whatever the device: logarithms and cosines are not the same everywhere.
                let seed = table_seed(seed, stream);
                let table = Tensor::randn(&[slot.numel()], DType::F32, Device::Cpu, seed)?;
                ops::copy(table.view(), values)?;
                continue;
            }
            Init::Constant(value) => (value, value, 0),
            Init::KaimingUniform { in_features, stream } => {
                let bound = 1.0 / (in_features as f32).sqrt();
                (-bound, bound, stream)
            }
        };
        ops::uniform(values, low, high, UniformStream { seed, stream: [stream, STREAM] })?;
    }
    Ok(())
}

/// The seed of a table's numbers: a random word of the run's seed.
fn table_seed(seed: u64, stream: u32) -> u64 {
    let words = Philox::new(seed).block([stream, 0, 0, EMBEDDING_STREAM]);
    u64::from(words[1]) << 32 | u64::from(words[0])
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;

    use super::*;
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
        };
        let layout = ParamLayout::new(&spec);
        let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
        initialize(&layout, &mut weights, 1).unwrap();
        let flat = weights.to_vec::<f32>().unwrap();
        let of = |name: &str| &flat[layout.slots().iter().find(|s| s.name == name).unwrap().range()];
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
        initialize(&layout, &mut again, 2).unwrap();
        assert_ne!(again.to_vec::<f32>().unwrap(), flat);
    }

    #[test]
    fn tables_are_standard_normal_and_change_no_other_parameter() {
        let plain = ModelSpec::plain(&[9, 4, 2], Activation::Relu);
        let embedding = |name: &str| EmbeddingSpec { name: name.to_owned(), n_codes: 5000, dim: 4 };
        let drawn = |spec: &ModelSpec, seed| {
            let layout = ParamLayout::new(spec);
            let mut weights = Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu).unwrap();
            initialize(&layout, &mut weights, seed).unwrap();
            let flat = weights.to_vec::<f32>().unwrap();
            layout.slots().iter().map(|slot| flat[slot.range()].to_vec()).collect::<Vec<_>>()
        };
        let spec = ModelSpec::plain(&[3, 4, 2], Activation::Relu);
        let slots = drawn(&spec.with_embeddings(vec![embedding("a"), embedding("b")]), 1);
        let (layers, tables) = slots.split_at(4);
        assert_eq!(layers, drawn(&plain, 1));
        let n = tables[0].len() as f64;
        let sum = |f: fn(f64) -> f64| tables[0].iter().map(|&v| f(f64::from(v))).sum::<f64>() / n;
        // Five standard errors at 20,000 draws: 1/sqrt(n) of the mean, sqrt(2/n) of the square.
        assert!(sum(|v| v).abs() < 0.036 && (sum(|v| v * v) - 1.0).abs() < 0.05);
        assert_ne!(tables[0], tables[1]);
        assert_ne!(tables[0], tables[0].iter().rev().copied().collect::<Vec<_>>());
    }
}
