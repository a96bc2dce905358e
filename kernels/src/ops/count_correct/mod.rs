//! Rows whose largest logit is that of the label.

use super::check;
use crate::{Result, Shape, TensorRef};

/// Number of rows in which the first largest logit stands at the label.
///
/// - `logits`: `[N, C]`; `labels`: `[N]` i64; a row with NaN counts as wrong
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: `torch.argmax` compared with the labels.
pub fn count_correct(logits: TensorRef<'_>, labels: TensorRef<'_>) -> Result<u64> {
    const OP: &str = "count_correct";
    let (logits_op, labels_op) = (logits.operand("logits"), labels.operand("labels"));
    check::same_device(OP, &[logits_op, labels_op])?;
    let (n_rows, n_classes) = check::matrix(OP, logits_op)?;
    check::shape(OP, labels_op, Shape::vector(n_rows))?;
    let labels = labels.as_slice::<i64>(OP, "labels")?;
    check::float_dispatch!(OP, logits_op, T => {
        let logits = logits.as_slice::<T>(OP, "logits")?;
        let is_correct = |(row, &label): (&[T], &i64)| match usize::try_from(label).ok().and_then(|l| row.get(l)) {
            Some(at_label) => {
                let before = &row[..label as usize];
                before.iter().all(|v| v < at_label) && row.iter().all(|v| v <= at_label)
            }
            None => false,
        };
        Ok(logits.chunks_exact(n_classes.max(1)).zip(labels).filter(|&pair| is_correct(pair)).count() as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_first_of_equal_maxima_and_no_nan() {
        let logits = [1.0f32, 2.0, 2.0, 5.0, f32::NAN, 0.0, 0.0, 0.0, 7.0];
        let logits = TensorRef::from_slice(&logits, &[3, 3]).unwrap();
        let count =
            |labels: [i64; 3]| count_correct(logits, TensorRef::from_slice(&labels, &[3]).unwrap()).unwrap();
        assert_eq!((count([1, 0, 2]), count([2, 0, 2]), count([1, 0, -100])), (2, 1, 1));
    }
}
