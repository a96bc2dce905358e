//! Derivatives: the gradients of an expression are operations that are added to its list.

use ddp_kernels::ops::{CompareOp, MapOp, Pattern, ReduceOp, SavedForBackward};

use super::graph::{Arg, Graph, Id, Leaf, Node, Op, Result};
use super::shapes;

/// A summand of a gradient.
#[derive(Debug, Clone, Copy)]
enum Share {
    /// Of all elements.
    Whole(Id),
    /// Of the elements from `start` on along `axis`, of the value read as `[outer, len, inner]`; zero elsewhere.
    Slice { layout: [usize; 3], start: usize, of: Id },
}

impl Graph {
    /// The gradients of the values `wanted`, given `d`, the gradient of `y`; `None` for a value on which `y` does not depend. Gradients
    /// of parameters keep sums in f32.
    pub(super) fn gradients(&mut self, y: Id, d: Id, wanted: &[Id]) -> Result<Vec<Option<Id>>> {
        let mut is_needed = vec![false; y + 1];
        for id in 0..=y {
            let node = &self.nodes[id];
            let depends = wanted.contains(&id) || node.inputs().any(|input| is_needed[input]);
            is_needed[id] = depends && node.dtype.is_float() && node.op != Op::Detach;
        }
        let mut shares: Vec<Vec<Share>> = vec![Vec::new(); y + 1];
        shares[y].push(Share::Whole(d));
        let mut found = vec![None; y + 1];
        for id in (0..=y).rev() {
            let own = std::mem::take(&mut shares[id]);
            if !is_needed[id] || own.is_empty() {
                continue;
            }
            let gradient = self.sum(id, own)?;
            found[id] = Some(gradient);
            for (input, share) in self.shares_of_inputs(id, gradient)? {
                if is_needed[input] {
                    shares[input].push(share);
                }
            }
        }
        Ok(wanted.iter().map(|&id| found.get(id).copied().flatten()).collect())
    }

    /// The sum of the shares of the gradient of `id`.
    fn sum(&mut self, id: Id, shares: Vec<Share>) -> Result<Id> {
        let (dims, is_param) =
            (self.dims(id).to_vec(), matches!(self.nodes[id].op, Op::Leaf(Leaf::Param(_))));
        let mut wholes = Vec::new();
        let mut slices: Vec<(usize, [usize; 3], Id)> = Vec::new();
        for share in shares {
            match share {
                Share::Whole(of) => wholes.push(of),
                Share::Slice { layout, start, of } => slices.push((start, layout, of)),
            }
        }
        // Slices that do not overlap are joined, which is cheaper than a sum of them between zeros.
        slices.sort_by_key(|(start, layout, _)| (*layout, *start));
        while !slices.is_empty() {
            let (mut joined, mut rest, mut end) = (Vec::new(), Vec::new(), 0);
            let layout = slices[0].1;
            for (start, own, of) in slices {
                if own == layout && start >= end {
                    end = start + self.numel(of) / (layout[0] * layout[2]).max(1);
                    joined.push((start, of));
                } else {
                    rest.push((start, own, of));
                }
            }
            wholes.push(self.join(&dims, layout, &joined));
            slices = rest;
        }
        let mut sum = None;
        for of in wholes {
            let of = if is_param { self.unrounded(of) } else { of };
            sum = Some(match sum {
                None => of,
                Some(sum) => self.map(MapOp::Add, Arg::Node(sum), Arg::Node(of))?,
            });
        }
        Ok(sum.expect("a share"))
    }

    /// Slices along one axis, with zeros between them.
    fn join(&mut self, dims: &[usize], layout: [usize; 3], slices: &[(usize, Id)]) -> Id {
        let [outer, len, inner] = layout;
        let dtype = self.dtype(slices[0].1);
        let (mut parts, mut end) = (Vec::new(), 0);
        let gap = |graph: &mut Graph, parts: &mut Vec<Arg>, from: usize, to: usize| {
            if to > from {
                parts.push(Arg::Node(graph.zeros(&[outer, to - from, inner], dtype)));
            }
        };
        for &(start, of) in slices {
            let n = self.numel(of) / (outer * inner).max(1);
            gap(self, &mut parts, end, start);
            parts.push(Arg::Node(self.view(of, &[outer, n, inner])));
            end = start + n;
        }
        gap(self, &mut parts, end, len);
        let joined = match parts[..] {
            [Arg::Node(only)] => only,
            _ => self.push(Op::Cat { axis: 1 }, parts, &layout, dtype),
        };
        self.view(joined, dims)
    }

    /// The shares of the gradients of the operands of `id`, given `d`, the gradient of its result.
    fn shares_of_inputs(&mut self, id: Id, d: Id) -> Result<Vec<(Id, Share)>> {
        let Node { op, args, dims, dtype } = self.nodes[id].clone();
        let one = |input: Id, gradient: Id| Ok(vec![(input, Share::Whole(gradient))]);
        let first = || match args[0] {
            Arg::Node(x) => x,
            Arg::Number(_) => unreachable!("an operation of a value"),
        };
        match op {
            Op::Map(op) => self.shares_of_map(id, op, [args[0], args[1]], d),
            Op::Select => {
                let Arg::Node(condition) = args[0] else { unreachable!("a condition is a value") };
                let (d, zero) = (Arg::Node(d), Arg::Number(0.0));
                let mut shares = Vec::new();
                for (arg, [yes, no]) in [(args[1], [d, zero]), (args[2], [zero, d])] {
                    if let Arg::Node(x) = arg {
                        let own = self.select(condition, yes, no)?;
                        let to = self.dims(x).to_vec();
                        shares.push((x, Share::Whole(self.sum_to(own, &to)?)));
                    }
                }
                Ok(shares)
            }
            Op::Expand => {
                let to = self.dims(first()).to_vec();
                let sum = self.sum_to(d, &to)?;
                one(first(), sum)
            }
            Op::Convert => {
                let to = self.dtype(first());
                let converted = self.convert(d, to);
                one(first(), converted)
            }
            Op::View(start) => {
                let (x, n) = (first(), self.numel(first()));
                let to = self.dims(x).to_vec();
                if dims.iter().product::<usize>() == n {
                    let whole = self.view(d, &to);
                    return one(x, whole);
                }
                // Slices of whole rows join along the first axis.
                Ok(vec![(x, Share::Slice { layout: [1, n, 1], start, of: d })])
            }
            Op::Narrow { axis, start } => {
                let layout = shapes::around(self.dims(first()), axis..axis + 1);
                Ok(vec![(first(), Share::Slice { layout, start, of: d })])
            }
            Op::Cat { axis } => {
                let (mut shares, mut start) = (Vec::new(), 0);
                for arg in args {
                    let Arg::Node(part) = arg else { unreachable!("parts are values") };
                    let len = self.dims(part)[axis];
                    shares.push((part, Share::Whole(self.narrow(d, axis, start, len))));
                    start += len;
                }
                Ok(shares)
            }
            Op::Permute(axes) => {
                let mut back = vec![0; axes.len()];
                axes.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
                let permuted = self.permute(d, &back);
                one(first(), permuted)
            }
            Op::Activation(activation) => {
                let saved = match activation.saved_for_backward() {
                    SavedForBackward::Input => first(),
                    SavedForBackward::Output => id,
                };
                let args = vec![Arg::Node(saved), Arg::Node(d)];
                let own = self.push(Op::ActivationBackward(activation), args, &dims, dtype);
                one(first(), own)
            }
            Op::Softmax => {
                let own = self.push(Op::SoftmaxBackward, vec![Arg::Node(id), Arg::Node(d)], &dims, dtype);
                one(first(), own)
            }
            Op::Matmul { transpose: [of_a, of_b], .. } => {
                let [Arg::Node(a), Arg::Node(b)] = args[..] else { unreachable!("factors are values") };
                let d_a =
                    if of_a { self.matmul(b, d, [of_b, true]) } else { self.matmul(d, b, [false, !of_b]) }?;
                let d_b =
                    if of_b { self.matmul(d, a, [true, of_a]) } else { self.matmul(a, d, [!of_a, false]) }?;
                Ok(vec![(a, Share::Whole(d_a)), (b, Share::Whole(d_b))])
            }
            Op::ColumnSum => {
                let (to, from) = (self.dims(first()).to_vec(), self.dtype(first()));
                let d = self.convert(d, from);
                let row = self.view(d, &[1, to[1]]);
                let repeated = self.expand(row, &to);
                one(first(), repeated)
            }
            Op::Reduce { op, layout } => self.share_of_reduce(id, op, layout, first(), d),
            Op::Leaf(_) | Op::Detach | Op::Compare(_) | Op::Fill(_) | Op::Codes(_) => Ok(Vec::new()),
            Op::ActivationBackward(_) | Op::SoftmaxBackward => unreachable!("only in a backward pass"),
        }
    }

    /// The shares of the operands of an elementwise operation.
    fn shares_of_map(&mut self, id: Id, op: MapOp, args: [Arg; 2], d: Id) -> Result<Vec<(Id, Share)>> {
        let [a, b] = args;
        let (y, gradient) = (Arg::Node(id), Arg::Node(d));
        let zero = Arg::Number(0.0);
        if op.is_unary() {
            let Arg::Node(x) = a else { unreachable!("an operation of a value") };
            let own = match op {
                MapOp::Neg => self.map_one(MapOp::Neg, d)?,
                MapOp::Exp => self.map(MapOp::Mul, gradient, y)?,
                MapOp::Log => self.map(MapOp::Div, gradient, a)?,
                MapOp::Log1p => {
                    let sum = self.map(MapOp::Add, a, Arg::Number(1.0))?;
                    self.map(MapOp::Div, gradient, Arg::Node(sum))?
                }
                MapOp::Sin => {
                    let slope = self.map_one(MapOp::Cos, x)?;
                    self.map(MapOp::Mul, gradient, Arg::Node(slope))?
                }
                MapOp::Cos => {
                    let slope = self.map_one(MapOp::Sin, x)?;
                    let own = self.map(MapOp::Mul, gradient, Arg::Node(slope))?;
                    self.map_one(MapOp::Neg, own)?
                }
                MapOp::Floor | MapOp::Ceil | MapOp::Round => {
                    let (dims, dtype) = (self.dims(d).to_vec(), self.dtype(d));
                    self.zeros(&dims, dtype)
                }
                MapOp::Sqrt => {
                    let half = self.map(MapOp::Mul, gradient, Arg::Number(0.5))?;
                    self.map(MapOp::Div, Arg::Node(half), y)?
                }
                _ => {
                    let (above, below) =
                        (self.compare(CompareOp::Gt, a, zero)?, self.compare(CompareOp::Lt, a, zero)?);
                    let negative = self.map_one(MapOp::Neg, d)?;
                    let or_zero = self.select(below, Arg::Node(negative), zero)?;
                    self.select(above, gradient, Arg::Node(or_zero))?
                }
            };
            return Ok(vec![(x, Share::Whole(own))]);
        }
        let mut shares = Vec::new();
        for (index, arg) in args.into_iter().enumerate() {
            let Arg::Node(x) = arg else { continue };
            let is_first = index == 0;
            let own = match op {
                MapOp::Add => d,
                MapOp::Sub if is_first => d,
                MapOp::Sub => self.map_one(MapOp::Neg, d)?,
                MapOp::Mul => self.map(MapOp::Mul, gradient, args[1 - index])?,
                MapOp::Div if is_first => self.map(MapOp::Div, gradient, b)?,
                MapOp::Div => {
                    let product = self.map(MapOp::Mul, gradient, y)?;
                    let quotient = self.map(MapOp::Div, Arg::Node(product), b)?;
                    self.map_one(MapOp::Neg, quotient)?
                }
                MapOp::Pow if is_first => {
                    let slope = self.slope_of_power(a, b)?;
                    self.map(MapOp::Mul, gradient, slope)?
                }
                MapOp::Pow => {
                    let product = self.map(MapOp::Mul, gradient, y)?;
                    let log = match a {
                        Arg::Node(a) => Arg::Node(self.map_one(MapOp::Log, a)?),
                        Arg::Number(base) => Arg::Number(base.ln()),
                    };
                    let own = self.map(MapOp::Mul, Arg::Node(product), log)?;
                    self.slope_by_exponent(a, b, own)?
                }
                // Of equal operands, the first one counts.
                MapOp::Maximum | MapOp::Minimum => {
                    let compare = if op == MapOp::Maximum { CompareOp::Lt } else { CompareOp::Gt };
                    let is_second = self.compare(compare, a, b)?;
                    let [yes, no] = if is_first { [zero, gradient] } else { [gradient, zero] };
                    self.select(is_second, yes, no)?
                }
                _ => unreachable!("operations of one operand"),
            };
            let to = self.dims(x).to_vec();
            shares.push((x, Share::Whole(self.sum_to(own, &to)?)));
        }
        Ok(shares)
    }

    /// The derivative `own` of `a^b` by `b`; 0 for `a = 0` unless `b` is negative, where the formula multiplies 0 by the logarithm of 0.
    ///
    /// Source: PyTorch's derivative of `pow`.
    fn slope_by_exponent(&mut self, a: Arg, b: Arg, own: Id) -> Result<Id> {
        let zero = Arg::Number(0.0);
        if matches!(a, Arg::Number(base) if base != 0.0) {
            return Ok(own);
        }
        let is_negative = self.compare(CompareOp::Lt, b, zero)?;
        let of_zero = self.select(is_negative, Arg::Node(own), zero)?;
        match a {
            Arg::Number(_) => Ok(of_zero),
            Arg::Node(_) => {
                let is_zero = self.compare(CompareOp::Eq, a, zero)?;
                self.select(is_zero, Arg::Node(of_zero), Arg::Node(own))
            }
        }
    }

    /// `b · a^(b - 1)`, and 0 for `b = 0`.
    fn slope_of_power(&mut self, a: Arg, b: Arg) -> Result<Arg> {
        match b {
            Arg::Number(2.0) => Ok(Arg::Node(self.map(MapOp::Mul, a, Arg::Number(2.0))?)),
            Arg::Number(0.0) => Ok(Arg::Number(0.0)),
            Arg::Number(b) => {
                let power = self.map(MapOp::Pow, a, Arg::Number(b - 1.0))?;
                Ok(Arg::Node(self.map(MapOp::Mul, Arg::Node(power), Arg::Number(b))?))
            }
            Arg::Node(_) => {
                let less = self.map(MapOp::Sub, b, Arg::Number(1.0))?;
                let power = self.map(MapOp::Pow, a, Arg::Node(less))?;
                let slope = Arg::Node(self.map(MapOp::Mul, Arg::Node(power), b)?);
                let is_constant = self.compare(CompareOp::Eq, b, Arg::Number(0.0))?;
                Ok(Arg::Node(self.select(is_constant, Arg::Number(0.0), slope)?))
            }
        }
    }

    fn share_of_reduce(
        &mut self,
        id: Id,
        op: ReduceOp,
        [outer, len, inner]: [usize; 3],
        x: Id,
        d: Id,
    ) -> Result<Vec<(Id, Share)>> {
        let (one, all) = ([outer, 1, inner], [outer, len, inner]);
        let to = self.dims(x).to_vec();
        let d = self.view(d, &one);
        let d = if op == ReduceOp::Sum {
            self.expand(d, &all)
        } else if op == ReduceOp::Mean {
            let share = self.map(MapOp::Mul, Arg::Node(d), Arg::Number(1.0 / len as f64))?;
            self.expand(share, &all)
        } else if op == ReduceOp::Norm {
            let (values, norm) = (self.view(x, &all), Arg::Node(self.view(id, &one)));
            let share = self.map(MapOp::Div, Arg::Node(d), norm)?;
            let is_zero = self.compare(CompareOp::Eq, norm, Arg::Number(0.0))?;
            let share = self.select(is_zero, Arg::Number(0.0), Arg::Node(share))?;
            self.map(MapOp::Mul, Arg::Node(values), Arg::Node(share))?
        } else {
            // Shared by all elements that are the largest, or the smallest.
            let (values, extreme) = (self.view(x, &all), self.view(id, &one));
            let extreme = self.expand(extreme, &all);
            let dtype = self.dtype(d);
            let is_extreme = self.compare(CompareOp::Eq, Arg::Node(values), Arg::Node(extreme))?;
            let ones = self.fill(Pattern::Line { start: 1.0, step: 0.0 }, &all, dtype);
            let ones = self.select(is_extreme, Arg::Node(ones), Arg::Number(0.0))?;
            let count = self.sum_along(ones, all)?;
            let count = self.view(count, &one);
            let share = self.map(MapOp::Div, Arg::Node(d), Arg::Node(count))?;
            let share = self.expand(share, &all);
            self.select(is_extreme, Arg::Node(share), Arg::Number(0.0))?
        };
        let d = self.view(d, &to);
        Ok(vec![(x, Share::Whole(d))])
    }
}
