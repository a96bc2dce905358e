//! Muon: 12 bytes per element in f32, after the pass of [`momentum`](super::momentum) and the orthogonalization of its direction.
//!
//! `lr = lr_scale·lr`; `w = (1 - lr·wd)·w - lr·direction_scale·direction`
//!
//! Source: <https://kellerjordan.github.io/posts/muon>; `torch.optim.Muon`.

use super::super::{
    StepScalars, Tensors, Update, UpdateInputs, UpdateSegment, cuda, kernels, run, update_kernels,
};
use super::adam::Adam;
use super::momentum::Momentum;
use super::step::update_first;
use super::{OptimizerDefaults, OptimizerParams, OptimizerTensors, Rule, WholeNeed};
use crate::Result;
use crate::cpu::Float;

/// The learning rate is its author's, all else PyTorch's.
pub(super) const RULE: Rule = Rule {
    name: "muon",
    defaults: OptimizerDefaults {
        lr: 0.02,
        weight_decay: 0.1,
        momentum: 0.95,
        nesterov: true,
        ..OptimizerDefaults::USUAL
    },
    whole_need: Some(WholeNeed::Directions),
    // The momentum and the direction of the last step; the moments of the parameters that AdamW updates.
    state_names: |_| &Adam::STATE,
    first_pass: Some(|params, mut tensors, inputs| update_first(Momentum(*params), &mut tensors, inputs)),
    step,
};

fn step(
    params: &OptimizerParams,
    _segments: &[UpdateSegment],
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors { master_weights: target, grads, state: [_, v], average, compute_weights, .. } =
        tensors;
    let direction = v.as_ref().map_or(grads, |v| v.as_ref());
    let tensors = Tensors { target, source: direction, state: [], average, compute_weights, segments: &[] };
    run(Muon(*params), tensors, inputs)
}

/// The second pass: its source is the direction.
#[derive(Clone, Copy)]
pub(super) struct Muon(pub(super) OptimizerParams);

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
    fn apply<T: Float>(&self, w: &mut [T], direction: &[T], []: [&mut [T]; 0]) {
        let lr = self.0.lr_scale * self.0.lr;
        let [keep, step_size] =
            [1.0 - lr * self.0.weight_decay, lr * self.0.direction_scale].map(T::from_f64);
        for (w, &d) in w.iter_mut().zip(direction) {
            *w = keep * *w - step_size * d;
        }
    }
}

update_kernels! {
    "muon",
    MuonParams { lr: f64, lr_scale: f64, weight_decay: f64, direction_scale: f64 },
    per_step: [lr],
    per_segment: [],
    r"
template <class T> struct Formula {
    static const int n_state = 0;
    T keep, step_size;

    static __device__ __forceinline__ Formula of(const Params& p, bool) {
        double lr = p.lr * p.lr_scale;
        Formula r;
        r.keep = 1 - lr * p.weight_decay;
        r.step_size = lr * p.direction_scale;
        return r;
    }
    __device__ __forceinline__ T operator()(T w, T d, T*) const { return keep * w - step_size * d; }
};
"
}
