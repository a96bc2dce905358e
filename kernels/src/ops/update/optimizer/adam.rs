//! Adam and AdamW: 28 bytes per element in f32.
//!
//! `lr = lr_scale·lr`, `g = grad_scale·grad`; coupled decay: `g += wd·w`, decoupled: `w -= lr·wd·w`; then
//! `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`, `w -= lr/c1 · m / (sqrt(v)/sqrt(c2) + eps)` with `ci = 1 - βi^step`
//!
//! Source: arXiv:1412.6980, arXiv:1711.05101; `torch.optim.{Adam, AdamW}`.

use super::super::{StepScalars, Update, cuda, kernels, source};
use super::OptimizerParams;
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};

pub(super) static SOURCE: Source = source("adam", include_str!("adam.cu"));

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Adam {
    pub(super) params: OptimizerParams,
    /// Whether weight decay is an L2 penalty added to the gradient (Adam), or applied to the weights directly (AdamW).
    pub(super) is_decay_coupled: bool,
}

/// `Params` of `adam.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct AdamParams {
    lr: f64,
    lr_scale: f64,
    betas: [f64; 2],
    powers: [f64; 2],
    eps: f64,
    weight_decay: f64,
    scale: f64,
    coupled: u64,
}

impl Argument for AdamParams {}

impl Update<2> for Adam {
    const OP: &'static str = "optimizer_step (adam)";
    const STATE: [&'static str; 2] = ["m", "v"];
    // A square root and a division per element: worth two threads earlier than the others.
    const MIN_PART: usize = 1 << 14;
    const KERNELS: cuda::Kernels = kernels!("adam");
    type Params = AdamParams;

    fn params(&self) -> AdamParams {
        let OptimizerParams { lr, lr_scale, betas, eps, weight_decay, grad_scale: scale, step, .. } =
            self.params;
        let powers = self.params.beta_powers(step);
        let coupled = self.is_decay_coupled.into();
        AdamParams { lr, lr_scale, betas, powers, eps, weight_decay, scale, coupled }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Adam { params: self.params.at_step(scalars, grad_scale), ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [m, v]: [&mut [T]; 2], _: usize) {
        let p = &self.params;
        let lr = p.lr_scale * p.lr;
        let [c1, c2] = p.beta_powers(p.step).map(|power| 1.0 - power);
        let (coupled, decoupled) =
            if self.is_decay_coupled { (p.weight_decay, 0.0) } else { (0.0, p.weight_decay) };
        let [b1, b2] = p.betas.map(T::from_f64);
        let [one_minus_b1, one_minus_b2] = p.betas.map(|beta| T::from_f64(1.0 - beta));
        let [scale, coupled, keep, step_size, root_scale, eps] =
            [p.grad_scale, coupled, 1.0 - lr * decoupled, lr / c1, 1.0 / c2.sqrt(), p.eps].map(T::from_f64);
        for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * scale + coupled * *w;
            *m = b1 * *m + one_minus_b1 * g;
            *v = b2 * *v + one_minus_b2 * g * g;
            *w = keep * *w - step_size * *m / (v.sqrt() * root_scale + eps);
        }
    }
}
