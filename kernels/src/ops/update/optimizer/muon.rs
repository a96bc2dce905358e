//! Muon: 12 bytes per element in f32, after the pass of [`momentum`](super::momentum) and the orthogonalisation of its direction.
//!
//! `lr = lr_scale·lr`; `w = (1 - lr·wd)·w - lr·direction_scale·direction`
//!
//! Source: <https://kellerjordan.github.io/posts/muon>; `torch.optim.Muon`.

use super::super::{StepScalars, Update, cuda, kernels, source};
use super::OptimizerParams;
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};

pub(super) static SOURCE: Source = source("muon", include_str!("muon.cu"));

/// The second pass: its source is the direction.
#[derive(Clone, Copy)]
pub(super) struct Muon(pub(super) OptimizerParams);

/// `Params` of `muon.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct MuonParams {
    lr: f64,
    lr_scale: f64,
    weight_decay: f64,
    direction_scale: f64,
}

impl Argument for MuonParams {}

impl Update<0> for Muon {
    const OP: &'static str = "optimizer_step (muon)";
    const STATE: [&'static str; 0] = [];
    const KERNELS: cuda::Kernels = kernels!("muon");
    type Params = MuonParams;

    fn params(&self) -> MuonParams {
        let OptimizerParams { lr, lr_scale, weight_decay, direction_scale, .. } = self.0;
        MuonParams { lr, lr_scale, weight_decay, direction_scale }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Muon(self.0.at_step(scalars, grad_scale))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], direction: &[T], []: [&mut [T]; 0], _: usize) {
        let lr = self.0.lr_scale * self.0.lr;
        let [keep, step_size] =
            [1.0 - lr * self.0.weight_decay, lr * self.0.direction_scale].map(T::from_f64);
        for (w, &d) in w.iter_mut().zip(direction) {
            *w = keep * *w - step_size * d;
        }
    }
}
