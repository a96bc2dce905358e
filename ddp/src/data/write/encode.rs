//! Features encoded in the number format of a file.

use ddp_kernels::DType;
use half::{bf16, f16};

/// Appends `values` in the format `dtype`.
///
/// # Errors
/// The index of the first value that the format cannot hold: anything but whole numbers from 0 to 255 in u8, values that
/// overflow in f16 and bf16.
pub(super) fn encode(dtype: DType, values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
    match dtype {
        DType::U8 => {
            let fits = |value: f32| value.fract() == 0.0 && (0.0..=255.0).contains(&value);
            if let Some(bad) = values.iter().position(|&value| !fits(value)) {
                return Err(bad);
            }
            out.extend(values.iter().map(|&value| value as u8));
        }
        DType::F16 => {
            for (index, &value) in values.iter().enumerate() {
                let short = f16::from_f32(value);
                if short.is_infinite() {
                    return Err(index);
                }
                out.extend(short.to_le_bytes());
            }
        }
        DType::BF16 => {
            for (index, &value) in values.iter().enumerate() {
                let short = bf16::from_f32(value);
                if short.is_infinite() {
                    return Err(index);
                }
                out.extend(short.to_le_bytes());
            }
        }
        _ => out.extend_from_slice(bytemuck::cast_slice(values)),
    }
    Ok(())
}

/// The largest n such that the format holds every whole number from 0 to n.
pub(super) fn largest_code(dtype: DType) -> usize {
    match dtype {
        DType::U8 => 255,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        _ => 1 << 24,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_fit_are_found() {
        let encoded = |dtype, values: &[f32]| {
            let mut out = Vec::new();
            encode(dtype, values, &mut out).map(|()| out)
        };
        assert_eq!(encoded(DType::U8, &[0.0, 255.0, 7.0]), Ok(vec![0, 255, 7]));
        for bad in [0.5, -1.0, 256.0, f32::NAN] {
            assert_eq!(encoded(DType::U8, &[1.0, bad]), Err(1));
        }
        assert_eq!(encoded(DType::F16, &[1.0]), Ok(vec![0, 0x3c]));
        assert_eq!(encoded(DType::F16, &[65_504.0, 65_520.0]), Err(1));
        assert_eq!(encoded(DType::BF16, &[1.0, f32::MAX]), Err(1));
        assert!(encoded(DType::F16, &[f32::NAN]).is_ok());
        assert_eq!(encoded(DType::F32, &[1.0]), Ok(1f32.to_le_bytes().to_vec()));
    }
}
