//! A random program: how it is drawn, which draws the library refuses, and simpler programs.

use ddp::config::precision::Precision;
use ddp::config::{
    Activation, CommDtype, Gate, LayerConfig, LayerEntry, Loss, ModelConfig, OptimizerKind, Placement,
    ZeroStage,
};
use ddp::model::ModelSpec;
use ddp::optim::loss_scaler::LossScalerConfig;
use ddp::train::trainer::{GraphMode, NonFinite, TrainerOptions};

use crate::made_up::gpus::most_gpus;
use crate::made_up::{N_CLASSES, Setup, cross_entropy, embeddings, losses, row_weights};

/// Maximum number of steps of a program.
pub(crate) const MAX_STEPS: usize = 6;

/// A training run, and how it is stopped and resumed.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) setup: Setup,
    pub(crate) n_ranks: usize,
    /// Number of steps after which the run is saved.
    pub(crate) saved_after: usize,
    /// Number of ranks that resume the run.
    pub(crate) resumed_on: usize,
}

impl Program {
    /// Draws the program of a seed.
    pub(crate) fn draw(seed: u64, on_gpus: bool) -> Self {
        let draws = &mut Draws(seed);
        let max_ranks = if on_gpus { most_gpus() } else { 4 };
        let n_features = 4 + draws.below(5);
        let loss = match draws.below(12) {
            11 => Setup::several_heads().loss,
            index => losses()[index].clone(),
        };
        let n_outputs = if matches!(loss, Loss::Heads(_)) { N_CLASSES + 3 } else { N_CLASSES };
        let tables = draws.once_in(4).then(|| embeddings([1 + draws.below(4), 1 + draws.below(4)]));
        let width = n_features + tables.iter().flatten().map(|table| table.dim - 1).sum::<usize>();
        let mut spec = with_layers(draws.layers(width), n_features, n_outputs);
        if spec.layers.is_empty() {
            spec.dims.splice(1..1, [1 + draws.below(9), 7]);
            (spec.layer_norm, spec.residual) = (draws.once_in(2), draws.once_in(2));
            (spec.dropout, spec.activation) = (draws.of(&[0.0, 0.25]), draws.of(Activation::ALL));
        }
        let spec = tables.into_iter().fold(spec, ModelSpec::with_embeddings);
        let global_rows = 1 + draws.below(13);
        let any = 1 + draws.below(30);
        let n_rows = draws.of(&[1, global_rows, 2 * global_rows + 1, any]);
        let n_steps = MAX_STEPS.min(2 * n_rows.div_ceil(global_rows));
        let n_ranks = 1 + draws.below(max_ranks);
        let n_micro = 1 + draws.below(4);
        let of_16_bits = draws.of(&[Precision::Bf16, Precision::F16]);
        let single = draws.of(&[Precision::F32, Precision::F32, Precision::F32x3, Precision::Tf32]);
        let precision = if draws.once_in(3) { of_16_bits } else { single };
        let precision = if draws.once_in(30) { Precision::F64 } else { precision };
        let micro_shards = draws.once_in(4).then(|| draws.of(&[4, 8]));
        let scaling =
            LossScalerConfig { init_scale: draws.of(&[1024.0, 65536.0]), ..LossScalerConfig::default() };
        let options = TrainerOptions {
            seed: draws.below(1000) as u64,
            clip_grad_norm: draws.of(&[0.0, 0.7]),
            bucket_bytes: draws.of(&[1, 300, 1500, 25 << 20]),
            overlap: draws.once_in(2),
            divide_update_from: draws.of(&[1, usize::MAX]),
            zero: draws.of(&[ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients]),
            gathers_short_weights: draws.once_in(2),
            micro_shards,
            mean_weight: 1.0,
            loss_scaling: (precision == Precision::F16 || draws.once_in(6)).then_some(scaling),
            nonfinite: draws.of(&[NonFinite::Fail, NonFinite::Withhold]),
            comm_dtype: if draws.once_in(6) { CommDtype::Bf16 } else { CommDtype::F32 },
            has_one_micro_batch: n_micro == 1 && micro_shards.is_none(),
            graph: draws.of(&[GraphMode::Auto, GraphMode::Off]),
            zero_copies: false,
        };
        let setup = Setup {
            shares_micro_batches: mixes_rows(&spec.layers) || draws.once_in(3),
            spec,
            optimizer: draws.of(OptimizerKind::ALL),
            lr: Some(0.003),
            // Large enough that steps do not follow the rounding noise of gradients that are 0, such as that of a shift before a
            // norm.
            eps: 1e-3,
            weight_decay: draws.of(&[0.0, 0.1]),
            loss,
            row_weights: draws.once_in(3).then(|| row_weights(n_rows)),
            n_rows,
            global_rows,
            n_micro,
            n_epochs: 2,
            options,
            precision,
            on_gpus,
            placement: draws.of(&[Placement::Host, Placement::Device]),
            ema_decay: draws.of(&[0.0, 0.9]),
            ..Setup::usual()
        };
        let saved_after = draws.below(n_steps);
        let resumed_on = 1 + draws.below(max_ranks);
        let has_copies =
            options.zero != ZeroStage::Off && (on_gpus || setup.optimizer.whole_need().is_none());
        let zero_copies = draws.once_in(2) && (has_copies || draws.once_in(6));
        let setup = Setup { options: TrainerOptions { zero_copies, ..options }, ..setup };
        Program { setup, n_ranks, saved_after, resumed_on }
    }

    /// Simpler variants of the program, each without one of its parts.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let spec = &self.setup.spec;
        let mut lists = Vec::new();
        for index in 0..spec.layers.len() {
            let mut layers = spec.layers.clone();
            let LayerEntry { layer, .. } = layers.remove(index);
            lists.push(layers.clone());
            if let LayerConfig::Residual { layers: mut body } = layer
                && body.pop().is_some()
            {
                layers.insert(index, LayerConfig::Residual { layers: body }.once());
                lists.push(layers);
            }
        }
        let of_list = |layers| {
            let embeddings = spec.embeddings.clone();
            let spec = with_layers(layers, spec.n_features(), spec.n_outputs()).with_embeddings(embeddings);
            Program { setup: Setup { spec, ..self.setup.clone() }, ..self.clone() }
        };
        let changes: [fn(&mut Program); 13] = [
            |program| program.n_ranks = 2.min(program.n_ranks),
            |program| program.setup.precision = Precision::F32,
            |program| program.setup.row_weights = None,
            |program| program.setup.optimizer = OptimizerKind::Sgd,
            |program| program.setup.ema_decay = 0.0,
            |program| program.setup.n_micro = 1,
            |program| {
                program.setup.options =
                    TrainerOptions { zero: ZeroStage::Off, zero_copies: false, ..program.setup.options };
            },
            |program| program.setup.options.zero_copies = false,
            |program| program.setup.options.clip_grad_norm = 0.0,
            |program| program.setup.options.loss_scaling = None,
            |program| program.setup.options.micro_shards = None,
            |program| program.setup.options.bucket_bytes = 25 << 20,
            |program| {
                if !matches!(program.setup.loss, Loss::Heads(_)) {
                    program.setup.loss = cross_entropy(None);
                }
            },
        ];
        let changed = changes.into_iter().map(|change| {
            let mut program = self.clone();
            change(&mut program);
            program
        });
        let differs = |program: &Program| format!("{program:?}") != format!("{self:?}");
        lists.into_iter().map(of_list).chain(changed).filter(differs).collect()
    }

    /// Whether a layer computes statistics over the rows of a micro-batch.
    pub(crate) fn mixes_rows(&self) -> bool {
        mixes_rows(&self.setup.spec.layers)
    }

    /// Whether the library refuses such a run.
    pub(crate) fn is_refused(&self) -> bool {
        let TrainerOptions { zero, zero_copies, micro_shards, comm_dtype, .. } = self.setup.options;
        let sums_squares = self.setup.optimizer == OptimizerKind::Lamb;
        let rounds = self.setup.on_gpus && comm_dtype == CommDtype::Bf16;
        let has_shards = zero != ZeroStage::Off;
        let has_second_stage = zero == ZeroStage::Gradients;
        let has_two_passes = self.setup.optimizer.whole_need().is_some();
        self.setup.precision == Precision::F64
            || (zero_copies && (!has_shards || (has_two_passes && !self.setup.on_gpus)))
            || (rounds && has_second_stage)
            || (micro_shards.is_some()
                && (has_second_stage || rounds || self.mixes_rows() || (sums_squares && has_shards)))
    }
}

/// Random numbers: SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// Returns true with probability `1/n`.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Draws a layer that keeps the width `width`, or, if `may_widen`, possibly one that changes it.
    fn layer(&mut self, width: usize, may_widen: bool) -> LayerConfig {
        let (activation, gate) = (self.of(Activation::ALL), self.of(&Gate::ALL));
        let out_features = if may_widen { 1 + self.below(9) } else { width };
        let bias = !self.once_in(4);
        match self.below(10) {
            0 => LayerConfig::Glu { out_features, gate, bias },
            1 => LayerConfig::Activation(activation),
            2 => LayerConfig::LayerNorm,
            3 => LayerConfig::RmsNorm,
            4 => LayerConfig::BatchNorm { eps: 1e-3, momentum: 0.3 },
            5 => LayerConfig::Dropout { p: 0.25 },
            6 => LayerConfig::Scale,
            n => LayerConfig::Linear { out_features, activation: (n == 7).then_some(activation), bias },
        }
    }

    /// Draws a list of layers, possibly empty, for rows of this width.
    fn layers(&mut self, mut width: usize) -> Vec<LayerEntry> {
        let mut layers = Vec::new();
        for _ in 0..self.below(6) {
            let layer = match self.below(5) {
                0 => {
                    let body = (0..self.below(4)).map(|_| self.layer(width, false).once());
                    LayerConfig::Residual { layers: body.collect() }
                }
                1 if width < 10 => LayerConfig::NumericEmbedding { dim: 3, n_frequencies: 2, sigma: 0.1 },
                _ => self.layer(width, true),
            };
            let is_numeric = matches!(layer, LayerConfig::NumericEmbedding { .. });
            let repeat = if !is_numeric && self.once_in(6) { 2 } else { 1 };
            width = if is_numeric { 3 * width } else { layer.out_features().unwrap_or(width) };
            layers.push(LayerEntry { layer, repeat });
        }
        layers
    }
}

/// The model with this list of layers.
fn with_layers(layers: Vec<LayerEntry>, n_features: usize, n_outputs: usize) -> ModelSpec {
    ModelSpec::new(&ModelConfig::from_layers(layers, true), n_features, n_outputs)
}

fn mixes_rows(layers: &[LayerEntry]) -> bool {
    ModelConfig::from_layers(layers.to_vec(), true).mixes_rows()
}
