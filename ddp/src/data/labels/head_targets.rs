//! Targets of one head of several.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::Task;
use crate::data::labels::LabelVocabulary;

/// Targets of one head of several: columns of values, or one column of class indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadTargets {
    /// Name of the head.
    pub name: String,
    /// Kind of its targets; never [`Task::Heads`].
    pub task: Task,
    /// Names of its columns; one for classification.
    pub columns: Vec<String>,
    /// Labels of the classes in classification.
    pub labels: Option<Arc<LabelVocabulary>>,
}

impl HeadTargets {
    /// Classes, labels or target columns.
    pub fn n_targets(&self) -> usize {
        self.labels.as_ref().map_or(self.columns.len(), |labels| labels.len())
    }

    /// Names of the classes, labels or targets.
    pub fn names(&self) -> Vec<String> {
        match &self.labels {
            Some(labels) => (0..labels.len()).map(|class| labels.name(class)).collect(),
            None => self.columns.clone(),
        }
    }
}

/// Places of each head's columns among those of all heads.
pub fn head_columns(heads: &[HeadTargets]) -> impl Iterator<Item = Range<usize>> + '_ {
    heads.iter().scan(0, |end, head| {
        let start = *end;
        *end += head.columns.len();
        Some(start..*end)
    })
}

/// A head as models' files hold it.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    name: String,
    task: String,
    columns: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<serde_json::Value>,
}

/// Heads as JSON for a model's file.
pub fn heads_to_json(heads: &[HeadTargets]) -> String {
    let stored = |head: &HeadTargets| Stored {
        name: head.name.clone(),
        task: head.task.name().to_owned(),
        columns: head.columns.clone(),
        labels: head
            .labels
            .as_ref()
            .map(|labels| serde_json::from_str(&labels.to_json()).expect("labels are written as JSON")),
    };
    let stored: Vec<Stored> = heads.iter().map(stored).collect();
    serde_json::to_string(&stored).expect("names and labels are plain text")
}

/// Heads from the JSON of a model's file.
///
/// # Errors
/// Description of the mistake in the text.
pub fn heads_from_json(text: &str) -> Result<Vec<HeadTargets>, String> {
    let stored: Vec<Stored> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let head = |Stored { name, task, columns, labels }: Stored| {
        let task = Task::ALL.iter().copied().find(|of| of.name() == task && *of != Task::Heads);
        let task = task.ok_or_else(|| format!("the head \"{name}\" has no task"))?;
        let labels = labels.map(|labels| LabelVocabulary::from_json(&labels.to_string())).transpose()?;
        let has_classes = task == Task::Classification;
        if columns.is_empty() || has_classes != labels.is_some() || (has_classes && columns.len() > 1) {
            return Err(format!("the head \"{name}\" has other targets than its task"));
        }
        Ok(HeadTargets { name, task, columns, labels: labels.map(Arc::new) })
    };
    stored.into_iter().map(head).collect()
}

#[cfg(test)]
mod tests {
    use crate::data::Label;
    use crate::data::labels::head_targets::*;

    fn heads() -> Vec<HeadTargets> {
        let labels = LabelVocabulary::new(["b", "a", "c"].map(Label::from));
        let head = |name: &str, task, columns: &[&str], labels| HeadTargets {
            name: name.to_owned(),
            task,
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            labels,
        };
        vec![
            head("size", Task::Regression, &["width", "length"], None),
            head("kind", Task::Classification, &["kind"], Some(Arc::new(labels))),
        ]
    }

    #[test]
    fn files_hold_heads() {
        let heads = heads();
        assert_eq!(heads_from_json(&heads_to_json(&heads)), Ok(heads));
        assert!(heads_from_json(r#"[{"name":"a","task":"classification","columns":["a"]}]"#).is_err());
        assert!(heads_from_json(r#"[{"name":"a","task":"heads","columns":["a"]}]"#).is_err());
        assert!(heads_from_json(r#"[{"name":"a","task":"regression","columns":[]}]"#).is_err());
    }

    #[test]
    fn columns_follow_each_other() {
        let heads = heads();
        assert_eq!(head_columns(&heads).collect::<Vec<_>>(), [0..2, 2..3]);
        assert_eq!((heads[0].n_targets(), heads[1].n_targets()), (2, 3));
        assert_eq!(heads[1].names(), ["a", "b", "c"]);
    }
}
