//! Keys of the metadata with which `data convert` describes columns.

/// Names of the feature columns.
pub(super) const FEATURES_TEXT: &str = "ddp_train.features";
/// Names of the target columns.
pub(super) const TARGETS_TEXT: &str = "ddp_train.targets";
/// Labels of the class numbers, in their order.
pub(super) const LABELS_TEXT: &str = "ddp_train.labels";
/// Columns of category numbers, with their vocabularies.
pub(super) const CATEGORIES_TEXT: &str = "ddp_train.categories";
