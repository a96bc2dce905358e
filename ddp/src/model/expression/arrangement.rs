//! Shapes of values: views, permutations, parts and joins; products of matrices.

use ddp_kernels::hint::with_hint;
use ddp_kernels::{Axis, KernelError, PartSizes, Shape, Slices};

use super::graph::{Arg, Op};
use super::shapes::{self, numel};
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
            0..3 => self.permute(&[1, 0]),
            _ => self.transpose(-2, -1),
        }
    }

    /// Two axes exchanged.
    pub fn transpose(&self, a: impl Into<Axis>, b: impl Into<Axis>) -> Var {
        let mut order: Vec<usize> = (0..self.dims().len()).collect();
        match (self.axis("transpose", a), self.axis("transpose", b)) {
            (Ok(a), Ok(b)) => {
                order.swap(a, b);
                self.permute(&order)
            }
            (Err(error), _) | (_, Err(error)) => self.failed(error),
        }
    }

    /// A new axis of length 1 at this place.
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Var {
        let mut dims = self.dims();
        match self.axis_of(dims.len() + 1, "unsqueeze", axis) {
            Ok(axis) => {
                dims.insert(axis, 1);
                self.reshape(&dims)
            }
            Err(error) => self.failed(error),
        }
    }

    /// The value without this axis, if its length is 1.
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Var {
        let mut dims = self.dims();
        match self.axis("squeeze", axis) {
            Ok(axis) if dims[axis] != 1 => self.clone(),
            Ok(axis) => {
                dims.remove(axis);
                self.reshape(&dims)
            }
            Err(error) => self.failed(error),
        }
    }

    /// One axis in place of all.
    pub fn flatten(&self) -> Var {
        self.reshape(&[self.numel()])
    }

    /// Axes of length 1 repeated to these lengths, and new axes in front.
    pub fn expand(&self, dims: &[usize]) -> Var {
        let (x, own) = (self.id, self.dims());
        self.record(dims, |graph| {
            if shapes::broadcast(&own, dims).as_deref() != Some(dims) {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::Shape { op: "expand", operand, expected: Shape::new(dims)? });
            }
            Ok(graph.expand(x, dims))
        })
    }

    /// Parts along `axis`: of one size, of which the last one has what is left, or of these sizes.
    ///
    /// # Panics
    /// For a size of 0, sizes that are not all elements, and an axis that is not there.
    pub fn split(&self, sizes: impl Into<PartSizes>, axis: impl Into<Axis>) -> Vec<Var> {
        match self.axis("split", axis) {
            Ok(axis) => {
                let (n, sizes) = (self.dims()[axis], sizes.into());
                let parts = sizes.ranges(n).unwrap_or_else(|_| panic!("split: {sizes:?} of {n} elements"));
                parts.into_iter().map(|part| self.narrow(axis, part.start, part.len())).collect()
            }
            // Parts that are not there could not be indexed.
            Err(error) => panic!("{}", with_hint(&error)),
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
    pub fn narrow(&self, axis: impl Into<Axis>, start: usize, len: usize) -> Var {
        let (x, mut dims) = (self.id, self.dims());
        let axis = match self.axis("narrow", axis) {
            Ok(axis) => axis,
            Err(error) => return self.failed(error),
        };
        let n = std::mem::replace(&mut dims[axis], len);
        self.record(&dims, |graph| {
            let end = start.saturating_add(len);
            if end > n {
                return Err(KernelError::OutOfRange { op: "narrow", start, end, len: n });
            }
            Ok(graph.narrow(x, axis, start, len))
        })
    }

    /// The elements in these ranges of the first axes; an index in place of a range takes one element, and its axis is gone. As
    /// [`Tensor::slice`](ddp_kernels::Tensor::slice): `x.slice((.., 1..))`.
    pub fn slice(&self, slices: impl Slices) -> Var {
        const OP: &str = "slice";
        let slices = slices.slices();
        let n_axes = self.dims().len();
        if slices.len() > n_axes {
            let x = self.id;
            return self.record(&self.dims(), |graph| {
                let (operand, axis) = (graph.operand(x, "a").into(), n_axes as isize);
                Err(KernelError::Axis { op: OP, operand, axis, problem: "has no axis", n_axes })
            });
        }
        let mut part = self.clone();
        // An index removes its axis, so the last one comes first.
        for (axis, slice) in slices.into_iter().enumerate().rev() {
            let len = part.dims()[axis];
            let range = match slice.within(OP, len) {
                Ok(range) => range,
                Err(error) => return self.failed(error),
            };
            if range != (0..len) {
                part = part.narrow(axis, range.start, range.len());
            }
            if slice.is_index() {
                part = part.squeeze(axis);
            }
        }
        part
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
    pub fn cat(parts: &[&Var], axis: impl Into<Axis>) -> Var {
        let first = parts.first().expect("values to join");
        let mut dims = first.dims();
        let axis = match first.axis("cat", axis) {
            Ok(axis) => axis,
            Err(error) => return first.failed(error),
        };
        let ids: Vec<Arg> = parts.iter().map(|part| first.arg(&(*part).into())).collect();
        if let Some(n) = dims.get_mut(axis) {
            *n = parts.iter().filter_map(|part| part.dims().get(axis).copied()).sum();
        }
        first.record(&dims, |graph| {
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
    pub fn stack(parts: &[&Var], axis: impl Into<Axis>) -> Var {
        let axis = axis.into();
        let with_axis: Vec<Var> = parts.iter().map(|part| part.unsqueeze(axis)).collect();
        Var::cat(&with_axis.iter().collect::<Vec<_>>(), axis)
    }

    /// The elements at these indices along `axis`, `[n]` of i64 or of whole floats; for an index that is not there as in
    /// [`one_hot`](Var::one_hot).
    ///
    /// A product with one-hot codes: for tables that are not long.
    pub fn index_select(&self, axis: impl Into<Axis>, indices: &Var) -> Var {
        let dims = self.dims();
        let axis = match self.axis("index_select", axis) {
            Ok(axis) => axis,
            Err(error) => return self.failed(error),
        };
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

    /// The elements at these indices along `axis`, for each index of the other axes, of which `indices` has as many; for an index that is
    /// not there as in [`one_hot`](Var::one_hot). Elements that are not chosen may be infinite.
    pub fn gather(&self, axis: impl Into<Axis>, indices: &Var) -> Var {
        let axis = match self.axis("gather", axis) {
            Ok(axis) => axis,
            Err(error) => return self.failed(error),
        };
        let (own, of_indices) = (self.dims(), indices.dims());
        let others = |dims: &[usize]| {
            dims.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, n)| *n).collect::<Vec<_>>()
        };
        if own.len() != of_indices.len() || others(&own) != others(&of_indices) {
            return self.record(&of_indices, |graph| {
                Err(graph.mismatch(
                    "gather",
                    [Arg::Node(self.id), Arg::Node(indices.id)],
                    "agree but along the axis",
                ))
            });
        }
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.swap(axis, own.len() - 1);
        let (rows, n, k) = (numel(&others(&own)), own[axis], of_indices[axis]);
        let codes = indices.permute(&order).reshape(&[rows, k]).one_hot(n, self.dtype());
        let all = self.permute(&order).reshape(&[rows, 1, n]).expand(&[rows, k, n]);
        // A code that is not there is NaN on a GPU.
        let picked = all.where_(codes.eq(1.0), &codes * 0.0).sum(-1);
        let dims: Vec<usize> = order.iter().map(|&at| of_indices[at]).collect();
        picked.reshape(&dims).permute(&order)
    }

    /// The matrix product `[M, K]` times `[K, N]`; vectors count as a row on the left and a column on the right, and the result lacks that
    /// dimension. Batches of matrices are multiplied one by one, and their axes broadcast. A transposed factor (`x.t()`) of up to three axes is read in place.
    pub fn matmul(&self, b: &Var) -> Var {
        let (left, right) = (self.dims(), b.dims());
        if left.len() > 2 || right.len() > 2 {
            return self.matmul_of_batches(b);
        }
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

    /// `alpha * a * b + beta * c` of matrices; `c` broadcasts to the product, and is not read where `beta` is 0.
    pub fn addmm(alpha: f64, a: &Var, b: &Var, beta: f64, c: &Var) -> Var {
        let product = a.matmul(b) * alpha;
        if beta == 0.0 { product } else { product + c * beta }
    }

    /// The products of two batches of matrices, `[N, M, K]` times `[N, K, P]`. A transposed factor (`x.t()`) is read in place.
    pub fn bmm(&self, b: &Var) -> Var {
        let mut dims = self.dims();
        dims.resize(3, 1);
        dims[2] = b.dims().last().copied().unwrap_or(1);
        self.product("bmm", b, 3, &dims)
    }

    fn matmul_of_batches(&self, b: &Var) -> Var {
        let (left, right) = (self.dims(), b.dims());
        let ([of_left @ .., m, k], [of_right @ .., rows, n]) = (&left[..], &right[..]) else {
            return match (&left[..], &right[..]) {
                ([_], _) => self.unsqueeze(0).matmul(b).squeeze(-2),
                (_, [_]) => self.matmul(&b.unsqueeze(-1)).squeeze(-1),
                _ => self.product("matmul", b, 0, &left),
            };
        };
        let batch = match shapes::broadcast(of_left, of_right) {
            Some(batch) if k == rows => batch,
            _ => return self.product("matmul", b, 0, &left),
        };
        let dims = [&batch[..], &[*m, *n]].concat();
        if of_right.is_empty() {
            // One matrix for all rows.
            return self.reshape(&[numel(&batch) * m, *k]).matmul(b).reshape(&dims);
        }
        let one_axis = |x: &Var, own: &[usize], rows: usize, columns: usize| match own {
            _ if own == batch && own.len() == 1 => x.clone(),
            _ => x.expand(&[&batch[..], &[rows, columns]].concat()).reshape(&[numel(&batch), rows, columns]),
        };
        let (left, right) = (one_axis(self, of_left, *m, *k), one_axis(b, of_right, *k, *n));
        left.product("matmul", &right, 3, &[numel(&batch), *m, *n]).reshape(&dims)
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
