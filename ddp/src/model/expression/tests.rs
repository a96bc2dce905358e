//! An expression takes the same steps and memory as the same layer written by hand.

use ddp_kernels::{DType, Device, Tensor};

use super::constants::Constants;
use super::graph::{Leaf, Op};
use super::memory::{Slot, Stage};
use super::program::{Recorded, ResultsOf};
use super::var::Var;

const CONTEXT: usize = 8;
const HEADS: usize = 2;
const WIDTH: usize = 6;

/// Causal attention over `n` rows.
fn attention(n: usize) -> Recorded {
    let of = ResultsOf { params: &[], input: Some(Leaf::Input), is_output_exact: true };
    let recorded = Recorded::new(Device::Cpu, of, &Constants::default(), |recording| {
        let leaf = |leaf, dims: &[usize]| {
            let id = recording.borrow_mut().graph.push(Op::Leaf(leaf), Vec::new(), dims, DType::F32);
            Var::of(recording, id)
        };
        let (x, mask) = (leaf(Leaf::Input, &[n, 3 * WIDTH]), leaf(Leaf::Registered(0), &[CONTEXT, CONTEXT]));
        let (n_sequences, head) = (n / CONTEXT, WIDTH / HEADS);
        let parts = x.reshape(&[n_sequences, CONTEXT, 3, HEADS, head]).permute(&[2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|part| parts.row(part).reshape(&[n_sequences * HEADS, CONTEXT, head]));
        let weights = (q.bmm(&k.t()) * 0.5 + mask).softmax(2);
        let rows = weights.bmm(&v).reshape(&[n_sequences, HEADS, CONTEXT, head]);
        rows.permute(&[0, 2, 1, 3]).reshape(&[n, WIDTH])
    });
    recorded.unwrap()
}

/// The operations of a stage that compute or copy something.
fn steps(stage: &Stage) -> Vec<String> {
    let name = |op: &Op| format!("{op:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    let is_moved = |parts: &[bool]| !parts.is_empty() && parts.iter().all(|is_in_place| *is_in_place);
    let computed = stage.steps.iter().filter(|step| !is_moved(&step.parts_in_place));
    computed.map(|step| name(&step.op) + if step.in_place.is_some() { " in place" } else { "" }).collect()
}

#[test]
fn attention_takes_the_steps_and_the_memory_of_one_that_is_written_by_hand() {
    let n = 3 * CONTEXT;
    let mut slots: Vec<Slot> = Vec::new();
    let stages = attention(n).stages(&mut slots);
    // The factor is part of a matmul, transposes are read in place, and parts are views.
    assert_eq!(steps(&stages[0]), ["Permute", "Matmul", "Map", "Softmax in place", "Matmul", "Permute"]);
    assert_eq!(
        steps(&stages[2]),
        ["Permute", "Matmul", "Matmul", "SoftmaxBackward in place", "Matmul", "Matmul", "Permute"]
    );
    // The gradients of queries, keys and values are computed where one permutation reads them.
    assert!(stages[2].steps.iter().any(|step| step.parts_in_place == [true; 3]));
    let (columns, weights) = (n * WIDTH, n * HEADS * CONTEXT);
    let len = slots.iter().map(|slot| slot.len).sum::<usize>();
    assert_eq!(len, 7 * columns + 2 * weights, "{slots:?}");
}

#[test]
fn fewer_rows_use_the_same_memory() {
    let largest = attention(4 * CONTEXT);
    let mut slots = Vec::new();
    largest.stages(&mut slots);
    for n_sequences in 1..4 {
        attention(n_sequences * CONTEXT).stages_within(&largest, &slots).unwrap();
    }
    assert!(attention(5 * CONTEXT).stages_within(&largest, &slots).is_err());
}

#[test]
fn a_sum_of_everything_counts_beyond_what_a_running_sum_holds() {
    let n = (1 << 24) + 8;
    let w = Var::new(Tensor::ones(&[n], DType::F32, Device::Cpu).unwrap()).unwrap();
    assert_eq!(w.sum(None).tensor().unwrap().item::<f32>().unwrap(), n as f32);
    let scalar = Var::new(Tensor::ones(&[1], DType::F32, Device::Cpu).unwrap()).unwrap();
    let gradients =
        (&scalar * Tensor::ones(&[n], DType::F32, Device::Cpu).unwrap()).sum(None).backward().unwrap();
    assert_eq!(gradients[&scalar].to_vec::<f32>().unwrap(), [n as f32]);
}

#[test]
fn a_layer_norm_of_16_bits_squares_in_32() {
    let x = Tensor::from_slice(&[300.0_f32, -300.0, 100.0, -100.0], &[1, 4], Device::Cpu).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let w = Var::new(x.to_dtype(dtype).unwrap()).unwrap();
        let normal =
            w.layer_norm(1e-5).tensor().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        for (got, want) in normal.iter().zip([1.341_6, -1.341_6, 0.447_2, -0.447_2]) {
            assert!((got - want).abs() < 6e-3, "{dtype}: {normal:?}");
        }
    }
}

#[test]
fn conditions_broadcast_as_tensors_do() {
    let random = |dims: &[usize], seed| Tensor::randn(dims, DType::F32, Device::Cpu, seed).unwrap();
    let (x, mask) = (random(&[2, 4, 3, 3], 1), random(&[2, 1, 1, 3], 2).gt(0.0).unwrap());
    let w = Var::new(x.clone()).unwrap();
    let masked = w.masked_fill(&mask, -5.0).tensor().unwrap();
    assert_eq!(masked.to_vec::<f32>().unwrap(), x.masked_fill(&mask, -5.0).unwrap().to_vec::<f32>().unwrap());
    let column = Var::new(random(&[2, 1], 3)).unwrap();
    let repeated = column.gt(0.0).expand(&[2, 3]).tensor().unwrap();
    let want = column.tensor().unwrap().gt(0.0).unwrap().to_vec::<bool>().unwrap();
    assert_eq!(
        repeated.to_vec::<bool>().unwrap(),
        [[want[0]; 3], [want[1]; 3]].concat(),
        "a value of bool, too"
    );
}

#[test]
fn reductions_of_nothing_are_those_of_tensors() {
    let w = Var::new(Tensor::zeros(&[2, 0], DType::F32, Device::Cpu).unwrap()).unwrap();
    assert_eq!(w.norm(1).tensor().unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert!(w.mean(1).tensor().unwrap().to_vec::<f32>().unwrap().iter().all(|mean| mean.is_nan()));
    assert_eq!(w.log_softmax(1).tensor().unwrap().dims(), [2, 0]);
    assert!(w.max(1).tensor().is_err());
}

#[test]
fn an_addend_times_0_is_not_read() {
    let one = |value: f32| {
        Var::new(Tensor::full(&[1, 1], f64::from(value), DType::F32, Device::Cpu).unwrap()).unwrap()
    };
    let product = Var::addmm(2.0, &one(3.0), &one(4.0), 0.0, &one(f32::NAN)).tensor().unwrap();
    assert_eq!(product.to_vec::<f32>().unwrap(), [24.0]);
}
