//! Where each parameter lies in the flat buffers of weights, gradients and optimiser state.
//!
//! Parameters stand in the order in which the backward pass finishes their gradients, the last layer first, so that a
//! bucket of finished gradients is a range of the buffer and needs no copy. Embeddings come last.

use std::ops::Range;

use super::{EmbeddingSpec, ModelSpec};

/// Each parameter begins at a multiple of this: 64 bytes of f32, a cache line.
const ALIGN_ELEMENTS: usize = 16;

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Weight of a linear layer, `[O, I]`.
    Weight,
    /// Bias of a linear layer, `[O]`.
    Bias,
    /// Scale of a layer norm, `[O]`.
    NormWeight,
    /// Shift of a layer norm, `[O]`.
    NormBias,
    /// Table of an embedding, `[n_codes, dim]`.
    Embedding,
}

/// One named parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSlot {
    /// `layers.{i}.weight`, `layers.{i}.bias`, `norms.{i}.weight`, `norms.{i}.bias`,
    /// `embeddings.{key}.weight` with [`EmbeddingSpec::key`].
    pub name: String,
    /// Layer it belongs to; of an embedding its number among the embeddings.
    pub layer: usize,
    /// What it is.
    pub kind: ParamKind,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Its first element in the flat buffer.
    pub start: usize,
}

impl ParamSlot {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.numel()
    }
}

/// All parameters of a model in one flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamLayout {
    slots: Vec<ParamSlot>,
    flat_len: usize,
    embeddings: Vec<EmbeddingSpec>,
}

impl ParamLayout {
    /// The layout of this model.
    pub fn new(spec: &ModelSpec) -> Self {
        Self::shared_by(spec, 1)
    }

    /// The layout of this model, in which each layer, and the embeddings together, take a number of elements that so many ranks
    /// divide evenly, at cache lines. What is added for that are gaps like those between parameters.
    ///
    /// # Panics
    /// If `n_ranks` is 0.
    pub fn shared_by(spec: &ModelSpec, n_ranks: usize) -> Self {
        let (mut slots, mut start) = (Vec::new(), 0);
        let mut last_unit = None;
        let mut push = |layer: usize, kind: ParamKind, dims: Vec<usize>| {
            let name = match kind {
                ParamKind::Weight => format!("layers.{layer}.weight"),
                ParamKind::Bias => format!("layers.{layer}.bias"),
                ParamKind::NormWeight => format!("norms.{layer}.weight"),
                ParamKind::NormBias => format!("norms.{layer}.bias"),
                ParamKind::Embedding => format!("embeddings.{}.weight", spec.embeddings[layer].key()),
            };
            let unit = (kind != ParamKind::Embedding).then_some(layer);
            if last_unit.replace(unit).is_some_and(|last| last != unit) {
                start = usize::next_multiple_of(start, n_ranks * ALIGN_ELEMENTS);
            }
            let slot = ParamSlot { name, layer, kind, dims, start };
            start = slot.range().end.next_multiple_of(ALIGN_ELEMENTS);
            slots.push(slot);
        };
        for layer in (0..spec.n_layers()).rev() {
            let (i, o) = spec.in_out(layer);
            if spec.layer_norm && spec.is_hidden(layer) {
                push(layer, ParamKind::NormWeight, vec![o]);
                push(layer, ParamKind::NormBias, vec![o]);
            }
            if spec.bias {
                push(layer, ParamKind::Bias, vec![o]);
            }
            push(layer, ParamKind::Weight, vec![o, i]);
        }
        for (index, embedding) in spec.embeddings.iter().enumerate() {
            push(index, ParamKind::Embedding, vec![embedding.n_codes, embedding.dim]);
        }
        let flat_len = start.next_multiple_of(n_ranks * ALIGN_ELEMENTS);
        ParamLayout { slots, flat_len, embeddings: spec.embeddings.clone() }
    }

    /// The model's embeddings, in the order of their columns of codes.
    pub fn embeddings(&self) -> &[EmbeddingSpec] {
        &self.embeddings
    }

    /// The parameters in the order of the flat buffer.
    pub fn slots(&self) -> &[ParamSlot] {
        &self.slots
    }

    /// What lies between the parameters and behind the last, in order: in gradients and weights it is zeros.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let next = |index: usize| self.slots.get(index + 1).map_or(self.flat_len, |next| next.start);
        let gaps = self.slots.iter().enumerate().map(move |(index, slot)| slot.range().end..next(index));
        gaps.filter(|gap| !gap.is_empty())
    }

    /// The parameters in forward order, as PyTorch's `state_dict` lists them.
    pub fn forward_order(&self) -> Vec<&ParamSlot> {
        let mut slots: Vec<_> = self.slots.iter().collect();
        let place = |slot: &ParamSlot| match slot.kind {
            ParamKind::Embedding | ParamKind::Weight => 0,
            ParamKind::Bias => 1,
            ParamKind::NormWeight => 2,
            ParamKind::NormBias => 3,
        };
        slots.sort_by_key(|slot| (slot.kind != ParamKind::Embedding, slot.layer, place(slot)));
        slots
    }

    /// The parameter of this layer and kind, if the model has it.
    pub fn find(&self, layer: usize, kind: ParamKind) -> Option<&ParamSlot> {
        self.slots.iter().find(|slot| slot.layer == layer && slot.kind == kind)
    }

    /// Elements of the flat buffer, gaps for alignment included.
    pub fn flat_len(&self) -> usize {
        self.flat_len
    }

    /// Number of trainable parameters.
    pub fn n_params(&self) -> usize {
        self.slots.iter().map(ParamSlot::numel).sum()
    }

    /// Where each layer's gradients end in the flat buffer, in the order in which the backward pass finishes layers; those of
    /// the embeddings end together.
    pub fn layer_ends(&self) -> Vec<usize> {
        let mut ends = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let next = self.slots.get(index + 1);
            let unit = |slot: &ParamSlot| (slot.kind != ParamKind::Embedding).then_some(slot.layer);
            if next.is_none_or(|next| unit(next) != unit(slot)) {
                ends.push(next.map_or(self.flat_len, |next| next.start));
            }
        }
        ends
    }
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
            for end in layout.layer_ends() {
                prop_assert_eq!(end % (n_ranks * ALIGN_ELEMENTS), 0);
            }
            let names = |layout: &ParamLayout| -> Vec<_> {
                layout.slots().iter().map(|slot| (slot.name.clone(), slot.dims.clone())).collect()
            };
            prop_assert_eq!(names(&layout), names(&plain));
            prop_assert!(layout.flat_len() - plain.flat_len() <= layout.layer_ends().len() * (n_ranks - 1) * ALIGN_ELEMENTS);
            // Parameters and gaps cover the buffer, each element once.
            let mut n_owners = vec![0; layout.flat_len()];
            layout.slots().iter().map(ParamSlot::range).chain(layout.gaps()).flatten().for_each(|i| n_owners[i] += 1);
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
            for slot in layout.slots() {
                prop_assert!(slot.start >= end && slot.start - end < ALIGN_ELEMENTS);
                prop_assert_eq!(slot.start % ALIGN_ELEMENTS, 0);
                end = slot.range().end;
            }
            let (layers, tables) = layout.slots().split_at(layout.slots().len() - sizes.len());
            prop_assert!(layers.is_sorted_by_key(|slot| std::cmp::Reverse(slot.layer)));
            prop_assert!(tables.iter().enumerate().all(|(i, slot)| (slot.kind, slot.layer) == (ParamKind::Embedding, i)));
            let ends = layout.layer_ends();
            prop_assert_eq!(ends.len(), dims.len() - 1 + usize::from(!sizes.is_empty()));
            prop_assert!(ends.is_sorted());
            prop_assert_eq!(*ends.last().unwrap(), layout.flat_len());
        }
    }
}
