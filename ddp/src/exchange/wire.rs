//! Gradients in bf16, as they travel between GPUs, and the f32 ones that are rounded to them.

use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorMut, ops};

use crate::exchange::error::Result;
use crate::model::{GradientSink, Network};

/// The buffer of the exchange, which then holds the reduced gradients.
#[derive(Debug)]
pub(crate) struct Wire {
    /// All gradients in the weights' layout, bf16.
    pub(crate) grads: Tensor,
    pub(crate) unrounded: Unrounded,
}

/// Ranges of the flat buffer whose gradients a pass writes in f32, in order; their elements are contiguous. Layers write the
/// others in bf16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unrounded(Vec<Range<usize>>);

impl Wire {
    /// Zeros for the gradients of `model`. If no step `accumulates` gradients, matmuls in bf16 write theirs in bf16; the others are
    /// written in f32 and rounded.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`](crate::exchange::ExchangeError::Comm) if the device is out of memory.
    pub(crate) fn new(world: &World, model: &Network, accumulates: bool) -> Result<Self> {
        let flat_len = model.layout().flat_len();
        let grads = world.exchange_zeros(MemoryUse::Gradients, &[flat_len], DType::BF16, model.device())?;
        let rounds_in_layers = model.precision().activations() == DType::BF16 && !accumulates;
        let whole = std::iter::once(0..flat_len).collect();
        let unrounded = Unrounded(if rounds_in_layers { model.unrounded_gradients() } else { whole });
        Ok(Wire { grads, unrounded })
    }

    /// Whether layers write gradients in bf16, so that they can't accumulate.
    pub(crate) fn is_written_by_layers(&self) -> bool {
        self.unrounded.len() < self.grads.numel()
    }
}

impl Unrounded {
    /// Elements of all ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// Where a range lies that is within one of these.
    pub(crate) fn place(&self, flat: &Range<usize>) -> Option<Range<usize>> {
        self.within(flat).next().filter(|(part, _)| part == flat).map(|(_, place)| place)
    }

    /// The parts of `flat` that are written in f32, and where they lie.
    pub(crate) fn within(&self, flat: &Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let (flat, mut before) = (flat.clone(), 0);
        self.0.iter().filter_map(move |range| {
            let first = before;
            before += range.len();
            let part = range.start.max(flat.start)..range.end.min(flat.end);
            let place = |at: usize| first + at - range.start;
            (!part.is_empty()).then(|| (part.clone(), place(part.start)..place(part.end)))
        })
    }
}

/// Gradients of a pass that are not reduced, in the memory of an exchange in bf16.
#[derive(Debug)]
pub(crate) struct LocalWire<'a> {
    /// `[unrounded.len()]` f32.
    pub(crate) singles: TensorMut<'a>,
    pub(crate) wire: &'a mut Wire,
}

impl GradientSink for LocalWire<'_> {
    type Error = KernelError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>, KernelError> {
        match self.wire.unrounded.place(&(start..end)) {
            Some(place) => self.singles.reborrow().range(place.start, place.end),
            None => self.wire.grads.view_mut().range(start, end),
        }
    }

    fn finished(&mut self, _end: usize) -> Result<(), KernelError> {
        Ok(())
    }

    fn progress(&mut self) -> Result<(), KernelError> {
        Ok(())
    }
}

/// Rounds the gradients of `bucket`, which begins at `first`, from `singles`, where they were not written in bf16.
///
/// # Errors
/// [`KernelError`] from an operation.
pub(crate) fn round(
    unrounded: &Unrounded,
    singles: &TensorMut<'_>,
    first: usize,
    bucket: &mut TensorMut<'_>,
) -> Result<(), KernelError> {
    for (part, place) in unrounded.within(&(first..first + bucket.numel())) {
        let to = bucket.reborrow().range(part.start - first, part.end - first)?;
        ops::cast(singles.as_ref().range(place.start, place.end)?, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrounded_gradients_lie_one_behind_the_other() {
        let unrounded = Unrounded(vec![16..48, 64..80, 80..96]);
        assert_eq!(unrounded.len(), 64);
        assert_eq!(unrounded.place(&(64..80)), Some(32..48));
        assert_eq!(unrounded.place(&(20..30)), Some(4..14));
        assert_eq!(unrounded.place(&(0..16)), None);
        assert_eq!(unrounded.place(&(48..64)), None);
        let within: Vec<_> = unrounded.within(&(32..88)).collect();
        assert_eq!(within, [(32..48, 16..32), (64..80, 32..48), (80..88, 48..56)]);
        assert_eq!(unrounded.within(&(48..64)).count(), 0);
    }
}
