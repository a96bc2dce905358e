//! Tensors as text, in PyTorch's layout.

use std::fmt::{self, Write as _};

use crate::hint::with_hint;
use crate::{DType, Result, Tensor, TensorRef};

/// Number of elements from which only the ends of each dimension are shown.
const MAX_SHOWN: usize = 1000;
/// Elements shown at each end of a shortened dimension.
const N_EDGE: usize = 3;
/// Columns of a line.
const LINE: usize = 80;
const START: &str = "tensor(";

impl TensorRef<'_> {
    /// The elements to show, in host memory: those at the ends of each dimension if there are many.
    fn shown(self) -> Result<Tensor> {
        if self.numel() <= MAX_SHOWN {
            return self.cpu();
        }
        let mut shown = self.ends(0)?;
        for axis in 1..self.dims().len() {
            shown = shown.view().ends(axis)?;
        }
        shown.cpu()
    }

    fn texts(self) -> Result<Texts> {
        let shown = self.shown()?;
        Ok(match self.dtype() {
            DType::Bool => Texts::new(shown.to_vec::<bool>()?),
            DType::I64 => Texts::new(shown.to_vec::<i64>()?),
            dtype if dtype.is_float() => float_texts(&shown.to_dtype(DType::F64)?.to_vec::<f64>()?),
            _ => Texts::new(shown.to_dtype(DType::I64)?.to_vec::<i64>()?),
        })
    }

    /// The first and last elements along `axis`.
    fn ends(self, axis: usize) -> Result<Tensor> {
        let n = self.dims()[axis];
        if n <= 2 * N_EDGE {
            return self.to_tensor();
        }
        Tensor::cat(&[self.narrow(axis, 0, N_EDGE)?, self.narrow(axis, n - N_EDGE, N_EDGE)?], axis)
    }
}

/// The elements in PyTorch's layout, then device and dtype. Of more than 1,000 elements it shows, and copies to the host, the
/// first and last three of each dimension. Waits for the work that computes them. Other than there, `true` and `false` are written
/// as in Rust, and device and dtype are always at the end.
impl fmt::Display for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = [format!("device={}", self.device()), format!("dtype={}", self.dtype())];
        let Texts { texts, width } = match self.texts() {
            Ok(texts) => texts,
            Err(error) => return write!(f, "tensor(<{}>, {})", with_hint(&error), ends.join(", ")),
        };
        let mut layout = Layout { texts: texts.into_iter(), width, is_short: self.numel() > MAX_SHOWN };
        let mut text = START.to_owned();
        layout.write(&mut text, self.dims(), START.len())?;
        // Counted as PyTorch does: one column more than written if there are several lines, else two.
        let mut column = text.rfind('\n').map_or(text.len() + 2, |newline| text.len() - newline + 1);
        let has_size = self.numel() == 0 && self.dims().len() != 1;
        let size = has_size.then(|| format!("size={}", self.shape()));
        for end in size.into_iter().chain(ends) {
            if column + end.len() + 2 > LINE {
                write!(text, ",\n{}{end}", " ".repeat(START.len()))?;
                column = START.len() + end.len();
            } else {
                write!(text, ", {end}")?;
                column += end.len() + 2;
            }
        }
        write!(f, "{text})")
    }
}

/// Same as for the view of all of it.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.view(), f)
    }
}

/// Elements as text.
struct Texts {
    texts: Vec<String>,
    /// Width of a column.
    width: usize,
}

impl Texts {
    fn new(values: impl IntoIterator<Item: ToString>) -> Self {
        let texts: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        Texts { texts, width }
    }
}

struct Layout<I> {
    texts: I,
    width: usize,
    is_short: bool,
}

impl<I: Iterator<Item = String>> Layout<I> {
    /// Writes a tensor of these dimensions, `indent` columns into the line.
    fn write(&mut self, f: &mut String, dims: &[usize], indent: usize) -> fmt::Result {
        let Some((&n, rest)) = dims.split_first() else {
            return f.write_str(&self.texts.next().unwrap_or_default());
        };
        if dims.contains(&0) {
            return f.write_str("[]");
        }
        f.write_str("[")?;
        let is_cut = self.is_short && n > 2 * N_EDGE;
        let n_shown = if is_cut { 2 * N_EDGE } else { n };
        // The innermost dimension fills lines; others get one entry a line, with empty lines between their own dimensions.
        let per_line =
            if rest.is_empty() { ((LINE - indent.min(LINE - 1)) / (self.width + 2)).max(1) } else { 1 };
        let mut n_written = 0;
        let separate = |f: &mut String, n_written: &mut usize| {
            if *n_written == 0 {
                return Ok(());
            }
            if n_written.is_multiple_of(per_line) {
                write!(f, ",{}{}", "\n".repeat(rest.len().max(1)), " ".repeat(indent + 1))
            } else {
                f.write_str(", ")
            }
        };
        for i in 0..n_shown {
            if is_cut && i == N_EDGE {
                separate(f, &mut n_written)?;
                // PyTorch sets a space before it, unless it is on a line of its own.
                f.write_str(if rest.is_empty() { " ..." } else { "..." })?;
                n_written += 1;
            }
            separate(f, &mut n_written)?;
            n_written += 1;
            if rest.is_empty() {
                write!(f, "{:>width$}", self.texts.next().unwrap_or_default(), width = self.width)?;
            } else {
                self.write(f, rest, indent + 1)?;
            }
        }
        f.write_str("]")
    }
}

/// Numbers with four digits after the point; whole ones without; in scientific notation if they differ too much in size. Zero,
/// NaN and infinity don't count for the width, as in PyTorch.
fn float_texts(values: &[f64]) -> Texts {
    let is_nonzero = |v: &f64| v.is_finite() && *v != 0.0;
    let magnitudes = values.iter().filter(|v| is_nonzero(v)).map(|v| v.abs());
    let (least, most) = magnitudes.fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let is_whole = values.iter().all(|v| !v.is_finite() || v.fract() == 0.0);
    let is_scientific = most / least > 1000.0 || most > 1e8 || least < 1e-4;
    let text = |v: f64| match v {
        _ if v.is_nan() => "nan".to_owned(),
        _ if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ if is_scientific => scientific(v),
        _ if is_whole => format!("{v:.0}."),
        _ => format!("{v:.4}"),
    };
    let texts: Vec<_> = values.iter().map(|&v| text(v)).collect();
    let nonzero = values.iter().zip(&texts).filter(|(v, _)| is_nonzero(v));
    let width = nonzero.map(|(_, text)| text.len()).max().unwrap_or(1);
    Texts { texts, width }
}

/// Like C's `%.4e`: at least two digits of exponent, with its sign.
fn scientific(v: f64) -> String {
    let text = format!("{v:.4e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {} {} on {}", self.shape(), self.dtype(), self.device())
    }
}
