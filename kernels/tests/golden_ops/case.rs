//! A case of the file, on a device, and the comparison with what PyTorch computed.

use std::cell::RefCell;

use ddp_kernels::{DType, Device, Tensor};
use serde_json::Value;

/// Half a unit in the last place of numbers in 1..2.
pub(crate) const EPS: f64 = 1.0 / (1 << 24) as f64;

/// One case of the file.
pub(crate) struct Case<'a> {
    pub(crate) value: &'a Value,
    pub(crate) device: Device,
    pub(crate) failures: RefCell<Vec<String>>,
}

impl Case<'_> {
    pub(crate) fn param(&self, name: &str) -> &Value {
        let value = &self.value["params"][name];
        assert!(!value.is_null(), "{}: no parameter {name}", self.label());
        value
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        self.param(name).as_f64().unwrap()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.param(name).as_bool().unwrap()
    }

    pub(crate) fn label(&self) -> String {
        let text = |key: &str| self.value[key].as_str().unwrap_or("?").to_owned();
        format!("{} {} on {}", text("op"), text("name"), self.device)
    }

    pub(crate) fn has_input(&self, name: &str) -> bool {
        !self.value["inputs"][name].is_null()
    }

    pub(crate) fn golden(&self, group: &str, name: &str) -> Golden {
        Golden::read(&self.value[group][name], &format!("{}: {group} {name}", self.label()))
    }

    /// The input on the case's device.
    pub(crate) fn input(&self, name: &str) -> Tensor {
        let golden = self.golden("inputs", name);
        Tensor::from_slice(&golden.values, &golden.shape, self.device).unwrap()
    }

    pub(crate) fn output(&self, name: &str) -> Golden {
        self.golden("outputs", name)
    }

    /// A tensor full of NaN, so that elements that an operation does not write are detected.
    pub(crate) fn nan(&self, dims: &[usize]) -> Tensor {
        Tensor::full(dims, f64::NAN, DType::F32, self.device).unwrap()
    }

    pub(crate) fn nan_like(&self, like: &Tensor) -> Tensor {
        self.nan(like.shape().dims())
    }

    /// `|got - want| <= atol + rtol·|want|` against the output `name`; NaN never passes.
    pub(crate) fn close(&self, name: &str, got: &Tensor, atol: f64, rtol: f64) {
        self.close_to(name, &values(got), &self.output(name).values, atol, rtol);
    }

    pub(crate) fn close_to(&self, name: &str, got: &[f32], want: &[f32], atol: f64, rtol: f64) {
        assert_eq!(got.len(), want.len(), "{} {name}", self.label());
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let gap = (f64::from(g) - f64::from(w)).abs();
            let bound = atol + rtol * f64::from(w).abs();
            if gap.is_nan() || gap > bound {
                self.failures.borrow_mut().push(format!(
                    "{} {name}[{i}]: got {g:e}, PyTorch {w:e}: {gap:e} apart, allowed {bound:e}",
                    self.label()
                ));
            }
        }
    }
}

/// A tensor of the file.
pub(crate) struct Golden {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Golden {
    pub(crate) fn read(tensor: &Value, what: &str) -> Self {
        assert_eq!(tensor["dtype"], "f32", "{what}");
        let shape: Vec<_> = shape_of(tensor);
        let data = tensor["data"].as_array().unwrap();
        let values: Vec<_> = data.iter().map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{what}");
        Golden { shape, values }
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let len = self.values.len() / self.shape[0];
        &self.values[row * len..(row + 1) * len]
    }
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

pub(crate) fn shape_of(tensor: &Value) -> Vec<usize> {
    let dims = tensor["shape"].as_array().unwrap();
    dims.iter().map(|d| d.as_u64().unwrap() as usize).collect()
}
