//! Operators: `+ - * /` and `-a` of numbers, `& | ^` and `!a` of bool, on tensors and views, owned and borrowed, and scalars on
//! either side of `+ - * /`.
//!
//! An operator can't return an error: it panics with the message of the error that the method of the same effect returns.

use std::ops::{
    Add, AddAssign, BitAnd, BitOr, BitXor, Div, DivAssign, Mul, MulAssign, Neg, Not, Sub, SubAssign,
};

use crate::hint::with_hint;
use crate::ops::{AsInput, Input, MapOp, map};
use crate::{Result, Tensor, TensorRef};

/// The result of an operator, which cannot return an error.
#[track_caller]
fn or_panic(result: Result<Tensor>) -> Tensor {
    match result {
        Ok(tensor) => tensor,
        Err(error) => panic!("{}", with_hint(&error)),
    }
}

/// Implements an operator of two operands by the method of a tensor.
macro_rules! binary {
    ($trait:ident, $operator:ident, $method:ident: $($left:ty),*) => {
        $(
            impl<B: AsInput> $trait<B> for $left {
                type Output = Tensor;

                /// # Panics
                /// With the message of the error that the method of the same effect returns.
                #[track_caller]
                fn $operator(self, b: B) -> Tensor {
                    or_panic(TensorRef::$method(&self.view(), b))
                }
            }
        )*
    };
    ($($trait:ident, $operator:ident, $method:ident;)*) => {
        $(binary!($trait, $operator, $method: Tensor, &Tensor, TensorRef<'_>, &TensorRef<'_>);)*
    };
}
binary! {
    Add, add, add;
    Sub, sub, sub;
    Mul, mul, mul;
    Div, div, div;
    BitAnd, bitand, logical_and;
    BitOr, bitor, logical_or;
    BitXor, bitxor, logical_xor;
}

/// Implements an operator of one operand by the method of a tensor.
macro_rules! unary {
    ($trait:ident, $operator:ident, $method:ident: $($operand:ty),*) => {
        $(
            impl $trait for $operand {
                type Output = Tensor;

                /// # Panics
                /// With the message of the error that the method of the same effect returns.
                #[track_caller]
                fn $operator(self) -> Tensor {
                    or_panic(TensorRef::$method(&self.view()))
                }
            }
        )*
    };
    ($($trait:ident, $operator:ident, $method:ident;)*) => {
        $(unary!($trait, $operator, $method: Tensor, &Tensor, TensorRef<'_>, &TensorRef<'_>);)*
    };
}
unary! {
    Neg, neg, neg;
    Not, not, logical_not;
}

/// Implements an operator with a scalar on its left.
macro_rules! scalar {
    ($trait:ident, $operator:ident, $op:ident, $scalar:ty: $($right:ty),*) => {
        $(
            impl $trait<$right> for $scalar {
                type Output = Tensor;

                /// # Panics
                /// Same as for two tensors.
                #[track_caller]
                fn $operator(self, b: $right) -> Tensor {
                    or_panic(map_scalar(MapOp::$op, self.into(), b.view()))
                }
            }
        )*
    };
    ($($trait:ident, $operator:ident, $op:ident;)*) => {
        $(
            scalar!($trait, $operator, $op, f64: Tensor, &Tensor, TensorRef<'_>, &TensorRef<'_>);
            scalar!($trait, $operator, $op, i64: Tensor, &Tensor, TensorRef<'_>, &TensorRef<'_>);
        )*
    };
}
scalar! {
    Add, add, Add;
    Sub, sub, Sub;
    Mul, mul, Mul;
    Div, div, Div;
}

fn map_scalar(op: MapOp, a: Input<'_>, b: TensorRef<'_>) -> Result<Tensor> {
    let mut out = Tensor::for_result(b.memory_use(), b.shape(), b.dtype(), b.device())?;
    map(op, a, b.into(), out.new_view_mut())?;
    Ok(out)
}

/// Implements `a += b` and the like: the tensor becomes the result.
macro_rules! assign {
    ($($trait:ident, $operator:ident, $method:ident;)*) => {
        $(
            impl<B: AsInput> $trait<B> for Tensor {
                /// # Panics
                /// With the message of the error that the method of the same effect returns, or if the shape would change.
                #[track_caller]
                fn $operator(&mut self, b: B) {
                    assign(self, Tensor::$method(self, b));
                }
            }
        )*
    };
}
assign! {
    AddAssign, add_assign, add;
    SubAssign, sub_assign, sub;
    MulAssign, mul_assign, mul;
    DivAssign, div_assign, div;
}

#[track_caller]
fn assign(to: &mut Tensor, result: Result<Tensor>) {
    let result = or_panic(result);
    assert!(
        result.dims() == to.dims(),
        "a tensor {} cannot become {} in place: a = a + b can",
        to.shape(),
        result.shape()
    );
    *to = result;
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::devices;
    use crate::{Tensor, tensor};

    #[test]
    fn operands_are_owned_borrowed_or_views_on_either_side() {
        for device in devices() {
            let make = || (tensor![6., 4.].to(device).unwrap(), tensor![2., 8.].to(device).unwrap());
            let (a, b) = make();
            let (u, v) = (a.view(), b.view());
            let borrowed = &u;
            let all: [Tensor; 10] = [
                &a - &b,
                make().0 - &b,
                &a - make().1,
                make().0 - make().1,
                u - v,
                u - &b,
                &a - v,
                borrowed - v,
                u - make().1,
                make().0 - v,
            ];
            all.iter().for_each(|x| assert_eq!(x.to_vec::<f32>().unwrap(), [4.0, -4.0]));
            for x in [8.0 - &a, 8.0 - u, 8 - make().0, -(&a - 8.0), -(a.clone() - 8), -(u - 8)] {
                assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 4.0]);
            }
            let mut x = a.clone();
            x += &b;
            x *= 0.5;
            x -= tensor![1., 1.].to(device).unwrap();
            x /= v;
            assert_eq!(x.to_vec::<f32>().unwrap(), [1.5, 0.625]);
            assert_eq!(a.to_vec::<f32>().unwrap(), [6.0, 4.0], "the clone was changed, not this");
            let (p, q) = (a.gt(5).unwrap(), b.gt(5).unwrap());
            let bools = |x: Tensor| x.to_vec::<bool>().unwrap();
            assert_eq!(bools(&p & !&p), [false, false]);
            assert_eq!((bools(&p | &q), bools(p.view() ^ true)), (vec![true, true], vec![false, true]));
        }
    }

    fn message(f: impl FnOnce() -> Tensor + std::panic::UnwindSafe) -> String {
        *std::panic::catch_unwind(f).unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn operators_panic_with_the_message_of_the_method() {
        let numbers = message(|| tensor![1, 2] & tensor![1, 2]);
        assert!(
            numbers.starts_with("logical_and: a [2] i64 on cpu") && numbers.contains(".ne(0)"),
            "{numbers}"
        );
        let wider = message(|| {
            let mut x = tensor![1, 2];
            x += tensor![[1], [2]];
            x
        });
        assert_eq!(wider, "a tensor [2] cannot become [2, 2] in place: a = a + b can");
    }
}
