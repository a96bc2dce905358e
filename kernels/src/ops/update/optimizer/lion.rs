//! Lion: 20 bytes per element in f32.
//!
//! `lr = lr_scale·lr`, `g = grad_scale·grad`; `w = (1 - lr·wd)·w - lr·sign(β1·m + (1-β1)·g)`, then `m = β2·m + (1-β2)·g`;
//! `sign(0) = 0`, and the sign of NaN is NaN
//!
//! Source: arXiv:2302.06675, algorithm 2.

use super::super::{StepScalars, Update, cuda, kernels, source};
use super::OptimizerParams;
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};

pub(super) static SOURCE: Source = source("lion", include_str!("lion.cu"));

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Lion(pub(super) OptimizerParams);

/// `Params` of `lion.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct LionParams {
    lr: f64,
    lr_scale: f64,
    betas: [f64; 2],
    weight_decay: f64,
    scale: f64,
}

impl Argument for LionParams {}

impl Update<1> for Lion {
    const OP: &'static str = "optimizer_step (lion)";
    const STATE: [&'static str; 1] = ["m"];
    const KERNELS: cuda::Kernels = kernels!("lion");
    type Params = LionParams;

    fn params(&self) -> LionParams {
        let OptimizerParams { lr, lr_scale, betas, weight_decay, grad_scale: scale, .. } = self.0;
        LionParams { lr, lr_scale, betas, weight_decay, scale }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Lion(self.0.at_step(scalars, grad_scale))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [m]: [&mut [T]; 1], _: usize) {
        let p = &self.0;
        let lr = p.lr_scale * p.lr;
        let [b1, b2] = p.betas.map(T::from_f64);
        let [one_minus_b1, one_minus_b2] = p.betas.map(|beta| T::from_f64(1.0 - beta));
        let [step_size, keep, scale] = [lr, 1.0 - lr * p.weight_decay, p.grad_scale].map(T::from_f64);
        let zero = T::from_f64(0.0);
        for ((w, m), &g) in w.iter_mut().zip(m).zip(g) {
            let g = g * scale;
            let mixed = b1 * *m + one_minus_b1 * g;
            // Zero and NaN stay what they are.
            let sign = if mixed > zero { T::ONE } else { mixed };
            let sign = if mixed < zero { -T::ONE } else { sign };
            *w = keep * *w - step_size * sign;
            *m = b2 * *m + one_minus_b2 * g;
        }
    }
}
