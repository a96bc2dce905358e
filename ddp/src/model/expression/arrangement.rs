//! Shapes of values: views, permutations, parts and joins; products of matrices.

use ddp_kernels::{KernelError, Shape};

use super::graph::{Arg, Op};
use super::shapes::numel;
use super::var::Var;

/// Shapes and products.
impl Var {
    /// The same elements under another shape.
    pub fn reshape(&self, dims: &[usize]) -> Var {
        let x = self.id;
        self.record(dims, |graph| {
            if graph.numel(x) != numel(dims) {
                let (got, shape) = (graph.numel(x), Shape::new(dims).unwrap_or(Shape::vector(numel(dims))));
                return Err(KernelError::ElementCount { op: "reshape", got, shape });
            }
            Ok(graph.view(x, dims))
        })
    }

    /// The transposed matrix, or a batch of them.
    pub fn t(&self) -> Var {
        match self.dims().len() {
            3 => self.permute(&[0, 2, 1]),
            _ => self.permute(&[1, 0]),
        }
    }

    /// The dimensions in another order: dimension `k` of the result is dimension `axes[k]`; at most 5.
    pub fn permute(&self, axes: &[usize]) -> Var {
        let (x, own) = (self.id, self.dims());
        let is_permutation =
            axes.len() == own.len() && axes.len() <= 5 && (0..own.len()).all(|axis| axes.contains(&axis));
        let dims: Vec<usize> = axes.iter().map(|&axis| own.get(axis).copied().unwrap_or(1)).collect();
        self.record(&dims, |graph| {
            if !is_permutation {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::Shape { op: "permute", operand, expected: Shape::new(&dims)? });
            }
            Ok(graph.permute(x, axes))
        })
    }

    /// Elements `start..start + len` along `axis`.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Var {
        let (x, mut dims) = (self.id, self.dims());
        if let Some(n) = dims.get_mut(axis) {
            *n = len;
        }
        let around = self.around("narrow", axis);
        self.record(&dims, |graph| {
            let [_, n, _] = around?;
            let end = start.saturating_add(len);
            if end > n {
                return Err(KernelError::OutOfRange { op: "narrow", start, end, len: n });
            }
            Ok(graph.narrow(x, axis, start, len))
        })
    }

    /// Element `index` of the first axis, without that dimension.
    pub fn row(&self, index: usize) -> Var {
        let dims = self.dims();
        self.narrow(0, index, 1).reshape(dims.get(1..).unwrap_or_default())
    }

    /// Values joined along `axis`; their other dimensions are equal.
    ///
    /// # Panics
    /// If there is no value.
    pub fn cat(parts: &[&Var], axis: usize) -> Var {
        let first = parts.first().expect("values to join");
        let mut dims = first.dims();
        let around = first.around("cat", axis);
        let ids: Vec<Arg> = parts.iter().map(|part| first.arg(&(*part).into())).collect();
        if let Some(n) = dims.get_mut(axis) {
            *n = parts.iter().filter_map(|part| part.dims().get(axis).copied()).sum();
        }
        first.record(&dims, |graph| {
            around?;
            for arg in &ids {
                let Arg::Node(id) = *arg else { unreachable!("parts are values") };
                let mut own = graph.dims(id).to_vec();
                if let Some(n) = own.get_mut(axis) {
                    *n = dims[axis];
                }
                if own != dims || graph.dtype(id) != graph.dtype(first.id) {
                    return Err(graph.mismatch("cat", [Arg::Node(first.id), *arg], "join along this axis"));
                }
            }
            let dtype = graph.dtype(first.id);
            Ok(if ids.len() == 1 { first.id } else { graph.push(Op::Cat { axis }, ids, &dims, dtype) })
        })
    }

    /// Values of one shape, joined along a new axis.
    ///
    /// # Panics
    /// If there is no value.
    pub fn stack(parts: &[&Var], axis: usize) -> Var {
        let with_axis: Vec<Var> = parts
            .iter()
            .map(|part| {
                let mut dims = part.dims();
                dims.insert(axis.min(dims.len()), 1);
                part.reshape(&dims)
            })
            .collect();
        Var::cat(&with_axis.iter().collect::<Vec<_>>(), axis)
    }

    /// The elements at these indices along `axis`, `[n]` of i64 or of whole floats; for an index that is not there as in
    /// [`one_hot`](Var::one_hot).
    ///
    /// A product with one-hot codes: for tables that are not long.
    pub fn index_select(&self, axis: usize, indices: &Var) -> Var {
        let dims = self.dims();
        if let Err(error) = self.around("index_select", axis) {
            return self.record(&dims, |_| Err(error));
        }
        // The axis in front, the others as columns, and back.
        let mut axes: Vec<usize> = (0..dims.len()).collect();
        axes.remove(axis);
        axes.insert(0, axis);
        let front = if axis == 0 { self.clone() } else { self.permute(&axes) };
        let columns = numel(&front.dims()[1..]);
        let codes = indices.one_hot(dims[axis], self.dtype());
        let selected = codes.matmul(&front.reshape(&[dims[axis], columns]));
        let mut own = front.dims();
        own[0] = indices.numel();
        let selected = selected.reshape(&own);
        let mut back = vec![0; axes.len()];
        axes.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        if axis == 0 { selected } else { selected.permute(&back) }
    }

    /// The matrix product `[M, K]` times `[K, N]`; vectors count as a row on the left and a column on the right, and the result lacks that
    /// dimension. A transposed factor (`x.t()`) is read in place.
    pub fn matmul(&self, b: &Var) -> Var {
        let (left, right) = (self.dims(), b.dims());
        let row = if left.len() == 1 { self.reshape(&[1, left[0]]) } else { self.clone() };
        let column = if right.len() == 1 { b.reshape(&[right[0], 1]) } else { b.clone() };
        let dims = [row.dims().first().copied().unwrap_or(1), column.dims().last().copied().unwrap_or(1)];
        let product = row.product("matmul", &column, 2, &dims);
        match (left.len(), right.len()) {
            (1, 1) => product.reshape(&[]),
            (1, _) => product.reshape(&dims[1..]),
            (_, 1) => product.reshape(&dims[..1]),
            _ => product,
        }
    }

    /// `alpha * a * b + beta * c` of matrices; `c` broadcasts to the product.
    pub fn addmm(alpha: f64, a: &Var, b: &Var, beta: f64, c: &Var) -> Var {
        a.matmul(b) * alpha + c * beta
    }

    /// The products of two batches of matrices, `[N, M, K]` times `[N, K, P]`. A transposed factor (`x.t()`) is read in place.
    pub fn bmm(&self, b: &Var) -> Var {
        let mut dims = self.dims();
        dims.resize(3, 1);
        dims[2] = b.dims().last().copied().unwrap_or(1);
        self.product("bmm", b, 3, &dims)
    }

    fn product(&self, op: &'static str, b: &Var, n_dims: usize, dims: &[usize]) -> Var {
        let (a, b) = (self.id, self.arg(&b.into()));
        self.record(dims, |graph| {
            let Arg::Node(b) = b else { unreachable!("a value") };
            if graph.dims(a).len() != n_dims || graph.dims(b).len() != n_dims {
                return Err(graph.mismatch(op, [Arg::Node(a), Arg::Node(b)], "multiply"));
            }
            graph.matmul(a, b, [false; 2])
        })
    }
}
