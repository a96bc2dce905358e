//! Ranks as threads: the contract of a group, and what happens to ranks whose peers fail.

mod contract;
#[path = "contract/messages.rs"]
mod messages;

use std::time::{Duration, Instant};

use contract::Sums;
use ddp_comm::{CallKind, CommError, Departure, Rank, ReduceOp, Scope, World, threads};
use ddp_kernels::{DType, Device, Tensor, TensorMut};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With chunks of 64 bytes a few hundred elements use every slot more than once; with the usual chunks they do not.
    #[test]
    fn the_contract_holds(
        world_size in 1usize..6,
        len in prop_oneof![0usize..40, 200usize..700],
        chunk_bytes in prop_oneof![Just(0usize), Just(64), Just(192), Just(16_384)],
    ) {
        let options = threads::Options { chunk_bytes, ..threads::Options::new(world_size) };
        for result in threads::run_with(options, |world| contract::check(&world, Device::Cpu, len, Sums::InRankOrder)) {
            result.unwrap();
        }
    }
}

#[test]
fn many_chunks_and_two_phases() {
    for (world_size, len) in [(2, 300_001), (3, 100_003), (4, 70_000), (5, 4_099)] {
        for result in threads::run(world_size, |w| contract::check(&w, Device::Cpu, len, Sums::InRankOrder)) {
            result.unwrap();
        }
    }
}

#[test]
fn a_world_of_one_keeps_the_contract() {
    for len in [0, 1, 1000] {
        contract::check(&World::single(), Device::Cpu, len, Sums::InRankOrder).unwrap();
    }
}

fn sum(world: &World, len: usize) -> Result<(), CommError> {
    let mut buf = Tensor::zeros(&[len], DType::F32, Device::Cpu)?;
    world.group().all_reduce(ReduceOp::Sum, buf.view_mut())
}

#[test]
fn different_lengths_and_calls_are_errors_on_every_rank() {
    let errors = threads::run(3, |world| sum(&world, 5 + world.rank().0 / 2).unwrap_err());
    for error in errors {
        let CommError::CallMismatch { rank: 2, got, expected } = error else { panic!("{error}") };
        assert_eq!((got.len, expected.len), (6, 5));
    }
    let errors = threads::run(3, |world| match world.rank() {
        Rank(1) => world.group().barrier().unwrap_err(),
        _ => sum(&world, 5).unwrap_err(),
    });
    for error in &errors {
        assert!(
            error.to_string().contains("rank 1 entered barrier, rank 0 entered all_reduce(sum) of 5 f32"),
            "{error}"
        );
    }
    // Nothing works afterward, and it says why.
    threads::run(2, |world| {
        sum(&world, 1 + world.rank().0).unwrap_err();
        assert!(matches!(sum(&world, 1), Err(CommError::CallMismatch { .. })));
    });
}

#[test]
fn different_calls_in_a_scope_are_errors_on_every_rank() {
    type Start = for<'env> fn(&mut Scope<'env>, TensorMut<'env>) -> Result<(), CommError>;
    let scatter: Start = |scope, buf| scope.reduce_scatter_in_place(ReduceOp::Sum, buf).map(|_| ());
    let gather: Start = |scope, buf| scope.all_gather_in_place(buf).map(|_| ());
    let in_scope = |world: &World, len: usize, start: Start| {
        let mut buf = vec![0f32; len];
        let view = TensorMut::from_slice(&mut buf, &[len])?;
        world.group().scope(|scope| start(scope, view))
    };
    for start in [scatter, gather] {
        let errors =
            threads::run(3, |world| in_scope(&world, 6 + 3 * (world.rank().0 / 2), start).unwrap_err());
        for error in errors {
            let CommError::CallMismatch { rank: 2, got, expected } = error else { panic!("{error}") };
            assert_eq!((got.len, expected.len), (3, 2));
        }
        // A length that ranks cannot share out is found before anything starts.
        threads::run(2, |world| {
            let error = in_scope(&world, 5, start).unwrap_err();
            assert!(error.to_string().contains("5 elements of output, expected 6 for 2 ranks"), "{error}");
            sum(&world, 4).unwrap();
        });
    }
    let errors = threads::run(2, |world| {
        in_scope(&world, 6, if world.rank().0 == 0 { scatter } else { gather }).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains(
                "rank 1 entered all_gather of 3 f32 per rank, rank 0 entered reduce_scatter(sum) to 3"
            ),
            "{text}"
        );
    }
}

#[test]
#[should_panic(expected = "a buffer is returned by the group that it was lent to")]
fn a_buffer_is_returned_by_its_own_group_only() {
    let (one, other) = (World::single(), World::single());
    let mut buf = [0f32; 4];
    let view = TensorMut::from_slice(&mut buf, &[4]).unwrap();
    let _ = one.group().scope(|lender| {
        let loan = lender.reduce_scatter_on_loan(ReduceOp::Sum, view, 4)?;
        other.group().scope(|scope| scope.take_back(loan).map(|_| ()))
    });
}

#[test]
fn lengths_of_buckets_are_agreed_on() {
    let errors = threads::run(3, |world| {
        let lens = if world.rank().0 == 2 { [10, 21, 5] } else { [10, 20, 5] };
        world.group().agree_lengths(&lens).unwrap_err()
    });
    let want = CommError::CountMismatch { bucket: 1, rank: 2, got: 21, expected: 20 };
    assert!(errors.iter().all(|error| *error == want), "{errors:?}");
    let errors =
        threads::run(2, |world| world.group().agree_lengths(&vec![1; world.rank().0 + 1]).unwrap_err());
    assert_eq!(errors[0], CommError::BucketCountMismatch { rank: 1, got: 2, expected: 1 });
}

#[test]
fn lengths_within_a_rank_are_checked() {
    threads::run(2, |world| {
        let input = Tensor::zeros(&[3], DType::F32, Device::Cpu).unwrap();
        let mut output = Tensor::zeros(&[5], DType::F32, Device::Cpu).unwrap();
        let error = world.group().all_gather(input.view(), output.view_mut()).unwrap_err();
        assert!(error.to_string().contains("5 elements of output, expected 6 for 2 ranks"), "{error}");
        let mut other = Tensor::zeros(&[6], DType::I64, Device::Cpu).unwrap();
        let error = world.group().all_gather(input.view(), other.view_mut()).unwrap_err();
        assert!(matches!(error, CommError::Kernel(_)), "{error}");
        let error = world.group().broadcast(Rank(2), output.view_mut()).unwrap_err();
        assert!(matches!(error, CommError::NoSuchRank { rank: 2, .. }), "{error}");
    });
}

#[test]
fn a_rank_that_leaves_is_named_to_those_who_wait() {
    let start = Instant::now();
    let results = threads::run(3, |world| if world.rank().0 == 1 { Ok(()) } else { sum(&world, 1000) });
    for result in [&results[0], &results[2]] {
        let Err(CommError::PeerLeft { call, rank: 1, how: Departure::Closed }) = result else {
            panic!("{result:?}")
        };
        assert_eq!((call.kind, call.len), (CallKind::AllReduce(ReduceOp::Sum), 1000));
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_panics_in_a_scope_is_named_and_its_panic_goes_on() {
    let others = std::sync::Mutex::new(Vec::new());
    let panic = std::panic::catch_unwind(|| {
        threads::run(3, |world| {
            let mut buf = vec![0f32; 200_000];
            let view = TensorMut::from_slice(&mut buf, &[200_000]).unwrap();
            let result = world.group().scope(|scope| {
                scope.all_reduce(ReduceOp::Sum, view)?;
                assert!(world.rank().0 != 2, "disk on fire");
                Ok::<(), CommError>(())
            });
            others.lock().unwrap().push(result.unwrap_err());
        })
    });
    let message = *panic.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "disk on fire");
    let others = others.into_inner().unwrap();
    assert_eq!(others.len(), 2);
    for error in others {
        assert!(matches!(error, CommError::PeerLeft { rank: 2, how: Departure::Panicked, .. }), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_after_the_timeout() {
    assert_eq!(threads::Options::new(2).timeout, None, "a rank may be busy for minutes");
    let options = threads::Options { timeout: Some(Duration::from_millis(100)), ..threads::Options::new(2) };
    let has_waited = std::sync::Barrier::new(2);
    let results = threads::run_with(options, |world| {
        let result = if world.rank().0 == 0 { sum(&world, 1) } else { Ok(()) };
        has_waited.wait();
        result
    });
    let Err(CommError::Timeout { missing, .. }) = &results[0] else { panic!("{results:?}") };
    assert_eq!(missing, &[1]);
}

#[test]
fn a_rank_may_leave_when_its_part_is_done() {
    for _ in 0..50 {
        let results = threads::run(3, |world| {
            sum(&world, 40_000)?;
            world.close()
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

#[test]
fn an_error_in_a_scope_still_returns_all_buffers() {
    let results = threads::run(2, |world| {
        let mut buf = vec![1f32; 100];
        let view = TensorMut::from_slice(&mut buf, &[100]).unwrap();
        let result = world.group().scope(|scope| {
            scope.all_reduce(ReduceOp::Sum, view)?;
            Err::<(), CommError>(CommError::MpiInUse)
        });
        assert_eq!(result, Err(CommError::MpiInUse));
        world.group().barrier().unwrap();
        buf
    });
    assert!(results.into_iter().flatten().all(|v| v == 2.0));
}

#[test]
fn waiting_ranks_leave_the_cores_to_others() {
    // Eight ranks, of which one works: on few cores, spinning ranks would take its time.
    let start = Instant::now();
    let results = threads::run(8, |world| {
        for _ in 0..20 {
            if world.rank().0 == 0 {
                let end = Instant::now() + Duration::from_millis(5);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            }
            sum(&world, 64)?;
        }
        Ok::<(), CommError>(())
    });
    results.into_iter().for_each(|result| result.unwrap());
    // 0.1 s of work; an hour's worth of caution for slow machines.
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn messages_arrive() {
    for (world_size, chunk_bytes) in [(1, 0), (2, 0), (2, 64), (3, 192), (5, 0)] {
        let options = threads::Options { chunk_bytes, ..threads::Options::new(world_size) };
        for result in threads::run_with(options, |world| messages::check(&world)) {
            result.unwrap();
        }
    }
}

#[test]
fn ranks_that_all_send_are_told() {
    for world_size in [2, 3, 4] {
        let begin = Instant::now();
        for result in threads::run(world_size, |world| messages::check_ring(&world)) {
            result.unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no rank waits for another");
    }
}

#[test]
fn a_message_of_a_rank_that_left_is_an_error() {
    let errors = threads::run(2, |world| {
        let mut x = Tensor::zeros(&[4], DType::F32, Device::Cpu).unwrap();
        if world.is_first() { world.receive(&mut x, 1).err() } else { None }
    });
    assert!(
        matches!(errors[0], Some(CommError::PeerLeft { rank: 1, how: Departure::Closed, .. })),
        "{errors:?}"
    );
    // What was sent before that is received.
    let got = threads::run(2, |world| -> Result<Vec<f32>, CommError> {
        let mut x = Tensor::full(&[4], world.rank().0 as f32, DType::F32, Device::Cpu)?;
        if world.is_first() {
            world.receive(&mut x, 1)?
        } else {
            world.send(&x, 0)?
        }
        Ok(x.to_vec()?)
    });
    assert_eq!(got[0].as_ref().unwrap(), &[1.0; 4]);
}
