//! Adafactor's second moments: one number per row and per column of a matrix, one per element of a vector.
//!
//! They are few, so all ranks hold all of them in every stage of ZeRO. In a step each range of the flat buffers adds its squares to sums
//! in f64; the caller completes these over the ranks ([`SecondMoments::sums`]), the moments move, and then the same with the norms of the
//! directions ([`SecondMoments::norms`]).

use std::ops::Range;

use ddp_kernels::ops::{self, AdafactorFactors, FactoredShape, OptimizerParams, UpdateInputs};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef};

use super::param_groups::WholeParameter;

/// Names of saved second moments begin so; the name of the parameter follows.
const PREFIX: &str = "optimizer.second_moments.";

/// The second moments of all parameters, and what a step needs to move them.
#[derive(Debug)]
pub(crate) struct SecondMoments {
    parameters: Vec<Parameter>,
    /// Of each parameter one after the other: sums, which become factors, f64.
    sums: Tensor,
    /// Squared norm of each parameter's direction, f64.
    norms: Tensor,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    shape: FactoredShape,
    /// In the flat buffers.
    range: Range<usize>,
    /// In [`SecondMoments::sums`].
    sums: Range<usize>,
    /// `[rows + cols]` f32 of a matrix, `[len]` of a vector.
    moments: Tensor,
}

impl Parameter {
    /// Place in the parameter of the first element of `range`, which may lie in the gap after it.
    fn place(&self, range: &Range<usize>) -> usize {
        (range.start - self.range.start).min(self.shape.numel())
    }
}

impl SecondMoments {
    /// Zeros for those of `whole` that are factored; None if there are none.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`], [`KernelError::DeviceUnavailable`].
    pub(crate) fn new(whole: &[WholeParameter], device: Device) -> Result<Option<Self>, KernelError> {
        let zeros = |n: usize, dtype| Tensor::zeros_for(MemoryUse::Optimizer, &[n], dtype, device);
        let mut start = 0;
        let mut parameters = Vec::new();
        for WholeParameter { name, range, factored, .. } in whole {
            let Some(shape) = *factored else { continue };
            let end = start + 1 + shape.n_moments();
            parameters.push(Parameter {
                name: format!("{PREFIX}{name}"),
                shape,
                range: range.clone(),
                sums: start..end,
                moments: zeros(shape.n_moments(), DType::F32)?,
            });
            start = end;
        }
        if parameters.is_empty() {
            return Ok(None);
        }
        let norms = zeros(parameters.len(), DType::F64)?;
        Ok(Some(SecondMoments { sums: zeros(start, DType::F64)?, norms, parameters }))
    }

    /// Numbers (f64) that the ranks add up in a step, for these parameters.
    pub(crate) fn n_sums(whole: &[WholeParameter]) -> usize {
        whole.iter().filter_map(|whole| whole.factored).map(|shape| 2 + shape.n_moments()).sum()
    }

    /// Elements (f32) of the second moments of these parameters.
    pub(crate) fn len(whole: &[WholeParameter]) -> usize {
        whole.iter().filter_map(|whole| whole.factored).map(FactoredShape::n_moments).sum()
    }

    /// Names and values, in the order of the flat buffers.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters.iter().map(|parameter| (parameter.name.as_str(), &parameter.moments))
    }

    /// Mutable [`SecondMoments::named`].
    pub(crate) fn named_mut(&mut self) -> impl Iterator<Item = (&str, &mut Tensor)> {
        self.parameters.iter_mut().map(|parameter| (parameter.name.as_str(), &mut parameter.moments))
    }

    /// The sums that the ranks add up before [`SecondMoments::move_one`].
    pub(crate) fn sums(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// The squared norms that the ranks add up before the step.
    pub(crate) fn norms(&mut self) -> &mut Tensor {
        &mut self.norms
    }

    /// Clears sums and norms.
    pub(crate) fn begin(&mut self) -> Result<(), KernelError> {
        let zeros = ops::Pattern::Line { start: 0.0, step: 0.0 };
        ops::fill(self.sums.view_mut(), zeros)?;
        ops::fill(self.norms.view_mut(), zeros)
    }

    /// The part of `range` that holds elements of parameter `whole`, not the gap after it.
    pub(crate) fn within(&self, whole: usize, range: &Range<usize>) -> Range<usize> {
        let end = range.end.min(self.parameters[whole].range.end);
        range.start..end.max(range.start)
    }

    /// Adds the squares of elements `range` of the flat buffers, all of parameter `whole`.
    pub(crate) fn add_squares(
        &mut self,
        whole: usize,
        range: &Range<usize>,
        weights: TensorRef<'_>,
        grads: TensorRef<'_>,
    ) -> Result<(), KernelError> {
        let parameter = &self.parameters[whole];
        let sums = self.sums.view_mut().range(parameter.sums.start, parameter.sums.end)?;
        ops::adafactor_sums(parameter.shape, parameter.place(range), weights, grads, sums)
    }

    /// Moves the second moments of a parameter by its sums.
    pub(crate) fn move_one(
        &mut self,
        whole: usize,
        params: &OptimizerParams,
        inputs: Option<&UpdateInputs<'_>>,
    ) -> Result<(), KernelError> {
        let Parameter { shape, sums, moments, .. } = &mut self.parameters[whole];
        let sums = self.sums.view_mut().range(sums.start, sums.end)?;
        ops::adafactor_factors(*shape, params, moments.view_mut(), sums, inputs)
    }

    /// Adds the squared norm of the direction of elements `range` of the flat buffers, all of parameter `whole`.
    pub(crate) fn add_norm(
        &mut self,
        whole: usize,
        range: &Range<usize>,
        eps: f64,
        grads: TensorRef<'_>,
    ) -> Result<(), KernelError> {
        let parameter = &self.parameters[whole];
        let factors = self.sums.view().range(parameter.sums.start, parameter.sums.end)?;
        let norm = self.norms.view_mut().range(whole, whole + 1)?;
        ops::adafactor_norm(parameter.shape, parameter.place(range), eps, grads, factors, norm)
    }

    /// Second moments that the step on elements `range` of the flat buffers, all of parameter `whole`, reads.
    pub(crate) fn factors(
        &self,
        whole: usize,
        range: &Range<usize>,
    ) -> Result<AdafactorFactors<'_>, KernelError> {
        let parameter = &self.parameters[whole];
        Ok(AdafactorFactors {
            shape: parameter.shape,
            start: parameter.place(range),
            factors: self.sums.view().range(parameter.sums.start, parameter.sums.end)?,
            norm: self.norms.view().range(whole, whole + 1)?,
        })
    }

    /// Sets the moments from those saved among `saved`. Returns what is missing or of another shape; nothing is set then.
    ///
    /// # Errors
    /// [`KernelError`] from the copies.
    pub(crate) fn set(&mut self, saved: &[(String, Tensor)]) -> Result<Vec<String>, KernelError> {
        let of = |name: &str| saved.iter().find(|(saved, _)| saved == name).map(|(_, values)| values);
        let fits =
            |own: &Tensor, values: &Tensor| (own.shape(), own.dtype()) == (values.shape(), values.dtype());
        let differs = |(name, own): (&str, &Tensor)| match of(name) {
            None => Some(format!("{name} {} is missing", own.shape())),
            Some(values) if !fits(own, values) => {
                Some(format!("{name} is {} {}, {} in the model", values.shape(), values.dtype(), own.shape()))
            }
            Some(_) => None,
        };
        let differences: Vec<_> = self.named().filter_map(differs).collect();
        if differences.is_empty() {
            for (name, own) in self.named_mut() {
                of(name).map_or(Ok(()), |values| ops::copy(values.view(), own.view_mut()))?;
            }
        }
        Ok(differences)
    }

    /// Whether this is the name of saved second moments.
    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with(PREFIX)
    }
}
