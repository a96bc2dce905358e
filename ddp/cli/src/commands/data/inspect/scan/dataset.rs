//! Reads the rows of built-in sets through the training path.

use ddp::data::batch::BatchMut;
use ddp::data::{Dataset, Label, LabelVocabulary, SourceSpec, TargetLayout};
use ddp_kernels::{DType, Device, Tensor, ops};

use super::numbers::{add_labels, add_numbers};
use crate::commands::data::inspect::collector::Collector;
use crate::commands::data::inspect::column_profile::Kind;
use crate::commands::data::inspect::origin::{FileSize, Origin};
use crate::error::Result;

/// Reads all rows of `spec`.
pub(super) fn scan(spec: &SourceSpec<'_>, format: &str, files: Vec<FileSize>) -> Result<(Origin, Collector)> {
    let dataset = spec.open()?;
    let layout = dataset.layout();
    let width = layout.n_features();
    let mut names = layout.features.clone();
    let element = match layout.dtype {
        DType::U8 => "u8",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "f32",
    };
    let mut kinds = vec![Some(Kind::Element(element)); width];
    for category in &layout.categories {
        kinds[category.column] = Some(Kind::Category);
    }
    match &layout.targets {
        TargetLayout::Classes { .. } => names.push(spec.data.target[0].clone()),
        targets => names.extend(targets.column_names()),
    }
    let holds_text = |labels: &LabelVocabulary| labels.labels().any(|label| matches!(label, Label::Text(_)));
    let of_target = layout.labels.as_deref().filter(|labels| holds_text(labels)).map(|_| Kind::Text);
    kinds.resize(names.len(), of_target);
    let origin = Origin {
        format: format.to_owned(),
        files,
        arrays: Vec::new(),
        targets: (width..names.len()).collect(),
        kinds,
        names,
        nested_lists: Vec::new(),
        left_out: layout.left_out.clone(),
        place: "row",
        types: Vec::new(),
        texts: Vec::new(),
        keys: Vec::new(),
    };
    Ok((origin, collect(&*dataset)?))
}

fn collect(dataset: &dyn Dataset) -> Result<Collector> {
    let layout = dataset.layout();
    let width = layout.n_features();
    let n_targets = match &layout.targets {
        TargetLayout::Classes { .. } => 1,
        targets => targets.n_values(),
    };
    let mut collector = Collector::new(width + n_targets, Some(width));
    let chunk_rows = collector.chunk_rows();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let (mut numbers, mut keys) = (Vec::new(), Vec::new());
    for start in (0..dataset.len()).step_by(chunk_rows) {
        let rows: Vec<usize> = (start..(start + chunk_rows).min(dataset.len())).collect();
        let n = rows.len();
        let mut raw = zeros(&[n, width], layout.dtype)?;
        let mut x = zeros(&[n, width], DType::F32)?;
        let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype())?;
        let mut weights = zeros(&[n], DType::F32)?;
        let out = BatchMut {
            x: raw.view_mut(),
            targets: targets.view_mut(),
            weights: layout.has_weights.then(|| weights.view_mut()),
        };
        dataset.gather(&rows, out)?;
        ops::load_rows(raw.view(), None, None, x.view_mut())?;
        let x = x.to_vec::<f32>()?;
        let targets: Vec<f64> = match targets.dtype() {
            DType::I64 => targets.to_vec::<i64>()?.into_iter().map(|label| label as f64).collect(),
            _ => targets.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        };
        numbers.clear();
        for row in 0..n {
            numbers.extend(x[row * width..][..width].iter().copied().map(f64::from));
            numbers.extend_from_slice(&targets[row * n_targets..][..n_targets]);
        }
        match layout.labels.as_deref() {
            Some(labels) if !labels.is_numbers() => {
                add_labels(&mut collector, &mut numbers, labels, start, &mut keys);
            }
            _ => add_numbers(&mut collector, &mut numbers, start, &mut keys),
        }
    }
    Ok(collector)
}
