//! Contradictions within a saved preprocessor, such as that of a stranger's model: checked once where it is read, so that everything behind
//! may index by it.

use std::collections::HashSet;

use crate::data::fit::preprocess::{ColumnCodes, Preprocessor};

impl Preprocessor {
    /// The first contradiction, in words; `None` for a preprocessor as [`Preprocessor::new`] makes it.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let Preprocessor { plan, normalizer, target_scale, labels, .. } = self;
        if let Some(contradiction) = plan.contradiction() {
            return Some(contradiction);
        }
        let n_features = plan.n_features();
        let of_features = normalizer.iter().flat_map(|normalizer| {
            let offset = normalizer.offset.as_ref().map(|offset| ("offset", offset.len()));
            [("shift", normalizer.shift.len()), ("scale", normalizer.scale.len())].into_iter().chain(offset)
        });
        for (name, len) in of_features {
            if len != n_features {
                return Some(format!(
                    "it normalizes {len} features by {name}, and its columns make {n_features}"
                ));
            }
        }
        let scale =
            target_scale.as_ref().filter(|of| of.shift.len() != of.scale.len() || of.shift.is_empty());
        let is_empty = labels.as_ref().is_some_and(|labels| labels.is_empty());
        scale
            .map(|of| format!("it shifts {} targets and scales {}", of.shift.len(), of.scale.len()))
            .or(is_empty.then(|| "it lists labels, and there are none".to_owned()))
    }
}

impl ColumnCodes {
    fn contradiction(&self) -> Option<String> {
        let n = self.columns.len();
        if n == 0 {
            return Some("it has no columns".to_owned());
        }
        let names: HashSet<&String> = self.columns.iter().collect();
        let vocabularies: HashSet<&str> = self.vocabularies.iter().map(|of| of.name()).collect();
        if names.len() < n || vocabularies.len() < self.vocabularies.len() {
            return Some("two of its columns have one name".to_owned());
        }
        if let Some(name) = vocabularies.iter().find(|name| !names.contains(&(**name).to_owned())) {
            return Some(format!("it has values of categories for \"{name}\", which is none of its columns"));
        }
        for (what, len) in self.lengths_by_column() {
            if len != n {
                return Some(format!("it has {len} {what} for {n} columns"));
            }
        }
        let numbers: HashSet<usize> = self.numbers().collect();
        let is_rising = self.indicators().windows(2).all(|pair| pair[0] < pair[1]);
        let wrong = self.indicators().iter().find(|column| !is_rising || !numbers.contains(column));
        wrong.map(|column| {
            format!("column {column}, which it marks as having missing values, is none of its numbers")
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::data::datasets::target_scale::TargetScale;
    use crate::data::fit::normalize::Normalizer;

    fn preprocessor() -> Preprocessor {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let normalizer = Normalizer { offset: None, shift: vec![1.0; 3], scale: vec![0.5; 3] };
        let target_scale = Some(TargetScale { shift: vec![3e5], scale: vec![1e5] });
        Preprocessor { normalizer: Some(normalizer), target_scale, ..Preprocessor::identity(names) }
    }

    #[test]
    fn parts_that_disagree_are_found() {
        assert_eq!(preprocessor().contradiction(), None);
        let plan = |key: &str, value: Value| {
            let mut of = preprocessor();
            let mut json = serde_json::to_value(&of.plan).unwrap();
            json[key] = value;
            of.plan = serde_json::from_value(json).unwrap();
            of
        };
        let normalizer = |change: fn(&mut Normalizer)| {
            let mut of = preprocessor();
            of.normalizer.iter_mut().for_each(change);
            of
        };
        let targets = TargetScale { shift: vec![1.0], scale: vec![1.0, 2.0] };
        for (of, words) in [
            (plan("columns", json!([])), "no columns"),
            (plan("columns", json!(["a", "a", "c"])), "two of its columns have one name"),
            (plan("columns", json!(["a", "b"])), "3 features by shift, and its columns make 2"),
            (plan("fill", json!([])), "0 replacements of missing values for 3 columns"),
            (plan("ranges", json!([[null, null]])), "1 ranges for 3 columns"),
            (plan("indicators", json!([9])), "column 9"),
            (plan("indicators", json!([1, 1])), "column 1"),
            (normalizer(|of| of.scale.clear()), "0 features by scale"),
            (normalizer(|of| of.offset = Some(vec![0.0; 4])), "4 features by offset"),
            (Preprocessor { target_scale: Some(targets), ..preprocessor() }, "shifts 1 targets and scales 2"),
        ] {
            let found = of.contradiction().unwrap_or_default();
            assert!(found.contains(words), "{words}: {found}");
        }
    }
}
