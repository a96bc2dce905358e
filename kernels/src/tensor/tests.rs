//! Tests of creation, transfer and views.

use half::f16;

use crate::cuda::Gpu;
use crate::ops::testing::devices;
use crate::{DType, Device, KernelError, Tensor};

const CPU: Device = Device::Cpu;

#[test]
fn creation_fills_what_it_says() {
    let full = Tensor::full(&[2, 3], 1.5, DType::F32, CPU).unwrap();
    assert_eq!(full.to_vec::<f32>().unwrap(), [1.5; 6]);
    assert_eq!(Tensor::ones(&[2], DType::I64, CPU).unwrap().to_vec::<i64>().unwrap(), [1, 1]);
    let arange = Tensor::arange(4, DType::F64, CPU).unwrap();
    assert_eq!(arange.to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(full.new_zeros(&[4]).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
    assert_eq!(full.zeros_like().unwrap().shape(), full.shape());
}

#[test]
fn each_type_is_kept() {
    for dtype in DType::ALL {
        let t = Tensor::arange(5, dtype, CPU).unwrap();
        assert_eq!((t.dtype(), t.size_bytes()), (dtype, 5 * dtype.size_bytes()));
        let bytes = t.view().as_bytes("test", "t").unwrap();
        assert_eq!(bytes.len(), t.size_bytes());
        let copy = t.to(CPU).unwrap();
        assert_eq!(copy.view().as_bytes("test", "copy").unwrap(), bytes);
    }
    let bytes = Tensor::from_slice(&[0u8, 255, 7], &[3], CPU).unwrap();
    assert_eq!(bytes.view().range(1, 3).unwrap().to_vec::<u8>().unwrap(), [255, 7]);
    assert!(bytes.to_vec::<f16>().unwrap_err().to_string().contains("u8"));
    assert_eq!(
        Tensor::full(&[1], 0.1, DType::F16, CPU).unwrap().to_vec::<f16>().unwrap()[0].to_bits(),
        0x2e66
    );
    for dtype in [DType::U8, DType::I64, DType::I32, DType::Bool] {
        assert!(Tensor::rand(&[2], dtype, CPU, 1).is_err() && Tensor::randn(&[2], dtype, CPU, 1).is_err());
    }
}

#[test]
fn random_numbers_depend_on_seed_and_index_alone() {
    let long = Tensor::randn(&[1000], DType::F32, CPU, 7).unwrap().to_vec::<f32>().unwrap();
    let short = Tensor::randn(&[10, 5], DType::F32, CPU, 7).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(long[..50], short[..]);
    assert_ne!(long, Tensor::randn(&[1000], DType::F32, CPU, 8).unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn moments_of_random_numbers() {
    let n = 100_000;
    let normal = Tensor::randn(&[n], DType::F64, CPU, 1).unwrap().to_vec::<f64>().unwrap();
    let uniform = Tensor::rand(&[n], DType::F64, CPU, 1).unwrap().to_vec::<f64>().unwrap();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / n as f64;
    let var = |v: &[f64]| {
        let m = mean(v);
        v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n as f64
    };
    // Five standard errors at n = 1e5.
    assert!(mean(&normal).abs() < 0.016 && (var(&normal) - 1.0).abs() < 0.023);
    assert!((mean(&uniform) - 0.5).abs() < 0.005 && (var(&uniform) - 1.0 / 12.0).abs() < 0.002);
    assert!(uniform.iter().all(|&u| (0.0..1.0).contains(&u)));
}

#[test]
fn a_device_that_is_not_there_is_refused_not_ignored() {
    let beyond = Device::Cuda(Gpu::count() as u32);
    let error = Tensor::zeros(&[1], DType::F32, beyond).unwrap_err();
    assert!(matches!(error, KernelError::DeviceUnavailable { device, .. } if device == beyond));
    assert!(Tensor::zeros(&[1], DType::F32, CPU).unwrap().to(beyond).is_err());
}

#[test]
fn views_split_and_reshape_without_copies() {
    let mut t = Tensor::arange(6, DType::F32, CPU).unwrap();
    let (mut a, b) = t.view_mut().split_at(2).unwrap();
    a.reborrow().into_slice::<f32>("test", "a").unwrap()[0] = 9.0;
    assert_eq!((a.numel(), b.numel()), (2, 4));
    let scalar = t.view().range(0, 1).unwrap().reshape(&[]).unwrap();
    assert!(matches!(scalar.rows(0, 0), Err(KernelError::OutOfRange { op: "rows", len: 0, .. })));
    let m = t.view().reshape(&[2, 3]).unwrap().rows(1, 2).unwrap();
    assert_eq!(m.as_slice::<f32>("test", "m").unwrap(), [3.0, 4.0, 5.0]);
    assert_eq!(t.to_vec::<f32>().unwrap()[0], 9.0);
    assert!(t.view().reshape(&[4]).is_err() && t.view().range(3, 7).is_err());
    assert!(t.view().as_slice::<f64>("test", "m").unwrap_err().to_string().contains("f32"));
}

#[test]
fn creation_like_another_tensor() {
    for device in devices() {
        let x = Tensor::full(&[2, 2], 3.0, DType::F16, device).unwrap();
        let kinds = [
            x.ones_like().unwrap(),
            x.full_like(2.0).unwrap(),
            x.rand_like(1).unwrap(),
            x.randn_like(1).unwrap(),
            x.zeros_like().unwrap(),
        ];
        for made in &kinds {
            assert_eq!((made.dims(), made.dtype(), made.device()), (x.dims(), x.dtype(), device));
        }
        assert_eq!(x.new_ones(&[3]).unwrap().to_vec::<f16>().unwrap(), [f16::ONE; 3]);
        assert_eq!(x.new_full(&[1], 0.5).unwrap().item::<f16>().unwrap(), f16::from_f32(0.5));
        let own = x.new_from_slice(&[1i64, 2], &[2]).unwrap();
        assert_eq!((own.device(), own.dtype()), (device, DType::I64));
        assert_eq!(
            Tensor::from_vec(vec![true, false], &[2], device).unwrap().to_vec::<bool>().unwrap(),
            [true, false]
        );
        assert!(own.item::<i64>().unwrap_err().to_string().contains("item"));
        assert!(own.to_vec::<f32>().is_err());
    }
}

#[test]
fn tensors_move_and_convert_only_when_asked() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.5f32, -2.0], &[2], device).unwrap();
        let like = x.to_like(Tensor::zeros(&[1], DType::BF16, Device::Cpu).unwrap()).unwrap();
        assert_eq!((like.dtype(), like.device()), (DType::BF16, Device::Cpu));
        let back = like.to_like(&x).unwrap();
        assert_eq!((back.device(), back.to_vec::<f32>().unwrap()), (device, vec![1.5, -2.0]));
        assert_eq!(x.cpu().unwrap().device(), Device::Cpu);
        assert_eq!(x.try_clone().unwrap().to_vec::<f32>().unwrap(), [1.5, -2.0]);
        if device == Device::cuda(0) {
            assert_eq!(x.cpu().unwrap().cuda().unwrap().device(), device);
        }
    }
}

#[test]
fn parts_and_joins_in_every_dtype() {
    for device in devices() {
        for dtype in [DType::F32, DType::I64, DType::U8, DType::F16, DType::Bool] {
            let count = |n| Tensor::arange(n, DType::I64, device).unwrap();
            let text = |x: &Tensor| x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
            // Of truth values only 0 and 1 are kept.
            let want = |v: &[i64]| -> Vec<i64> {
                v.iter().map(|&v| if dtype == DType::Bool { v.min(1) } else { v }).collect()
            };
            let x = count(6).to_dtype(dtype).unwrap().into_shape(&[2, 3]).unwrap();
            let t = x.t().unwrap();
            assert_eq!((t.dims(), text(&t)), (&[3, 2][..], want(&[0, 3, 1, 4, 2, 5])));
            assert_eq!(text(&x.narrow(1, 1, 2).unwrap()), want(&[1, 2, 4, 5]));
            assert_eq!(text(&x.narrow(0, 1, 1).unwrap()), want(&[3, 4, 5]));
            assert_eq!(x.narrow(1, 3, 0).unwrap().dims(), [2, 0]);
            let row = x.row(1).unwrap();
            assert_eq!((row.shape().dims(), text(&row.to_tensor().unwrap())), (&[3][..], want(&[3, 4, 5])));
            let wide = Tensor::cat(&[&x, &x.narrow(1, 0, 1).unwrap()], 1).unwrap();
            assert_eq!((wide.dims(), text(&wide)), (&[2, 4][..], want(&[0, 1, 2, 0, 3, 4, 5, 3])));
            assert_eq!(
                text(&Tensor::cat(&[&x, &x], 0).unwrap()),
                want(&[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5])
            );
            for (axis, dims, order) in [
                (0, [2, 2, 3], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]),
                (1, [2, 2, 3], [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]),
                (2, [2, 3, 2], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
            ] {
                let stacked = Tensor::stack(&[&x, &x], axis).unwrap();
                assert_eq!((stacked.dims(), text(&stacked)), (&dims[..], want(&order)), "along {axis}");
            }
            let indices = Tensor::from_slice(&[2i64, 0, 2], &[3], device).unwrap();
            let picked = x.index_select(1, &indices).unwrap();
            assert_eq!((picked.dims(), text(&picked)), (&[2, 3][..], want(&[2, 0, 2, 5, 3, 5])));
            let message = x.index_select(0, &indices).unwrap_err().to_string();
            assert!(message.contains("index_select: index 2 is outside 0..2"), "{message}");
        }
        let square = Tensor::ones(&[2, 3, 3], DType::F32, device).unwrap();
        let upper = square.triu(1).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(upper[..9], [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(upper[..9], upper[9..]);
        let lower = square.row(0).unwrap().to_tensor().unwrap().tril(-1).unwrap();
        assert_eq!(lower.to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        let labels = Tensor::from_slice(&[1i64, 0], &[2], device).unwrap();
        let hot = labels.one_hot(3).unwrap();
        assert_eq!((hot.dims(), hot.to_vec::<i64>().unwrap()), (&[2, 3][..], vec![0, 1, 0, 1, 0, 0]));
        assert!(labels.one_hot(1).is_err() && (&labels - 1).one_hot(3).is_err());
        let (a, b) = (labels.reshape(&[1, 2]).unwrap(), labels.reshape(&[2, 1]).unwrap());
        let message = Tensor::cat(&[&a, &b], 0).unwrap_err().to_string();
        assert!(message.contains("parts[0] [1, 2] i64") && message.contains("part [2, 1] i64"), "{message}");
        let none: [&Tensor; 0] = [];
        assert!(Tensor::cat(&none, 0).is_err() && Tensor::stack(&none, 0).is_err());
    }
}

#[test]
fn products_of_matrices_and_vectors_in_every_float_dtype() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let x = |values: &[f64], dims: &[usize]| {
                Tensor::from_slice(values, dims, device).unwrap().to_dtype(dtype).unwrap()
            };
            let numbers = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let (a, b) =
                (x(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), x(&[1.0, 0.0, 2.0, 1.0, 0.0, 3.0], &[3, 2]));
            let product = a.matmul(&b).unwrap();
            assert_eq!((product.dims(), numbers(&product)), (&[2, 2][..], vec![5.0, 11.0, 14.0, 23.0]));
            let v = x(&[1.0, 1.0, 2.0], &[3]);
            assert_eq!(numbers(&a.matmul(&v).unwrap()), [9.0, 21.0]);
            assert_eq!(numbers(&v.matmul(&b).unwrap()), [3.0, 7.0]);
            let dot = v.matmul(&v).unwrap();
            assert_eq!((dot.dims().len(), numbers(&dot)), (0, vec![6.0]));
            let c = x(&[100.0, 200.0], &[2]);
            assert_eq!(numbers(&Tensor::addmm(2.0, &a, &b, 0.5, &c).unwrap()), [60.0, 122.0, 78.0, 146.0]);
            let nan = x(&[f64::NAN, f64::NAN], &[2]);
            assert_eq!(numbers(&Tensor::addmm(1.0, &a, &b, 0.0, &nan).unwrap())[0], 5.0);
            for (left, right, fix) in
                [(&a, &a, "b.t()"), (&b, &x(&[0.0; 6], &[3, 2]), "b.t()"), (&a, &c, "reshape")]
            {
                let message = crate::hint::with_hint(&left.matmul(right).unwrap_err());
                assert!(message.starts_with("matmul: a [") && message.contains(fix), "{message}");
            }
        }
        assert!(
            Tensor::eye(2, DType::I64, device)
                .unwrap()
                .matmul(Tensor::eye(2, DType::I64, device).unwrap())
                .is_err()
        );
    }
}

#[test]
fn softmax_along_every_axis() {
    for device in devices() {
        for (dtype, tolerance) in
            [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::BF16, 0.004), (DType::F16, 0.0005)]
        {
            let x = Tensor::randn(&[3, 4, 5], dtype, device, 3).unwrap().mul(30.0).unwrap();
            let numbers = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let values = numbers(&x);
            for (axis, len, inner) in [(0, 3, 20), (1, 4, 5), (2, 5, 1)] {
                let (soft, log) =
                    (numbers(&x.softmax(axis).unwrap()), numbers(&x.log_softmax(axis).unwrap()));
                for i in 0..60 {
                    let first = i / (len * inner) * len * inner + i % inner;
                    let along = (0..len).map(|l| values[first + l * inner]);
                    let most = along.clone().fold(f64::NEG_INFINITY, f64::max);
                    let want = values[i] - most - along.map(|v| (v - most).exp()).sum::<f64>().ln();
                    assert!(
                        (log[i] - want).abs() <= tolerance * want.abs() + tolerance,
                        "{dtype} along {axis}"
                    );
                    assert!((soft[i] - want.exp()).abs() <= tolerance, "{dtype} along {axis}");
                }
            }
            assert!(x.softmax(3).is_err());
        }
    }
}

#[test]
fn text_is_pytorchs_with_device_and_dtype_at_the_end() {
    for device in devices() {
        let text = |x: Tensor| x.to_string();
        let from = |values: &[f32], dims: &[usize]| Tensor::from_slice(values, dims, device).unwrap();
        let end = format!(", device={device}, dtype=");
        assert_eq!(text(from(&[1.0, 2.0, 3.0], &[3])), format!("tensor([1., 2., 3.]{end}f32)"));
        assert_eq!(
            text(from(&[1.5, -2.0, 0.25, 10.0], &[2, 2])),
            format!("tensor([[ 1.5000, -2.0000],\n        [ 0.2500, 10.0000]]{end}f32)")
        );
        assert_eq!(text(from(&[1e-6, 1.0], &[2])), format!("tensor([1.0000e-06, 1.0000e+00]{end}f32)"));
        assert_eq!(text(from(&[f32::NAN, 1.0], &[2])), format!("tensor([nan, 1.]{end}f32)"));
        assert_eq!(text(from(&[0.0, -12.0], &[2])), format!("tensor([  0., -12.]{end}f32)"));
        assert_eq!(text(from(&[1.0, 2000.0], &[2])), format!("tensor([1.0000e+00, 2.0000e+03]{end}f32)"));
        // Zeros are counted as one column wide: 24 a line, of which three take the device and dtype.
        let zeros = text(Tensor::zeros(&[48], DType::F32, device).unwrap());
        let line = vec!["0."; 24].join(", ");
        let end_line = format!("       device={device}, dtype=f32)");
        assert_eq!(zeros, format!("tensor([{line},\n        {line}],\n{end_line}"));
        assert_eq!(text(from(&[2.5], &[])), format!("tensor(2.5000{end}f32)"));
        assert_eq!(text(from(&[], &[0])), format!("tensor([]{end}f32)"));
        assert_eq!(text(from(&[], &[2, 0])), format!("tensor([], size=[2, 0]{end}f32)"));
        let mask = Tensor::from_slice(&[true, false], &[2], device).unwrap();
        assert_eq!(text(mask), format!("tensor([ true, false]{end}bool)"));
        let cube = Tensor::arange(8, DType::I64, device).unwrap().into_shape(&[2, 2, 2]).unwrap();
        assert_eq!(
            text(cube),
            format!("tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]]{end}i64)")
        );
        let long = Tensor::arange(4000, DType::I32, device).unwrap().into_shape(&[40, 100]).unwrap();
        let text = long.to_string();
        assert!(
            text.starts_with("tensor([[   0,    1,    2,  ...,   97,   98,   99],\n        [ 100,"),
            "{text}"
        );
        assert!(text.contains("  299],\n        ...,\n        [3700,"), "{text}");
        assert_eq!(format!("{long:?}"), format!("Tensor [40, 100] i32 on {device}"));
        let many = Tensor::arange(30, DType::I64, device).unwrap().to_string();
        assert!(many.lines().count() >= 2 && many.lines().all(|line| line.len() <= 80), "{many}");
    }
}

#[test]
fn deviations_square_nothing_in_the_format_of_the_tensor() {
    for (values, want) in [([1e-25_f32, 3e-25], 1.414_213_6e-25_f32), ([1e20, -1e20], 1.414_213_6e20)] {
        let x = Tensor::from_slice(&values, &[2], Device::Cpu).unwrap();
        let std = x.std(None).unwrap().item::<f32>().unwrap();
        assert!((std / want - 1.0).abs() < 1e-6, "{std} and {want}");
    }
    let one = Tensor::from_slice(&[1.0_f32], &[1], Device::Cpu).unwrap();
    assert!(one.std(None).unwrap().item::<f32>().unwrap().is_nan());
}

#[test]
fn whole_numbers_that_a_format_leaves_out_are_not_drawn() {
    let draw = |low, high, dtype| Tensor::randint(low, high, &[100], dtype, "cpu", 0);
    for (low, high, dtype) in [
        (998, 1000, DType::BF16),
        (69_998, 70_000, DType::F16),
        (1 << 24, (1 << 24) + 2, DType::F32),
        ((1 << 60) + 100, (1 << 60) + 110, DType::I64),
    ] {
        let message = draw(low, high, dtype).unwrap_err().to_string();
        assert!(message.contains("they have gaps") || dtype == DType::F16, "{message}");
    }
    let largest = draw(-256, 257, DType::BF16).unwrap().max(None).unwrap().to_dtype(DType::F32).unwrap();
    assert!(largest.item::<f32>().unwrap() <= 256.0);
}

#[test]
fn a_slice_out_of_range_is_shown_as_it_was_written() {
    let x = Tensor::from_slice(&[1_i64, 2, 3], &[3], Device::Cpu).unwrap();
    for (message, shown) in [(x.slice(-5..-1), "-5..-1"), (x.slice(2..9), "2..9"), (x.slice(-7..), "-7..3")] {
        let message = message.unwrap_err().to_string();
        assert!(message.contains(shown), "{message}");
    }
}
