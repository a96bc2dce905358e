//! Adam and AdamW: 28 bytes per element in f32.
//!
//! `lr = lr_scale·lr`, `g = grad_scale·grad`; coupled decay: `g += wd·w`, decoupled: `w -= lr·wd·w`; then
//! `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`, `w -= lr/c1 · m / (sqrt(v)/sqrt(c2) + eps)` with `ci = 1 - βi^step`
//!
//! Source: arXiv:1412.6980, arXiv:1711.05101; `torch.optim.{Adam, AdamW}`.

use super::super::{StepScalars, Update, UpdateSegment, cuda, kernels, update_kernels};
use super::moments::lose_overflowed;
use super::step::by_gradients;
use super::{OptimizerDefaults, OptimizerParams, Rule};
use crate::cpu::Float;

pub(super) const ADAM: Rule = Rule {
    name: "adam",
    defaults: OptimizerDefaults::USUAL,
    whole_need: None,
    state_names: |_| &Adam::STATE,
    first_pass: None,
    step: |&params, segments, tensors, inputs| {
        by_gradients(Adam { params, is_decay_coupled: true }, segments, tensors, inputs)
    },
};

pub(super) const ADAMW: Rule = Rule {
    name: "adamw",
    defaults: OptimizerDefaults { weight_decay: 0.01, ..OptimizerDefaults::USUAL },
    step: |&params, segments, tensors, inputs| {
        by_gradients(Adam { params, is_decay_coupled: false }, segments, tensors, inputs)
    },
    ..ADAM
};

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Adam {
    pub(super) params: OptimizerParams,
    /// Whether weight decay is an L2 penalty added to the gradient (Adam), or applied to the weights directly (AdamW).
    pub(super) is_decay_coupled: bool,
}

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
        let [beta1, beta2] = betas;
        let [power1, power2] = self.params.beta_powers(step);
        let coupled = self.is_decay_coupled.into();
        AdamParams { lr, lr_scale, beta1, beta2, power1, power2, eps, weight_decay, scale, coupled }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Adam { params: self.params.at_step(scalars, grad_scale), ..self }
    }

    fn in_segment(self, segment: &UpdateSegment) -> Self {
        Adam { params: self.params.in_segment(segment), ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [m, v]: [&mut [T]; 2]) {
        let p = &self.params;
        let lr = p.lr_scale * p.lr;
        let [c1, c2] = p.beta_powers(p.step).map(|power| 1.0 - power);
        let (coupled, decoupled) =
            if self.is_decay_coupled { (p.weight_decay, 0.0) } else { (0.0, p.weight_decay) };
        let [b1, b2] = p.betas.map(T::from_f64);
        let [one_minus_b1, one_minus_b2] = p.betas.map(|beta| T::from_f64(1.0 - beta));
        let [scale, coupled, keep, step_size, root_scale, eps] =
            [p.grad_scale, coupled, 1.0 - lr * decoupled, lr / c1, 1.0 / c2.sqrt(), p.eps].map(T::from_f64);
        for (((w, m), v), &g) in w.iter_mut().zip(m.iter_mut()).zip(v.iter_mut()).zip(g) {
            let g = g * scale + coupled * *w;
            *m = (b1 * *m + one_minus_b1 * g).or_zero();
            *v = (b2 * *v + one_minus_b2 * g * g).or_zero_if_subnormal();
            *w = keep * *w - step_size * *m / (v.sqrt() * root_scale + eps);
        }
        lose_overflowed(p.step, w, v);
    }
}

update_kernels! {
    "adam",
    AdamParams { lr: f64, lr_scale: f64, beta1: f64, beta2: f64, power1: f64, power2: f64, eps: f64, weight_decay: f64, scale: f64, coupled: u64 },
    per_step: [lr, power1, power2, scale],
    per_segment: [lr_scale, weight_decay],
    r"
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

template <class T> struct Formula {
    static const int n_state = 2;
    T b1, one_minus_b1, b2, one_minus_b2, scale, coupled, keep, step_size, root_scale, eps;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        double c1 = 1 - p.power1, c2 = 1 - p.power2;
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        r.coupled = p.coupled ? p.weight_decay : 0.0;
        r.keep = 1 - lr * (p.coupled ? 0.0 : p.weight_decay);
        r.step_size = lr / c1;
        r.root_scale = 1 / sqrt(c2);
        r.eps = p.eps;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* s) const {
        T grad = g * scale + coupled * w;
        s[0] = b1 * s[0] + one_minus_b1 * grad;
        T second = b2 * s[1] + one_minus_b2 * grad * grad;
        // NaN if it overflowed.
        s[1] = second + (second - second);
        return keep * w - step_size * s[0] / (root(s[1]) * root_scale + eps);
    }
};
"
}
