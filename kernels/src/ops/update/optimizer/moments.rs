//! Moments of LAMB: 20 bytes per element in f32.
//!
//! `g = grad_scale·grad`; `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`

use super::super::{StepScalars, Update, cuda, kernels, update_kernels};
use super::OptimizerParams;
use crate::cpu::Float;

/// A pass that moves both moments; its target is `m`.
#[derive(Clone, Copy)]
pub(super) struct Moments(pub(super) OptimizerParams);

impl Update<1> for Moments {
    const OP: &'static str = "optimizer_first_pass (lamb)";
    const STATE: [&'static str; 1] = ["v"];
    const KERNELS: cuda::Kernels = kernels!("moments");
    type Params = MomentsParams;

    fn params(&self) -> MomentsParams {
        let OptimizerParams { betas: [beta1, beta2], grad_scale: scale, .. } = self.0;
        MomentsParams { beta1, beta2, scale }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Moments(self.0.at_step(scalars, grad_scale))
    }

    #[inline(always)]
    fn apply<T: Float>(&self, m: &mut [T], g: &[T], [v]: [&mut [T]; 1]) {
        let [b1, b2] = self.0.betas.map(T::from_f64);
        let [one_minus_b1, one_minus_b2] = self.0.betas.map(|beta| T::from_f64(1.0 - beta));
        let scale = T::from_f64(self.0.grad_scale);
        for ((m, v), &g) in m.iter_mut().zip(v.iter_mut()).zip(g) {
            let g = g * scale;
            *m = (b1 * *m + one_minus_b1 * g).or_zero();
            *v = (b2 * *v + one_minus_b2 * g * g).or_zero_if_subnormal();
        }
        lose_overflowed(self.0.step, m, v);
    }
}

/// Steps between two looks for second moments that overflowed, which takes a small step a twentieth longer.
const BETWEEN_LOOKS: u64 = 64;

/// Makes `values` NaN where the second moment overflowed, so that the next loss shows it: such a weight would stand still for ever. On a GPU,
/// where memory bounds the update, the moment itself becomes NaN at once.
pub(super) fn lose_overflowed<T: Float>(step: u64, values: &mut [T], v: &[T]) {
    if step.is_multiple_of(BETWEEN_LOOKS) {
        let overflowed = values.iter_mut().zip(v).filter(|(_, v)| !v.is_number());
        overflowed.for_each(|(value, _)| *value = T::from_f64(f64::NAN));
    }
}

update_kernels! {
    "moments",
    MomentsParams { beta1: f64, beta2: f64, scale: f64 },
    per_step: [scale],
    per_segment: [],
    r"
template <class T> struct Formula {
    static const int n_state = 1;
    T b1, one_minus_b1, b2, one_minus_b2, scale;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        Formula r;
        r.b1 = p.beta1;
        r.one_minus_b1 = 1 - p.beta1;
        r.b2 = p.beta2;
        r.one_minus_b2 = 1 - p.beta2;
        r.scale = p.scale;
        return r;
    }
    __device__ __forceinline__ T operator()(T m, T g, T* v) const {
        T grad = g * scale;
        T second = b2 * *v + one_minus_b2 * grad * grad;
        // NaN if it overflowed.
        *v = second + (second - second);
        return b1 * m + one_minus_b1 * grad;
    }
};
"
}
