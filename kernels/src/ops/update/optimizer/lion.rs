//! Lion: 20 bytes per element in f32.
//!
//! `lr = lr_scale·lr`, `g = grad_scale·grad`; `w = (1 - lr·wd)·w - lr·sign(β1·m + (1-β1)·g)`, then `m = β2·m + (1-β2)·g`;
//! `sign(0) = 0`, and the sign of NaN is NaN
//!
//! Source: arXiv:2302.06675, algorithm 2.

use super::super::{StepScalars, Update, UpdateSegment, cuda, kernels, update_kernels};
use super::step::by_gradients;
use super::{OptimizerDefaults, OptimizerParams, Rule};
use crate::cpu::Float;

/// Its steps have one size for all weights, so its paper takes a rate 3 to 10 times lower than Adam's. The reference implementation
/// decays no weights.
pub(super) const RULE: Rule = Rule {
    name: "lion",
    defaults: OptimizerDefaults { lr: 1e-4, betas: [0.9, 0.99], ..OptimizerDefaults::USUAL },
    whole_need: None,
    state_names: |_| &Lion::STATE,
    first_pass: None,
    step: |params, segments, tensors, inputs| by_gradients(Lion(*params), segments, tensors, inputs),
};

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Lion(pub(super) OptimizerParams);

impl Update<1> for Lion {
    const OP: &'static str = "optimizer_step (lion)";
    const STATE: [&'static str; 1] = ["m"];
    const KERNELS: cuda::Kernels = kernels!("lion");
    type Params = LionParams;

    fn params(&self) -> LionParams {
        let OptimizerParams { lr, lr_scale, betas: [beta1, beta2], weight_decay, grad_scale: scale, .. } =
            self.0;
        LionParams { lr, lr_scale, beta1, beta2, weight_decay, scale }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Lion(self.0.at_step(scalars, grad_scale))
    }

    fn in_segment(self, segment: &UpdateSegment) -> Self {
        Lion(self.0.in_segment(segment))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [m]: [&mut [T]; 1]) {
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
            *m = (b2 * *m + one_minus_b2 * g).or_zero();
        }
    }
}

update_kernels! {
    "lion",
    LionParams { lr: f64, lr_scale: f64, beta1: f64, beta2: f64, weight_decay: f64, scale: f64 },
    per_step: [lr, scale],
    per_segment: [lr_scale, weight_decay],
    r"
template <class T> struct Formula {
    static const int n_state = 1;
    T b1, one_minus_b1, b2, one_minus_b2, scale, keep, step_size;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        r.keep = 1 - lr * p.weight_decay;
        r.step_size = lr;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T g, T* m) const {
        T grad = g * scale;
        T mixed = b1 * *m + one_minus_b1 * grad;
        T sign = mixed > 0 ? (T)1 : mixed < 0 ? (T)-1 : mixed;
        *m = b2 * *m + one_minus_b2 * grad;
        return keep * w - step_size * sign;
    }
};
"
}
