//! Operators of values: `&a + &b`, `2.0 * &a`, `-a`.

use std::ops::{Add, Div, Mul, Neg, Sub};

use ddp_kernels::Tensor;
use ddp_kernels::ops::MapOp;

use super::var::{Term, Var};

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident;)*) => {
        $(
            impl<B: Into<Term>> $trait<B> for &Var {
                type Output = Var;

                fn $method(self, b: B) -> Var {
                    Var::$method(self, b)
                }
            }

            impl<B: Into<Term>> $trait<B> for Var {
                type Output = Var;

                fn $method(self, b: B) -> Var {
                    Var::$method(&self, b)
                }
            }

            impl $trait<&Var> for &Tensor {
                type Output = Var;

                fn $method(self, b: &Var) -> Var {
                    b.constant(self).$method(b)
                }
            }

            impl $trait<Var> for &Tensor {
                type Output = Var;

                fn $method(self, b: Var) -> Var {
                    b.constant(self).$method(b)
                }
            }

            impl $trait<&Var> for f64 {
                type Output = Var;

                fn $method(self, b: &Var) -> Var {
                    b.map_after(MapOp::$op, self)
                }
            }

            impl $trait<Var> for f64 {
                type Output = Var;

                fn $method(self, b: Var) -> Var {
                    b.map_after(MapOp::$op, self)
                }
            }
        )*
    };
}
operators! {
    Add, add, Add;
    Sub, sub, Sub;
    Mul, mul, Mul;
    Div, div, Div;
}

impl Neg for &Var {
    type Output = Var;

    fn neg(self) -> Var {
        Var::neg(self)
    }
}

impl Neg for Var {
    type Output = Var;

    fn neg(self) -> Var {
        Var::neg(&self)
    }
}
