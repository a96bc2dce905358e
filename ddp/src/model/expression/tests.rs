//! An expression takes the same steps and memory as the same layer written by hand.

use ddp_kernels::{DType, Device};

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
