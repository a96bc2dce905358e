//! Configs that together name every kind of layer, loss, optimizer and number format, made from the tables that define them, so that a
//! new one is among them. For checks of a device.
//!
//! ```
//! use ddp::config::examples::examples;
//! use ddp::nn::Precision;
//!
//! let examples = examples(&[Precision::F32])?;
//! assert!(examples.iter().any(|example| example.name.contains("huber")));
//! assert!(examples.iter().all(|example| example.config.train.precision == Precision::F32));
//! # Ok::<(), ddp::config::ConfigError>(())
//! ```

use std::fmt;

use super::data_values::Task;
use super::layers::example_of_every_kind;
use super::loss_names::losses_of;
use super::precision::Precision;
use super::{Activation, Config, ConfigError, Gate, OptimizerKind};

/// Widths of layers: odd ones, whose rows are not aligned, and such as vectorized kernels and tensor cores take.
const WIDTHS: [usize; 4] = [33, 64, 7, 130];
/// Width and rows of the configs with large matmuls, and their classes.
const LARGE: usize = 256;
const MANY_CLASSES: usize = 300;
/// Rows of a step in the other configs.
const ROWS: usize = 37;

/// A config and the names of what it is an example of.
#[derive(Debug, Clone)]
pub struct Example {
    /// Such as `mse, adamw, bf16`.
    pub name: String,
    /// The config; its data does not exist.
    pub config: Config,
}

/// Examples that together name every layer, loss, optimizer, activation and number format of `precisions`.
///
/// # Errors
/// [`ConfigError`] if a table's own examples do not fit together.
pub fn examples(precisions: &[Precision]) -> Result<Vec<Example>, ConfigError> {
    let tasks = [Task::Classification, Task::Multilabel, Task::Regression];
    let losses: Vec<_> =
        tasks.into_iter().flat_map(|task| losses_of(task).iter().map(move |loss| (task, *loss))).collect();
    let optimizers = OptimizerKind::NAMES;
    let n_rounds = [losses.len() + 1, optimizers.len(), Activation::NAMES.len(), Gate::NAMES.len()];
    let n_rounds = n_rounds.into_iter().max().unwrap_or(0);
    let mut examples = Vec::new();
    for round in 0..n_rounds {
        // Over several cycles of the losses, each meets several formats and optimizers.
        let optimizer = optimizers[round % optimizers.len()];
        let precision = precisions[round % precisions.len()];
        let layers = example_of_every_kind(WIDTHS[round % WIDTHS.len()], round);
        let mut sets = vec![format!("model.layers={layers}")];
        let goal: &dyn fmt::Display = match losses.get(round % (losses.len() + 1)) {
            Some((task, loss)) => {
                sets.extend([format!("data.task={}", task.name()), format!("loss.kind={loss}")]);
                loss
            }
            None => {
                let head = |task: Task| format!("{{ name = \"{0}\", task = \"{0}\" }}", task.name());
                sets.push(format!("heads=[{}]", tasks.map(head).join(", ")));
                &"several heads"
            }
        };
        let name = format!("all layers, {goal}, {optimizer}, {}", precision.name());
        let rare: &[(&str, bool)] = &[
            ("data.encode=embedding", round % 2 == 0),
            ("data.normalize=none", round % 3 == 2),
            ("data.placement=device", round % 3 == 0),
            ("data.weight=w", round % 4 == 1),
            ("train.clip_grad_norm=0.5", round % 2 == 1),
            ("train.grad_accum_steps=2", round % 3 == 1),
            ("train.ema_decay=0.9", round % 4 == 2),
            ("train.deterministic=true", round % 5 == 4),
        ];
        sets.extend(rare.iter().filter(|(_, is_set)| *is_set).map(|(set, _)| (*set).to_owned()));
        examples.push(Example { name, config: config(sets, optimizer, precision, ROWS)? });
    }
    for (index, precision) in precisions.iter().enumerate() {
        let activation = Activation::NAMES[index % Activation::NAMES.len()];
        let mut sets = vec![
            format!("model.hidden=[{LARGE}, {LARGE}, {LARGE}]"),
            format!("model.activation={activation}"),
            format!("data.classes={MANY_CLASSES}"),
        ];
        if index % 2 == 1 {
            // Activations are not part of matmuls then.
            sets.extend(["model.norm=layer".to_owned(), "model.residual=true".to_owned()]);
        }
        let name = format!("wide layers, {activation}, {}", precision.name());
        examples.push(Example { name, config: config(sets, "sgd", *precision, LARGE)? });
    }
    Ok(examples)
}

fn config(
    mut sets: Vec<String>,
    optimizer: &str,
    precision: Precision,
    rows: usize,
) -> Result<Config, ConfigError> {
    sets.extend([
        "data.train=rows.csv".to_owned(),
        format!("optimizer.kind={optimizer}"),
        format!("train.precision={}", precision.name()),
        format!("train.global_batch_size={rows}"),
    ]);
    Config::load(None, &sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_tables_is_in_an_example() {
        let examples = examples(&Precision::ALL).unwrap();
        let text: String = examples.iter().map(|example| example.config.to_toml()).collect();
        let losses = [Task::Classification, Task::Multilabel, Task::Regression].map(losses_of).concat();
        let of_layers = ["\"residual\"", "\"batch_norm\"", "\"numeric_embedding\""];
        let names = [OptimizerKind::NAMES, Activation::NAMES, Gate::NAMES, &losses].concat();
        let names = names.into_iter().chain(Precision::ALL.map(Precision::name));
        let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
        for name in names.iter().map(String::as_str).chain(of_layers) {
            assert!(text.contains(name), "no {name} in {text}");
        }
    }
}
