//! Element types and reductions. Contributions are combined in the order of the ranks, 16-bit floats in f32 with a single
//! rounding at the end, so that a result depends only on its inputs.
use half::{bf16, f16};

/// `ncclDataType_t`: the bytes of an element, if the type is supported.
pub(crate) fn element_bytes(dtype: u64) -> Option<u64> {
    Some(match dtype {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// The name of an `ncclDataType_t` without its prefix.
pub(crate) fn dtype_name(dtype: u64) -> &'static str {
    const NAMES: [&str; 10] =
        ["Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64", "Float16", "Float32", "Float64", "Bfloat16"];
    NAMES.get(dtype as usize).unwrap_or(&"unknown type")
}

/// `ncclRedOp_t`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    /// The sum of `x * (1/n)` for floating point, the sum divided by n for integers, as in NCCL.
    Avg,
}

impl Reduction {
    /// The reduction with this number.
    pub(crate) fn from_code(code: u64) -> Option<Reduction> {
        [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::Avg]
            .get(code as usize)
            .copied()
    }
}

/// An element as stored.
trait Element: Copy {
    /// The type in which contributions are combined.
    type Wide: Number;
    fn read(bytes: &[u8]) -> Self::Wide;
    fn write(wide: Self::Wide, to: &mut Vec<u8>);
}

/// A type in which contributions are combined.
trait Number: Copy {
    fn combine(self, other: Self, op: Reduction) -> Self;
    /// Scaling of each contribution, and of the result, for `n` ranks.
    fn before(self, op: Reduction, n: usize) -> Self;
    fn after(self, op: Reduction, n: usize) -> Self;
}

macro_rules! integers {
    ($($element:ty => $wide:ty),*) => { $(
        impl Element for $element {
            type Wide = $wide;
            #[inline]
            fn read(bytes: &[u8]) -> $wide {
                let mut own = [0; size_of::<$element>()];
                own.copy_from_slice(bytes);
                <$wide>::from(<$element>::from_le_bytes(own))
            }
            #[inline]
            fn write(wide: $wide, to: &mut Vec<u8>) {
                // Wraps around, like the sum on a device.
                to.extend((wide as $element).to_le_bytes());
            }
        }
    )* };
}
integers!(i8 => i64, u8 => u64, i32 => i64, u32 => u64, i64 => i64, u64 => u64);

macro_rules! integer_numbers {
    ($($wide:ty),*) => { $(
        impl Number for $wide {
            #[inline]
            fn combine(self, other: $wide, op: Reduction) -> $wide {
                match op {
                    Reduction::Sum | Reduction::Avg => self.wrapping_add(other),
                    Reduction::Prod => self.wrapping_mul(other),
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            #[inline]
            fn before(self, _: Reduction, _: usize) -> $wide {
                self
            }
            #[inline]
            fn after(self, op: Reduction, n: usize) -> $wide {
                if op == Reduction::Avg { self / n as $wide } else { self }
            }
        }
    )* };
}
integer_numbers!(i64, u64);

macro_rules! floats {
    ($($element:ty => $wide:ty, $narrow:expr;)*) => { $(
        impl Element for $element {
            type Wide = $wide;
            #[inline]
            fn read(bytes: &[u8]) -> $wide {
                let mut own = [0; size_of::<$element>()];
                own.copy_from_slice(bytes);
                <$wide>::from(<$element>::from_le_bytes(own))
            }
            #[inline]
            fn write(wide: $wide, to: &mut Vec<u8>) {
                let narrow: fn($wide) -> $element = $narrow;
                to.extend(narrow(wide).to_le_bytes());
            }
        }
    )* };
}
floats! {
    f32 => f32, |x| x;
    f64 => f64, |x| x;
    f16 => f32, f16::from_f32;
    bf16 => f32, bf16::from_f32;
}

macro_rules! float_numbers {
    ($($wide:ty),*) => { $(
        impl Number for $wide {
            #[inline]
            fn combine(self, other: $wide, op: Reduction) -> $wide {
                match op {
                    Reduction::Sum | Reduction::Avg => self + other,
                    Reduction::Prod => self * other,
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            #[inline]
            fn before(self, op: Reduction, n: usize) -> $wide {
                if op == Reduction::Avg { self * (1.0 / n as $wide) } else { self }
            }
            #[inline]
            fn after(self, _: Reduction, _: usize) -> $wide {
                self
            }
        }
    )* };
}
float_numbers!(f32, f64);

fn reduce_as<E: Element>(parts: &[&[u8]], op: Reduction) -> Vec<u8> {
    let (size, n) = (size_of::<E>(), parts.len());
    let mut sums: Vec<E::Wide> = parts[0].chunks_exact(size).map(|x| E::read(x).before(op, n)).collect();
    for part in &parts[1..] {
        for (sum, x) in sums.iter_mut().zip(part.chunks_exact(size)) {
            *sum = sum.combine(E::read(x).before(op, n), op);
        }
    }
    let mut out = Vec::with_capacity(parts[0].len());
    for sum in sums {
        E::write(sum.after(op, n), &mut out);
    }
    out
}

/// Combines the contributions of all ranks, element by element; `None` for an unknown type.
pub(crate) fn reduce(parts: &[&[u8]], dtype: u64, op: Reduction) -> Option<Vec<u8>> {
    Some(match dtype {
        0 => reduce_as::<i8>(parts, op),
        1 => reduce_as::<u8>(parts, op),
        2 => reduce_as::<i32>(parts, op),
        3 => reduce_as::<u32>(parts, op),
        4 => reduce_as::<i64>(parts, op),
        5 => reduce_as::<u64>(parts, op),
        6 => reduce_as::<f16>(parts, op),
        7 => reduce_as::<f32>(parts, op),
        8 => reduce_as::<f64>(parts, op),
        9 => reduce_as::<bf16>(parts, op),
        _ => return None,
    })
}
