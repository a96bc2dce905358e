//! Every operation in every dtype against its definition in f64, on every device.

use super::*;
use crate::ops::testing::{devices, random};
use crate::{DType, Device, Tensor};

/// Values in `dtype`, and the same as f64.
fn operand(values: &[f64], dims: &[usize], dtype: DType, device: Device) -> (Tensor, Vec<f64>) {
    let x = Tensor::from_slice(values, dims, device).unwrap().to_dtype(dtype).unwrap();
    let rounded = numbers(&x);
    (x, rounded)
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Relative rounding error of a result.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        // Half a unit in the last place, and the error of an elementary function in f32.
        DType::BF16 => 0.0040,
        DType::F16 => 0.0005,
        DType::F32 => 1e-6,
        DType::F64 => 1e-14,
        _ => 0.0,
    }
}

fn definition(op: MapOp, a: f64, b: f64) -> f64 {
    match op {
        MapOp::Neg => -a,
        MapOp::Exp => a.exp(),
        MapOp::Log => a.ln(),
        MapOp::Log1p => a.ln_1p(),
        MapOp::Sqrt => a.sqrt(),
        MapOp::Abs => a.abs(),
        MapOp::Add => a + b,
        MapOp::Sub => a - b,
        MapOp::Mul => a * b,
        MapOp::Div => a / b,
        MapOp::Pow => a.powf(b),
        MapOp::Maximum => a.max(b),
        MapOp::Minimum => a.min(b),
        MapOp::Sin => a.sin(),
        MapOp::Cos => a.cos(),
        MapOp::Floor => a.floor(),
        MapOp::Ceil => a.ceil(),
        MapOp::Round => a.round_ties_even(),
    }
}

const ALL: [MapOp; 18] = [
    MapOp::Neg,
    MapOp::Exp,
    MapOp::Log,
    MapOp::Log1p,
    MapOp::Sqrt,
    MapOp::Abs,
    MapOp::Add,
    MapOp::Sub,
    MapOp::Mul,
    MapOp::Div,
    MapOp::Pow,
    MapOp::Maximum,
    MapOp::Minimum,
    MapOp::Sin,
    MapOp::Cos,
    MapOp::Floor,
    MapOp::Ceil,
    MapOp::Round,
];

#[track_caller]
fn assert_is(got: &[f64], want: impl Iterator<Item = f64>, dtype: DType, what: &str) {
    let want: Vec<f64> = want.collect();
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        // f16 has few bits for small numbers: half of 2^-24.
        let absolute = if dtype == DType::F16 { 3e-8 } else { 0.0 };
        let is_close = (g - w).abs() <= tolerance(dtype) * w.abs() + absolute || g == w;
        assert!(is_close, "{what}, element {i}: got {g:e}, want {w:e}");
    }
}

#[test]
fn each_operation_follows_its_definition_in_every_dtype() {
    // More than two blocks of the CPU, and a row that no block is a multiple of.
    const DIMS: [usize; 2] = [1371, 3];
    let n = DIMS[0] * DIMS[1];
    let real: Vec<f64> = random::<f64>(n, 1).iter().map(|v| 3.0 * v.abs() + 0.01).collect();
    let whole: Vec<f64> = real.iter().map(|v| (v * 3.0).floor()).collect();
    for device in devices() {
        for dtype in DType::ALL {
            let values = if dtype.is_float() { &real } else { &whole };
            for op in ALL.into_iter().filter(|op| op.takes().0.contains(&dtype)) {
                // Unsigned integers hold no negative result.
                if dtype == DType::U8 && matches!(op, MapOp::Neg | MapOp::Sub) {
                    continue;
                }
                for dims in [&DIMS[..], &[3], &[1371, 1], &[1]] {
                    let what = format!("{} of {dtype} with {dims:?} on {device}", op.name());
                    let (a, x) = operand(values, &DIMS, dtype, device);
                    let n_b: usize = dims.iter().product();
                    let (b, y) =
                        operand(&values[7..7 + n_b.min(n - 7)].repeat(2)[..n_b], dims, dtype, device);
                    let at = |i: usize| match *dims {
                        [1371, 3] => y[i],
                        [3] => y[i % 3],
                        [1371, 1] => y[i / 3],
                        _ => y[0],
                    };
                    let mut out = Tensor::zeros(&DIMS, dtype, device).unwrap();
                    map(op, (&a).into(), (&b).into(), out.view_mut()).unwrap();
                    assert_is(&numbers(&out), (0..n).map(|i| definition(op, x[i], at(i))), dtype, &what);
                }
            }
        }
    }
}

#[test]
fn scalars_stand_on_either_side_and_take_the_dtype() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, -2.0, 4.0], &[3], device).unwrap();
        assert_eq!((&x + 0.5).to_vec::<f32>().unwrap(), [1.5, -1.5, 4.5]);
        assert_eq!((1 - &x).to_vec::<f32>().unwrap(), [0.0, 3.0, -3.0]);
        assert_eq!((2.0 / &x).to_vec::<f32>().unwrap(), [2.0, -1.0, 0.5]);
        assert_eq!((-&x * 2).to_vec::<f32>().unwrap(), [-2.0, 4.0, -8.0]);
        let i = Tensor::from_slice(&[i64::MAX, -5], &[2], device).unwrap();
        assert_eq!((&i + 1).to_vec::<i64>().unwrap(), [i64::MIN, -4], "integers wrap");
        assert_eq!(i.sub(1i64 << 60).unwrap().to_vec::<i64>().unwrap()[0], i64::MAX - (1 << 60));
        let message = crate::hint::with_hint(&i.add(0.5).unwrap_err());
        assert!(message.contains("0.5") && message.contains("a.to_dtype(DType::F32)"), "{message}");
        let u = Tensor::from_slice(&[3u8, 250], &[2], device).unwrap();
        assert_eq!((&u + 10).to_vec::<u8>().unwrap(), [13, 4]);
        assert!(u.add(300).is_err() && u.add(-1).is_err());
        assert_eq!(
            i.mul(0).unwrap().sub(2.0_f64.powi(63) - 1024.0).unwrap().to_vec::<i64>().unwrap()[0],
            1024 - i64::MAX - 1
        );
        for too_large in [1e19, 2.0_f64.powi(63), -1e19, f64::INFINITY, f64::NAN] {
            assert!(i.add(too_large).is_err() && i.clamp(0, too_large).is_err(), "{too_large}");
        }
        assert!(i.maximum(i64::MIN).is_ok() && i.maximum(-2.0_f64.powi(63)).is_ok());
    }
}

#[test]
fn comparisons_and_selection() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f64, f64::NAN, 3.0, 3.0], &[2, 2], device).unwrap();
        let bools = |t: Result<Tensor>| t.unwrap().to_vec::<bool>().unwrap();
        assert_eq!(bools(x.eq(3.0)), [false, false, true, true]);
        assert_eq!(bools(x.lt(x.new_full(&[2], 2.0).unwrap())), [true, false, false, false]);
        assert_eq!(bools(x.gt(1)), [false, false, true, true]);
        assert_eq!(bools(x.ne(3)), [true, true, false, false]);
        assert_eq!(bools(x.le(1)), [true, false, false, false]);
        assert_eq!(bools(x.ge(3)), [false, false, true, true]);
        assert_eq!(bools(x.isnan()), [false, true, false, false]);
        let mask = Tensor::from_slice(&[true, false], &[2], device).unwrap();
        assert_eq!(bools(mask.maximum(mask.eq(false).unwrap())), [true, true], "or");
        let rows = Tensor::arange(6, DType::I32, device).unwrap().into_shape(&[3, 2]).unwrap();
        assert_eq!(rows.where_(&mask, -1).unwrap().to_vec::<i32>().unwrap(), [0, -1, 2, -1, 4, -1]);
        assert_eq!(rows.masked_fill(&mask, 9).unwrap().to_vec::<i32>().unwrap(), [9, 1, 9, 3, 9, 5]);
        let wide = Tensor::from_slice(&[7i32], &[1], device).unwrap().where_(&mask, &rows).unwrap();
        assert_eq!((wide.dims(), wide.to_vec::<i32>().unwrap()), (&[3, 2][..], vec![7, 1, 7, 3, 7, 5]));
        // A condition makes the result larger than both values.
        let [one, two] = [1, 5].map(|n| Tensor::from_slice(&[n, n + 1i32], &[2], device).unwrap());
        let rows_of = Tensor::from_slice(&[true, false, false], &[3, 1], device).unwrap();
        let chosen = one.where_(&rows_of, &two).unwrap();
        assert_eq!((chosen.dims(), chosen.to_vec::<i32>().unwrap()), (&[3, 2][..], vec![1, 2, 5, 6, 5, 6]));
        assert!(one.where_(&rows_of, rows.t().unwrap()).is_err());
        assert_eq!(rows.clamp(1, 4).unwrap().to_vec::<i32>().unwrap(), [1, 1, 2, 3, 4, 4]);
        let clamped = x.clamp(2.0, 2.5).unwrap().to_vec::<f64>().unwrap();
        assert!(clamped[1].is_nan() && clamped[2] == 2.5, "NaN stays");
        assert!(rows.where_(&rows, 1).unwrap_err().to_string().contains("supported: bool"));
    }
}

#[test]
fn special_values() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64] {
            let x = |values: &[f64]| operand(values, &[values.len()], dtype, device).0;
            let nan = f64::NAN;
            for (op, a, b) in [("maximum", [nan, 1.0], [1.0, nan]), ("minimum", [nan, 1.0], [1.0, nan])] {
                let (a, b) = (x(&a), x(&b));
                let out = if op == "maximum" { a.maximum(&b) } else { a.minimum(&b) }.unwrap();
                assert!(numbers(&out).iter().all(|v| v.is_nan()), "{op} on {device}");
            }
            let logs = numbers(&x(&[0.0, -1.0, 1e-40, f64::INFINITY]).log().unwrap());
            assert!(logs[0] == f64::NEG_INFINITY && logs[1].is_nan() && logs[3] == f64::INFINITY);
            assert!((logs[2] + 92.1034).abs() < 1e-3, "subnormal in f32: {}", logs[2]);
            assert_eq!(numbers(&x(&[-4.0, 9.0]).pow(2.0).unwrap()), [16.0, 81.0]);
            let halves = x(&[-2.5, -0.5, 0.5, 1.5, 2.5, f64::INFINITY]);
            assert_eq!(numbers(&halves.round().unwrap()), [-2.0, 0.0, 0.0, 2.0, 2.0, f64::INFINITY]);
            assert_eq!(numbers(&halves.floor().unwrap()), [-3.0, -1.0, 0.0, 1.0, 2.0, f64::INFINITY]);
            assert_eq!(numbers(&halves.ceil().unwrap()), [-2.0, 0.0, 1.0, 2.0, 3.0, f64::INFINITY]);
            let angles = x(&[1e9, 1e15, -3e38, 0.0, f64::INFINITY, nan]);
            let (sines, cosines) = (numbers(&angles.sin().unwrap()), numbers(&angles.cos().unwrap()));
            for (i, angle) in numbers(&angles).into_iter().enumerate().take(4) {
                let want = [angle.sin(), angle.cos()];
                assert!((sines[i] - want[0]).abs() < 1e-7, "sin {angle:e} of {dtype} on {device}");
                assert!((cosines[i] - want[1]).abs() < 1e-7, "cos {angle:e} of {dtype} on {device}");
            }
            assert!([&sines, &cosines].iter().all(|v| v[4..].iter().all(|v| v.is_nan())));
        }
    }
}

#[test]
fn operands_broadcast_in_every_pattern_up_to_four_dimensions() {
    check_patterns([2, 3, 4, 5]);
    // Rows of whole accesses of a GPU.
    check_patterns([2, 3, 2, 8]);
}

/// Each pattern of dimensions along which two operands and a condition vary or are repeated, against indices.
fn check_patterns(all: [usize; 4]) {
    let n_all: usize = all.iter().product();
    let kept =
        |mask: usize| -> [usize; 4] { std::array::from_fn(|i| if mask >> i & 1 == 1 { all[i] } else { 1 }) };
    // The element of an operand of these dimensions for element i.
    let place = |dims: [usize; 4], i: usize| {
        let (mut rest, mut place, mut stride) = (i, 0, 1);
        for d in (0..4).rev() {
            place += if dims[d] == 1 { 0 } else { rest % all[d] * stride };
            (rest, stride) = (rest / all[d], stride * dims[d]);
        }
        place
    };
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::I64] {
            let of = |mask: usize, first: f64| {
                let n: usize = kept(mask).iter().product();
                let values: Vec<f64> = (0..n).map(|i| first + i as f64).collect();
                operand(&values, &kept(mask), dtype, device)
            };
            for mask in 0..16 {
                // The other operand varies at least where this one does not.
                for other in [15, 15 ^ mask, (15 ^ mask) | 5] {
                    let ((a, x), (b, y)) = (of(mask, 1.0), of(other, 100.0));
                    let what = format!("{:?} and {:?} of {dtype} on {device}", a.dims(), b.dims());
                    let pairs: Vec<(f64, f64)> =
                        (0..n_all).map(|i| (x[place(kept(mask), i)], y[place(kept(other), i)])).collect();
                    let sum = a.sub(&b).unwrap();
                    assert_eq!(sum.dims(), all, "{what}");
                    assert_is(&numbers(&sum), pairs.iter().map(|(x, y)| x - y), dtype, &what);
                    let above = b.sub(99i64).unwrap().le(&a).unwrap().to_vec::<bool>().unwrap();
                    let want: Vec<bool> = pairs.iter().map(|(x, y)| y - 99.0 <= *x).collect();
                    assert_eq!(above, want, "{what}");
                    let condition = a.gt(50).unwrap();
                    let chosen = b.where_(&condition, -1).unwrap();
                    let want = pairs.iter().map(|&(x, y)| if x > 50.0 { y } else { -1.0 });
                    assert_is(&numbers(&chosen), want, dtype, &what);
                }
            }
        }
    }
}

#[test]
fn operands_that_differ_are_named_with_the_call_that_mends_it() {
    let x = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
    let message = |b: &Tensor| crate::hint::with_hint(&x.add(b).unwrap_err());
    let double = Tensor::zeros(&[2, 3], DType::F64, Device::Cpu).unwrap();
    assert_eq!(
        message(&double),
        "add: a [2, 3] f32 on cpu and b [2, 3] f64 on cpu have different dtypes; nothing is cast implicitly\n\
         hint: cast one of them first: b.to_dtype(DType::F32)"
    );
    for (dims, fix) in [
        (&[3, 2][..], "b.t()"),
        (&[6], "b.reshape(&[2, 3])"),
        (&[2], "b.reshape(&[2, 1])"),
        (&[4], "equal or 1"),
    ] {
        let text = message(&Tensor::zeros(dims, DType::F32, Device::Cpu).unwrap());
        assert!(
            text.starts_with(&format!("add: a [2, 3] f32 on cpu and b {dims:?} f32 on cpu have shapes")),
            "{text}"
        );
        assert!(text.contains(fix), "{text}");
    }
    if let Some(&gpu) = devices().get(1) {
        let text = message(&x.to(gpu).unwrap());
        assert!(
            text.contains("b [2, 3] f32 on cuda:0")
                && text.contains("hint: move one of them first: b.to(\"cpu\")")
        );
    }
    let panic = std::panic::catch_unwind(|| &x + &double).unwrap_err();
    assert_eq!(
        *panic.downcast_ref::<String>().unwrap(),
        message(&double),
        "an operator panics with the message"
    );
}
