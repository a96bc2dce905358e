//! Batch normalization, synchronized over the ranks.

use ddp_kernels::ops::{self, BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, RunningStats};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::model::layer::{BufferSpec, Layer, LayerKind, RegisteredBuffer, Result, Sizes};
use crate::model::layer_list::LayerList;
use crate::model::param::{Init, ParamKind, ParamSpec};
use crate::model::pass::{BackwardPass, ForwardPass};

pub(super) fn add(list: &mut LayerList, eps: f64, momentum: f64) {
    let index = list.next_index("norms");
    list.push(BatchNorm1d::with(index, list.width, eps, momentum));
}

/// Normalizes each feature over the rows of a micro-batch across all ranks, then scales and shifts it. Its parameters and
/// statistics are f32 in every precision.
///
/// After training, and in evaluations and gradient checks, the running averages replace the statistics of the micro-batch. Each
/// training pass updates these averages, even if the step is skipped; a feature whose new averages would not be finite keeps the
/// old ones.
///
/// Source: arXiv:1502.03167; the same as `torch.nn.SyncBatchNorm`, and as `torch.nn.BatchNorm1d` on one rank.
#[derive(Debug)]
pub struct BatchNorm1d {
    features: usize,
    index: usize,
    eps: f64,
    momentum: f64,
    params: [ParamSpec; 2],
}

impl BatchNorm1d {
    /// `eps` of PyTorch's `nn.BatchNorm1d`.
    pub const EPS: f64 = 1e-5;
    /// `momentum` of PyTorch's `nn.BatchNorm1d`.
    pub const MOMENTUM: f64 = 0.1;

    /// Norm `index` of a model: the parameters `norms.{index}.weight` and `norms.{index}.bias`, the buffers
    /// `norms.{index}.running_mean` and `norms.{index}.running_var`.
    pub fn new(index: usize, features: usize) -> Self {
        Self::with(index, features, Self::EPS, Self::MOMENTUM)
    }

    /// Same as [`BatchNorm1d::new`].
    ///
    /// - `eps`: added to the variance; above 0
    /// - `momentum`: weight of a micro-batch's statistics in the running averages, from 0 to 1
    pub fn with(index: usize, features: usize, eps: f64, momentum: f64) -> Self {
        let param = |name: &str, kind, value| {
            ParamSpec::new(format!("norms.{index}.{name}"), kind, &[features], Init::Constant(value))
        };
        let params = [param("weight", ParamKind::NormWeight, 1.0), param("bias", ParamKind::NormBias, 0.0)];
        BatchNorm1d { features, index, eps, momentum, params }
    }

    fn running(&self) -> [String; 2] {
        ["mean", "var"].map(|name| format!("norms.{}.running_{name}", self.index))
    }
}

impl Layer for BatchNorm1d {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::BatchNorm { eps: self.eps }
    }

    fn describe(&self) -> String {
        "batch norm".to_owned()
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Mean, `1 / deviation` and number of rows of the statistics, and the buffers of the exchange between ranks.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        let per_feature = BufferSpec::activations(&[self.features], sizes.precision.master());
        let count = BufferSpec::activations(&[1], DType::F64);
        let exchanged =
            BufferSpec { kind: MemoryUse::Workspace, dims: vec![self.exchanged_len()], dtype: DType::F64 };
        vec![per_feature.clone(), per_feature, count, exchanged]
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        let [mean, var] = self.running();
        let full = |value| Tensor::full(&[self.features], value, DType::F32, Device::Cpu);
        Ok(vec![RegisteredBuffer::new(mean, full(0.0)?), RegisteredBuffer::new(var, full(1.0)?)])
    }

    fn statistics(&self) -> Vec<(String, usize)> {
        self.running().into_iter().map(|name| (name, self.features)).collect()
    }

    fn exchanged_len(&self) -> usize {
        ops::batch_norm_moments_len(self.features)
    }

    /// The moments, and two sums of gradients per feature.
    fn exchanged_per_pass(&self) -> usize {
        self.exchanged_len() + 2 * self.features
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let is_training = pass.is_training();
        let [mean, rstd, count, exchanged] = pass.buffers else { unreachable!("as declared") };
        let [running_mean, running_var] = pass.registered else { unreachable!("as declared") };
        let stats = BatchNormStats { mean: mean.view_mut(), rstd: rstd.view_mut(), count: count.view_mut() };
        if is_training {
            ops::batch_norm_moments(x, exchanged.view_mut())?;
            let own = exchanged.view();
            let all = match pass.all_ranks {
                Some(ranks) => ranks.gather(own)?,
                None => own.reshape(&[1, own.numel()])?,
            };
            let running = RunningStats {
                mean: running_mean.view_mut(),
                var: running_var.view_mut(),
                momentum: self.momentum,
            };
            ops::batch_norm_statistics(all, self.eps, stats, running)?;
        } else {
            ops::batch_norm_frozen(running_mean.view(), running_var.view(), self.eps, stats)?;
        }
        let saved = BatchNormSaved { mean: mean.view(), rstd: rstd.view(), count: count.view() };
        ops::batch_norm_forward(x, pass.params.master(0)?, pass.params.master(1)?, saved, y)
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let [mean, rstd, count, exchanged] = pass.buffers else { unreachable!("as declared") };
        let saved = BatchNormSaved { mean: mean.view(), rstd: rstd.view(), count: count.view() };
        let n_sums = 2 * self.features;
        ops::batch_norm_backward_sums(pass.x, d.as_ref(), saved, exchanged.view_mut().range(0, n_sums)?)?;
        // A rank's own sums are changed only after they have been gathered.
        let all = match pass.all_ranks {
            Some(ranks) => Some(ranks.gather(exchanged.view().range(0, n_sums)?)?),
            None => None,
        };
        let (gamma, beta) = (pass.grads.take()?, pass.grads.take()?);
        let accumulate = gamma.accumulate;
        let grads = BatchNormGrads { d, d_gamma: gamma.d, d_beta: beta.d };
        let sums = BatchNormSums { own: exchanged.view_mut().range(0, n_sums)?, all };
        ops::batch_norm_backward(pass.x, pass.params.master(0)?, saved, sums, grads, accumulate)
    }
}
