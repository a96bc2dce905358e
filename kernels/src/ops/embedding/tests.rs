use half::{bf16, f16};

use super::*;
use crate::Element;
use crate::ops::testing::{assert_close, assert_gradient, devices, dot, random, rounded, tensor};

/// Tables of these codes and widths, with gaps between them.
fn tables_of(sizes: &[(usize, usize)], device: Device) -> (EmbeddingTables, usize) {
    let mut start = 3;
    let tables = sizes.iter().map(|&(n_codes, dim)| {
        let table = EmbeddingTable { start, n_codes, dim };
        start = (table.end() + 2).next_multiple_of(4);
        table
    });
    let tables = EmbeddingTables::new(tables.collect(), device).unwrap();
    (tables, start)
}

/// One case: numbers, then one column of codes per table.
#[derive(Debug, Clone)]
struct Case {
    sizes: Vec<(usize, usize)>,
    rows: usize,
    n_numbers: usize,
}

impl Case {
    fn new(sizes: &[(usize, usize)], rows: usize, n_numbers: usize) -> Self {
        Case { sizes: sizes.to_vec(), rows, n_numbers }
    }

    fn width(&self) -> usize {
        self.n_numbers + self.sizes.iter().map(|size| size.1).sum::<usize>()
    }

    /// Small codes are more frequent than large ones, the last one of each table occurs, some do not occur.
    fn x<T: Element>(&self) -> Vec<T> {
        let cols = self.n_numbers + self.sizes.len();
        let mut x: Vec<f64> = random(self.rows * cols, 1);
        for (n, row) in x.chunks_exact_mut(cols).enumerate() {
            for (code, &(n_codes, _)) in row[self.n_numbers..].iter_mut().zip(&self.sizes) {
                *code = (code.abs().powi(2) * n_codes as f64).floor();
                if n % 37 == 5 {
                    *code = (n_codes - 1) as f64;
                }
            }
        }
        rounded(&x)
    }

    fn weights<T: Element>(&self) -> Vec<T> {
        random(tables_of(&self.sizes, Device::Cpu).1, 2)
    }

    fn d_out<T: Element>(&self) -> Vec<T> {
        random(self.rows * self.width(), 3)
    }

    /// Each element of the output in f64, by the definition.
    fn reference(&self, weights: &[f64]) -> Vec<f64> {
        let (tables, _) = tables_of(&self.sizes, Device::Cpu);
        let mut out = Vec::new();
        for row in self.x::<f64>().chunks_exact(self.n_numbers + self.sizes.len()) {
            out.extend_from_slice(&row[..self.n_numbers]);
            for (code, table) in row[self.n_numbers..].iter().zip(tables.tables()) {
                out.extend_from_slice(&weights[table.start + *code as usize * table.dim..][..table.dim]);
            }
        }
        out
    }

    /// The gradient in f64, by the definition, added to `before`.
    fn reference_gradient(&self, d_out: &[f64], before: f64) -> Vec<f64> {
        let (tables, len) = tables_of(&self.sizes, Device::Cpu);
        let mut d_weights = vec![before; len];
        let x = self.x::<f64>();
        for (row, d_row) in
            x.chunks_exact(self.n_numbers + self.sizes.len()).zip(d_out.chunks_exact(self.width()))
        {
            let mut column = self.n_numbers;
            for (code, table) in row[self.n_numbers..].iter().zip(tables.tables()) {
                let to = &mut d_weights[table.start + *code as usize * table.dim..][..table.dim];
                to.iter_mut().zip(&d_row[column..]).for_each(|(to, d)| *to += d);
                column += table.dim;
            }
        }
        d_weights
    }

    fn forward<T: Element, V: Element>(&self, weights: &[T], device: Device) -> Vec<V> {
        let (tables, len) = tables_of(&self.sizes, device);
        let x = tensor(&self.x::<T>(), &[self.rows, self.n_numbers + self.sizes.len()], device);
        let mut out = Tensor::zeros(&[self.rows, self.width()], V::DTYPE, device).unwrap();
        let weights = tensor(weights, &[len], device);
        embedding_forward(x.view(), weights.view(), &tables, out.view_mut()).unwrap();
        out.to_vec().unwrap()
    }

    /// The gradient, added to `before` if given.
    fn backward<T: Element, V: Element>(&self, d_out: &[V], before: Option<f64>, device: Device) -> Vec<T> {
        let (tables, len) = tables_of(&self.sizes, device);
        let x = tensor(&self.x::<T>(), &[self.rows, self.n_numbers + self.sizes.len()], device);
        let d_out = tensor(d_out, &[self.rows, self.width()], device);
        let mut d_weights = Tensor::full(&[len], before.unwrap_or(f64::NAN), T::DTYPE, device).unwrap();
        let mut workspace =
            Tensor::full(&[tables.workspace_len(self.rows)], -1.0, DType::I64, device).unwrap();
        let workspace = workspace.view_mut();
        let (x, d_out) = (x.view(), d_out.view());
        embedding_backward(x, d_out, &tables, d_weights.view_mut(), workspace, before.is_some()).unwrap();
        d_weights.to_vec().unwrap()
    }
}

/// Various tables: one code, codes of one to five radix digits, widths of part of a warp, of one and of several warps; rows for
/// one thread, for several and past the tile; runs of equal codes for a warp and for a block.
fn cases() -> Vec<Case> {
    vec![
        Case::new(&[(5, 3)], 7, 2),
        Case::new(&[(2, 1), (17, 4), (1, 5), (300, 33)], 130, 3),
        Case::new(&[(2, 40), (5000, 2), (3, 8)], 1300, 0),
        Case::new(&[(70_000, 3), (4, 64), (16, 7), (15, 256)], 300, 1),
        Case::new(&[(1 << 20, 1)], 600, 1),
        Case::new(&[], 4, 3),
        Case::new(&[(3, 2)], 0, 1),
        Case::new(&[(2, 1); 60], 65, 1),
    ]
}

#[test]
fn gradient_matches_central_differences() {
    let case = Case::new(&[(4, 3), (2, 1), (6, 2)], 9, 2);
    let (weights, d_out) = (case.weights::<f64>(), case.d_out::<f64>());
    for device in devices() {
        let d_weights = case.backward::<f64, f64>(&d_out, None, device);
        assert_gradient(&weights, &d_weights, |weights| {
            dot(&case.forward::<f64, f64>(weights, device), &d_out)
        });
    }
}

/// Elements are copied, so only the conversion to the output's format rounds.
#[test]
fn every_device_takes_the_rows_of_the_codes() {
    for case in cases() {
        let weights = case.weights::<f32>();
        let want: Vec<f32> = rounded(&case.reference(&rounded(&weights)));
        for device in devices() {
            assert!(case.forward::<f32, f32>(&weights, device) == want, "{case:?} {device}");
            let short: Vec<bf16> = want.iter().map(|&v| bf16::from_f32(v)).collect();
            assert!(case.forward::<f32, bf16>(&weights, device) == short, "bf16 {case:?} {device}");
            let half: Vec<f16> = want.iter().map(|&v| f16::from_f32(v)).collect();
            assert!(case.forward::<f32, f16>(&weights, device) == half, "f16 {case:?} {device}");
            let weights = case.weights::<f64>();
            let want = case.reference(&weights);
            assert!(case.forward::<f64, f64>(&weights, device) == want, "f64 {case:?} {device}");
        }
    }
}

#[test]
fn gradients_agree_with_f64() {
    for case in cases() {
        let (d_out, wide) = (case.d_out::<f32>(), case.d_out::<f64>());
        let (short, half) = (rounded::<f32, bf16>(&d_out), rounded::<f32, f16>(&d_out));
        for device in devices() {
            for before in [None, Some(2.0)] {
                let start = before.unwrap_or(0.0);
                // Up to 1300 numbers below 1, whose sum grows like the square root; sequential on the CPU: at most 1300 times
                // 2^-24 of about 30.
                let want = case.reference_gradient(&rounded(&d_out), start);
                let got = case.backward::<f32, f32>(&d_out, before, device);
                assert_close(&rounded::<f32, f64>(&got), &want, 2e-5, 1e-6);
                let want = case.reference_gradient(&wide, start);
                assert_close(&case.backward::<f64, f64>(&wide, before, device), &want, 1e-12, 1e-12);
                let want = case.reference_gradient(&rounded(&short), start);
                let got = case.backward::<f32, bf16>(&short, before, device);
                assert_close(&rounded::<f32, f64>(&got), &want, 2e-5, 1e-6);
                let want = case.reference_gradient(&rounded(&half), start);
                let got = case.backward::<f32, f16>(&half, before, device);
                assert_close(&rounded::<f32, f64>(&got), &want, 2e-5, 1e-6);
            }
        }
    }
}

#[test]
fn gradients_have_the_same_bits_in_every_run_and_on_every_gpu() {
    for case in cases() {
        let d_out = case.d_out::<f32>();
        let cpu = case.backward::<f32, f32>(&d_out, None, Device::Cpu);
        assert!(cpu == case.backward::<f32, f32>(&d_out, None, Device::Cpu));
        let gpus = devices().into_iter().filter(|&device| device != Device::Cpu);
        let runs: Vec<Vec<f32>> = gpus.flat_map(|d| [d, d]).map(|d| case.backward(&d_out, None, d)).collect();
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{case:?}");
    }
}

/// Threads take columns, never rows, so their number changes no bit.
#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = |n_threads: usize| {
        std::thread::spawn(move || {
            crate::cpu::threads::join_pool(n_threads).unwrap();
            let case = Case::new(&[(2, 40), (500, 60), (3, 8)], 2000, 5);
            let out = case.forward::<f32, f32>(&case.weights(), Device::Cpu);
            (out, case.backward::<f32, f32>(&case.d_out::<f32>(), None, Device::Cpu))
        })
        .join()
        .unwrap()
    };
    let alone = run(1);
    assert!([2, 3].into_iter().all(|n_threads| run(n_threads) == alone));
}

#[test]
fn a_code_that_is_not_there_is_refused_or_leaves_nan() {
    for device in devices() {
        let (tables, len) = tables_of(&[(4, 2), (3, 3)], device);
        let values = random::<f32>(len, 1);
        let weights = tensor(&values, &[len], device);
        for wrong in [3.0, 3e9, -1.0, 1.5, f32::NAN, f32::INFINITY] {
            let x = tensor(&[0.5, 1.0, 2.0, 0.5, 3.0, wrong], &[2, 3], device);
            let mut out = Tensor::zeros(&[2, 6], DType::F32, device).unwrap();
            let d_out = Tensor::ones(&[2, 6], DType::F32, device).unwrap();
            let mut d_weights = Tensor::zeros(&[len], DType::F32, device).unwrap();
            let mut workspace = Tensor::zeros(&[tables.workspace_len(2)], DType::I64, device).unwrap();
            let forward = embedding_forward(x.view(), weights.view(), &tables, out.view_mut());
            let (d_weights_view, workspace) = (d_weights.view_mut(), workspace.view_mut());
            let backward =
                embedding_backward(x.view(), d_out.view(), &tables, d_weights_view, workspace, false);
            if device == Device::Cpu {
                let error = forward.unwrap_err();
                assert!(
                    matches!(error, KernelError::Code { row: 1, column: 2, n_codes: 3, .. }),
                    "{wrong}: {error}"
                );
                assert!(backward.is_err());
                continue;
            }
            forward.unwrap();
            backward.unwrap();
            let out = out.to_vec::<f32>().unwrap();
            assert!(out[..9].iter().all(|v| !v.is_nan()) && out[9..].iter().all(|v| v.is_nan()), "{out:?}");
            let sum: f32 = d_weights.to_vec::<f32>().unwrap().iter().sum();
            assert_eq!(sum, 7.0, "two rows of the first table, one of the second");
        }
    }
}

#[test]
fn tables_that_overlap_or_do_not_fit_are_refused() {
    let table = |start, n_codes, dim| EmbeddingTable { start, n_codes, dim };
    for device in devices() {
        assert!(EmbeddingTables::new(vec![table(0, 2, 3), table(5, 2, 2)], device).is_err());
        assert!(EmbeddingTables::new(vec![table(0, EmbeddingTable::MAX_CODES + 1, 1)], device).is_err());
        let tables = EmbeddingTables::new(vec![table(0, 2, 3), table(6, 2, 2)], device).unwrap();
        let forward = |len: usize, x: [usize; 2], out: [usize; 2]| {
            let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device).unwrap();
            let (x, weights, mut out) = (zeros(&x), zeros(&[len]), zeros(&out));
            embedding_forward(x.view(), weights.view(), &tables, out.view_mut())
        };
        assert!(forward(10, [4, 3], [4, 6]).is_ok());
        assert!(matches!(forward(9, [4, 3], [4, 6]), Err(KernelError::OutOfRange { .. })));
        for (x, out) in [([4, 3], [4, 5]), ([4, 1], [4, 4]), ([4, 3], [3, 6])] {
            assert!(matches!(forward(10, x, out), Err(KernelError::Shape { .. })));
        }
    }
}
