//! Conventional names of arrays in files that hold several.

/// Conventional names of features.
pub const FEATURE_KEYS: &[&str] =
    &["features", "x", "X", "x_train", "X_train", "train_features", "data", "images", "embeddings"];
/// Conventional names of labels.
pub const LABEL_KEYS: &[&str] =
    &["labels", "y", "Y", "y_train", "Y_train", "train_labels", "targets", "label", "target"];

/// The name of the array of test rows for that of training rows; "" if there is no usual one.
pub fn test_key(key: &str) -> String {
    if key.contains("train") { key.replace("train", "test") } else { String::new() }
}
