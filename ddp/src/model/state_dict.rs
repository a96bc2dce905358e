//! The weights and saved buffers of a model by name, as in PyTorch's `state_dict`.

use std::collections::BTreeMap;

use ddp_kernels::{IntoDevice, KernelError, Tensor, TensorRef, ops};

use super::{ModelError, Network};
use crate::storage::named_tensors::NamedTensors;

/// Names that a model and a state dict do not share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateDictReport {
    /// Parameters and saved buffers of the model that the state dict lacks: they keep their values.
    pub missing: Vec<String>,
    /// Names of the state dict that the model lacks: they are ignored.
    pub unexpected: Vec<String>,
}

impl Network {
    /// Names, shapes and master weights of all parameters, in forward order.
    ///
    /// # Errors
    /// None for the weights that a model makes itself.
    pub fn named_parameters(&self) -> Result<Vec<(&str, TensorRef<'_>)>, KernelError> {
        let weights = self.weights();
        let entries = self.layout().forward_order().into_iter();
        entries
            .map(|entry| {
                let values = weights.view().range(entry.start, entry.range().end)?.reshape(&entry.dims)?;
                Ok((&entry.name[..], values))
            })
            .collect()
    }

    /// Copies all parameters to `device`, f32, and all saved buffers, by name: what a safetensors file holds and
    /// [`Network::load_state_dict`] reads.
    ///
    /// # Errors
    /// [`KernelError`] for a device that is unavailable or out of memory.
    pub fn state_dict(&self, device: impl IntoDevice) -> Result<BTreeMap<String, Tensor>, KernelError> {
        let device = device.into_device()?;
        let copy = |(name, values): (&str, TensorRef<'_>)| {
            let mut copy = Tensor::zeros(values.shape().dims(), values.dtype(), device)?;
            ops::copy(values, copy.view_mut())?;
            Ok((name.to_owned(), copy))
        };
        self.named_tensors()?.into_iter().map(copy).collect()
    }

    /// Copies the saved buffers of a checkpoint. If their names, shapes or dtypes differ from the model's, returns the
    /// differences and copies nothing.
    ///
    /// # Errors
    /// [`KernelError`] from the copies.
    pub fn set_saved_buffers(&mut self, buffers: &[(String, Tensor)]) -> Result<Vec<String>, KernelError> {
        let mut differences = Vec::new();
        for (name, own) in self.registered.saved() {
            match buffers.iter().find(|(given, _)| given == name) {
                None => differences.push(format!("buffer {name} {} is missing", own.shape())),
                Some((_, given)) if (given.shape(), given.dtype()) != (own.shape(), own.dtype()) => {
                    let (from, to) = ((given.shape(), given.dtype()), (own.shape(), own.dtype()));
                    differences.push(format!(
                        "buffer {name} is {} {}, {} {} in the model",
                        from.0, from.1, to.0, to.1
                    ));
                }
                Some(_) => {}
            }
        }
        for (name, given) in buffers {
            if self.registered.saved_mut(name).is_none() {
                differences.push(format!("buffer {name} {} is not in the model", given.shape()));
            }
        }
        if differences.is_empty() {
            for (name, given) in buffers {
                if let Some(own) = self.registered.saved_mut(name) {
                    ops::copy(given.view(), own.view_mut())?;
                }
            }
        }
        Ok(differences)
    }

    /// Parameters, then saved buffers.
    fn named_tensors(&self) -> Result<Vec<(&str, TensorRef<'_>)>, KernelError> {
        let mut tensors = self.named_parameters()?;
        tensors.extend(self.registered.saved().map(|(name, values)| (name, values.view())));
        Ok(tensors)
    }

    /// Copies the tensors of `state_dict`, on any device, to the f32 parameters and saved buffers of the same names. Nothing is
    /// written if there is an error.
    ///
    /// - `strict`: names that only one side has are an error; otherwise they are reported
    ///
    /// # Errors
    /// [`ModelError::StateDict`] for tensors of another shape or dtype, and, if `strict`, for missing and unexpected names: all in
    /// one message. [`ModelError::Kernel`] from the copies.
    ///
    /// Source: `torch.nn.Module.load_state_dict`.
    pub fn load_state_dict(
        &mut self,
        state_dict: &(impl NamedTensors + ?Sized),
        strict: bool,
    ) -> Result<StateDictReport, ModelError> {
        let state_dict = state_dict.named_tensors();
        let find =
            |name: &str| state_dict.iter().find(|(given, _)| *given == name).map(|(_, tensor)| *tensor);
        let mut report = StateDictReport::default();
        let (mut faults, mut copies) = (Vec::new(), Vec::new());
        let own = self.named_tensors()?;
        for (name, values) in own.iter().copied() {
            let Some(tensor) = find(name) else {
                report.missing.push(name.to_owned());
                continue;
            };
            if tensor.shape() != values.shape() || tensor.dtype() != values.dtype() {
                let (dims, dtype) = (values.shape(), values.dtype());
                faults.push(format!(
                    "{name}: {} {} should be {dims} {dtype}",
                    tensor.shape(),
                    tensor.dtype()
                ));
            }
            copies.push((name.to_owned(), tensor));
        }
        let is_unknown = |name: &&str| own.iter().all(|(known, _)| known != name);
        let given = state_dict.iter().map(|(name, _)| *name);
        report.unexpected = given.filter(is_unknown).map(str::to_owned).collect();
        // A map has no order of its own.
        report.unexpected.sort_unstable();
        if strict {
            faults.extend(report.missing.iter().map(|name| format!("{name}: missing")));
            faults.extend(
                report
                    .unexpected
                    .iter()
                    .map(|name| format!("{name}: the model has no such parameter or saved buffer")),
            );
        }
        if !faults.is_empty() {
            return Err(ModelError::StateDict { faults: faults.join("\n  ") });
        }
        for (name, tensor) in copies {
            if let Some(buffer) = self.registered.saved_mut(&name) {
                ops::copy(tensor.view(), buffer.view_mut())?;
                continue;
            }
            let entry = self.layout().find(&name).expect("a parameter if it is not a buffer").clone();
            let values = self.weights_mut().master.range(entry.start, entry.range().end)?;
            ops::copy(tensor.view().reshape(&[entry.numel()])?, values)?;
        }
        self.refresh_compute_weights(0..self.layout().flat_len())?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::precision::Precision;
    use crate::model::ModelSpec;

    fn network(precision: Precision) -> Network {
        let spec = ModelSpec::plain(&[3, 4, 2], Activation::Relu);
        let mut network = Network::new(spec, 5, Device::Cpu, precision).unwrap();
        network.initialize(1).unwrap();
        network
    }

    fn outputs(network: &mut Network) -> Vec<f32> {
        let x = Tensor::from_slice(&[0.5f32, -1.0, 2.0], &[1, 3], Device::Cpu).unwrap();
        network.forward(&x).unwrap();
        network.outputs().unwrap().to_vec::<f32>().unwrap()
    }

    #[test]
    fn weights_survive_a_round_trip_in_any_order() {
        let mut from = network(Precision::F32);
        let state = from.state_dict(Device::Cpu).unwrap();
        let names: Vec<_> = state.iter().map(|(name, tensor)| (&name[..], tensor.dims().to_vec())).collect();
        let want = [
            ("layers.0.bias", vec![4]),
            ("layers.0.weight", vec![4, 3]),
            ("layers.1.bias", vec![2]),
            ("layers.1.weight", vec![2, 4]),
        ];
        assert_eq!(names, want);
        // The compute weights are updated too.
        let mut other = network(Precision::Bf16);
        other.initialize(9).unwrap();
        assert_eq!(other.load_state_dict(&state, true).unwrap(), StateDictReport::default());
        let mut same = network(Precision::Bf16);
        assert_eq!(outputs(&mut other), outputs(&mut same));
        assert_ne!(outputs(&mut other), outputs(&mut from), "bf16 rounds");
    }

    #[test]
    fn missing_unexpected_and_wrong_tensors_are_named_together() {
        let mut network = network(Precision::F32);
        let before = outputs(&mut network);
        let ones = |dims: &[usize]| Tensor::ones(dims, ddp_kernels::DType::F32, Device::Cpu).unwrap();
        let state = |name: &str, dims: &[usize]| (name.to_owned(), ones(dims));
        let partial = [state("layers.0.bias", &[4]), state("head.weight", &[1])];
        let error = ddp_kernels::hint::with_hint(&network.load_state_dict(&partial, true).unwrap_err());
        for part in [
            "layers.1.bias: missing",
            "head.weight: the model has no such parameter or saved buffer",
            "hint: ",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let wrong = [state("layers.0.bias", &[4]), state("layers.1.bias", &[3])];
        let error = network.load_state_dict(&wrong, false).unwrap_err().to_string();
        assert!(error.contains("layers.1.bias: [3] f32 should be [2] f32"), "{error}");
        assert_eq!(outputs(&mut network), before, "nothing was written");
        let report = network.load_state_dict(&partial, false).unwrap();
        assert_eq!(report.unexpected, ["head.weight"]);
        assert_eq!(report.missing, ["layers.0.weight", "layers.1.weight", "layers.1.bias"]);
        assert_ne!(outputs(&mut network), before);
    }
}
