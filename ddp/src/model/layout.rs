//! Position of each parameter in the flat buffers of weights, gradients and optimizer state.
//!
//! Parameters are in the order in which the backward pass finishes their gradients, the last layer first, so that a
//! bucket of finished gradients is a range of the buffer and needs no copy. Embeddings come last.
//!
//! ```
//! use ddp::nn::{Activation, ModelSpec, ParamLayout};
//!
//! let layout = ParamLayout::new(&ModelSpec::plain(&[3, 5, 2], Activation::Relu));
//! let names: Vec<&str> = layout.forward_order().into_iter().map(|entry| entry.name.as_str()).collect();
//! assert_eq!(names, ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]);
//! assert_eq!(layout.n_params(), 5 * 3 + 5 + 2 * 5 + 2);
//!
//! // In the flat buffer the last layer comes first.
//! let start = |name| layout.find(name).map(|entry| entry.start);
//! assert!(start("layers.1.weight") < start("layers.0.weight"));
//! ```

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use super::layer::{Layer, LayerKind};
use super::param::{ParamEntry, ParamKind, ParamSpec};
use super::{EmbeddingSpec, ModelSpec, layers};

/// Each parameter begins at a multiple of this: 64 bytes of f32, a cache line.
const ALIGN_ELEMENTS: usize = 16;

/// All parameters of a model in one flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamLayout {
    entries: Vec<ParamEntry>,
    flat_len: usize,
    /// End of the gradients of each unit: a group of layers whose gradients are finished together.
    unit_ends: Vec<usize>,
    embeddings: Vec<EmbeddingSpec>,
    statistics: Vec<Statistic>,
    identity: u64,
}

/// A vector that model files store next to the parameters, and that is not trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistic {
    /// Name in model files.
    pub name: String,
    /// Number of elements.
    pub len: usize,
}

impl ParamLayout {
    /// The layout of this model.
    pub fn new(spec: &ModelSpec) -> Self {
        Self::shared_by(spec, 1)
    }

    /// The layout of this model, padded so that `n_ranks` ranks divide the elements of each unit evenly, at cache lines. The
    /// padding is treated like the gaps between parameters.
    ///
    /// # Panics
    /// If `n_ranks` is 0.
    pub fn shared_by(spec: &ModelSpec, n_ranks: usize) -> Self {
        Self::from_layers(&layers::from_spec(spec), n_ranks)
    }

    /// The layout of these layers, in forward order; see [`ParamLayout::shared_by`].
    ///
    /// Layers that compute the gradient in place share a unit with the next layer of the backward pass that does not: a norm with
    /// the linear layer before it. A shared parameter is placed with the last layer of the backward pass that uses it.
    ///
    /// # Panics
    /// If `n_ranks` is 0, or if two layers declare parameters of the same name that are not marked as shared.
    pub fn from_layers(layers: &[Box<dyn Layer>], n_ranks: usize) -> Self {
        let (mut entries, mut unit_ends, mut start) = (Vec::<ParamEntry>::new(), Vec::new(), 0);
        let mut embeddings = Vec::new();
        let first_uses = first_uses(layers);
        for (layer, this) in layers.iter().enumerate().rev() {
            if let LayerKind::Embedding(specs) = this.kind() {
                embeddings = specs.to_vec();
            }
            for param in this.parameters() {
                if is_used_before(&first_uses, layer, param) {
                    continue;
                }
                let ParamSpec { name, kind, dims, init, stream, .. } = param.clone();
                let is_frozen = false;
                let entry = ParamEntry { name, kind, dims, init, layer, start, is_frozen, stream };
                start = entry.range().end.next_multiple_of(ALIGN_ELEMENTS);
                entries.push(entry);
            }
            let is_finished = layer == 0 || !this.backward_is_in_place();
            if is_finished && start > unit_ends.last().copied().unwrap_or(0) {
                start = start.next_multiple_of(n_ranks * ALIGN_ELEMENTS);
                unit_ends.push(start);
            }
        }
        let statistics = layers.iter().flat_map(|layer| layer.statistics());
        let statistics = statistics.map(|(name, len)| Statistic { name, len }).collect();
        let identity = identity_of(&entries);
        ParamLayout { entries, flat_len: start, unit_ends, embeddings, statistics, identity }
    }

    /// Freezes or unfreezes the parameters whose names `matches`; returns whether there is one.
    pub(super) fn freeze(&mut self, matches: impl Fn(&str) -> bool, is_frozen: bool) -> bool {
        let mut has_any = false;
        for entry in self.entries.iter_mut().filter(|entry| matches(&entry.name)) {
            (entry.is_frozen, has_any) = (is_frozen, true);
        }
        self.identity = identity_of(&self.entries);
        has_any
    }

    /// A hash of names, shapes, places and what is frozen, the same on all ranks of a program: two layouts that differ have different ones.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// The model's embeddings, in the order of their columns of codes.
    pub fn embeddings(&self) -> &[EmbeddingSpec] {
        &self.embeddings
    }

    /// The parameters in the order of the flat buffer.
    pub fn entries(&self) -> &[ParamEntry] {
        &self.entries
    }

    /// The ranges between the parameters and after the last one, in order; gradients and weights are zero there.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let next = |index: usize| self.entries.get(index + 1).map_or(self.flat_len, |next| next.start);
        let gaps = self.entries.iter().enumerate().map(move |(index, entry)| entry.range().end..next(index));
        gaps.filter(|gap| !gap.is_empty())
    }

    /// The parameters in forward order, as PyTorch's `state_dict` lists them: within a layer, the weight before the bias.
    pub fn forward_order(&self) -> Vec<&ParamEntry> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|entry| (entry.layer, entry.kind == ParamKind::Bias));
        entries
    }

    /// The parameter of this name, if the model has it.
    pub fn find(&self, name: &str) -> Option<&ParamEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Number of elements of the flat buffer, including gaps for alignment.
    pub fn flat_len(&self) -> usize {
        self.flat_len
    }

    /// The statistics of all layers, in forward order. Host copies of a model's values store them after the flat buffer.
    pub fn statistics(&self) -> &[Statistic] {
        &self.statistics
    }

    /// Number of parameters, frozen ones included.
    pub fn n_params(&self) -> usize {
        self.entries.iter().map(ParamEntry::numel).sum()
    }

    /// End of the gradients of each unit of layers in the flat buffer, in the order in which the backward pass finishes them; the
    /// embeddings end together.
    pub fn layer_ends(&self) -> &[usize] {
        &self.unit_ends
    }
}

fn identity_of(entries: &[ParamEntry]) -> u64 {
    let mut identity = DefaultHasher::new();
    for ParamEntry { name, dims, start, is_frozen, .. } in entries {
        (name, dims, start, is_frozen).hash(&mut identity);
    }
    identity.finish()
}

/// The layer closest to the input that declares each parameter, and the parameter there.
fn first_uses(layers: &[Box<dyn Layer>]) -> HashMap<&str, (usize, &ParamSpec)> {
    let mut first = HashMap::new();
    for (layer, this) in layers.iter().enumerate() {
        for param in this.parameters() {
            first.entry(param.name.as_str()).or_insert((layer, param));
        }
    }
    first
}

/// Whether a layer closer to the input than `layer` declares this parameter too.
fn is_used_before(first_uses: &HashMap<&str, (usize, &ParamSpec)>, layer: usize, param: &ParamSpec) -> bool {
    let other = first_uses.get(param.name.as_str()).filter(|(first, _)| *first < layer);
    if let Some((_, other)) = other {
        assert!(
            param.is_shared && *other == &param.clone().on_stream(other.stream),
            "two layers have a parameter `{}`: give each its own name, or mark both as `.shared()`, with the same kind, shape and initial \
             values",
            param.name
        );
    }
    other.is_some()
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;
    use proptest::prelude::*;

    use super::*;

    fn spec(dims: Vec<usize>, layer_norm: bool, bias: bool) -> ModelSpec {
        ModelSpec { layer_norm, bias, ..ModelSpec::plain(&dims, Activation::Relu) }
    }

    #[test]
    fn names_and_shapes_are_those_of_pytorch() {
        let layout = ParamLayout::new(&spec(vec![3, 5, 2], true, true));
        let listed: Vec<_> =
            layout.forward_order().iter().map(|s| (s.name.as_str(), s.dims.as_slice())).collect();
        let want: [(&str, &[usize]); 6] = [
            ("layers.0.weight", &[5, 3]),
            ("layers.0.bias", &[5]),
            ("norms.0.weight", &[5]),
            ("norms.0.bias", &[5]),
            ("layers.1.weight", &[2, 5]),
            ("layers.1.bias", &[2]),
        ];
        assert_eq!(listed, want);
        assert_eq!(layout.n_params(), 15 + 5 + 5 + 5 + 10 + 2);
    }

    fn embeddings(sizes: &[(usize, usize)]) -> Vec<EmbeddingSpec> {
        let embedding = |(i, &(n_codes, dim)): (usize, &(usize, usize))| EmbeddingSpec {
            name: format!("feature.{i}"),
            n_codes,
            dim,
        };
        sizes.iter().enumerate().map(embedding).collect()
    }

    #[test]
    fn embeddings_come_first_in_pytorch_and_last_in_backward() {
        let spec = spec(vec![3, 2], false, false).with_embeddings(embeddings(&[(5, 2), (40, 3)]));
        let layout = ParamLayout::new(&spec);
        let listed: Vec<_> =
            layout.forward_order().iter().map(|s| (s.name.as_str(), s.dims.as_slice())).collect();
        let want: [(&str, &[usize]); 3] = [
            ("embeddings.feature%2E0.weight", &[5, 2]),
            ("embeddings.feature%2E1.weight", &[40, 3]),
            ("layers.0.weight", &[2, 6]),
        ];
        assert_eq!(listed, want);
        assert_eq!(layout.layer_ends(), [16, 16 + 16 + 128]);
    }

    proptest! {
        #[test]
        fn ranks_share_each_layer_evenly(
            dims in prop::collection::vec(4usize..40, 2..6), layer_norm: bool, bias: bool,
            sizes in prop::collection::vec((1usize..40, 1usize..9), 0..4), n_ranks in 1usize..10,
        ) {
            let spec = spec(dims, layer_norm, bias).with_embeddings(embeddings(&sizes));
            let (layout, plain) = (ParamLayout::shared_by(&spec, n_ranks), ParamLayout::new(&spec));
            prop_assert_eq!(layout.layer_ends().len(), plain.layer_ends().len());
            for &end in layout.layer_ends() {
                prop_assert_eq!(end % (n_ranks * ALIGN_ELEMENTS), 0);
            }
            let names = |layout: &ParamLayout| -> Vec<_> {
                layout.entries().iter().map(|entry| (entry.name.clone(), entry.dims.clone())).collect()
            };
            prop_assert_eq!(names(&layout), names(&plain));
            prop_assert!(layout.flat_len() - plain.flat_len() <= layout.layer_ends().len() * (n_ranks - 1) * ALIGN_ELEMENTS);
            // Parameters and gaps cover the buffer, each element once.
            let mut n_owners = vec![0; layout.flat_len()];
            layout.entries().iter().map(ParamEntry::range).chain(layout.gaps()).flatten().for_each(|i| n_owners[i] += 1);
            prop_assert!(n_owners.iter().all(|&n| n == 1));
            prop_assert!(layout.gaps().all(|gap| gap.len() < (n_ranks + 1) * ALIGN_ELEMENTS));
        }

        #[test]
        fn slots_are_disjoint_aligned_and_in_backward_order(
            dims in prop::collection::vec(4usize..40, 2..6), layer_norm: bool, bias: bool,
            sizes in prop::collection::vec((1usize..40, 1usize..9), 0..4),
        ) {
            let layout = ParamLayout::new(&spec(dims.clone(), layer_norm, bias).with_embeddings(embeddings(&sizes)));
            let mut end = 0;
            for entry in layout.entries() {
                prop_assert!(entry.start >= end && entry.start - end < ALIGN_ELEMENTS);
                prop_assert_eq!(entry.start % ALIGN_ELEMENTS, 0);
                end = entry.range().end;
            }
            let (layers, tables) = layout.entries().split_at(layout.entries().len() - sizes.len());
            prop_assert!(layers.is_sorted_by_key(|entry| std::cmp::Reverse(entry.layer)));
            let name = |i: usize| format!("embeddings.feature%2E{i}.weight");
            prop_assert!(tables.iter().enumerate().all(|(i, entry)| (entry.kind, &entry.name) == (ParamKind::Embedding, &name(i))));
            let ends = layout.layer_ends();
            prop_assert_eq!(ends.len(), dims.len() - 1 + usize::from(!sizes.is_empty()));
            prop_assert!(ends.is_sorted());
            prop_assert_eq!(*ends.last().unwrap(), layout.flat_len());
        }
    }
}
