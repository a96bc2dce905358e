//! Types of elements in files, and their conversion to types of computation.

use ddp_kernels::DType;
use ddp_kernels::cpu::row_copy::prefetch;
use half::{bf16, f16};

ddp_kernels::named_enum! {
    /// Type of an element in a file.
    pub enum RawType {
        /// One byte.
        U8 = "u8",
        /// One byte, 0 or 1 for a truth value.
        Bool = "bool",
        /// Signed byte.
        I8 = "i8",
        /// 16 bits.
        U16 = "u16",
        /// 16 bits, signed.
        I16 = "i16",
        /// 32 bits.
        U32 = "u32",
        /// 32 bits, signed.
        I32 = "i32",
        /// 64 bits.
        U64 = "u64",
        /// 64 bits, signed.
        I64 = "i64",
        /// IEEE 754 half precision.
        F16 = "f16",
        /// The upper half of an f32.
        Bf16 = "bf16",
        /// IEEE 754 single precision.
        F32 = "f32",
        /// IEEE 754 double precision.
        F64 = "f64",
        /// One byte of a text of fixed length, padded with zeros; labels only.
        Ascii = "text",
        /// One code point of a text of fixed length, padded with zeros; labels only.
        Unicode = "text",
    }
}

impl RawType {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            RawType::U8 | RawType::Bool | RawType::I8 | RawType::Ascii => 1,
            RawType::U16 | RawType::I16 | RawType::F16 | RawType::Bf16 => 2,
            RawType::U32 | RawType::I32 | RawType::F32 | RawType::Unicode => 4,
            RawType::U64 | RawType::I64 | RawType::F64 => 8,
        }
    }

    /// The format in which it is copied to the device: its own if that is shorter than f32, otherwise f32.
    pub fn travels_as(self) -> DType {
        match self {
            RawType::U8 | RawType::Bool => DType::U8,
            RawType::F16 => DType::F16,
            RawType::Bf16 => DType::BF16,
            _ => DType::F32,
        }
    }

    /// Its type in memory, if operations support it.
    pub fn dtype(self) -> Option<DType> {
        match self {
            RawType::U8 | RawType::Bool => Some(DType::U8),
            RawType::I64 => Some(DType::I64),
            RawType::F16 => Some(DType::F16),
            RawType::Bf16 => Some(DType::BF16),
            RawType::F32 => Some(DType::F32),
            RawType::F64 => Some(DType::F64),
            RawType::I8 | RawType::U16 | RawType::I16 | RawType::U32 | RawType::I32 | RawType::U64 => None,
            RawType::Ascii | RawType::Unicode => None,
        }
    }

    /// Whether f32 rounds some of its values.
    pub fn is_wide(self) -> bool {
        matches!(self, RawType::U32 | RawType::I32 | RawType::U64 | RawType::I64 | RawType::F64)
    }

    /// Whether it is an integer, as class indices are.
    pub fn is_integer(self) -> bool {
        !self.is_text() && !matches!(self, RawType::F16 | RawType::Bf16 | RawType::F32 | RawType::F64)
    }

    /// Whether rows of it are texts.
    pub fn is_text(self) -> bool {
        matches!(self, RawType::Ascii | RawType::Unicode)
    }
}

macro_rules! each {
    ($raw:expr, $is_big_endian:expr, $bytes:expr, |$value:ident: $t:ident| $body:expr) => {{
        macro_rules! walk {
            ($of:ident) => {{
                const SIZE: usize = size_of::<$of>();
                let (chunks, _) = $bytes.as_chunks::<SIZE>();
                if $is_big_endian {
                    for ($value, place) in chunks.iter().map(|&b| $of::from_be_bytes(b)).zip($t.iter_mut()) {
                        *place = $body;
                    }
                } else {
                    for ($value, place) in chunks.iter().map(|&b| $of::from_le_bytes(b)).zip($t.iter_mut()) {
                        *place = $body;
                    }
                }
            }};
        }
        match $raw {
            RawType::U8 | RawType::Bool => walk!(u8),
            RawType::I8 => walk!(i8),
            RawType::U16 => walk!(u16),
            RawType::I16 => walk!(i16),
            RawType::U32 => walk!(u32),
            RawType::I32 => walk!(i32),
            RawType::U64 => walk!(u64),
            RawType::I64 => walk!(i64),
            RawType::F32 => walk!(f32),
            RawType::F64 => walk!(f64),
            RawType::F16 | RawType::Bf16 => unreachable!("handled before"),
            RawType::Ascii | RawType::Unicode => unreachable!("texts are not numbers"),
        }
    }};
}

fn short(raw: RawType, bits: u16) -> f32 {
    if raw == RawType::F16 { f16::from_bits(bits).to_f32() } else { bf16::from_bits(bits).to_f32() }
}

fn short_bits(is_big_endian: bool, bytes: [u8; 2]) -> u16 {
    if is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
}

/// The elements in `bytes` as f32, rounded to nearest.
pub fn to_f32(raw: RawType, is_big_endian: bool, bytes: &[u8], out: &mut [f32]) {
    if matches!(raw, RawType::F16 | RawType::Bf16) {
        for (&bytes, place) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *place = short(raw, short_bits(is_big_endian, bytes));
        }
        return;
    }
    each!(raw, is_big_endian, bytes, |value: out| value as f32);
}

/// The elements in `bytes` as f64; large 64-bit integers are rounded.
pub fn to_f64(raw: RawType, is_big_endian: bool, bytes: &[u8], out: &mut [f64]) {
    if matches!(raw, RawType::F16 | RawType::Bf16) {
        for (&bytes, place) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *place = f64::from(short(raw, short_bits(is_big_endian, bytes)));
        }
        return;
    }
    each!(raw, is_big_endian, bytes, |value: out| value as f64);
}

/// The elements in `bytes` minus those of `origin`, as f64; integers minus a whole number are not rounded on the way.
pub fn differences(raw: RawType, is_big_endian: bool, bytes: &[u8], origin: &[f64], out: &mut [f64]) {
    if !matches!(raw, RawType::I64 | RawType::U64) {
        to_f64(raw, is_big_endian, bytes, out);
        out.iter_mut().zip(origin).for_each(|(out, origin)| *out -= origin);
        return;
    }
    let words = bytes.as_chunks::<8>().0.iter().zip(origin).zip(out);
    for ((&bytes, &origin), out) in words {
        let word = if is_big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
        *out = match raw {
            RawType::U64 => whole_less(i128::from(word), origin),
            _ => whole_less(i128::from(word as i64), origin),
        };
    }
}

/// `whole - origin`, exactly if `origin` is whole and the difference fits.
pub(crate) fn whole_less(whole: i128, origin: f64) -> f64 {
    // Below 2^53 both are exact as f64, and their difference is rounded once.
    if whole.unsigned_abs() <= 1 << 53 || origin.fract() != 0.0 {
        return whole as f64 - origin;
    }
    (whole - origin as i128) as f64
}

/// The integers in `bytes` as i64; larger ones saturate.
pub fn to_i64(raw: RawType, is_big_endian: bool, bytes: &[u8], out: &mut [i64]) {
    debug_assert!(raw.is_integer());
    if raw == RawType::U64 {
        for (&bytes, place) in bytes.as_chunks::<8>().0.iter().zip(out) {
            let value = if is_big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
            *place = i64::try_from(value).unwrap_or(i64::MAX);
        }
        return;
    }
    each!(raw, is_big_endian, bytes, |value: out| value as i64);
}

/// The text in `bytes`, without the zeros at its end; `None` for bytes that are not UTF-8, and code points that are no characters.
pub fn to_text(raw: RawType, is_big_endian: bool, bytes: &[u8]) -> Option<String> {
    if raw == RawType::Ascii {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        return std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned);
    }
    let point =
        |bytes: &[u8; 4]| if is_big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
    let points = bytes.as_chunks::<4>().0.iter().map(point);
    let text: String = points.map(char::from_u32).collect::<Option<_>>()?;
    Some(text.trim_end_matches('\0').to_owned())
}

/// Single integers at the given indices, such as the labels of a batch; later ones are prefetched.
pub(crate) fn numbers_to_i64(raw: RawType, bytes: &[u8], rows: &[usize], out: &mut [i64]) {
    /// Distance of the prefetch, in integers.
    const AHEAD: usize = 16;
    macro_rules! pick {
        ($t:ty, $of:expr) => {{
            let (numbers, _) = bytes.as_chunks::<{ size_of::<$t>() }>();
            for (n, (&row, out)) in rows.iter().zip(out).enumerate() {
                prefetch(&numbers[rows[(n + AHEAD).min(rows.len() - 1)]]);
                *out = $of(<$t>::from_le_bytes(numbers[row]));
            }
        }};
    }
    match raw {
        RawType::U8 | RawType::Bool => pick!(u8, i64::from),
        RawType::I8 => pick!(i8, i64::from),
        RawType::U16 => pick!(u16, i64::from),
        RawType::I16 => pick!(i16, i64::from),
        RawType::U32 => pick!(u32, i64::from),
        RawType::I32 => pick!(i32, i64::from),
        RawType::I64 => pick!(i64, i64::from),
        RawType::U64 => pick!(u64, |value| i64::try_from(value).unwrap_or(i64::MAX)),
        RawType::F16 | RawType::Bf16 | RawType::F32 | RawType::F64 | RawType::Ascii | RawType::Unicode => {
            unreachable!("labels that are integers")
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::values::element::*;

    #[test]
    fn all_types_become_floats_and_integers_in_both_byte_orders() {
        macro_rules! check {
            ($of:ident, $raw:expr, $values:expr) => {
                let values: [$of; 3] = $values;
                for big in [false, true] {
                    let bytes: Vec<u8> = values
                        .iter()
                        .flat_map(|v| if big { v.to_be_bytes() } else { v.to_le_bytes() })
                        .collect();
                    let (mut singles, mut doubles) = ([0.0f32; 3], [0.0f64; 3]);
                    to_f32($raw, big, &bytes, &mut singles);
                    to_f64($raw, big, &bytes, &mut doubles);
                    assert_eq!(doubles, values.map(|v| f64::from(v as f32)), "{:?}", $raw);
                    assert_eq!(singles, values.map(|v| v as f32), "{:?}", $raw);
                    if $raw.is_integer() {
                        let mut integers = [0i64; 3];
                        to_i64($raw, big, &bytes, &mut integers);
                        assert_eq!(integers, values.map(|v| v as i64));
                    }
                }
            };
        }
        check!(u8, RawType::U8, [0, 7, 255]);
        check!(i8, RawType::I8, [-128, 0, 127]);
        check!(u16, RawType::U16, [0, 258, 65_535]);
        check!(i16, RawType::I16, [-32_768, 258, 32_767]);
        check!(u32, RawType::U32, [0, 258, 1 << 31]);
        check!(i32, RawType::I32, [i32::MIN, -2, 258]);
        check!(u64, RawType::U64, [0, 258, 1 << 62]);
        check!(i64, RawType::I64, [i64::MIN, -2, 258]);
        check!(f32, RawType::F32, [-1.5, 0.0, 1e30]);
        check!(f64, RawType::F64, [-1.5, 0.0, 1e30f32 as f64]);
        for (raw, bits) in
            [(RawType::F16, f16::from_f32(-1.5).to_bits()), (RawType::Bf16, bf16::from_f32(-1.5).to_bits())]
        {
            for big in [false, true] {
                let bytes = if big { bits.to_be_bytes() } else { bits.to_le_bytes() };
                let mut single = [0.0f32];
                to_f32(raw, big, &bytes, &mut single);
                assert_eq!(single, [-1.5]);
            }
        }
        let mut saturated = [0i64];
        to_i64(RawType::U64, false, &u64::MAX.to_le_bytes(), &mut saturated);
        assert_eq!(saturated, [i64::MAX]);
    }
}
