//! Contradictions within a saved conversion of columns, such as that of a stranger's model: checked once where it is read, so that everything behind
//! may index by it.

use std::collections::HashSet;

use crate::fit::preprocess::ColumnCodes;

impl ColumnCodes {
    /// The first contradiction, in words, of a conversion to `n_features` features; `None` for one that was fitted.
    pub(super) fn contradiction(&self, n_features: usize) -> Option<String> {
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
        if let Some(column) = wrong {
            return Some(format!(
                "column {column}, which it marks as having missing values, is none of its numbers"
            ));
        }
        let n_made = self.n_features();
        (n_made != n_features).then(|| format!("it has {n_features} features, and its columns make {n_made}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn parts_that_disagree_are_found() {
        let plain = || ColumnCodes::plain(["a", "b", "c"].map(str::to_owned).to_vec());
        assert_eq!(plain().contradiction(3), None);
        let plan = |key: &str, value: Value| -> ColumnCodes {
            let mut json = serde_json::to_value(plain()).unwrap();
            json[key] = value;
            serde_json::from_value(json).unwrap()
        };
        for (of, words) in [
            (plan("columns", json!([])), "no columns"),
            (plan("columns", json!(["a", "a", "c"])), "two of its columns have one name"),
            (plan("columns", json!(["a", "b"])), "3 features, and its columns make 2"),
            (plan("fill", json!([])), "0 replacements of missing values for 3 columns"),
            (plan("ranges", json!([[null, null]])), "1 ranges for 3 columns"),
            (plan("indicators", json!([9])), "column 9"),
            (plan("indicators", json!([1, 1])), "column 1"),
        ] {
            let found = of.contradiction(3).unwrap_or_default();
            assert!(found.contains(words), "{words}: {found}");
        }
    }
}
