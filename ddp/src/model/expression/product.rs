//! Products of matrices.

use ddp_kernels::{Device, KernelError};

use super::graph::{Arg, Graph, Id, Node, Op, Result, wide};

impl Graph {
    /// The product of matrices, or of batches of them, each transposed if its flag is set; a factor that is itself a transpose is read in
    /// place.
    pub(super) fn matmul(&mut self, a: Id, b: Id, transpose: [bool; 2]) -> Result<Id> {
        let op = if self.dims(a).len() == 3 { "bmm" } else { "matmul" };
        let (mut factors, mut transpose) = ([a, b], transpose);
        if self.dtype(a) != self.dtype(b) {
            let (a, b) = (self.operand(a, "a").into(), self.operand(b, "b").into());
            return Err(KernelError::DTypeMismatch { op, a, b });
        }
        for (factor, transpose) in factors.iter_mut().zip(&mut transpose) {
            if let Op::Permute(axes) = &self.nodes[*factor].op
                && matches!(axes[..], [1, 0] | [0, 2, 1])
            {
                *factor = self.first_input(*factor);
                *transpose = !*transpose;
            }
        }
        let [a, b] = factors;
        let oriented = |id: Id, transpose: bool| -> Option<(&[usize], usize, usize)> {
            let [batch @ .., rows, columns] = self.dims(id) else { return None };
            let (rows, columns) = if transpose { (*columns, *rows) } else { (*rows, *columns) };
            (batch.len() <= 1).then_some((batch, rows, columns))
        };
        let dims = match (oriented(a, transpose[0]), oriented(b, transpose[1])) {
            (Some((batch, m, k)), Some((other, rows, n))) if (batch, k) == (other, rows) => {
                [batch, &[m, n]].concat()
            }
            _ => return Err(self.mismatch(op, [Arg::Node(factors[0]), Arg::Node(factors[1])], "multiply")),
        };
        let dtype = self.dtype(a);
        if !dtype.is_float() {
            return Err(self.unsupported(op, [Arg::Node(a), Arg::Node(b)], "floats"));
        }
        let matmul = Op::Matmul { transpose, alpha: 1.0 };
        // Kernels of the CPU multiply f32 and f64.
        let factor_dtype = if self.device == Device::Cpu { wide(dtype) } else { dtype };
        let (a, b) = (self.convert(a, factor_dtype), self.convert(b, factor_dtype));
        let product = self.push(matmul, vec![Arg::Node(a), Arg::Node(b)], &dims, factor_dtype);
        Ok(self.convert(product, dtype))
    }

    /// The same value with sums in f32 as they were before they were rounded, if they were; for the gradients of parameters.
    pub(super) fn unrounded(&mut self, x: Id) -> Id {
        let Node { op, args, dims, dtype } = self.nodes[x].clone();
        match (op, &args[..]) {
            _ if dtype == wide(dtype) => x,
            (Op::View(start), [Arg::Node(from)]) => {
                let from = self.unrounded(*from);
                self.view_from(from, start, &dims)
            }
            (Op::Convert, [Arg::Node(from)]) if self.dtype(*from) == wide(dtype) => *from,
            (op @ Op::Matmul { .. }, _) => self.push(op, args, &dims, wide(dtype)),
            _ => self.convert(x, wide(dtype)),
        }
    }
}
