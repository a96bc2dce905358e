//! Asks cuBLASLt every question of a training step and writes down its answers, one row each: what a real GPU supports, and how fast.
//!
//! `tests/gpu.sh` runs it. The virtual cuBLASLt refuses what the newest record that is committed refuses; none is committed yet.

use std::io::{self, Write};

use super::tests;
use super::timing::TIMED_ALIGNMENT;
use crate::cuda::blas::problem::{AlignedTo, Conditions};
use crate::cuda::blas::{Epilogue, Key, Matmul, Operands, Plan, Scales, choice, relu_mask_row_bits};
use crate::cuda::cublas_lt::{Heuristic, Status};
use crate::cuda::{Gpu, Timer};
use crate::ops::MatmulMode;
use crate::ops::testing::devices;
use crate::{DType, Device, Result, Tensor};

/// Rows of a batch, inputs and outputs of a layer.
const LAYERS: [[usize; 3]; 15] = [
    [32, 64, 128],
    [32, 128, 10],
    [33, 7, 10],
    [33, 64, 128],
    [64, 784, 1024],
    [64, 1024, 10],
    [1, 64, 128],
    [32, 64, 1],
    [32, 1, 64],
    [1, 1, 1],
    [32, 7, 1],
    [2, 2, 2],
    [128, 12, 20],
    [8192, 4096, 4096],
    [8192, 1024, 10],
];

/// Products, rows and width of the heads of an attention: of rows by rows over the width, and of rows by the width over rows.
const BATCHES: [[usize; 3]; 4] = [[2, 1, 1], [3, 5, 7], [8, 16, 8], [128, 64, 32]];

/// Inputs, output and mode, with the name in the record.
const FORMATS: [(&str, DType, DType, MatmulMode); 7] = [
    ("f32", DType::F32, DType::F32, MatmulMode::Strict),
    ("tf32", DType::F32, DType::F32, MatmulMode::Tf32),
    ("bf16", DType::BF16, DType::BF16, MatmulMode::Strict),
    ("bf16>f32", DType::BF16, DType::F32, MatmulMode::Strict),
    ("f16", DType::F16, DType::F16, MatmulMode::Strict),
    ("f16>f32", DType::F16, DType::F32, MatmulMode::Strict),
    ("f64", DType::F64, DType::F64, MatmulMode::Strict),
];

/// Of the three matmuls of a layer.
const FORWARD: [Epilogue; 7] = [
    Epilogue::None,
    Epilogue::Bias,
    Epilogue::ReluBias,
    Epilogue::ReluAuxBias,
    Epilogue::ReluAux,
    Epilogue::GeluBias,
    Epilogue::GeluAuxBias,
];
const WEIGHT_GRADIENT: [Epilogue; 2] = [Epilogue::None, Epilogue::BiasGradient];
const INPUT_GRADIENT: [Epilogue; 5] = [
    Epilogue::None,
    Epilogue::DRelu,
    Epilogue::DGelu,
    Epilogue::DReluBiasGradient,
    Epilogue::DGeluBiasGradient,
];

/// Columns of the record. `m` is `batch*m` where there are several products; `found` counts algorithms, of at most [`N_ALGORITHMS`]; `scheme` is how the first one adds up parts of its
/// sum; `status` is 0, that of the search, or [`CALL_FAILED`]; `us` is the time of one call.
const COLUMNS: &str =
    "format\tepilogue\tm\tn\tk\ttransposed\talignment\treproducible\tstatus\tfound\tworkspace\tscheme\tus";
const N_ALGORITHMS: usize = 32;
/// The status of a matmul that the search found and the call refused: no status of cuBLASLt.
const CALL_FAILED: &str = "-1";
/// Calls that are timed together.
const N_TIMED: usize = 5;

/// All questions about layers and batches of at most `max_flops` a call.
fn questions(max_flops: usize) -> Vec<(&'static str, Key)> {
    let mut all = Vec::new();
    for [rows, inputs, outputs] in LAYERS {
        let kinds: [([usize; 3], [bool; 2], &[Epilogue]); 3] = [
            ([rows, outputs, inputs], [false, true], &FORWARD),
            ([outputs, inputs, rows], [true, false], &WEIGHT_GRADIENT),
            ([rows, inputs, outputs], [false, false], &INPUT_GRADIENT),
        ];
        for (dims, transposed, epilogues) in kinds {
            ask(1, dims, transposed, epilogues, &mut all);
        }
    }
    for [batch, rows, width] in BATCHES {
        ask(batch, [rows, rows, width], [false, true], &[Epilogue::None], &mut all);
        ask(batch, [rows, width, rows], [false, false], &[Epilogue::None], &mut all);
        ask(batch, [rows, width, rows], [true, false], &[Epilogue::None], &mut all);
    }
    // Where nothing asks, no answer matters.
    all.retain(|(_, key)| key.may_be_fused());
    all.retain(|(_, key)| 2 * n_products(&key.matmul) <= max_flops);
    // A record that is cut short has the answers of small layers, which are quick.
    all.sort_by_key(|(_, key)| n_products(&key.matmul));
    all
}

/// Adds the questions about one shape, in all formats.
fn ask(
    batch: usize,
    [m, n, k]: [usize; 3],
    [transpose_a, transpose_b]: [bool; 2],
    epilogues: &[Epilogue],
    all: &mut Vec<(&'static str, Key)>,
) {
    for (name, inputs, output, mode) in FORMATS {
        for &epilogue in epilogues {
            let matmul = Matmul { batch, m, n, k, transpose_a, transpose_b, inputs, output, mode, epilogue };
            for alignment in [256, 16, odd(&matmul)] {
                for is_deterministic in [false, true] {
                    let aligned_to =
                        AlignedTo { a: alignment, b: alignment, c: alignment, bias: alignment, aux: 256 };
                    let conditions = Conditions { is_deterministic, n_free: 0 };
                    all.push((name, Key { matmul, aligned_to, conditions }));
                }
            }
        }
    }
}

/// Products of two numbers.
fn n_products(&Matmul { batch, m, n, k, .. }: &Matmul) -> usize {
    batch * m * n * k
}

/// The least alignment that an operand of a library's user may have: that of an element.
fn odd(matmul: &Matmul) -> u32 {
    matmul.inputs.size_bytes().max(matmul.output.size_bytes()) as u32
}

/// Memory for operands: A, B, C, aux and bias, each of the largest size and 256 bytes more.
struct Arena([Tensor; 5]);

impl Arena {
    fn new(questions: &[(&str, Key)], device: Device) -> Self {
        let bytes = |key: &Key| {
            let Matmul { batch, m, n, k, .. } = key.matmul;
            batch * (m * k).max(k * n).max(m * relu_mask_row_bits(n)) * 8 + 256
        };
        let largest = questions.iter().map(|(_, key)| bytes(key)).max().unwrap_or(0);
        Arena(std::array::from_fn(|_| Tensor::zeros(&[largest], DType::U8, device).unwrap()))
    }

    /// Operands that are aligned as the key says, and to no more.
    fn operands(&self, key: &Key) -> Operands {
        let AlignedTo { a, b, c, bias, aux } = key.aligned_to;
        let at = |index: usize, alignment: u32| {
            let start = self.0[index].view().cuda().unwrap().ptr();
            start + if alignment < 256 { u64::from(alignment) } else { 0 }
        };
        let epilogue = key.matmul.epilogue;
        Operands {
            a: at(0, a),
            b: at(1, b),
            c: at(2, c),
            aux: epilogue.aux_row(1).map_or(0, |_| at(3, aux)),
            bias: if epilogue.takes_bias() { at(4, bias) } else { 0 },
        }
    }
}

/// The answer to one question, as the last columns of its row.
fn answer(gpu: &'static Gpu, key: &Key, arena: &Arena) -> String {
    let blas = gpu.blas().unwrap();
    let failed = |status: &dyn std::fmt::Display| format!("{status}\t0\t\t\t");
    let candidates = Plan::new(blas.lt, blas.handle, key)
        .and_then(|plan| Ok((plan.candidates(blas.handle, key, N_ALGORITHMS)?, plan)));
    let (candidates, plan) = match candidates {
        Ok(found) => found,
        Err(status) => return failed(&status.code()),
    };
    let (found, workspace) = (candidates.len(), candidates[0].workspace_bytes);
    gpu.set_deterministic(key.conditions.is_deterministic);
    let operands = arena.operands(key);
    // SAFETY: the arena holds operands of every size, which outlive the work; the timer waits for it.
    let run = || unsafe { gpu.matmul(key.matmul, Scales::overwrite(), operands) };
    let timed = || -> Result<Option<f64>> {
        if !run()? {
            return Ok(None);
        }
        let timer = Timer::new(gpu)?;
        timer.start(gpu.compute())?;
        for _ in 0..N_TIMED {
            run()?;
        }
        timer.stop(gpu.compute())?;
        Ok(Some(timer.elapsed_ms()? * 1e3 / N_TIMED as f64))
    };
    match timed() {
        Ok(Some(us)) => format!("0\t{found}\t{workspace}\t{}\t{us:.2}", tests::reduction_scheme(&plan)),
        Ok(None) => failed(&Status::NOT_SUPPORTED.code()),
        Err(error) => {
            // After some errors every further call fails, which says nothing of cuBLASLt.
            assert!(gpu.synchronize().is_ok(), "{:?}: {error}", key.matmul);
            failed(&CALL_FAILED)
        }
    }
}

/// Writes the record of `gpu`, each answer as soon as it is there: one that is cut short is a record of its first rows.
fn record(gpu: &'static Gpu, max_flops: usize, to: &mut impl Write) -> io::Result<()> {
    let _alone = tests::lock_determinism();
    let questions = questions(max_flops);
    let arena = Arena::new(&questions, gpu.device());
    let version = gpu.blas().unwrap().lt.version();
    writeln!(to, "# {}, cuBLASLt {version}\n{COLUMNS}", gpu.info().name)?;
    for (format, key) in &questions {
        let Matmul { n, k, epilogue, .. } = key.matmul;
        let (m, transposed) = (choice::rows_name(&key.matmul), choice::transposes(&key.matmul));
        let alignment = key.aligned_to.a;
        let is_deterministic = u8::from(key.conditions.is_deterministic);
        let row = format!(
            "{format}\t{epilogue:?}\t{m}\t{n}\t{k}\t{transposed}\t{alignment}\t{is_deterministic}\t{}\n",
            answer(gpu, key, &arena)
        );
        to.write_all(row.as_bytes())?;
    }
    gpu.set_deterministic(false);
    Ok(())
}

/// Columns of the record of candidates; `ran` of `found` gave a time, the fastest is `index` among them, from 0.
const CANDIDATE_COLUMNS: &str =
    "format\tepilogue\tm\tn\tk\ttransposed\tfound\tran\tindex\tfirst_us\tfastest_us";

/// Runs every algorithm of each question about operands aligned to 16 bytes and more, from question `from` on, and writes a row for each
/// question as soon as it is answered: what breaks the device ends the process, after the row before it.
fn record_each(gpu: &'static Gpu, max_flops: usize, from: usize, to: &mut impl Write) -> io::Result<()> {
    let mut questions = questions(max_flops);
    questions.retain(|(_, key)| key.aligned_to.a == 256 && !key.conditions.is_deterministic);
    let arena = Arena::new(&questions, gpu.device());
    let blas = gpu.blas().unwrap();
    if from == 0 {
        writeln!(to, "{CANDIDATE_COLUMNS}")?;
    }
    for (format, key) in questions.iter().skip(from) {
        let operands = arena.operands(key);
        // The matrices of a batch may be aligned to less, of which training times nothing either.
        let key = &Key::new(key.matmul, operands, key.conditions);
        let is_timed = key.least_alignment() >= TIMED_ALIGNMENT;
        let found = if is_timed { Plan::new(blas.lt, blas.handle, key) } else { Err(Status::NOT_SUPPORTED) };
        let found = found.and_then(|plan| {
            let mut candidates = plan.candidates(blas.handle, key, N_ALGORITHMS)?;
            candidates.retain(|candidate| candidate.state.result().is_ok());
            Ok((candidates, plan))
        });
        let Matmul { n, k, epilogue, .. } = key.matmul;
        let (m, transposed) = (choice::rows_name(&key.matmul), choice::transposes(&key.matmul));
        let answer = match found {
            Err(_) => "0\t0\t\t\t".to_owned(),
            Ok((candidates, plan)) => {
                let times = times_us(gpu, key, plan, &candidates, operands);
                let ran = times.iter().flatten().count();
                let fastest = times.iter().enumerate().filter_map(|(index, us)| Some((index, (*us)?)));
                let fastest = fastest.min_by(|(_, a), (_, b)| a.total_cmp(b));
                let first = times.iter().flatten().next().copied().unwrap_or(0.0);
                let (index, us) = fastest.unwrap_or((0, 0.0));
                format!("{}\t{ran}\t{index}\t{first:.2}\t{us:.2}", candidates.len())
            }
        };
        let row = format!("{format}\t{epilogue:?}\t{m}\t{n}\t{k}\t{transposed}\t{answer}\n");
        to.write_all(row.as_bytes())?;
    }
    Ok(())
}

/// Time of each algorithm in µs; None for one that the call refuses. Panics after an error of the device.
fn times_us(
    gpu: &'static Gpu,
    key: &Key,
    mut plan: Plan,
    candidates: &[Heuristic],
    operands: Operands,
) -> Vec<Option<f64>> {
    let (blas, timer) = (gpu.blas().unwrap(), Timer::new(gpu).unwrap());
    let mut time = |candidate: &Heuristic| {
        plan.algorithm = candidate.algorithm;
        let run = || {
            // SAFETY: the arena holds operands of every size, which outlive the work; the timer waits for it.
            unsafe { blas.launch((gpu.compute(), None), &plan, key.matmul, Scales::overwrite(), operands) }
        };
        run().ok()?;
        timer.start(gpu.compute()).unwrap();
        (0..N_TIMED).try_for_each(|_| run()).ok()?;
        timer.stop(gpu.compute()).unwrap();
        Some(timer.elapsed_ms().unwrap() * 1e3 / N_TIMED as f64)
    };
    candidates.iter().map(&mut time).collect()
}

fn gpus() -> impl Iterator<Item = &'static Gpu> {
    let index = |device| if let Device::Cuda(index) = device { Some(index) } else { None };
    devices().into_iter().filter_map(index).take(1).map(|index| Gpu::get(index).unwrap())
}

/// Small layers only: the virtual GPU computes on the CPU.
const SMALL: usize = 1_000_000;

#[test]
fn every_question_has_an_answer_and_plain_matmuls_are_supported() {
    for gpu in gpus() {
        let mut bytes = Vec::new();
        record(gpu, SMALL, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows.len(), questions(SMALL).len());
        let n_columns = COLUMNS.split('\t').count();
        for row in &rows {
            assert_eq!(row.len(), n_columns, "{row:?}");
            assert!(row[1] != "None" || row[8] == "0", "a plain matmul is not supported: {row:?}");
        }
    }
}

#[test]
fn every_algorithm_that_is_offered_runs() {
    for gpu in gpus() {
        let _alone = tests::lock_determinism();
        let mut bytes = Vec::new();
        record_each(gpu, SMALL / 100, 3, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for row in text.lines().map(|line| line.split('\t').collect::<Vec<_>>()) {
            assert_eq!(row.len(), CANDIDATE_COLUMNS.split('\t').count(), "{row:?}");
            // A real call may refuse what the search found.
            assert!(!gpu.info().is_virtual() || row[6] == row[7], "{row:?}");
        }
        assert!(text.lines().count() > 100);
    }
}

/// Appends to the file that `DDP_CUBLASLT_CANDIDATES` names what the algorithms of the first GPU do, from question `DDP_CUBLASLT_FROM` on.
#[test]
#[ignore = "needs half a minute of a real GPU; tests/gpu.sh --quarter runs it"]
fn record_candidates() {
    let Some(path) = std::env::var_os("DDP_CUBLASLT_CANDIDATES") else {
        panic!("DDP_CUBLASLT_CANDIDATES names no file")
    };
    let from = std::env::var("DDP_CUBLASLT_FROM").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for gpu in gpus() {
        let max_flops = if gpu.info().is_virtual() { SMALL / 100 } else { usize::MAX };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        record_each(gpu, max_flops, from, &mut file).unwrap();
    }
}

/// Writes the record of the first GPU to the file that `DDP_CUBLASLT_RECORD` names.
#[test]
#[ignore = "needs a minute of a real GPU; tests/gpu.sh runs it"]
fn record_cublaslt() {
    let Some(path) = std::env::var_os("DDP_CUBLASLT_RECORD") else {
        panic!("DDP_CUBLASLT_RECORD names no file")
    };
    for gpu in gpus() {
        let max_flops = if gpu.info().is_virtual() { SMALL } else { usize::MAX };
        record(gpu, max_flops, &mut std::fs::File::create(&path).unwrap()).unwrap();
    }
}
