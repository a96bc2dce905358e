//! Compares embeddings with an equivalent computation: a table is a linear layer without bias on one-hot columns.

#![allow(clippy::unwrap_used)]

use ddp::config::precision::Precision;
use ddp::model::{EmbeddingSpec, GradientSink, LocalGradients, ModelSpec, Network};
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};

use crate::made_up::gpus::cpu_and_gpu;

const N_ROWS: usize = 50;
const N_NUMBERS: usize = 2;
const N_OUTPUTS: usize = 3;
/// Codes and width of each table.
const TABLES: [(usize, usize); 2] = [(6, 4), (11, 2)];

fn embedded() -> ModelSpec {
    let spec = |(i, &(n_codes, dim)): (usize, &(usize, usize))| EmbeddingSpec {
        name: format!("feature.{i}"),
        n_codes,
        dim,
    };
    let plain = ModelSpec::plain(&[N_NUMBERS + TABLES.len(), 9, N_OUTPUTS], Activation::Tanh);
    plain.with_embeddings(TABLES.iter().enumerate().map(spec).collect())
}

fn table_name(index: usize) -> String {
    format!("embeddings.{}.weight", embedded().embeddings[index].key())
}

fn one_hot() -> ModelSpec {
    let n_codes: usize = TABLES.iter().map(|table| table.0).sum();
    ModelSpec::plain(&[N_NUMBERS + n_codes, 9, N_OUTPUTS], Activation::Tanh)
}

/// Two numbers and two codes; some codes never occur.
fn row(n: usize) -> [f32; N_NUMBERS + TABLES.len()] {
    [(n as f32 * 0.7).sin(), (n as f32 * 1.3).cos(), (n * n % 5) as f32, (n * 7 % 11) as f32]
}

fn one_hot_row(n: usize) -> Vec<f32> {
    let row = row(n);
    let mut wide = row[..N_NUMBERS].to_vec();
    for (code, (n_codes, _)) in row[N_NUMBERS..].iter().zip(TABLES) {
        wide.extend((0..n_codes).map(|c| f32::from(u8::from(c as f32 == *code))));
    }
    wide
}

fn d_outputs() -> Vec<f32> {
    (0..N_ROWS * N_OUTPUTS).map(|i| ((i * i) as f32 * 0.37).sin()).collect()
}

/// Outputs and flat gradients of a model with these weights; the gradient is accumulated in passes over parts of the rows.
fn run(
    spec: &ModelSpec,
    weights: &[f32],
    x: &[f32],
    n_passes: usize,
    device: Device,
) -> (Vec<f32>, Vec<f32>) {
    let mut model = Network::new(spec.clone(), N_ROWS, device, Precision::F32).unwrap();
    let flat = Tensor::from_slice(weights, &[weights.len()], Device::Cpu).unwrap();
    model.set_weights(flat.view()).unwrap();
    let x = Tensor::from_slice(x, &[N_ROWS, spec.n_features()], device).unwrap();
    let d_outputs = Tensor::from_slice(&d_outputs(), &[N_ROWS, N_OUTPUTS], device).unwrap();
    let mut grads = Tensor::full(&[weights.len()], f64::NAN, DType::F32, device).unwrap();
    let mut outputs = Vec::new();
    for pass in 0..n_passes {
        let (start, end) = (pass * N_ROWS / n_passes, (pass + 1) * N_ROWS / n_passes);
        let x = x.view().rows(start, end).unwrap();
        model.forward(x).unwrap();
        let (got, d) = model.outputs_and_gradient().unwrap();
        outputs.extend(got.to_vec::<f32>().unwrap());
        ddp_kernels::ops::copy(d_outputs.view().rows(start, end).unwrap(), d).unwrap();
        model.backward(x, None, pass > 0, &mut LocalGradients(grads.view_mut())).unwrap();
    }
    (outputs, grads.to_vec().unwrap())
}

/// A matrix in f64.
struct Matrix {
    values: Vec<f64>,
    cols: usize,
}

impl Matrix {
    fn of(spec: &ModelSpec, flat: &[f32], name: &str) -> Self {
        let layout = ddp::model::ParamLayout::new(spec);
        let entry = layout.find(name).unwrap();
        Matrix { values: flat[entry.range()].iter().map(|&v| f64::from(v)).collect(), cols: entry.dims[1] }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.values[row * self.cols + col]
    }
}

/// The weights of the equivalent model on one-hot columns: `W_t · table_tᵀ` takes the place of the codes.
fn weights_on_one_hot(weights: &[f32]) -> Vec<f32> {
    let (embedded, one_hot) = (embedded(), one_hot());
    let layout = ddp::model::ParamLayout::new(&one_hot);
    let mut flat = vec![0.0f32; layout.flat_len()];
    // All weights except the first are the same, at the same positions.
    let entry = layout.find("layers.0.weight").unwrap();
    flat[..entry.start].copy_from_slice(&weights[..entry.start]);
    let w = Matrix::of(&embedded, weights, "layers.0.weight");
    for o in 0..entry.dims[0] {
        let mut row: Vec<f64> = (0..N_NUMBERS).map(|i| w.at(o, i)).collect();
        let mut column = N_NUMBERS;
        for (t, (n_codes, dim)) in TABLES.into_iter().enumerate() {
            let table = Matrix::of(&embedded, weights, &table_name(t));
            row.extend(
                (0..n_codes).map(|c| (0..dim).map(|d| w.at(o, column + d) * table.at(c, d)).sum::<f64>()),
            );
            column += dim;
        }
        for (to, v) in flat[entry.range()][o * entry.dims[1]..].iter_mut().zip(row) {
            *to = v as f32;
        }
    }
    flat
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], want: impl IntoIterator<Item = f64>) {
    let mut n = 0;
    for (i, want) in want.into_iter().enumerate() {
        // Sums of up to 50 terms below 4 in f32, with weights that were rounded once more: a few tens of units of 2^-24.
        let within = (f64::from(got[i]) - want).abs() <= 1e-5 + 1e-5 * want.abs();
        assert!(within, "{what}: element {i}: {} against {want}", got[i]);
        n += 1;
    }
    assert_eq!(n, got.len(), "{what}");
}

#[test]
fn an_embedding_is_a_linear_layer_on_one_hot_columns() {
    let (spec, one_hot) = (embedded(), one_hot());
    let mut model = Network::new(spec.clone(), 1, Device::Cpu, Precision::F32).unwrap();
    model.initialize(5).unwrap();
    let weights = model.weights().to_vec::<f32>().unwrap();
    let x: Vec<f32> = (0..N_ROWS).flat_map(row).collect();
    let wide: Vec<f32> = (0..N_ROWS).flat_map(one_hot_row).collect();
    let (want_outputs, want) = run(&one_hot, &weights_on_one_hot(&weights), &wide, 1, Device::Cpu);
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();

    let w = Matrix::of(&spec, &weights, "layers.0.weight");
    // `[O, numbers and codes]`: the gradient of `W_t · table_tᵀ` in the columns of a table's codes.
    let g = Matrix::of(&one_hot, &want, "layers.0.weight");
    let n_hidden = spec.dims[1];
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for n_passes in [1, 3] {
            let (outputs, grads) = run(&spec, &weights, &x, n_passes, device);
            assert_close("outputs", &outputs, wide(&want_outputs));
            let layout = ddp::model::ParamLayout::new(&spec);
            let first = layout.find("layers.0.weight").unwrap();
            for entry in layout.entries().iter().take_while(|entry| entry.start < first.start) {
                assert_close(&entry.name, &grads[entry.range()], wide(&want[entry.range()]));
            }
            let mut d_w: Vec<Vec<f64>> =
                (0..n_hidden).map(|o| (0..N_NUMBERS).map(|i| g.at(o, i)).collect()).collect();
            let (mut column, mut code_column) = (N_NUMBERS, N_NUMBERS);
            for (t, (n_codes, dim)) in TABLES.into_iter().enumerate() {
                let table = Matrix::of(&spec, &weights, &table_name(t));
                for (o, row) in d_w.iter_mut().enumerate() {
                    let d = |d| (0..n_codes).map(|c| g.at(o, code_column + c) * table.at(c, d)).sum::<f64>();
                    row.extend((0..dim).map(d));
                }
                let d_row = |c| {
                    let w = &w;
                    let g = &g;
                    (0..dim).map(move |d| {
                        (0..n_hidden).map(|o| g.at(o, code_column + c) * w.at(o, column + d)).sum::<f64>()
                    })
                };
                let entry = layout.find(&table_name(t)).unwrap();
                assert_close(&entry.name, &grads[entry.range()], (0..n_codes).flat_map(d_row));
                column += dim;
                code_column += n_codes;
            }
            assert_close(&first.name, &grads[first.range()], d_w.into_iter().flatten());
        }
    }
}

/// Records gradients and the calls that a sink receives.
struct Recorder {
    grads: Tensor,
    finished: usize,
}

impl GradientSink for Recorder {
    type Error = KernelError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>, KernelError> {
        assert!(start >= self.finished, "{start}..{end} was finished before");
        self.grads.view_mut().range(start, end)
    }

    fn finished(&mut self, end: usize) -> Result<(), KernelError> {
        assert!(end > self.finished);
        self.finished = end;
        Ok(())
    }

    fn progress(&mut self) -> Result<(), KernelError> {
        Ok(())
    }
}

/// A bucket that is reported too late waits until the end, which the weights would not show.
#[test]
fn tables_are_finished_last_and_layers_before_them() {
    for (spec, n_told) in [(embedded(), 3), (one_hot(), 2)] {
        let mut model = Network::new(spec.clone(), 1, Device::Cpu, Precision::F32).unwrap();
        let flat_len = model.layout().flat_len();
        assert_eq!(model.layout().layer_ends().len(), n_told);
        let x = Tensor::zeros(&[1, spec.n_features()], DType::F32, Device::Cpu).unwrap();
        let grads = Tensor::zeros(&[flat_len], DType::F32, Device::Cpu).unwrap();
        let mut sink = Recorder { grads, finished: 0 };
        model.forward(&x).unwrap();
        model.backward(x.view(), None, false, &mut sink).unwrap();
        assert_eq!(sink.finished, flat_len);
    }
}

/// A pass leaves no gradients for codes that do not occur in it.
#[test]
fn rows_that_no_code_names_have_no_gradient() {
    let spec = embedded();
    let x: Vec<f32> = (0..N_ROWS).flat_map(row).collect();
    let layout = ddp::model::ParamLayout::new(&spec);
    let weights: Vec<f32> = (0..layout.flat_len()).map(|i| (i as f32 * 0.1).sin()).collect();
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let (_, grads) = run(&spec, &weights, &x, 1, device);
        let entry = layout.find(&table_name(0)).unwrap();
        let dim = entry.dims[1];
        let is_zero: Vec<bool> =
            grads[entry.range()].chunks_exact(dim).map(|row| row.iter().all(|&v| v == 0.0)).collect();
        // Squares are 0, 1 or 4 modulo 5.
        assert_eq!(is_zero, [false, false, true, true, false, true], "{device}");
    }
}

#[test]
fn a_code_that_an_embedding_does_not_have_is_an_error_or_nan() {
    let spec = embedded();
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let mut model = Network::new(spec.clone(), 2, device, Precision::F32).unwrap();
        model.initialize(1).unwrap();
        let x = Tensor::from_slice(&[0.0f32, 0.0, 5.0, 10.0, 0.0, 0.0, 6.0, 10.0], &[2, 4], device).unwrap();
        let forward = model.forward(&x);
        if device == Device::Cpu {
            assert!(matches!(forward, Err(KernelError::Code { row: 1, column: 2, n_codes: 6, .. })));
            continue;
        }
        forward.unwrap();
        let outputs = model.outputs().unwrap().to_vec::<f32>().unwrap();
        let (first, second) = outputs.split_at(N_OUTPUTS);
        assert!(first.iter().all(|v| v.is_finite()) && second.iter().all(|v| v.is_nan()), "{outputs:?}");
    }
}
