//! Settings by which `predict` and `eval` read rows that are written in another way than those of training.

use ddp::config::{Config, DataConfig};
use ddp_tables::predict::PredictError;

use crate::cli::FILE_KEYS;
use crate::error::Result;

/// Applies the settings of `--set` to the `data` of a saved model: only those that say how a file is written.
///
/// # Errors
/// [`PredictError::Usage`] for another key, and errors of the values.
pub(super) fn apply(data: &mut DataConfig, sets: &[String]) -> Result<()> {
    let given = Config::load(None, sets)?.data;
    for set in sets {
        match set.split_once('=').map_or(&**set, |(key, _)| key.trim()) {
            "data.decimal" => data.decimal = given.decimal,
            "data.delimiter" => data.delimiter = given.delimiter,
            "data.header" => data.header = given.header,
            "data.missing_values" => data.missing_values.clone_from(&given.missing_values),
            "data.features_key" => data.features_key.clone_from(&given.features_key),
            "data.labels_key" => data.labels_key.clone_from(&given.labels_key),
            key => {
                return Err(PredictError::Usage {
                    reason: format!("--set {key}: the model decides it"),
                    hint: format!("how a file is written can be set: {}", FILE_KEYS.join(", ")),
                }
                .into());
            }
        }
    }
    Ok(())
}
