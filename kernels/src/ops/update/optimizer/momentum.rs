//! Momentum of Muon: 20 bytes per element in f32.
//!
//! `g = grad_scale·grad`, `m = μ·m + (1-μ)·g`; the direction is `m`, with Nesterov momentum `μ·m + (1-μ)·g`
//!
//! Source: `torch.optim.Muon`.

use super::super::{StepScalars, Update, cuda, kernels, update_kernels};
use super::OptimizerParams;
use crate::cpu::Float;

/// A pass that moves the momentum and writes the direction, which is yet to be orthogonalized; its target is `m`.
#[derive(Clone, Copy)]
pub(super) struct Momentum(pub(super) OptimizerParams);

impl Update<1> for Momentum {
    const OP: &'static str = "optimizer_first_pass (muon)";
    const STATE: [&'static str; 1] = ["v"];
    const KERNELS: cuda::Kernels = kernels!("momentum");
    type Params = MomentumParams;

    fn params(&self) -> MomentumParams {
        let OptimizerParams { momentum, nesterov, grad_scale: scale, .. } = self.0;
        MomentumParams { momentum, scale, nesterov: nesterov.into() }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Momentum(self.0.at_step(scalars, grad_scale))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, m: &mut [T], g: &[T], [direction]: [&mut [T]; 1]) {
        let OptimizerParams { momentum, grad_scale, nesterov, .. } = self.0;
        let [mu, one_minus_mu, scale] = [momentum, 1.0 - momentum, grad_scale].map(T::from_f64);
        for ((m, direction), &g) in m.iter_mut().zip(direction).zip(g) {
            let g = g * scale;
            *m = (mu * *m + one_minus_mu * g).or_zero();
            *direction = if nesterov { mu * *m + one_minus_mu * g } else { *m };
        }
    }
}

update_kernels! {
    "momentum",
    MomentumParams { momentum: f64, scale: f64, nesterov: u64 },
    per_step: [scale],
    per_segment: [],
    r"
template <class T> struct Formula {
    static const int n_state = 1;
    T mu, one_minus_mu, scale;
    bool nesterov;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        Formula r;
        r.mu = p.momentum;
        r.one_minus_mu = 1 - p.momentum;
        r.scale = p.scale;
        r.nesterov = p.nesterov != 0;
        return r;
    }
    __device__ __forceinline__ T operator()(T m, T g, T* d) const {
        T grad = g * scale;
        m = mu * m + one_minus_mu * grad;
        *d = nesterov ? mu * m + one_minus_mu * grad : m;
        return m;
    }
};
"
}
