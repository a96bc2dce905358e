//! Classes in an order and their probabilities, from cumulative logits: logit `k` of a row says whether its class is above `k`.

/// Smallest probability of a class before they are normalized, so that the logarithm of each is finite; 2^-23, the spacing of f32 at 1.
pub const MIN_PROBABILITY: f64 = 1.0 / 8_388_608.0;

/// The class of a row: the number of logits above 0, which are the questions answered with yes; `None` for a row with NaN.
///
/// Source: arXiv:1901.07884, equation 1.
pub fn class_of(logits: &[f32]) -> Option<usize> {
    let is_number = logits.iter().all(|logit| !logit.is_nan());
    is_number.then(|| logits.iter().filter(|logit| **logit > 0.0).count())
}

/// Probabilities of the classes, one more than there are logits: differences of neighboring `P(class > k) = sigmoid(logit k)`, at
/// least [`MIN_PROBABILITY`] where the logits do not fall, divided by their sum.
pub fn probabilities(logits: &[f32]) -> Vec<f64> {
    let above = |k: usize| logits.get(k).map_or(0.0, |&logit| 1.0 / (1.0 + (-f64::from(logit)).exp()));
    let of_class = |class: usize| {
        let at_least = if class == 0 { 1.0 } else { above(class - 1) };
        let difference = at_least - above(class);
        // NaN stays NaN.
        if difference < MIN_PROBABILITY { MIN_PROBABILITY } else { difference }
    };
    let mut all: Vec<f64> = (0..=logits.len()).map(of_class).collect();
    let sum: f64 = all.iter().sum();
    all.iter_mut().for_each(|value| *value /= sum);
    all
}

#[cfg(test)]
mod tests {
    use crate::data::cumulative::*;

    #[test]
    fn falling_logits_give_the_differences() {
        let logits = [2.0f32, 0.5, -1.0];
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let want =
            [1.0 - sigmoid(2.0), sigmoid(2.0) - sigmoid(0.5), sigmoid(0.5) - sigmoid(-1.0), sigmoid(-1.0)];
        for (got, want) in probabilities(&logits).into_iter().zip(want) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
        assert_eq!(class_of(&logits), Some(2));
        assert_eq!(
            (class_of(&[0.0]), class_of(&[1e-30]), class_of(&[-1.0, -2.0])),
            (Some(0), Some(1), Some(0))
        );
    }

    #[test]
    fn rising_logits_give_probabilities_above_0() {
        let all = probabilities(&[-3.0, 3.0]);
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-15 && all[1] > 0.0 && all[1] < 1e-6, "{all:?}");
        assert_eq!(class_of(&[-3.0, 3.0]), Some(1));
        let extreme = probabilities(&[f32::INFINITY, f32::NEG_INFINITY]);
        assert!(extreme.iter().all(|value| *value > 0.0) && extreme[1] > 0.999);
    }

    #[test]
    fn a_row_with_nan_has_no_class() {
        assert_eq!(class_of(&[1.0, f32::NAN]), None);
        assert!(probabilities(&[f32::NAN, 1.0]).iter().all(|value| value.is_nan()));
    }
}
