//! Row by row.

use crate::Element;

pub(super) fn count<T: Element>(
    logits: &[T],
    n_classes: usize,
    labels: &[i64],
    row_weights: Option<&[f32]>,
) -> f64 {
    let is_correct = |(row, &label): (&[T], &i64)| match usize::try_from(label).ok().and_then(|l| row.get(l))
    {
        Some(at_label) => {
            let before = &row[..label as usize];
            before.iter().all(|v| v < at_label) && row.iter().all(|v| v <= at_label)
        }
        None => false,
    };
    let rows = logits.chunks_exact(n_classes.max(1)).zip(labels);
    match row_weights {
        None => rows.filter(|&row| is_correct(row)).count() as f64,
        Some(weights) => {
            rows.zip(weights).filter(|&(row, _)| is_correct(row)).map(|(_, &weight)| f64::from(weight)).sum()
        }
    }
}
