//! Conversion of rows between a dataset and a model, as a model's file holds it.

use std::sync::Arc;

use serde_json::json;

use super::datasets::target_scale::TargetScale;
use super::embedding_spec::EmbeddingSpec;
use super::labels::LabelVocabulary;
use super::labels::head_targets::{HeadTargets, heads_to_json};
use super::normalize::Normalizer;
use crate::storage::fingerprint::Fingerprint;

/// Conversion of rows between the dataset and the model. How columns become features is known to the crate that reads them alone.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedPreprocessor {
    /// Names of the features.
    pub features: Vec<String>,
    /// Embeddings of the last features, which are codes of categories.
    pub embeddings: Vec<EmbeddingSpec>,
    /// Conversion of columns to the features, as the JSON of whoever converts them.
    pub columns: String,
    /// Applied to the features.
    pub normalizer: Option<Normalizer>,
    /// Applied to the targets in regression.
    pub target_scale: Option<TargetScale>,
    /// Labels of the classes; `None` without classes, and where they are the numbers of the model's outputs.
    pub labels: Option<Arc<LabelVocabulary>>,
    /// Targets of the heads; empty for a model of one head.
    pub heads: Vec<HeadTargets>,
}

impl SavedPreprocessor {
    /// Columns of numbers that are the features as they are.
    pub fn identity(columns: Vec<String>) -> Self {
        SavedPreprocessor {
            columns: json!({ "columns": columns }).to_string(),
            features: columns,
            embeddings: Vec::new(),
            normalizer: None,
            target_scale: None,
            labels: None,
            heads: Vec::new(),
        }
    }

    /// Hash of the conversion, the same in every process: of the text and the bits that a model's file holds of it.
    pub fn fingerprint(&self) -> u64 {
        let SavedPreprocessor { columns, normalizer, target_scale, labels, heads, .. } = self;
        let mut hash = Fingerprint::default();
        hash.text(columns);
        hash.text(&labels.as_ref().map_or_else(String::new, |labels| labels.to_json()));
        hash.text(&heads_to_json(heads));
        let mut vector = |values: Option<&Vec<f64>>| match values {
            Some(values) => hash.bytes(bytemuck::cast_slice(values)),
            None => hash.number(u64::MAX),
        };
        vector(normalizer.as_ref().and_then(|of| of.offset.as_ref()));
        vector(normalizer.as_ref().map(|of| &of.shift));
        vector(normalizer.as_ref().map(|of| &of.scale));
        vector(target_scale.as_ref().map(|of| &of.shift));
        vector(target_scale.as_ref().map(|of| &of.scale));
        hash.finish()
    }

    /// The first contradiction within a stranger's preprocessor, in words. How its columns become features is checked by whoever reads them.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let SavedPreprocessor { features, normalizer, target_scale, labels, .. } = self;
        let of_features = normalizer.iter().flat_map(|normalizer| {
            let offset = normalizer.offset.as_ref().map(|offset| ("offset", offset.len()));
            [("shift", normalizer.shift.len()), ("scale", normalizer.scale.len())].into_iter().chain(offset)
        });
        for (name, len) in of_features {
            if len != features.len() {
                let n = features.len();
                return Some(format!("it normalizes {len} features by {name}, and has {n}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn preprocessor() -> SavedPreprocessor {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let normalizer = Normalizer { offset: None, shift: vec![1.0; 3], scale: vec![0.5; 3] };
        let target_scale = Some(TargetScale { shift: vec![3e5], scale: vec![1e5] });
        SavedPreprocessor { normalizer: Some(normalizer), target_scale, ..SavedPreprocessor::identity(names) }
    }

    #[test]
    fn parts_that_disagree_are_found() {
        assert_eq!(preprocessor().contradiction(), None);
        let normalizer = |change: fn(&mut Normalizer)| {
            let mut of = preprocessor();
            of.normalizer.iter_mut().for_each(change);
            of
        };
        let targets = TargetScale { shift: vec![1.0], scale: vec![1.0, 2.0] };
        for (of, words) in [
            (
                SavedPreprocessor { features: vec!["a".to_owned()], ..preprocessor() },
                "3 features by shift, and has 1",
            ),
            (normalizer(|of| of.scale.clear()), "0 features by scale"),
            (normalizer(|of| of.offset = Some(vec![0.0; 4])), "4 features by offset"),
            (
                SavedPreprocessor { target_scale: Some(targets), ..preprocessor() },
                "shifts 1 targets and scales 2",
            ),
        ] {
            let found = of.contradiction().unwrap_or_default();
            assert!(found.contains(words), "{words}: {found}");
        }
    }
}
