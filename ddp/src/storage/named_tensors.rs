//! Tensors with names, in any collection.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};

use ddp_kernels::Tensor;

/// Tensors with names, such as a state dict: pairs in a slice, an array or a `Vec`, or a map.
pub trait NamedTensors {
    /// The names and the tensors.
    fn named_tensors(&self) -> Vec<(&str, &Tensor)>;
}

fn pairs<'a, N: AsRef<str> + 'a, T: Borrow<Tensor> + 'a>(
    pairs: impl Iterator<Item = (&'a N, &'a T)>,
) -> Vec<(&'a str, &'a Tensor)> {
    pairs.map(|(name, tensor)| (name.as_ref(), tensor.borrow())).collect()
}

impl<N: AsRef<str>, T: Borrow<Tensor>> NamedTensors for [(N, T)] {
    fn named_tensors(&self) -> Vec<(&str, &Tensor)> {
        pairs(self.iter().map(|(name, tensor)| (name, tensor)))
    }
}

impl<N: AsRef<str>, T: Borrow<Tensor>, const LEN: usize> NamedTensors for [(N, T); LEN] {
    fn named_tensors(&self) -> Vec<(&str, &Tensor)> {
        self.as_slice().named_tensors()
    }
}

impl<N: AsRef<str>, T: Borrow<Tensor>> NamedTensors for Vec<(N, T)> {
    fn named_tensors(&self) -> Vec<(&str, &Tensor)> {
        self.as_slice().named_tensors()
    }
}

impl<N: AsRef<str>, T: Borrow<Tensor>, S> NamedTensors for HashMap<N, T, S> {
    fn named_tensors(&self) -> Vec<(&str, &Tensor)> {
        pairs(self.iter())
    }
}

impl<N: AsRef<str>, T: Borrow<Tensor>> NamedTensors for BTreeMap<N, T> {
    fn named_tensors(&self) -> Vec<(&str, &Tensor)> {
        pairs(self.iter())
    }
}
