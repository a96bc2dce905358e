//! Moments of LAMB: 20 bytes per element in f32.
//!
//! `g = grad_scale·grad`; `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`

use super::super::{StepScalars, Update, cuda, kernels, source};
use super::OptimizerParams;
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};

pub(super) static SOURCE: Source = source("moments", include_str!("moments.cu"));

/// A pass that moves both moments; its target is `m`.
#[derive(Clone, Copy)]
pub(super) struct Moments(pub(super) OptimizerParams);

/// `Params` of `moments.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct MomentsParams {
    betas: [f64; 2],
    scale: f64,
}

impl Argument for MomentsParams {}

impl Update<1> for Moments {
    const OP: &'static str = "optimizer_first_pass (lamb)";
    const STATE: [&'static str; 1] = ["v"];
    const KERNELS: cuda::Kernels = kernels!("moments");
    type Params = MomentsParams;

    fn params(&self) -> MomentsParams {
        MomentsParams { betas: self.0.betas, scale: self.0.grad_scale }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Moments(self.0.at_step(scalars, grad_scale))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, m: &mut [T], g: &[T], [v]: [&mut [T]; 1], _: usize) {
        let [b1, b2] = self.0.betas.map(T::from_f64);
        let [one_minus_b1, one_minus_b2] = self.0.betas.map(|beta| T::from_f64(1.0 - beta));
        let scale = T::from_f64(self.0.grad_scale);
        for ((m, v), &g) in m.iter_mut().zip(v).zip(g) {
            let g = g * scale;
            *m = b1 * *m + one_minus_b1 * g;
            *v = b2 * *v + one_minus_b2 * g * g;
        }
    }
}
