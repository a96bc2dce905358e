//! Every reduction in every dtype against its definition in f64, on every device.

use super::*;
use crate::cpu::threads::join_pool;
use crate::ops::testing::{devices, random};
use crate::{DType, Device, Tensor};

fn numbers(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The result of `op` over `values`, in order.
fn definition(op: ReduceOp, values: &[f64]) -> f64 {
    let best = |is_better: fn(f64, f64) -> bool| {
        let take = |a: usize, b: usize| if is_better(values[b], values[a]) { b } else { a };
        (0..values.len()).reduce(take).unwrap()
    };
    match op {
        ReduceOp::Sum => values.iter().sum(),
        ReduceOp::Mean => values.iter().sum::<f64>() / values.len() as f64,
        ReduceOp::Max => values[best(|b, a| b > a)],
        ReduceOp::Min => values[best(|b, a| b < a)],
        ReduceOp::ArgMax => best(|b, a| b > a) as f64,
        ReduceOp::Norm => values.iter().map(|v| v * v).sum::<f64>().sqrt(),
    }
}

const ALL: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::ArgMax, ReduceOp::Norm];

fn reduced(op: ReduceOp, x: &Tensor, axis: Option<usize>) -> Tensor {
    let layout = layout("test", x.shape(), axis).unwrap();
    let dims = [layout.outer * layout.inner];
    let mut out = Tensor::zeros(&dims, op.result_dtype(x.dtype()), x.device()).unwrap();
    reduce(op, x.view(), axis, out.view_mut()).unwrap();
    out
}

#[test]
fn a_reduction_in_one_piece_allocates_nothing_and_agrees_with_one_in_parts() {
    for device in devices() {
        for dims in [[3, 70, 1], [3, 20_000, 1], [2, 700, 3], [1, 1, 4]] {
            let x = Tensor::randn(&dims, DType::F32, device, 4).unwrap();
            for op in ALL {
                let want = reduced(op, &x, Some(1));
                let mut got = want.zeros_like().unwrap();
                let before = crate::memory::peak(device).unwrap();
                reduce_whole(op, x.view(), Some(1), got.view_mut()).unwrap();
                assert!(device == Device::Cpu || crate::memory::peak(device).unwrap() == before, "{op:?}");
                // Sums in f64 in another order.
                for (got, want) in numbers(&got).into_iter().zip(numbers(&want)) {
                    assert!(
                        (got - want).abs() <= 1e-6 * (1.0 + want.abs()),
                        "{device} {dims:?} {op:?}: {got} against {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn each_reduction_follows_its_definition_in_every_dtype() {
    let shapes: [&[usize]; 8] =
        [&[1], &[3, 5], &[70_003], &[7, 300, 3], &[2, 3, 2500], &[40_000, 3], &[3, 70_001], &[5, 1]];
    for device in devices() {
        for dtype in DType::ALL {
            for dims in shapes {
                let n: usize = dims.iter().product();
                // Long ones in one dtype of each kind of sum: the others differ in how an element is read.
                if n > 10_000 && ![DType::F32, DType::BF16, DType::I32].contains(&dtype) {
                    continue;
                }
                // Few different values, so that the largest occurs more than once.
                let values: Vec<f64> = random::<f64>(n, 3).iter().map(|v| (v * 40.0).round()).collect();
                let x = Tensor::from_slice(&values, dims, device).unwrap().to_dtype(dtype).unwrap();
                let values = numbers(&x);
                for axis in std::iter::once(None).chain((0..dims.len()).map(Some)) {
                    let Layout { outer, len, inner } = layout("test", x.shape(), axis).unwrap();
                    for op in ALL {
                        if !dtype.is_float() && matches!(op, ReduceOp::Mean | ReduceOp::Norm) {
                            continue;
                        }
                        let got = reduced(op, &x, axis);
                        assert_eq!(got.dtype(), op.result_dtype(dtype));
                        for (r, got) in numbers(&got).into_iter().enumerate() {
                            let (o, i) = (r / inner, r % inner);
                            let along: Vec<f64> =
                                (0..len).map(|l| values[(o * len + l) * inner + i]).collect();
                            let want = definition(op, &along);
                            assert!(o < outer);
                            // Rounding to the dtype, once; f16 has a largest number.
                            let rounded = match dtype {
                                DType::BF16 => (want * 0.0040).abs(),
                                DType::F16 if want.abs() > 65_504.0 => f64::INFINITY,
                                DType::F16 => (want * 0.0005).abs(),
                                DType::F32 => (want * 1e-7).abs(),
                                _ => want.abs() * 1e-14,
                            };
                            assert!(
                                (got - want).abs() <= rounded,
                                "{} of {dtype} {dims:?} along {axis:?} on {device}, result {r}: {got}, want {want}",
                                op.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nan_wins_and_nothing_has_a_sum_but_no_largest() {
    for device in devices() {
        let mut values = vec![1.0f32; 5000];
        values[4321] = f32::NAN;
        values[4322] = 9.0;
        let x = Tensor::from_slice(&values, &[5000], device).unwrap();
        assert!(x.max(None).unwrap().item::<f32>().unwrap().is_nan());
        assert!(x.min(0).unwrap().item::<f32>().unwrap().is_nan());
        assert_eq!(x.argmax(None).unwrap().item::<i64>().unwrap(), 4321);
        let columns = x.reshape(&[2500, 2]).unwrap();
        assert_eq!(columns.argmax(0).unwrap().to_vec::<i64>().unwrap(), [2161, 2160]);
        let rows = x.reshape(&[100, 50]).unwrap();
        for best in [rows.max(1).unwrap(), rows.min(1).unwrap()] {
            let best = best.to_vec::<f32>().unwrap();
            assert!(best.iter().enumerate().all(|(row, v)| v.is_nan() == (row == 4321 / 50)));
        }
        let nothing = Tensor::zeros(&[0, 2], DType::F32, device).unwrap();
        assert_eq!(nothing.sum(0).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
        assert!(nothing.mean(None).unwrap().item::<f32>().unwrap().is_nan());
        let message = nothing.max(0).unwrap_err().to_string();
        assert!(message.contains("max: a [0, 2] f32") && message.contains("no element"), "{message}");
        assert!(nothing.max(1).unwrap().to_vec::<f32>().unwrap().is_empty());
        assert!(x.sum(1).is_err() && columns.to_dtype(DType::I32).unwrap().mean(None).is_err());
    }
}

/// Numbers for many chunks, whose largest is in several of them.
#[test]
fn the_first_of_the_largest_of_a_long_row_is_found() {
    const N: usize = 300_001;
    for device in devices() {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::I64] {
            for (places, want) in [
                (&[0][..], 0),
                (&[65_535, 65_536], 65_535),
                (&[65_536, 131_072], 65_536),
                (&[131_071, 200_000, 300_000], 131_071),
                (&[299_999], 299_999),
                (&[300_000], 300_000),
            ] {
                let mut values: Vec<f32> = (0..N).map(|i| (i % 100) as f32).collect();
                places.iter().for_each(|&place| values[place] = 120.0);
                // Two rows, of which the other has its largest at its end.
                values.extend((0..N).map(|i| if i == N - 1 { 101.0 } else { (i % 101) as f32 }));
                let x = Tensor::from_slice(&values, &[2, N], device).unwrap().to_dtype(dtype).unwrap();
                let got = x.argmax(1).unwrap().to_vec::<i64>().unwrap();
                assert_eq!(got, [want, N as i64 - 1], "{dtype} on {device}");
                assert_eq!(x.argmax(None).unwrap().item::<i64>().unwrap(), want, "{dtype} on {device}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let results = |n_threads: usize| {
        let compute = move || {
            join_pool(n_threads).unwrap();
            let mut all = Vec::new();
            for dims in [&[1_000_003][..], &[1000, 777], &[100_000, 3], &[3, 5, 30_000]] {
                let x = Tensor::randn(dims, DType::F32, Device::Cpu, 5).unwrap();
                for axis in std::iter::once(None).chain((0..dims.len()).map(Some)) {
                    for op in [ReduceOp::Sum, ReduceOp::Norm] {
                        all.extend(
                            reduced(op, &x, axis).to_vec::<f32>().unwrap().into_iter().map(f32::to_bits),
                        );
                    }
                }
            }
            all
        };
        std::thread::spawn(compute).join().unwrap()
    };
    let one = results(1);
    assert!(one == results(2) && one == results(3));
}
