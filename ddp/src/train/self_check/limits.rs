//! Limits the size of a config's model, so that a check of it takes no more than a second and little memory.

use crate::config::{Batch, Config, LayerConfig, LayerEntry, Length};

/// Widths up to this are kept.
const MAX_WIDTH: usize = 256;
/// A wider layer keeps its remainder of this, which decides which loads of a kernel are aligned.
const ALIGNMENT: usize = 64;
/// Most layers of a list, and most copies of one.
const MAX_LAYERS: usize = 24;
const MAX_REPEAT: usize = 2;
/// Most micro-batches.
const MAX_MICRO_BATCHES: usize = 2;
/// Scale of the loss in f16 at which no gradient of so small a model overflows.
const MAX_LOSS_SCALE: f64 = 16.0;

/// The config with narrower and fewer layers, smaller batches and one epoch, but with the same kinds of layers and the same
/// alignment of rows.
pub fn limited(config: &Config) -> Config {
    let mut config = config.clone();
    let model = &mut config.model;
    model.hidden.truncate(MAX_LAYERS);
    model.hidden.iter_mut().for_each(|width| *width = narrow(*width));
    limit_layers(&mut model.layers);
    let train = &mut config.train;
    train.grad_accum_steps = train.grad_accum_steps.min(MAX_MICRO_BATCHES);
    let rows = match train.batch {
        Batch::PerRank(rows) => narrow(rows).saturating_mul(train.grad_accum_steps),
        Batch::Global(rows) => narrow(rows),
    };
    // Batch norm needs two rows.
    train.batch = Batch::Global(rows.max(2 * train.grad_accum_steps));
    train.length = Length::Epochs(1);
    train.loss_scale_init = train.loss_scale_init.min(MAX_LOSS_SCALE);
    config.optimizer.lr = config.optimizer.lr.min(config.optimizer.kind.defaults().lr);
    config
}

fn narrow(width: usize) -> usize {
    if width <= MAX_WIDTH { width } else { MAX_WIDTH - ALIGNMENT + width % ALIGNMENT }
}

fn limit_layers(layers: &mut Vec<LayerEntry>) {
    layers.truncate(MAX_LAYERS);
    for LayerEntry { layer, repeat } in layers {
        *repeat = (*repeat).min(MAX_REPEAT);
        match layer {
            LayerConfig::Linear { out_features, .. } | LayerConfig::Glu { out_features, .. } => {
                *out_features = narrow(*out_features);
            }
            LayerConfig::NumericEmbedding { dim, n_frequencies, .. } => {
                (*dim, *n_frequencies) = ((*dim).min(8), narrow(*n_frequencies));
            }
            LayerConfig::Residual { layers } => limit_layers(layers),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_model_keeps_its_kinds_and_alignment() {
        let block = r#"{ kind = "residual", layers = [{ kind = "glu", out_features = 5000 }, { kind = "linear", out_features = 1001 }] }"#;
        let layers = format!(r#"model.layers=[{{ kind = "linear", out_features = 1001 }}, {block}]"#);
        let sets = [layers, "train.batch_size=4099".to_owned()];
        let limited = limited(&Config::load(None, &sets).unwrap());
        assert_eq!(limited.train.batch, Batch::Global(195));
        // The block still keeps the width of its rows.
        let again = Config::from_saved(&limited.to_toml(), "saved.toml".as_ref()).unwrap();
        assert_eq!(again.model.layers[0].layer.out_features(), Some(192 + 1001 % 64));
        assert_eq!(again.model, limited.model);
    }
}
