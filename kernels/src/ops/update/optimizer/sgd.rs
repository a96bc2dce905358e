//! Stochastic gradient descent with momentum: 20 bytes per element in f32, 12 without momentum.
//!
//! `g = grad_scale·grad + weight_decay·w`, `v = momentum·v + g`, `w -= lr_scale·lr·(nesterov ? g + momentum·v : v)`
//!
//! Source: `torch.optim.SGD` with dampening 0.

use super::super::{StepScalars, Update, UpdateSegment, cuda, kernels, update_kernels};
use super::step::by_gradients;
use super::{OptimizerDefaults, OptimizerParams, Rule};
use crate::cpu::Float;

pub(super) const RULE: Rule = Rule {
    name: "sgd",
    defaults: OptimizerDefaults::USUAL,
    whole_need: None,
    state_names: |params| if params.momentum == 0.0 { &[] } else { &Sgd::STATE },
    first_pass: None,
    step: |params, segments, tensors, inputs| by_gradients(Sgd(*params), segments, tensors, inputs),
};

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Sgd(pub(super) OptimizerParams);

impl Update<1> for Sgd {
    const OP: &'static str = "optimizer_step (sgd)";
    const STATE: [&'static str; 1] = ["velocity"];
    const KERNELS: cuda::Kernels = kernels!("sgd");
    type Params = SgdParams;

    fn params(&self) -> SgdParams {
        let OptimizerParams { lr, lr_scale, momentum, weight_decay, grad_scale: scale, .. } = self.0;
        SgdParams { lr, lr_scale, momentum, weight_decay, scale, nesterov: self.0.nesterov.into() }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Sgd(self.0.at_step(scalars, grad_scale))
    }

    fn in_segment(self, segment: &UpdateSegment) -> Self {
        Sgd(self.0.in_segment(segment))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [velocity]: [&mut [T]; 1]) {
        let p = &self.0;
        let [lr, momentum, decay, scale] =
            [p.lr_scale * p.lr, p.momentum, p.weight_decay, p.grad_scale].map(T::from_f64);
        if velocity.is_empty() {
            for (w, &g) in w.iter_mut().zip(g) {
                *w -= lr * (g * scale + decay * *w);
            }
            return;
        }
        let nesterov = p.nesterov;
        for ((w, v), &g) in w.iter_mut().zip(velocity).zip(g) {
            let g = g * scale + decay * *w;
            *v = (momentum * *v + g).or_zero();
            *w -= lr * if nesterov { g + momentum * *v } else { *v };
        }
    }
}

update_kernels! {
    "sgd",
    SgdParams { lr: f64, lr_scale: f64, momentum: f64, weight_decay: f64, scale: f64, nesterov: u64 },
    per_step: [lr, scale],
    per_segment: [lr_scale, weight_decay],
    r"
template <class T> struct Formula {
    static const int n_state = 1;
    T lr, momentum, decay, scale;
    bool nesterov, has_velocity;

    static __device__ __forceinline__ Formula of(const Params& p, bool has_state) {
        Formula r = {(T)(p.lr_scale * p.lr), (T)p.momentum, (T)p.weight_decay, (T)p.scale, p.nesterov != 0, has_state};
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* v) const {
        T grad = g * scale + decay * w, step = grad;
        if (has_velocity) {
            *v = momentum * *v + grad;
            step = nesterov ? grad + momentum * *v : *v;
        }
        return w - lr * step;
    }
};
"
}
