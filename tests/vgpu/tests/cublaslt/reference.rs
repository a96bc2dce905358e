//! The same multiplication by plain loops in f64, and the comparison.
use crate::case::*;
use cudarc::cublaslt::sys;
use sys::cublasComputeType_t as Compute;
use sys::cublasLtEpilogue_t as Epilogue;
use sys::cudaDataType as Dtype;

fn tf32(x: f64) -> f64 {
    // Ten mantissa bits, ties to even, by adding and taking away a number of the right size.
    let unit = 2f64.powi(x.abs().log2().floor() as i32 - 10);
    (x / unit).round_ties_even() * unit
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
}

/// The same by plain loops in f64.
pub(crate) fn expected(case: &Case) -> Outcome {
    let given = inputs(case);
    let (m, n, k) = (case.m, case.n, case.k);
    let input = |x: f64| if case.compute == Compute::CUBLAS_COMPUTE_32F_FAST_TF32 { tf32(x) } else { x };
    let ld = |rows: usize| rows + case.gap;
    let a = |i: usize, l: usize| given.a[if case.trans_a { i * ld(k) + l } else { l * ld(m) + i }];
    let b = |l: usize, j: usize| given.b[if case.trans_b { l * ld(n) + j } else { j * ld(k) + l }];
    let aux_ld = case.aux_ld() as usize;
    let mut out = Outcome {
        d: vec![f64::NAN; given.c.len()],
        bias: vec![0.0; case.bias_len()],
        mask: vec![0; given.mask.len()],
        inputs_of_gelu: vec![f64::NAN; given.inputs_of_gelu.len()],
    };
    let bits = case.bits();
    for j in 0..n {
        for i in 0..m {
            let dot: f64 = (0..k).map(|l| input(a(i, l)) * input(b(l, j))).sum();
            let mut x = case.alpha * dot;
            if case.beta != 0.0 {
                x += case.beta * given.c[j * ld(m) + i];
            }
            if bits & 4 != 0 {
                x += given.bias[i];
            }
            let at = j * aux_ld + i;
            let y = match () {
                () if bits & 8 != 0 => x * f64::from(given.mask[at / 8] >> (at % 8) & 1),
                () if bits & 64 != 0 => {
                    let z = given.inputs_of_gelu[at];
                    // The derivative by central differences, independent of its formula.
                    x * (gelu(z + 1e-6) - gelu(z - 1e-6)) / 2e-6
                }
                () if bits & 2 != 0 => {
                    out.mask[at / 8] |= u8::from(x > 0.0) << (at % 8);
                    x.max(0.0)
                }
                () if bits & 32 != 0 => {
                    out.inputs_of_gelu[at] = x;
                    gelu(x)
                }
                () => x,
            };
            out.d[j * ld(m) + i] = y;
            if bits & 16 != 0 {
                out.bias[i] += y;
            }
        }
    }
    if case.epilogue == Epilogue::CUBLASLT_EPILOGUE_BGRADA {
        out.bias = (0..m).map(|i| (0..k).map(|l| a(i, l)).sum()).collect();
    }
    if case.epilogue == Epilogue::CUBLASLT_EPILOGUE_BGRADB {
        out.bias = (0..n).map(|j| (0..k).map(|l| b(l, j)).sum()).collect();
    }
    out
}

#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64], dtype: Dtype, is_coarse: bool) {
    // The rounding of the result, and of sums of k products of numbers below one: k * 2^-24 in f32.
    let (rtol, atol) = match dtype {
        _ if is_coarse => (1.0 / 256.0, 1e-3),
        Dtype::CUDA_R_64F => (1e-9, 1e-9),
        Dtype::CUDA_R_32F => (2e-6, 2e-5),
        _ => (1.0 / 256.0, 1e-4),
    };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if want.is_nan() {
            assert!(got.is_nan(), "{what}[{i}] is {got}; nothing should have been written there");
        } else {
            assert!((got - want).abs() <= atol + rtol * want.abs(), "{what}[{i}] is {got}, expected {want}");
        }
    }
}

/// Runs a case and compares all that it leaves behind.
#[track_caller]
pub(crate) fn compare(case: &Case) {
    let got = multiply(case).unwrap_or_else(|status| panic!("{:?}: {status:?}", case.epilogue));
    let want = expected(case);
    let what = |part: &str| format!("{:?} {:?} {:?}: {part}", case.epilogue, case.compute, case.output);
    // The tanh of a GELU has 11 bits.
    let is_gelu = case.bits() & (32 | 64) != 0;
    assert_close(&what("D"), &got.d, &want.d, case.output, is_gelu);
    if case.bits() & (16 | 256 | 512) != 0 {
        assert_close(&what("bias gradient"), &got.bias, &want.bias, case.output, is_gelu);
    }
    if case.bits() & 128 != 0 && !case.is_backward() {
        if case.bits() & 2 != 0 {
            for j in 0..case.n {
                for i in 0..case.m {
                    let at = j * case.aux_ld() as usize + i;
                    let bit = |mask: &[u8]| mask[at / 8] >> (at % 8) & 1;
                    assert_eq!(bit(&got.mask), bit(&want.mask), "{} of row {i}, column {j}", what("mask"));
                }
            }
        } else {
            assert_close(
                &what("input of the GELU"),
                &got.inputs_of_gelu,
                &want.inputs_of_gelu,
                case.output,
                false,
            );
        }
    }
}

pub(crate) fn epilogues() -> [Epilogue; 16] {
    use Epilogue::*;
    [
        CUBLASLT_EPILOGUE_DEFAULT,
        CUBLASLT_EPILOGUE_RELU,
        CUBLASLT_EPILOGUE_RELU_AUX,
        CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DRELU,
        CUBLASLT_EPILOGUE_DRELU_BGRAD,
        CUBLASLT_EPILOGUE_GELU,
        CUBLASLT_EPILOGUE_GELU_AUX,
        CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU,
        CUBLASLT_EPILOGUE_DGELU_BGRAD,
        CUBLASLT_EPILOGUE_BGRADA,
        CUBLASLT_EPILOGUE_BGRADB,
    ]
}
