//! Elementwise methods of values: functions, activations, comparison and selection.

use ddp_kernels::ops::{Activation, CompareOp, MapOp, Pattern};
use ddp_kernels::{DType, Device, KernelError, Shape};

use super::graph::{Arg, Op, wide};
use super::shapes::{self, numel};
use super::var::{Term, Var};

impl Var {
    fn map(&self, op: MapOp, b: Term) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b));
        self.record(&self.dims(), |graph| graph.map(op, a, b))
    }

    /// `op(number, self)`.
    pub(super) fn map_after(&self, op: MapOp, number: f64) -> Var {
        let b = Arg::Node(self.id);
        self.record(&self.dims(), |graph| graph.map(op, Arg::Number(number), b))
    }

    fn compare(&self, op: CompareOp, b: Term) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b));
        self.record(&self.dims(), |graph| graph.compare(op, a, b))
    }

    /// The activation of each element.
    pub fn activation(&self, activation: Activation) -> Var {
        let x = self.id;
        self.record(&self.dims(), |graph| {
            if !graph.dtype(x).is_float() {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::DTypeUnsupported { op: "activation", operand, takes: "floats" });
            }
            Ok(graph.unary(Op::Activation(activation), x))
        })
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions.
        impl Var {
            $($(#[$doc])* pub fn $name(&self) -> Var { self.map(MapOp::$op, self.into()) })*
        }
    };
}
unary! {
    /// `-a`.
    neg => Neg;
    /// `e^a`.
    exp => Exp;
    /// The natural logarithm.
    log => Log;
    /// `ln(1 + a)`, accurate for small `a` too.
    log1p => Log1p;
    /// The square root.
    sqrt => Sqrt;
    /// `|a|`; its derivative at 0 is 0.
    abs => Abs;
    /// The sine of radians.
    sin => Sin;
    /// The cosine of radians.
    cos => Cos;
    /// The next whole number below or at `a`; its derivative is 0.
    floor => Floor;
    /// The next whole number above or at `a`; its derivative is 0.
    ceil => Ceil;
    /// The nearest whole number, and the even one of two that are equally near; its derivative is 0.
    round => Round;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of two operands that broadcast as in PyTorch.
        impl Var {
            $($(#[$doc])* pub fn $name(&self, b: impl Into<Term>) -> Var { self.map(MapOp::$op, b.into()) })*
        }
    };
}
binary! {
    /// `a + b`.
    add => Add;
    /// `a - b`.
    sub => Sub;
    /// `a * b`.
    mul => Mul;
    /// `a / b`.
    div => Div;
    /// `a^b`.
    pow => Pow;
    /// The larger of the two; where they are equal, the gradient is `a`'s.
    maximum => Maximum;
    /// The smaller of the two; where they are equal, the gradient is `a`'s.
    minimum => Minimum;
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $activation:ident;)*) => {
        /// Activations.
        impl Var {
            $($(#[$doc])* pub fn $name(&self) -> Var { self.activation(Activation::$activation) })*
        }
    };
}
activations! {
    /// `max(a, 0)`.
    relu => Relu;
    /// `a·Φ(a)` with the error function.
    gelu => Gelu;
    /// GELU in its tanh approximation.
    gelu_tanh => GeluTanh;
    /// `a·sigmoid(a)`.
    silu => Silu;
    /// Hyperbolic tangent.
    tanh => Tanh;
    /// `1 / (1 + e^-a)`.
    sigmoid => Sigmoid;
}

/// Comparison and selection.
impl Var {
    /// `a == b`, as bool.
    pub fn eq(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Eq, b.into())
    }

    /// `a < b`, as bool.
    pub fn lt(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Lt, b.into())
    }

    /// `a > b`, as bool.
    pub fn gt(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Gt, b.into())
    }

    /// `a != b`, as bool.
    pub fn ne(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Ne, b.into())
    }

    /// `a <= b`, as bool.
    pub fn le(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Le, b.into())
    }

    /// `a >= b`, as bool.
    pub fn ge(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Ge, b.into())
    }

    /// -1, 0 or 1, as the value is negative, zero or positive; no gradient flows through it.
    pub fn sign(&self) -> Var {
        let [above, below] = [self.gt(0.0), self.lt(0.0)].map(|is| is.to_dtype(self.dtype()));
        above - below
    }

    /// `a * a`.
    pub fn square(&self) -> Var {
        self.mul(self)
    }

    /// `ln(1 + e^a)` without overflow; 16-bit formats are computed in f32.
    ///
    /// Source: `torch.nn.functional.softplus` without its threshold.
    pub fn softplus(&self) -> Var {
        // Halves of `a` and `|a|` have the derivative 1/2 at 0; of an infinite `a` below 0 their sum would be NaN.
        let x = self.to_dtype(wide(self.dtype())).maximum(-1e30);
        let size = x.abs();
        (&x * 0.5 + &size * 0.5 + (-size).exp().log1p()).to_dtype(self.dtype())
    }

    /// `min(max(a, low), high)`.
    pub fn clamp(&self, low: f64, high: f64) -> Var {
        self.maximum(low).minimum(high)
    }

    /// Elements of this value where `condition` is true, else elements of `b`.
    pub fn where_(&self, condition: impl Into<Term>, b: impl Into<Term>) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b.into()));
        let condition = self.arg(&condition.into());
        self.record(&self.dims(), |graph| graph.select(condition.value("where_")?, a, b))
    }

    /// This value with `number` where `mask`, a value or a tensor, is true.
    pub fn masked_fill(&self, mask: impl Into<Term>, number: impl Into<f64>) -> Var {
        let (a, dims, number) = (Arg::Node(self.id), self.dims(), number.into());
        let mask = self.arg(&mask.into());
        self.record(&dims, |graph| {
            let mask = mask.value("masked_fill")?;
            if shapes::broadcast(&dims, graph.dims(mask)).as_ref() != Some(&dims) {
                return Err(graph.mismatch("masked_fill", [a, Arg::Node(mask)], "broadcast"));
            }
            graph.select(mask, Arg::Number(number), a)
        })
    }

    /// Zero below diagonal `diagonal` of the last two dimensions.
    pub fn triu(&self, diagonal: i64) -> Var {
        self.triangle("triu", CompareOp::Lt, diagonal)
    }

    /// Zero above diagonal `diagonal` of the last two dimensions.
    pub fn tril(&self, diagonal: i64) -> Var {
        self.triangle("tril", CompareOp::Gt, diagonal)
    }

    /// Zero where column and row plus `diagonal` compare.
    fn triangle(&self, op: &'static str, compare: CompareOp, diagonal: i64) -> Var {
        let (x, dims) = (self.id, self.dims());
        self.record(&dims, |graph| {
            let [.., rows, columns] = dims[..] else {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::Shape { op, operand, expected: Shape::matrix(1, numel(&dims)) });
            };
            let line = |start, step| Pattern::Line { start, step };
            let row = graph.fill(line(diagonal as f64, 1.0), &[rows, 1], DType::I64);
            let column = graph.fill(line(0.0, 1.0), &[columns], DType::I64);
            let is_zero = graph.compare(compare, Arg::Node(column), Arg::Node(row))?;
            graph.select(is_zero, Arg::Number(0.0), Arg::Node(x))
        })
    }

    /// A constant of this shape and format.
    pub fn full_like(&self, number: f64) -> Var {
        let (x, dims) = (self.id, self.dims());
        self.record(&dims, |graph| {
            let dtype = graph.dtype(x);
            Ok(graph.fill(Pattern::Line { start: number, step: 0.0 }, &dims, dtype))
        })
    }

    /// Zeros of this shape and format.
    pub fn zeros_like(&self) -> Var {
        self.full_like(0.0)
    }

    /// Ones of this shape and format.
    pub fn ones_like(&self) -> Var {
        self.full_like(1.0)
    }

    /// One-hot codes along a new last axis of length `n`, in the format `dtype`: 1 at the value, 0 elsewhere. A value that is no whole number
    /// in `0..n` is an error of the pass on the CPU ([`KernelError::Code`]); on a GPU its codes are NaN, if `dtype` is a float.
    pub fn one_hot(&self, n: usize, dtype: DType) -> Var {
        let (x, own) = (self.id, self.dims());
        let dims = [&own[..], &[n]].concat();
        self.record(&dims, |graph| {
            let format = graph.dtype(x);
            let most = match format {
                DType::BF16 => 1 << 8,
                DType::F16 => 1 << 11,
                DType::F32 => 1 << 24,
                _ => usize::MAX,
            };
            if n > most {
                let operand = graph.operand(x, "a").into();
                let takes = "formats that hold each code exactly: i64, f32 up to 2^24, f16 up to 2048, bf16 up to 256";
                return Err(KernelError::DTypeUnsupported { op: "one_hot", operand, takes });
            }
            let mut codes = graph.view(x, &[numel(&own), 1]);
            if graph.device == Device::Cpu {
                codes = graph.unary(Op::Codes(n), codes);
            }
            let line = graph.fill(Pattern::Line { start: 0.0, step: 1.0 }, &[n], format);
            let is_code = graph.compare(CompareOp::Eq, Arg::Node(codes), Arg::Node(line))?;
            let hot = if graph.device == Device::Cpu || !dtype.is_float() {
                graph.convert(is_code, dtype)
            } else {
                // No kernel can return an error.
                let whole = graph.convert(codes, DType::I64);
                let again = graph.convert(whole, format);
                let is_whole = graph.compare(CompareOp::Eq, Arg::Node(codes), Arg::Node(again))?;
                let (below, above) = (Arg::Number(0.0), Arg::Number(n as f64 - 1.0));
                let is_below = graph.compare(CompareOp::Lt, Arg::Node(codes), below)?;
                let is_above = graph.compare(CompareOp::Gt, Arg::Node(codes), above)?;
                let zeros = graph.fill(Pattern::Line { start: 0.0, step: 0.0 }, &[numel(&own), 1], dtype);
                let mut other = graph.select(is_whole, Arg::Node(zeros), Arg::Number(f64::NAN))?;
                for is_outside in [is_below, is_above] {
                    other = graph.select(is_outside, Arg::Number(f64::NAN), Arg::Node(other))?;
                }
                graph.select(is_code, Arg::Number(1.0), Arg::Node(other))?
            };
            Ok(graph.view(hot, &dims))
        })
    }

    /// The elements in another number format.
    pub fn to_dtype(&self, dtype: DType) -> Var {
        let x = self.id;
        self.record(&self.dims(), |graph| Ok(graph.convert(x, dtype)))
    }
}
