//! GPU features besides operations: memory accounting, asynchronous copies, graphs, timers. On a real or virtual GPU; without
//! one, each test reports that it was skipped (`REQUIRE_GPUS=1` makes that a failure).

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ddp_kernels::cuda::{Beside, GateState, Gpu, Graph, Mapped, Marks, Moments, Origin, StreamKind, Timer};
use ddp_kernels::ops::{
    LossSums, OptimizerKind, OptimizerParams, OptimizerTensors, STEP_SCALARS_LEN, STEP_SUMS_LEN, StepReport,
    StepScalars, UpdateInputs,
};
use ddp_kernels::{
    DType, Device, Download, KernelError, MemoryUse, PinnedTensor, Tensor, TensorRef, Upload, ops,
};

/// The first GPU, for one test at a time: these tests count its memory and capture its stream.
fn gpu() -> Option<(&'static Gpu, MutexGuard<'static, ()>)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if Gpu::count() == 0 {
        assert!(std::env::var("REQUIRE_GPUS").map_or(true, |n| n == "0"), "needs 1 GPU, found 0");
        println!("skipped: needs 1 GPU, found 0");
        return None;
    }
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Some((Gpu::get(0).unwrap(), alone))
}

const MIB: usize = 1 << 20;

#[test]
fn memory_is_accounted_for_and_given_back() {
    let Some((gpu, _alone)) = gpu() else { return };
    let before = gpu.memory_allocated();
    gpu.reset_peak_memory();
    let weights = Tensor::zeros_for(MemoryUse::Parameters, &[MIB], DType::F32, gpu.device()).unwrap();
    let grads = Tensor::zeros_for(MemoryUse::Gradients, &[2 * MIB], DType::F32, gpu.device()).unwrap();
    assert_eq!(gpu.memory_allocated() - before, 12 * MIB);
    assert_eq!(
        weights.zeros_like().unwrap().memory_use(),
        MemoryUse::Parameters,
        "what is like it counts as it"
    );
    let in_use = gpu.memory_in_use().unwrap();
    assert_eq!(in_use.bytes[MemoryUse::Gradients as usize], 8 * MIB);
    assert!(in_use.to_string().contains("gradients 8.0"), "{in_use}");
    assert!(gpu.memory_reserved().unwrap() >= 12 * MIB);
    drop(grads);
    assert_eq!(gpu.memory_allocated() - before, 4 * MIB);
    assert_eq!(gpu.memory_peak() - before, 16 * MIB, "12 and the copy's 4");
    // Freed memory is kept for the next tensor until it is released. The driver reserves it in steps, of 32 MiB on an H100.
    drop(Tensor::zeros(&[32 * MIB], DType::F32, gpu.device()).unwrap());
    gpu.synchronize().unwrap();
    let kept = gpu.memory_reserved().unwrap();
    gpu.empty_cache().unwrap();
    let left = gpu.memory_reserved().unwrap();
    assert!(left < kept && left >= gpu.memory_allocated() - before, "{kept} kept, {left} left");
}

#[test]
fn too_much_memory_is_refused_with_an_account() {
    let Some((gpu, _alone)) = gpu() else { return };
    let _data = Tensor::zeros_for(MemoryUse::Data, &[MIB], DType::F32, gpu.device()).unwrap();
    let total = gpu.info().memory_bytes;
    let error = Tensor::zeros(&[total], DType::F32, gpu.device()).unwrap_err();
    let KernelError::OutOfMemory { device, bytes, in_use: Some(in_use) } = &error else { panic!("{error}") };
    assert_eq!((*device, *bytes, in_use.total), (gpu.device(), 4 * total, total));
    let text = ddp_kernels::hint::with_hint(&error);
    assert!(
        text.contains("data 4.0") && text.contains("free on the device") && text.contains("hint: "),
        "{text}"
    );
}

#[test]
fn copies_in_turn_arrive_in_order() {
    let Some((gpu, _alone)) = gpu() else { return };
    const N: usize = 1000;
    let mut slots = [(); 2].map(|()| Upload::new(gpu, &[N], DType::F32).unwrap());
    let mut sum = Tensor::zeros(&[N], DType::F32, gpu.device()).unwrap();
    let mut download = Download::new(gpu, N * 4).unwrap();
    for round in 0..10 {
        let slot = &mut slots[round % 2];
        slot.send_slice(&[round as f32; N]).unwrap();
        ops::add_assign(sum.view_mut(), slot.device().view()).unwrap();
        slot.consumed().unwrap();
    }
    download.start(sum.view()).unwrap();
    assert_eq!(download.wait::<f32>().unwrap(), [45.0; N]);
    assert!(download.is_there().unwrap());
    assert!(slots[0].send(N + 1).is_err() && download.start(slots[0].device().view()).is_ok());
}

#[test]
fn parts_follow_each_other_to_the_host_while_their_source_changes() {
    let Some((gpu, _alone)) = gpu() else { return };
    const N: usize = 1000;
    let mut source = Tensor::zeros(&[N], DType::F32, gpu.device()).unwrap();
    let [zero, one] = [0.0, 1.0].map(|value| Tensor::full(&[N], value, DType::F32, gpu.device()).unwrap());
    let mut download = Download::new(gpu, 4 * 4 * N).unwrap();
    for _ in 0..2 {
        ops::copy(zero.view(), source.view_mut()).unwrap();
        download.start_all(&[source.view()]).unwrap();
        for _ in 1..4 {
            ops::add_assign(source.view_mut(), one.view()).unwrap();
            download.append(source.view()).unwrap();
        }
        assert!(download.append(source.view()).is_err(), "it is full");
        let got = download.wait::<f32>().unwrap();
        let want: Vec<f32> = (0..4 * N).map(|i| (i / N) as f32).collect();
        assert!(got == want);
    }
}

#[test]
fn parts_travel_to_the_host_together() {
    let Some((gpu, _alone)) = gpu() else { return };
    const N: usize = 100_000;
    let mut a = Tensor::arange(N, DType::F32, gpu.device()).unwrap();
    let b = Tensor::full(&[3, 5], 0.5, DType::F32, gpu.device()).unwrap();
    let mut download = Download::new(gpu, 4 * (N + 15)).unwrap();
    assert_eq!(download.arrived::<f32>(), Some(&[] as &[f32]));
    for round in 0..3 {
        let range = |start, end| a.view().range(start, end).unwrap();
        download.start_all(&[range(7, N), b.view(), range(9, 9), range(0, 7)]).unwrap();
        assert_eq!(download.arrived::<f32>(), None, "nobody has waited for it");
        // Work after the copies does not affect them.
        ops::add_assign(a.view_mut(), Tensor::ones(&[N], DType::F32, gpu.device()).unwrap().view()).unwrap();
        let got = download.wait::<f32>().unwrap();
        let want = |i: usize| (i + round) as f32;
        assert!(got[..N - 7].iter().zip(7..).all(|(got, i)| *got == want(i)), "round {round}");
        assert_eq!(got[N - 7..N + 8], [0.5; 15]);
        assert!(got[N + 8..].iter().zip(0..7).all(|(got, i)| *got == want(i)) && got.len() == N + 15);
        let got = got.to_vec();
        assert_eq!(download.arrived::<f32>(), Some(got.as_slice()));
        // Read by another thread, like a checkpoint writer.
        std::thread::scope(|scope| {
            let same = scope.spawn(|| download.arrived::<f32>() == Some(got.as_slice()));
            assert!(same.join().unwrap());
        });
    }
    let error = download.start_all(&[a.view(), b.view(), b.view()]).unwrap_err();
    let KernelError::OutOfRange { end, len, .. } = error else { panic!("{error}") };
    assert_eq!((end, len), (4 * (N + 30), 4 * (N + 15)));
    let on_host = Tensor::ones(&[2], DType::F32, Device::Cpu).unwrap();
    let error = download.start_all(&[b.view(), on_host.view()]).unwrap_err();
    assert!(matches!(error, KernelError::DeviceMismatch { .. }), "{error}");
    assert_eq!(download.arrived::<f32>().unwrap().len(), N + 15, "what was refused has changed nothing");
}

#[test]
fn uploads_carry_every_type() {
    let Some((gpu, _alone)) = gpu() else { return };
    for dtype in DType::ALL {
        let values = Tensor::arange(200, dtype, Device::Cpu).unwrap();
        let mut slot = Upload::new(gpu, &[201], dtype).unwrap();
        slot.send_view(values.view()).unwrap();
        let back = slot.device().to(Device::Cpu).unwrap();
        let back = back.view().range(0, 200).unwrap().as_bytes("test", "back").unwrap();
        assert_eq!(back, values.view().as_bytes("test", "values").unwrap(), "{dtype}");
        assert_eq!(slot.host().unwrap().dtype(), dtype);
        let other = if dtype == DType::F16 { DType::BF16 } else { DType::F16 };
        let error = slot.send_view(Tensor::zeros(&[2], other, Device::Cpu).unwrap().view()).unwrap_err();
        assert!(matches!(error, KernelError::DTypeMismatch { .. }), "{error}");
    }
}

/// A thread fills four buffers in turn, which are copied to two device tensors, where they are used.
#[test]
fn a_ring_of_pinned_tensors_is_filled_by_another_thread() {
    const ROUNDS: usize = 50;
    // More than a page, so that the virtual GPU guards a part of it.
    const N: usize = 5000;
    let value = |round: usize, i: usize| (round * 7 + i) as u8;
    let Some((gpu, _alone)) = gpu() else { return };
    let mut slots = [(); 2].map(|()| Upload::without_host(gpu, &[N], DType::U8).unwrap());
    let mut all = Tensor::zeros(&[ROUNDS, N], DType::U8, gpu.device()).unwrap();
    let (give_filled, filled) = channel::<PinnedTensor>();
    let (give_empty, empty) = channel::<PinnedTensor>();
    for _ in 0..4 {
        give_empty.send(PinnedTensor::new(gpu, &[N], DType::U8).unwrap()).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let mut pinned = empty.recv().unwrap();
                let host = pinned.host().unwrap().into_slice::<u8>("test", "host").unwrap();
                for (i, byte) in host.iter_mut().enumerate() {
                    *byte = value(round, i);
                }
                give_filled.send(pinned).unwrap();
            }
        });
        // Dropped here, so that a failure ends the thread too.
        let (give_empty, filled) = (give_empty, filled);
        let mut traveling = VecDeque::new();
        for round in 0..ROUNDS {
            let mut pinned = filled.recv().unwrap();
            let slot = &mut slots[round % 2];
            // The last rounds are shorter.
            let n = if round + 3 < ROUNDS { N } else { N - 100 };
            slot.send_from(&mut pinned, n).unwrap();
            let row = all.view_mut().rows(round, round + 1).unwrap();
            ops::copy(slot.device().view(), row.reshape(&[N]).unwrap()).unwrap();
            slot.consumed().unwrap();
            assert!(matches!(pinned.host().unwrap_err(), KernelError::StillSending { .. }));
            traveling.push_back(pinned);
            // In some rounds as early as possible, in others only when no other buffer is left.
            let may_ask = round % 3 == 0;
            while traveling.front().is_some_and(|first| may_ask && first.is_sent().unwrap()) {
                let _ = give_empty.send(traveling.pop_front().unwrap());
            }
            if traveling.len() == 4 {
                let first = traveling.pop_front().unwrap();
                first.wait_sent().unwrap();
                let _ = give_empty.send(first);
            }
        }
        // Copies in progress are dropped here.
    });
    let all = all.to_vec::<u8>().unwrap();
    for (round, row) in all.chunks_exact(N).enumerate() {
        for (i, &byte) in row.iter().enumerate() {
            // After shorter ones, the slot still holds the contents of two rounds before.
            let from = if round + 3 < ROUNDS || i < N - 100 { round } else { last_whole(round, ROUNDS) };
            assert_eq!(byte, value(from, i), "round {round}, element {i}");
        }
    }
}

/// The last round before this one that filled the whole of its slot, where the last three of `rounds` did not.
fn last_whole(round: usize, rounds: usize) -> usize {
    (0..round).rev().find(|r| r % 2 == round % 2 && r + 3 < rounds).unwrap()
}

#[test]
fn a_pinned_tensor_is_not_written_to_while_it_travels() {
    let Some((gpu, _alone)) = gpu() else { return };
    let mut slot = Upload::without_host(gpu, &[2, 4], DType::F32).unwrap();
    let mut pinned = PinnedTensor::new(gpu, &[10], DType::F32).unwrap();
    assert_eq!((pinned.shape().dims(), pinned.dtype(), pinned.gpu().index()), (&[10][..], DType::F32, 0));
    assert!(pinned.is_sent().unwrap() && pinned.sent_ms().unwrap().is_none(), "nothing was sent");
    pinned.host().unwrap().into_slice::<f32>("test", "host").unwrap().fill(3.0);
    slot.send_from(&mut pinned, 8).unwrap();
    slot.consumed().unwrap();
    assert_eq!(pinned.view().to_vec::<f32>().unwrap(), [3.0; 10], "reading is allowed");
    assert_eq!(slot.device().to_vec::<f32>().unwrap(), [3.0; 8]);
    // The copy is complete, but this was not queried.
    let error = pinned.host().unwrap_err();
    assert!(matches!(error, KernelError::StillSending { dtype: DType::F32, .. }), "{error}");
    assert!(
        error.to_string().contains("[10] f32") && ddp_kernels::hint::with_hint(&error).contains("hint: "),
        "{error}"
    );
    let ms = pinned.sent_ms().unwrap().unwrap();
    assert!((0.0..60_000.0).contains(&ms), "{ms} ms");
    pinned.host().unwrap().into_slice::<f32>("test", "host").unwrap().fill(4.0);
    // Once more, while a copy is already in progress; and dropped at once.
    slot.send_from(&mut pinned, 8).unwrap();
    slot.consumed().unwrap();
    slot.send_from(&mut pinned, 1).unwrap();
    drop(pinned);
    assert_eq!(slot.device().to_vec::<f32>().unwrap(), [4.0; 8]);
    // The slot's own memory, if requested after all.
    slot.consumed().unwrap();
    slot.send_slice(&[5.0f32; 8]).unwrap();
    assert_eq!(slot.device().to_vec::<f32>().unwrap(), [5.0; 8]);
}

#[test]
fn a_pinned_tensor_fits_where_it_is_sent() {
    let Some((gpu, _alone)) = gpu() else { return };
    let mut slot = Upload::without_host(gpu, &[4], DType::F16).unwrap();
    let mut pinned = PinnedTensor::new(gpu, &[3], DType::F16).unwrap();
    let error = slot.send_from(&mut pinned, 4).unwrap_err();
    assert!(matches!(error, KernelError::OutOfRange { end: 4, len: 3, .. }), "{error}");
    let mut longer = PinnedTensor::new(gpu, &[5], DType::F16).unwrap();
    assert!(slot.send_from(&mut longer, 5).is_err());
    let mut other = PinnedTensor::new(gpu, &[4], DType::BF16).unwrap();
    let error = slot.send_from(&mut other, 4).unwrap_err();
    assert!(matches!(error, KernelError::DTypeMismatch { .. }), "{error}");
    for refused in [&mut pinned, &mut longer, &mut other] {
        refused.host().unwrap();
    }
    slot.send_from(&mut pinned, 0).unwrap();
    pinned.wait_sent().unwrap();
    assert!(pinned.sent_ms().unwrap().is_some());
    let _ = PinnedTensor::new(gpu, &[0, 3], DType::U8).unwrap().host().unwrap();
    if Gpu::count() < 2 {
        println!("skipped: needs 2 GPUs, found {}", Gpu::count());
        return;
    }
    let mut elsewhere = PinnedTensor::new(Gpu::get(1).unwrap(), &[4], DType::F16).unwrap();
    let error = slot.send_from(&mut elsewhere, 4).unwrap_err();
    assert!(matches!(error, KernelError::DeviceMismatch { .. }), "{error}");
}

#[test]
fn a_graph_is_replayed_with_what_lies_in_memory() {
    let Some((gpu, _alone)) = gpu() else { return };
    let mut sum = Tensor::zeros(&[100], DType::F32, gpu.device()).unwrap();
    let mut term = Tensor::ones(&[100], DType::F32, gpu.device()).unwrap();
    // The first call compiles the kernel, which is not allowed in a capture.
    ops::add_assign(sum.view_mut(), term.view()).unwrap();
    let mut graph = Graph::capture(gpu, || -> Result<(), KernelError> {
        ops::add_assign(sum.view_mut(), term.view())?;
        ops::add_assign(sum.view_mut(), term.view())
    })
    .unwrap();
    assert_eq!(graph.n_nodes(), 2);
    assert_eq!(sum.to_vec::<f32>().unwrap(), [1.0; 100], "a capture runs nothing");
    graph.launch().unwrap();
    ops::copy(TensorRef::from_slice(&[5.0f32; 100], &[100]).unwrap(), term.view_mut()).unwrap();
    graph.launch().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [13.0; 100]);
    // Memory that a graph may still use is not reused while the graph exists.
    let held = gpu.memory_allocated();
    drop(term);
    let fresh = Tensor::full(&[100], 9.0, DType::F32, gpu.device()).unwrap();
    graph.launch().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [23.0; 100]);
    assert_eq!(fresh.to_vec::<f32>().unwrap(), [9.0; 100]);
    assert_eq!(gpu.memory_allocated(), held, "accounted for by its owner");
}

/// In time order: marks at once and in a replayed graph, in the same recording.
#[test]
fn marks_measure_work_at_once_and_in_graphs() {
    let Some((gpu, _alone)) = gpu() else { return };
    let mut sum = Tensor::zeros(&[100], DType::F32, gpu.device()).unwrap();
    let term = Tensor::ones(&[100], DType::F32, gpu.device()).unwrap();
    ops::add_assign(sum.view_mut(), term.view()).unwrap();
    let mut marks = Some(Marks::new(gpu).unwrap());
    assert_eq!(gpu.mark(7).unwrap(), None, "nothing is recorded outside of `marking`");
    gpu.marking(&mut marks, || gpu.mark(7)).unwrap();
    let body = || -> Result<(), KernelError> {
        assert_eq!(gpu.mark(1)?, Some(7));
        ops::add_assign(sum.view_mut(), term.view())?;
        assert_eq!(gpu.mark(2)?, Some(1));
        Ok(())
    };
    let mut graph = Graph::capture(gpu, || gpu.marking(&mut marks, body)).unwrap();
    let recorded = marks.as_mut().unwrap();
    let labels = recorded.labels();
    assert_eq!(labels.of_work, [7, 1, 2]);
    let origin = Origin::record(gpu).unwrap();
    for _ in 0..2 {
        recorded.clear();
        assert_eq!(recorded.times_ms().unwrap(), None);
        recorded.replayed(&labels);
        graph.launch().unwrap();
        let times = recorded.times_ms().unwrap().unwrap();
        assert_eq!(times.iter().map(|(label, _)| *label).collect::<Vec<_>>(), [7, 1]);
        assert!(times[1].1 > 0.0, "{times:?}");
        let Moments { work, collectives } = recorded.moments(&origin).unwrap();
        let [(7, _, first_end), (1, begin, end)] = work[..] else { panic!("{work:?}") };
        assert!(begin == first_end && 0.0 < begin && begin < end && collectives.is_empty(), "{work:?}");
    }
    // More than there is room for.
    let too_many = || (0..300).try_for_each(|_| gpu.mark(1).map(|_| ()));
    gpu.marking(&mut marks, too_many).unwrap();
    assert_eq!(marks.unwrap().times_ms().unwrap(), None);
}

/// The numbers that a replay reads from device memory reach the host without a copy.
#[test]
fn a_graph_reports_at_each_replay_and_keeps_the_memory() {
    let Some((gpu, _alone)) = gpu() else { return };
    let device = gpu.device();
    let mut to = Mapped::new(gpu, StepReport::LEN_BYTES).unwrap();
    let tail = |loss: f64| {
        let mut tail = [0.0; STEP_SUMS_LEN];
        LossSums { loss, weight: 2.0 }.store(&mut tail);
        tail
    };
    let [mut weights, grads] = [1.0; 2].map(|v| Tensor::full(&[8], v, DType::F32, device).unwrap());
    let scalars = StepScalars { lr: 0.1, step: 1, unscale: 1.0, ..StepScalars::default() }.to_array();
    let scalars = Tensor::from_slice(&scalars, &[STEP_SCALARS_LEN], device).unwrap();
    let mut sums = Tensor::from_slice(&tail(0.5), &[STEP_SUMS_LEN], device).unwrap();
    let squares = Tensor::from_slice(&[0.5f64], &[1], device).unwrap();
    let mut step = |to: &Mapped, sums: &Tensor| {
        let report = StepReport::new(to, Some(squares.view()))?;
        let inputs = UpdateInputs {
            scalars: scalars.view(),
            sums: sums.view(),
            sum_of_squares: Some(squares.view()),
            max_norm: 1.0,
            report: Some(&report),
        };
        let tensors = OptimizerTensors {
            master_weights: weights.view_mut(),
            grads: grads.view(),
            state: [None, None],
            average: None,
            compute_weights: None,
            norms: None,
        };
        ops::optimizer_step(OptimizerKind::Sgd, &OptimizerParams::default(), tensors, Some(&inputs))?;
        report.complete(inputs.sums)
    };
    step(&to, &sums).unwrap();
    let mut graph = Graph::capture(gpu, || step(&to, &sums)).unwrap();
    assert_eq!(graph.n_nodes(), 1);
    for loss in [1.0, 2.0] {
        ops::copy(TensorRef::from_slice(&tail(loss), &[STEP_SUMS_LEN]).unwrap(), sums.view_mut()).unwrap();
        graph.launch().unwrap();
        to.record().unwrap();
        to.wait().unwrap();
        assert_eq!(LossSums::load(&to.read::<f32, STEP_SUMS_LEN>(0)).loss, loss);
        assert_eq!(to.read::<f64, 1>(4 * STEP_SUMS_LEN), [0.5]);
    }
    drop(to);
    // On freed memory it would break the device.
    graph.launch().unwrap();
    gpu.synchronize().unwrap();
}

/// Updates before a gate closes are applied, those after it are not, and the gate says which.
#[test]
fn a_closed_gate_stops_updates_of_eager_and_captured_steps() {
    let Some((gpu, _alone)) = gpu() else { return };
    assert_eq!(gpu.gate_state().unwrap(), None);
    gpu.gate_updates().unwrap();
    let device = gpu.device();
    let n = 5000;
    let [mut weights, grads] = [1.0; 2].map(|v| Tensor::full(&[n], v, DType::F32, device).unwrap());
    let mut momentum = Tensor::zeros(&[n], DType::F32, device).unwrap();
    let mut tail = [0.0; STEP_SUMS_LEN];
    LossSums { loss: 1.0, weight: 2.0 }.store(&mut tail);
    let sums = Tensor::from_slice(&tail, &[STEP_SUMS_LEN], device).unwrap();
    let mut scalars = Tensor::zeros(&[STEP_SCALARS_LEN], DType::F64, device).unwrap();
    let params = OptimizerParams { momentum: 0.9, ..OptimizerParams::default() };
    let begin = |step: u64, scalars: &mut Tensor| {
        let values = StepScalars { lr: 0.25, step, unscale: 1.0, ..StepScalars::default() }.to_array();
        ops::copy(TensorRef::from_slice(&values, &[STEP_SCALARS_LEN]).unwrap(), scalars.view_mut()).unwrap();
    };
    let update = |weights: &mut Tensor, momentum: &mut Tensor, scalars: &Tensor| {
        let inputs = UpdateInputs {
            scalars: scalars.view(),
            sums: sums.view(),
            sum_of_squares: None,
            max_norm: 0.0,
            report: None,
        };
        let tensors = OptimizerTensors {
            master_weights: weights.view_mut(),
            grads: grads.view(),
            state: [Some(momentum.view_mut()), None],
            average: None,
            compute_weights: None,
            norms: None,
        };
        ops::optimizer_step(OptimizerKind::Sgd, &params, tensors, Some(&inputs))
    };
    let applied = |last_applied, first_stopped| Some(GateState { last_applied, first_stopped });
    begin(1, &mut scalars);
    update(&mut weights, &mut momentum, &scalars).unwrap();
    let mut graph = Graph::capture(gpu, || update(&mut weights, &mut momentum, &scalars)).unwrap();
    begin(2, &mut scalars);
    graph.launch().unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.gate_state().unwrap(), applied(2, None));
    let of_two = [&weights, &momentum].map(|tensor| tensor.to_vec::<f32>().unwrap());
    assert!(of_two[0][0] < 0.75 && of_two[0].iter().all(|w| *w == of_two[0][0]), "{}", of_two[0][0]);

    gpu.close_gate().unwrap();
    for step in [3, 4] {
        begin(step, &mut scalars);
        graph.launch().unwrap();
    }
    update(&mut weights, &mut momentum, &scalars).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.gate_state().unwrap(), applied(2, Some(3)));
    assert_eq!([&weights, &momentum].map(|tensor| tensor.to_vec::<f32>().unwrap()), of_two);

    // Open again, with nothing recorded.
    gpu.gate_updates().unwrap();
    assert_eq!(gpu.gate_state().unwrap(), applied(0, None));
    graph.launch().unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.gate_state().unwrap(), applied(4, None));
    assert_ne!(weights.to_vec::<f32>().unwrap(), of_two[0]);
}

/// Sorting and zeroing are part of it; nothing of an earlier launch remains.
#[test]
fn a_graph_holds_embeddings_and_their_gradient() {
    let Some((gpu, _alone)) = gpu() else { return };
    let table = |start, n_codes, dim| ops::EmbeddingTable { start, n_codes, dim };
    let tables = vec![table(0, 2, 4), table(8, 300, 9)];
    let tables = ops::EmbeddingTables::new(tables, gpu.device()).unwrap();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, gpu.device()).unwrap();
    let n_rows = 150;
    let weights = Tensor::randn(&[8 + 2700], DType::F32, gpu.device(), 1).unwrap();
    let (mut x, mut out) = (zeros(&[n_rows, 3], DType::F32), zeros(&[n_rows, 14], DType::F32));
    let mut d_weights = weights.zeros_like().unwrap();
    let mut workspace = zeros(&[tables.workspace_len(n_rows)], DType::I64);
    let mut both = |x: &Tensor| -> Result<(), KernelError> {
        ops::embedding_forward(x.view(), weights.view(), &tables, out.view_mut())?;
        let (d_weights, workspace) = (d_weights.view_mut(), workspace.view_mut());
        ops::embedding_backward(x.view(), out.view(), &tables, d_weights, workspace, false)
    };
    both(&x).unwrap();
    let mut graph = Graph::capture(gpu, || both(&x)).unwrap();
    assert_eq!(graph.n_nodes(), 4);
    let codes = |n: usize| [n as f32 / 8.0, (n % 2) as f32, (n * n % 300) as f32];
    let rows: Vec<f32> = (0..n_rows).flat_map(codes).collect();
    ops::copy(TensorRef::from_slice(&rows, &[n_rows, 3]).unwrap(), x.view_mut()).unwrap();
    graph.launch().unwrap();
    let replayed = (out.to_vec::<f32>().unwrap(), d_weights.to_vec::<f32>().unwrap());
    assert!(replayed.0.chunks_exact(14).enumerate().all(|(n, row)| row[0] == n as f32 / 8.0));
    // Each used row of a table, as often as it is used.
    let weights = weights.to_vec::<f32>().unwrap();
    let mut n_met = [[0u8; 300]; 2];
    (0..n_rows).for_each(|n| (n_met[0][n % 2] += 1, n_met[1][n * n % 300] += 1).1);
    for (i, (&got, &weight)) in replayed.1.iter().zip(&weights).enumerate() {
        let n = if i < 8 { n_met[0][i / 4] } else { n_met[1][(i - 8) / 9] };
        let want = f32::from(n) * weight;
        // Up to 75 times the same number, each sum rounded to 2^-24 of itself.
        assert!((got - want).abs() <= 1e-5 * want.abs(), "element {i}: {got} against {want}");
    }
}

#[test]
fn a_failed_capture_leaves_the_stream_usable() {
    let Some((gpu, _alone)) = gpu() else { return };
    let failed = Graph::capture(gpu, || Err(KernelError::UnknownDevice { name: "none".into() }));
    assert!(matches!(failed.unwrap_err(), KernelError::UnknownDevice { .. }));
    let ones = Tensor::ones(&[3], DType::F32, gpu.device()).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn any_thread_can_wait_for_a_stream() {
    let Some((gpu, _alone)) = gpu() else { return };
    for kind in [StreamKind::Compute, StreamKind::Communication, StreamKind::Copy] {
        std::thread::spawn(move || gpu.stream(kind).synchronize()).join().unwrap().unwrap();
    }
}

#[test]
fn the_device_measures_time_and_the_host_can_wait_for_all_of_it() {
    let Some((gpu, _alone)) = gpu() else { return };
    let timer = Timer::new(gpu).unwrap();
    let a = Tensor::randn(&[256, 256], DType::F32, gpu.device(), 1).unwrap();
    let mut c = a.zeros_like().unwrap();
    timer.start(gpu.compute()).unwrap();
    for _ in 0..4 {
        ops::addmm(1.0, a.view(), false, a.view(), false, 0.0, c.view_mut()).unwrap();
    }
    timer.stop(gpu.compute()).unwrap();
    gpu.synchronize().unwrap();
    for kind in [StreamKind::Compute, StreamKind::Communication, StreamKind::Copy] {
        gpu.stream(kind).synchronize().unwrap();
    }
    let ms = timer.elapsed_ms().unwrap();
    assert!(ms > 0.0 && ms < 60_000.0, "{ms} ms");
}

#[test]
fn devices_are_described() {
    let Some((gpu, _alone)) = gpu() else { return };
    let info = gpu.info();
    assert!(info.uuid.starts_with("GPU-") && info.pci_bus_id.contains(':'), "{info:?}");
    assert!(info.memory_bytes > 0 && info.multiprocessors > 0 && info.compute_capability.0 >= 7, "{info:?}");
    assert!(Device::Cuda(Gpu::count() as u32).ensure_available().is_err());
}

/// Tensors larger than a chunk of a staged copy, which GPUs without peer access use. Without NVSwitch a GPU reaches eight others.
#[test]
fn a_large_tensor_reaches_a_gpu_from_any_number_of_others() {
    let Some((gpu, _alone)) = gpu() else { return };
    let n = 5 * MIB + 3;
    for index in 1..Gpu::count() as u32 {
        let there = Tensor::arange(n, DType::F32, Device::Cuda(index)).unwrap();
        let here = there.to(gpu.device()).unwrap();
        assert_eq!(here.device(), gpu.device());
        assert!(here.to_vec::<f32>().unwrap().iter().enumerate().all(|(i, &v)| v == i as f32), "{index}");
    }
}

/// Eager, and as a graph that is replayed.
#[test]
fn work_beside_begins_at_its_point_and_is_joined() {
    let Some((gpu, _alone)) = gpu() else { return };
    let (device, n) = (gpu.device(), 4096);
    let beside = Beside::new(gpu, 2).unwrap();
    let [x, y] = [1, 2].map(|seed| Tensor::randn(&[n], DType::F32, device, seed).unwrap());
    let [mut a, mut b, mut sum] = [(); 3].map(|()| Tensor::zeros(&[n], DType::F32, device).unwrap());
    let mut step = || -> Result<(), KernelError> {
        ops::copy(x.view(), a.view_mut())?;
        beside.reached(0)?;
        ops::copy(y.view(), b.view_mut())?;
        beside.reached(1)?;
        // Reads what was written before the points, next to the compute stream.
        beside.after(0, || ops::copy(a.view(), sum.view_mut()))?;
        beside.after(1, || ops::add_assign(sum.view_mut(), b.view()))?;
        beside.join()?;
        ops::copy(sum.view(), a.view_mut())
    };
    step().unwrap();
    let mut graph = Graph::capture(gpu, &mut step).unwrap();
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    drop(graph);
    let [x, y, a] = [&x, &y, &a].map(|tensor| tensor.to_vec::<f32>().unwrap());
    assert!(x.iter().zip(&y).zip(a).all(|((x, y), a)| a == x + y));
}
