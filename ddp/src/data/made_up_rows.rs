//! Rows that stand in for data of the user. Made-up ones can be trained on: numbers and categories, encoded as the config says, and
//! targets of its task. Absent ones are never read: a run is planned by their number and layout.

use std::sync::Arc;

use ddp_kernels::{DType, Device, Tensor};

use crate::config::{ClassWeights, Config, ElementLoss, Encode, Loss, Normalize, Task};
use crate::data::datasets::batch::BatchMut;
use crate::data::error::Result;
use crate::data::saved_preprocessor::SavedPreprocessor;
use crate::data::{
    Dataset, EmbeddingSpec, HeadTargets, LabelVocabulary, Loaded, Normalizer, RowLayout, TargetLayout,
    Targets, TensorDataset, numbered_columns,
};

/// Columns of numbers: an odd number, so that rows are not aligned.
const N_NUMBERS: usize = 19;
/// Values of each column of categories.
const N_VALUES: [usize; 2] = [6, 40];
/// Classes, and columns of targets, where the config leaves them open.
const N_CLASSES: usize = 7;
const N_TARGETS: usize = 3;
/// Most classes.
const MAX_CLASSES: usize = 1000;

/// Makes `n_rows` training rows. They depend on nothing but their number and the config.
///
/// # Errors
/// [`DataError`](crate::data::DataError) if host memory is exhausted.
pub fn made_up_rows(config: &Config, n_rows: usize) -> Result<Loaded> {
    let n_columns = N_NUMBERS + N_VALUES.len();
    let embeds = config.data.encode == Encode::Embedding;
    let numbers = Tensor::randn(&[n_rows, n_columns], DType::F32, Device::Cpu, 11)?;
    let mut features = numbers.to_vec::<f32>()?;
    for row in features.chunks_exact_mut(n_columns) {
        for (code, n_values) in row[N_NUMBERS..].iter_mut().zip(N_VALUES) {
            // 0 stands for an unknown value.
            *code = (code.abs() * 0.3 * (n_values + 1) as f32).floor().min(n_values as f32);
        }
    }
    let rows: Vec<&[f32]> = features.chunks_exact(n_columns).collect();
    let (targets, layout) = targets(config, &rows);
    let weights = config.data.weight.is_some().then(|| {
        // One in five is 0.
        (0..n_rows).map(|row| [0.25, 3.0, 0.0, 1.5, 8.0][row % 5]).collect::<Vec<f32>>()
    });
    let (features, embeddings) = encoded(&rows, embeds, config.data.embedding_dim);
    let names = numbered_columns(
        N_NUMBERS + if embeds { N_VALUES.len() } else { N_VALUES.iter().map(|n| n + 1).sum() },
    );
    let is_number = |feature: usize| feature < N_NUMBERS;
    let of = |number: fn(usize) -> f64, other| {
        (0..names.len()).map(|n| if is_number(n) { number(n) } else { other }).collect()
    };
    let normalizer = (config.data.normalize != Normalize::None)
        .then(|| Normalizer::new(of(|n| 0.01 * n as f64, 0.0), of(|n| 1.0 + 0.02 * n as f64, 1.0)));
    let layout = RowLayout { has_weights: weights.is_some(), ..RowLayout::new(names.clone(), layout) };
    let preprocessor = SavedPreprocessor {
        embeddings,
        normalizer,
        heads: layout.targets.heads().to_vec(),
        ..SavedPreprocessor::identity(names)
    };
    let train: Arc<dyn Dataset> =
        Arc::new(TensorDataset { features, targets, weights, layout, source: "made-up rows".to_owned() });
    Ok(loaded(train, preprocessor))
}

/// Features of `rows`: numbers, then a feature per value or the code of each category; and the embeddings of the codes.
fn encoded(rows: &[&[f32]], embeds: bool, dim: Option<usize>) -> (Vec<f32>, Vec<EmbeddingSpec>) {
    let mut features = Vec::new();
    for row in rows {
        features.extend(&row[..N_NUMBERS]);
        for (&code, n_values) in row[N_NUMBERS..].iter().zip(N_VALUES) {
            if embeds {
                features.push(code);
            } else {
                features.extend((0..=n_values).map(|value| f32::from(u8::from(value == code as usize))));
            }
        }
    }
    let embedding = |(index, n_values): (usize, usize)| {
        let (name, n_codes) = (format!("f{}", N_NUMBERS + index), n_values + 1);
        EmbeddingSpec { name, n_codes, dim: dim.unwrap_or_else(|| EmbeddingSpec::usual_dim(n_codes)) }
    };
    let embeddings = N_VALUES.into_iter().enumerate().filter(|_| embeds).map(embedding).collect();
    (features, embeddings)
}

fn loaded(train: Arc<dyn Dataset>, preprocessor: SavedPreprocessor) -> Loaded {
    Loaded {
        plain: train.clone(),
        train,
        eval: None,
        preprocessor,
        warnings: Vec::new(),
        task_choice: None,
        class_counts: None,
        n_skipped: 0,
        split: None,
        head_gaps: Vec::new(),
        task_advice: None,
        data_fingerprint: String::new(),
        held_out: None,
    }
}

/// Rows that cannot be read.
#[derive(Debug)]
struct AbsentRows {
    n_rows: usize,
    layout: RowLayout,
    source: String,
}

impl Dataset for AbsentRows {
    fn len(&self) -> usize {
        self.n_rows
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, _rows: &[usize], _out: BatchMut<'_>) -> Result<()> {
        unreachable!("absent rows are only counted")
    }

    fn fingerprint(&self) -> Result<u64> {
        Ok(0)
    }

    fn source(&self) -> &str {
        &self.source
    }
}

/// Counts `n_rows` training rows of `n_features` numbers in f32 and the targets of the config, without evaluation rows. Returns `None`
/// if the number of classes is not known: there are some, and `data.classes` is not set.
pub fn absent_rows(config: &Config, n_rows: usize, n_features: usize) -> Option<Loaded> {
    let data = &config.data;
    let has_classes = |task| task == Task::Classification;
    if data.classes.is_none()
        && (has_classes(data.task) || data.heads.iter().any(|head| has_classes(head.task)))
    {
        return None;
    }
    let (_, targets) = targets(config, &[]);
    let targets = match (targets, data.classes) {
        // More than made-up rows have.
        (TargetLayout::Classes { .. }, Some(n_classes)) => TargetLayout::Classes { n_classes },
        (targets, _) => targets,
    };
    let has_weights = data.weight.is_some();
    let layout = RowLayout { has_weights, ..RowLayout::new(numbered_columns(n_features), targets) };
    let mut preprocessor = SavedPreprocessor::identity(layout.features.clone());
    preprocessor.heads = layout.targets.heads().to_vec();
    if data.normalize != Normalize::None {
        preprocessor.normalizer = Some(Normalizer::new(vec![0.0; n_features], vec![1.0; n_features]));
    }
    let source = "rows that are not here".to_owned();
    Some(loaded(Arc::new(AbsentRows { n_rows, layout, source }), preprocessor))
}

impl Loaded {
    /// The same rows in another number, which are not read any more, and no evaluation rows.
    #[must_use]
    pub fn with_n_rows(self, n_rows: usize) -> Self {
        let (layout, source) = (self.train.layout().clone(), self.train.source().to_owned());
        let train: Arc<dyn Dataset> = Arc::new(AbsentRows { n_rows, layout, source });
        Loaded { plain: train.clone(), train, eval: None, ..self }
    }
}

/// Number of classes of a loss.
fn n_classes(loss: &Loss, config: &Config) -> usize {
    match loss {
        Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. } => weights.len(),
        _ => config.data.classes.unwrap_or(N_CLASSES).min(MAX_CLASSES),
    }
}

/// Targets of the rows for the task of the config, which the first numbers of a row decide.
fn targets(config: &Config, rows: &[&[f32]]) -> (Targets, TargetLayout) {
    let label = |row: &[f32], n_classes: usize| ((row[0].abs() * 1e3) as usize) % n_classes;
    let value = |row: &[f32], column: usize, loss: &Loss| {
        let x = row[column % N_NUMBERS] + 0.5 * row[(column + 1) % N_NUMBERS];
        match loss {
            Loss::Element(ElementLoss::Bce | ElementLoss::Focal { .. }) => f32::from(x > 0.2),
            Loss::Element(ElementLoss::Poisson) => x.abs().floor(),
            _ => x,
        }
    };
    let (data, loss) = (&config.data, &config.loss);
    match (data.task, loss) {
        (Task::Classification, _) => {
            let n_classes = n_classes(loss, config);
            let labels = rows.iter().map(|row| label(row, n_classes) as i64).collect();
            (Targets::Labels(labels), TargetLayout::Classes { n_classes })
        }
        (Task::Heads, Loss::Heads(losses)) => {
            let with_losses = || data.heads.iter().zip(losses);
            let heads: Vec<_> = with_losses()
                .map(|(head, of_head)| {
                    let labels = (head.task == Task::Classification)
                        .then(|| Arc::new(LabelVocabulary::numbers(n_classes(&of_head.loss, config))));
                    HeadTargets {
                        name: head.name.clone(),
                        task: head.task,
                        columns: head.target.clone(),
                        labels,
                    }
                })
                .collect();
            let mut targets = Vec::new();
            for (n, row) in rows.iter().enumerate() {
                for (index, (head, of_head)) in with_losses().enumerate() {
                    // Some rows lack the target of a head.
                    let lacks = n % 9 == index % 9;
                    for column in 0..head.target.len() {
                        let target = match head.task {
                            Task::Classification => label(row, n_classes(&of_head.loss, config)) as f32,
                            _ => value(row, index + column, &of_head.loss),
                        };
                        targets.push(if lacks { f32::NAN } else { target });
                    }
                }
            }
            (Targets::Values(targets), TargetLayout::Heads { heads: heads.into() })
        }
        _ => {
            let names = match data.target.len() {
                0 => (0..N_TARGETS).map(|n| format!("y{n}")).collect(),
                _ => data.target.clone(),
            };
            let of_row = |row: &&[f32]| (0..names.len()).map(|n| value(row, n, loss)).collect::<Vec<_>>();
            (Targets::Values(rows.iter().flat_map(of_row).collect()), TargetLayout::Values { names })
        }
    }
}
