//! Every operation in f32 against PyTorch, on every available device: the cases of `tests/golden/ops.json` (layout in its README).

#![allow(clippy::unwrap_used)]

mod case;
mod layers;
mod losses;
mod optimizers;

use std::cell::RefCell;
use std::path::Path;

use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{self, Activation, ElementLoss, Gate, OptimizerKind};
use serde_json::Value;

use case::Case;
use layers::*;
use losses::*;
use optimizers::*;

/// Check of the cases of one operation.
type Check = fn(&Case<'_>);

/// The operations of the file.
const OPS: [(&str, Check); 35] = [
    ("addmm", addmm),
    ("linear", linear),
    ("relu", |case| activation(case, Activation::Relu)),
    ("gelu", |case| activation(case, Activation::Gelu)),
    ("gelu_tanh", |case| activation(case, Activation::GeluTanh)),
    ("silu", |case| activation(case, Activation::Silu)),
    ("tanh", |case| activation(case, Activation::Tanh)),
    ("sigmoid", |case| activation(case, Activation::Sigmoid)),
    ("softmax_cross_entropy", softmax_cross_entropy),
    ("focal_softmax", softmax_cross_entropy),
    ("bce_with_logits", |case| {
        element_loss(case, ["logits", "targets", "d_logits"], ElementLoss::Bce);
    }),
    ("ordinal", |case| {
        let (x, labels) = (case.input("logits"), labels(case));
        loss(case, "d_logits", &x, 0.0, |scale, d, sums| {
            ops::ordinal(x.view(), labels.view(), None, scale, d, sums)
        });
    }),
    ("mse", |case| {
        element_loss(case, ["pred", "target", "d_pred"], ElementLoss::Mse);
    }),
    ("huber", |case| {
        let delta = case.number("delta");
        element_loss(case, ["pred", "target", "d_pred"], ElementLoss::Huber { delta });
    }),
    ("log_cosh", |case| {
        element_loss(case, ["pred", "target", "d_pred"], ElementLoss::LogCosh);
    }),
    ("quantile", |case| {
        let quantile = case.number("quantile");
        element_loss(case, ["pred", "target", "d_pred"], ElementLoss::Quantile { quantile });
    }),
    ("poisson", |case| {
        let size = |x: f32, t: f32| x.exp() + (t * x).abs();
        element_loss_within(case, ["pred", "target", "d_pred"], size, ElementLoss::Poisson);
    }),
    ("focal_with_logits", |case| {
        let gamma = case.number("gamma");
        element_loss(case, ["logits", "targets", "d_logits"], ElementLoss::Focal { gamma });
    }),
    ("layer_norm", layer_norm),
    ("rms_norm", rms_norm),
    ("batch_norm", batch_norm),
    ("swiglu", |case| gated(case, Gate::SwiGlu)),
    ("geglu", |case| gated(case, Gate::GeGlu)),
    ("reglu", |case| gated(case, Gate::ReGlu)),
    ("embedding", embedding),
    ("sgd", sgd),
    ("adam", |case| adam(case, OptimizerKind::Adam)),
    ("adamw", |case| adam(case, OptimizerKind::AdamW)),
    ("lion", lion),
    ("lamb", lamb),
    ("muon", muon),
    ("smooth_clip", |case| activation(case, Activation::SmoothClip)),
    ("numeric_embedding", numeric_embedding),
    ("column_scale", column_scale),
    ("ema", ema),
];

#[test]
fn every_case_agrees_with_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/ops.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty(), "{} has no cases", path.display());

    let n_gpus = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse().unwrap());
    assert!(n_gpus >= required, "needs {required} GPUs, found {n_gpus}");
    let devices: &[Device] = if n_gpus > 0 { &[Device::Cpu, Device::Cuda(0)] } else { &[Device::Cpu] };

    let mut failures = Vec::new();
    let mut n_cases = vec![0; OPS.len()];
    for value in cases {
        let name = value["op"].as_str().unwrap();
        let Some(op) = OPS.iter().position(|op| op.0 == name) else {
            panic!("no check for the operation {name} of {}", path.display());
        };
        n_cases[op] += 1;
        for &device in devices {
            let case = Case { value, device, failures: RefCell::default() };
            OPS[op].1(&case);
            failures.extend(case.failures.into_inner());
        }
    }
    for (op, n) in OPS.iter().zip(n_cases) {
        assert!(n > 0, "no case of {}", op.0);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
