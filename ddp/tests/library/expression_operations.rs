//! Every operation of expressions: values against the same methods of tensors, gradients against difference quotients.

use ddp::config::precision::Precision;
use ddp::model::expression::{Expression, Own, Var};
use ddp::model::layer::Sizes;
use ddp::model::param::{Init, ParamKind};
use ddp::model::{GradcheckOptions, ModelError, Network, Sequential, gradcheck};
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device, KernelError, Tensor, keepdim};

use crate::made_up::gpus::cpu_and_gpu;

type Result<T> = std::result::Result<T, KernelError>;

const N: usize = 6;
const WIDTH: usize = 4;

/// An operation on rows `x`, `[n, 4]`, a vector `w`, `[4]`, and a matrix `m`, `[4, 4]`: as an expression, and on tensors.
struct Case {
    name: &'static str,
    of_vars: fn(&Var, &Own) -> Var,
    of_tensors: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
}

macro_rules! cases {
    ($($name:literal: |$x:ident, $own:ident| $of_vars:expr, |$t:ident, $w:ident, $m:ident| $of_tensors:expr;)*) => {
        &[$(Case { name: $name, of_vars: |$x, $own| $of_vars, of_tensors: |$t, $w, $m| $of_tensors }),*]
    };
}

/// Tensors along `axis`, which stays.
fn kept(x: &Tensor, axis: usize) -> Result<Tensor> {
    let mut dims = vec![N, WIDTH];
    dims[axis] = 1;
    x.reshape(&dims)
}

/// 1 for each row whose first element is positive.
fn codes(x: &Tensor) -> Result<Tensor> {
    x.narrow(1, 0, 1)?.into_shape(&[N])?.gt(0.0)?.to_dtype(DType::I64)
}

fn activated(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let mut y = x.zeros_like()?;
    ddp_kernels::ops::activation_forward(activation, x.view(), y.view_mut())?;
    Ok(y)
}

#[rustfmt::skip]
const CASES: &[Case] = cases![
    "neg": |x, _own| -x, |x, _w, _m| x.neg();
    "exp": |x, _own| x.exp(), |x, _w, _m| x.exp();
    "log": |x, _own| (x * x + 0.5).log(), |x, _w, _m| x.mul(x)?.add(0.5)?.log();
    "sqrt": |x, _own| (x * x + 0.5).sqrt(), |x, _w, _m| x.mul(x)?.add(0.5)?.sqrt();
    "abs": |x, _own| x.abs(), |x, _w, _m| x.abs();
    "add": |x, own| x + &own["w"], |x, w, _m| x.add(w);
    "sub": |x, own| x - &own["w"], |x, w, _m| x.sub(w);
    "sub from": |x, own| &own["w"] - x, |x, w, _m| w.sub(x);
    "mul": |x, own| x * &own["w"], |x, w, _m| x.mul(w);
    "div": |x, own| x / (&own["w"] * &own["w"] + 1.0), |x, w, _m| x.div(&w.mul(w)?.add(1.0)?);
    "numbers": |x, _own| 1.0 - 2.0 * x + 3.0 / (x.exp() + 1.0), |x, _w, _m| {
        let three = x.full_like(3.0)?;
        x.mul(-2.0)?.add(1.0)?.add(&three.div(&x.exp()?.add(1.0)?)?)
    };
    "pow of a number": |x, _own| (x * x + 0.5).pow(1.7), |x, _w, _m| x.mul(x)?.add(0.5)?.pow(1.7);
    "square": |x, _own| x.pow(2.0), |x, _w, _m| x.pow(2.0);
    "pow": |x, own| (x * x + 0.5).pow(&own["w"]), |x, w, _m| x.mul(x)?.add(0.5)?.pow(w);
    "a power of a number": |x, _own| x.full_like(2.0).pow(x), |x, _w, _m| x.full_like(2.0)?.pow(x);
    "ones and zeros": |x, _own| x * x.ones_like() + x.zeros_like(), |x, _w, _m| x.try_clone();
    "maximum": |x, own| x.maximum(&own["w"]), |x, w, _m| x.maximum(w);
    "minimum": |x, own| x.minimum(&own["w"]), |x, w, _m| x.minimum(w);
    "clamp": |x, _own| x.clamp(-0.3, 0.4), |x, _w, _m| x.clamp(-0.3, 0.4);
    "where": |x, own| x.where_(x.gt(&own["w"]), x * 3.0), |x, w, _m| x.where_(&x.gt(w)?, &x.mul(3.0)?);
    "where equal": |x, _own| x.where_(x.eq(x), 1.0), |x, _w, _m| x.try_clone();
    "masked_fill": |x, _own| x.masked_fill(x.lt(0.1), 0.25), |x, _w, _m| x.masked_fill(&x.lt(0.1)?, 0.25);
    "triu": |x, own| x.matmul(&own["m"].triu(1)), |x, _w, m| x.matmul(&m.triu(1)?);
    "tril": |x, own| x.matmul(&own["m"].tril(0)), |x, _w, m| x.matmul(&m.tril(0)?);
    "relu": |x, _own| x.relu(), |x, _w, _m| activated(x, Activation::Relu);
    "gelu": |x, _own| x.gelu(), |x, _w, _m| activated(x, Activation::Gelu);
    "gelu_tanh": |x, _own| x.gelu_tanh(), |x, _w, _m| activated(x, Activation::GeluTanh);
    "silu": |x, _own| x.silu(), |x, _w, _m| activated(x, Activation::Silu);
    "tanh": |x, _own| x.tanh(), |x, _w, _m| activated(x, Activation::Tanh);
    "sigmoid": |x, _own| x.sigmoid(), |x, _w, _m| activated(x, Activation::Sigmoid);
    "smooth clip": |x, _own| x.activation(Activation::SmoothClip), |x, _w, _m| activated(x, Activation::SmoothClip);
    "softmax": |x, _own| x.softmax(1), |x, _w, _m| x.softmax(1);
    "softmax of columns": |x, own| x.softmax(0) * &own["w"], |x, w, _m| x.softmax(0)?.mul(w);
    "softmax of a middle axis": |x, _own| x.reshape(&[x.dims()[0] / 3, 3, 4]).softmax(1).reshape(&[x.dims()[0], 4]),
        |x, _w, _m| x.reshape(&[N / 3, 3, 4])?.softmax(1)?.into_shape(&[N, 4]);
    "log_softmax": |x, _own| x.log_softmax(1), |x, _w, _m| x.log_softmax(1);
    "sum of all": |x, own| x * x.sum(None) + &own["w"].sum(None), |x, w, _m| x.mul(&x.sum(None)?)?.add(&w.sum(None)?);
    "sum of rows": |x, _own| x * x.sum_keepdim(1), |x, _w, _m| x.mul(&kept(&x.sum(1)?, 1)?);
    "sum of columns": |x, _own| x * x.sum(0), |x, _w, _m| x.mul(&x.sum(0)?);
    "sum of a middle axis": |x, _own| {
        let sums = x.reshape(&[x.dims()[0] / 3, 3, 4]).sum(1);
        (x.reshape(&[x.dims()[0] / 3, 3, 4]) * sums.reshape(&[x.dims()[0] / 3, 1, 4])).reshape(&[x.dims()[0], 4])
    }, |x, _w, _m| {
        // Tensors are not repeated between two dimensions along which they vary.
        let groups = x.reshape(&[N / 3, 3, 4])?;
        let sums = groups.sum(1)?.into_shape(&[N / 3, 1, 4])?;
        groups.mul(&Tensor::cat(&[&sums, &sums, &sums], 1)?)?.into_shape(&[N, 4])
    };
    "mean of all": |x, _own| x * x.mean(None), |x, _w, _m| x.mul(&x.mean(None)?);
    "mean of rows": |x, _own| x * x.mean_keepdim(1), |x, _w, _m| x.mul(&kept(&x.mean(1)?, 1)?);
    "mean of columns": |x, _own| x * x.mean(0), |x, _w, _m| x.mul(&x.mean(0)?);
    "max of rows": |x, _own| x * x.max(1).reshape(&[x.dims()[0], 1]), |x, _w, _m| x.mul(&kept(&x.max(1)?, 1)?);
    "max of columns": |x, _own| x * x.max(0), |x, _w, _m| x.mul(&x.max(0)?);
    "min of all": |x, _own| x * x.min(None), |x, _w, _m| x.mul(&x.min(None)?);
    "norm of rows": |x, _own| x / x.norm(1).reshape(&[x.dims()[0], 1]), |x, _w, _m| x.div(&kept(&x.norm(1)?, 1)?);
    "layer_norm": |x, own| x.layer_norm(1e-5) * &own["w"], |x, w, _m| {
        let centered = x.sub(&kept(&x.mean(1)?, 1)?)?;
        let variance = kept(&centered.mul(&centered)?.mean(1)?, 1)?;
        centered.div(&variance.add(1e-5)?.sqrt()?)?.mul(w)
    };
    "normalize": |x, _own| x.normalize(1) + x.normalize(0), |x, _w, _m| {
        x.div(&x.norm(keepdim(1))?)?.add(&x.div(&x.norm(keepdim(0))?)?)
    };
    "sign": |x, own| x * x.sign() + own["w"].sign(), |x, w, _m| x.mul(&x.sign()?)?.add(&w.sign()?);
    "tensors": |x, _own| {
        let weights = x.constant(&line());
        let places = &line() / (x * x + 1.0) + x.matmul(&weights.reshape(&[4, 1])) * weights;
        (places - &line()).masked_fill(line().gt(1.5).unwrap(), 0.25) + line() + &line()
    }, |x, _w, _m| {
        let line = line().to(x.device())?.to_dtype(x.dtype())?;
        let products = kept(&x.matmul(&line)?, 1)?;
        let places = line.div(&x.mul(x)?.add(1.0)?)?.add(&products.mul(&line)?)?;
        places.sub(&line)?.masked_fill(&line.gt(1.5)?, 0.25)?.add(&line)?.add(&line)
    };
    "a tensor for each number of rows": |x, _own| {
        let rows = x.dims()[0];
        x * &Tensor::arange(rows, DType::F32, Device::Cpu).unwrap().into_shape(&[rows, 1]).unwrap()
    }, |x, _w, _m| x.mul(&Tensor::arange(N, x.dtype(), x.device())?.into_shape(&[N, 1])?);
    "detach": |x, _own| x * x.detach() * 0.0 + x, |x, _w, _m| x.try_clone();
    "matmul": |x, own| x.matmul(&own["m"]), |x, _w, m| x.matmul(m);
    "matmul, transposed": |x, own| x.matmul(&own["m"].t()), |x, _w, m| x.matmul(&m.t()?);
    "matmul, left transposed": |x, own| own["m"].t().matmul(&x.t()).t(), |x, _w, m| x.matmul(m);
    "matmul of a matrix and a vector": |x, own| x * x.matmul(&own["w"]).reshape(&[x.dims()[0], 1]),
        |x, w, _m| x.mul(&kept(&x.matmul(w)?, 1)?);
    "matmul of vectors": |x, own| x * own["w"].matmul(&own["m"]) + own["w"].matmul(&own["w"]),
        |x, w, m| x.mul(&w.matmul(m)?)?.add(&w.matmul(w)?);
    "addmm": |x, own| Var::addmm(2.0, x, &own["m"], 0.5, &own["w"]), |x, w, m| Tensor::addmm(2.0, x, m, 0.5, w);
    "scaled matmul": |x, own| (x * 0.5).matmul(&(&own["m"] * 3.0)) * 2.0, |x, _w, m| x.matmul(m)?.mul(3.0);
    "matmul used twice": |x, own| {
        let product = x.matmul(&own["m"]);
        &product * 2.0 + product.tanh()
    }, |x, _w, m| {
        let product = x.matmul(m)?;
        product.mul(2.0)?.add(&activated(&product, Activation::Tanh)?)
    };
    "values used again": |x, own| {
        let u = x * &own["w"];
        let s = u.softmax(1) + &u;
        let t = (s.tanh() + &s) * &own["w"];
        &t * &u + t.sigmoid()
    }, |x, w, _m| {
        let u = x.mul(w)?;
        let s = u.softmax(1)?.add(&u)?;
        let t = activated(&s, Activation::Tanh)?.add(&s)?.mul(w)?;
        t.mul(&u)?.add(&activated(&t, Activation::Sigmoid)?)
    };
    "bmm": |x, _own| {
        let groups = x.reshape(&[x.dims()[0] / 3, 3, 4]);
        groups.bmm(&groups.t()).bmm(&groups).reshape(&[x.dims()[0], 4])
    }, |x, _w, _m| {
        let groups = x.reshape(&[N / 3, 3, 4])?;
        groups.bmm(&groups.permute([0, 2, 1])?)?.bmm(&groups)?.into_shape(&[N, 4])
    };
    "permute": |x, own| {
        let mixed = (x * &own["w"]).reshape(&[x.dims()[0] / 3, 3, 2, 2]).permute(&[0, 2, 1, 3]);
        mixed.reshape(&[x.dims()[0], 4]) * x
    }, |x, w, _m| x.mul(w)?.reshape(&[N / 3, 3, 2, 2])?.permute([0, 2, 1, 3])?.into_shape(&[N, 4])?.mul(x);
    "permute of five dimensions": |x, _own| {
        let mixed = x.reshape(&[x.dims()[0] / 6, 3, 2, 2, 2]).permute(&[3, 1, 0, 4, 2]);
        (&mixed * &mixed).reshape(&[x.dims()[0], 4]) * x
    }, |x, _w, _m| {
        let mut mixed = x.zeros_like()?;
        ddp_kernels::ops::permute(x.view(), &[N / 6, 3, 2, 2, 2], &[3, 1, 0, 4, 2], mixed.view_mut())?;
        mixed.mul(&mixed)?.mul(x)
    };
    "narrow": |x, _own| Var::cat(&[&x.narrow(1, 1, 3).exp(), &x.narrow(1, 0, 1)], 1),
        |x, _w, _m| Tensor::cat(&[&x.narrow(1, 1, 3)?.exp()?, &x.narrow(1, 0, 1)?], 1);
    "narrow with a gap": |x, _own| x * x.narrow(1, 1, 1) + x.narrow(1, 3, 1),
        |x, _w, _m| x.mul(&x.narrow(1, 1, 1)?)?.add(&x.narrow(1, 3, 1)?);
    "narrow, overlapping": |x, _own| {
        let parts = [x.narrow(1, 0, 3), x.narrow(1, 1, 3)];
        x + (&parts[0] * &parts[1]).sum_keepdim(1)
    }, |x, _w, _m| x.add(&kept(&x.narrow(1, 0, 3)?.mul(&x.narrow(1, 1, 3)?)?.sum(1)?, 1)?);
    "narrow of rows": |x, _own| Var::cat(&[&x.narrow(0, 2, x.dims()[0] - 2).exp(), &x.narrow(0, 0, 2)], 0),
        |x, _w, _m| Tensor::cat(&[&x.narrow(0, 2, N - 2)?.exp()?, &x.narrow(0, 0, 2)?], 0);
    "row": |x, own| x * own["m"].row(2), |x, _w, m| x.mul(&m.row(2)?.to_tensor()?);
    "cat of one value": |x, _own| Var::cat(&[&x.narrow(1, 0, 2), &x.narrow(1, 0, 2)], 1),
        |x, _w, _m| Tensor::cat(&[&x.narrow(1, 0, 2)?, &x.narrow(1, 0, 2)?], 1);
    "index_select": |x, own| x * own["m"].index_select(0, &x.gt(0.0).to_dtype(DType::I64).sum_to_codes()),
        |x, _w, m| x.mul(&m.index_select(0, &codes(x)?)?);
    "index_select of columns": |x, own| x.matmul(&own["m"].index_select(1, &(own["w"].zeros_like() + 2.0))),
        |x, _w, m| x.matmul(&m.index_select(1, &Tensor::from_slice(&[2i64; WIDTH], &[WIDTH], x.device())?)?);
    "axes from the end": |x, _own| x.softmax(-1) + x.narrow(-1, 1, 1) * x.sum(keepdim(-2)),
        |x, _w, _m| x.softmax(-1)?.add(&x.narrow(-1, 1, 1)?.mul(&x.sum(keepdim(-2))?)?);
    "mean of two axes": |x, _own| x * x.reshape(&[x.dims()[0] / 3, 3, 4]).mean([0, 2]).sum(None),
        |x, _w, _m| x.mul(&x.reshape(&[N / 3, 3, 4])?.mean([0, 2])?.sum(None)?);
    "norm of two axes": |x, _own| {
        let groups = x.reshape(&[x.dims()[0] / 3, 3, 4]);
        (&groups / groups.norm(keepdim([1, 2]))).reshape(&[x.dims()[0], 4])
    }, |x, _w, _m| {
        let groups = x.reshape(&[N / 3, 3, 4])?;
        groups.div(&groups.norm(keepdim([1, 2]))?)?.into_shape(&[N, 4])
    };
    "variance": |x, _own| x * x.var(keepdim(1)) + x.std(0), |x, _w, _m| x.mul(&x.var(keepdim(1))?)?.add(&x.std(0)?);
    "variance of 0": |x, _own| x + (x * 0.0).std(keepdim(1)), |x, _w, _m| x.try_clone();
    "max of two axes": |x, _own| x * x.reshape(&[x.dims()[0] / 3, 3, 4]).max([0, 2]).sum(None),
        |x, _w, _m| x.mul(&x.reshape(&[N / 3, 3, 4])?.max([0, 2])?.sum(None)?);
    "transpose": |x, own| x.matmul(&own["m"].transpose(0, -1)), |x, _w, m| x.matmul(&m.transpose(0, -1)?);
    "unsqueeze and squeeze": |x, _own| (x.unsqueeze(1) * x.unsqueeze(-1)).sum(2) + x.unsqueeze(0).squeeze(0),
        |x, _w, _m| x.unsqueeze(1)?.mul(&x.unsqueeze(-1)?)?.sum(2)?.add(x);
    "expand": |x, own| x * own["w"].expand(&x.dims()), |x, w, _m| x.mul(w);
    "split": |x, _own| {
        let parts = x.split(3, 1);
        x * &parts[1] + parts[0].sum_keepdim(1)
    }, |x, _w, _m| x.mul(&x.narrow(1, 3, 1)?)?.add(&kept(&x.narrow(1, 0, 3)?.sum(1)?, 1)?);
    "slice": |x, own| {
        x * x.slice((.., 1..3)).sum(keepdim(1)) + x.slice((.., -1)).unsqueeze(1) + own["m"].slice(0) + own["m"].slice((1.., 2)).sum(None)
    }, |x, _w, m| {
        let of_rows = x.mul(&x.slice((.., 1..3))?.sum(keepdim(1))?)?.add(&x.slice((.., -1))?.unsqueeze(1)?)?;
        of_rows.add(&m.slice(0)?)?.add(&m.slice((1.., 2))?.sum(None)?)
    };
    "flatten": |x, _own| (x * 2.0).flatten().reshape(&x.dims()), |x, _w, _m| x.mul(2.0);
    "comparisons": |x, own| x.masked_fill(x.ge(&own["w"]), 0.5) + x.where_(x.le(0.2), 1.0) + x.where_(x.ne(x), 2.0),
        |x, w, _m| x.masked_fill(&x.ge(w)?, 0.5)?.add(&x.where_(&x.le(0.2)?, &x.full_like(1.0)?)?)?.add(2.0);
    "matmul of a batch and a matrix": |x, own| {
        x.reshape(&[x.dims()[0] / 3, 3, 4]).matmul(&own["m"].t()).reshape(&[x.dims()[0], 4])
    }, |x, _w, m| x.matmul(&m.t()?);
    "matmul of heads": |x, _own| {
        let heads = x.reshape(&[x.dims()[0] / 3, 3, 2, 2]).permute(&[0, 2, 1, 3]);
        let mixed = heads.matmul(&heads.transpose(2, 3)).matmul(&heads);
        mixed.permute(&[0, 2, 1, 3]).reshape(&[x.dims()[0], 4])
    }, |x, _w, _m| {
        let heads = x.reshape(&[N / 3, 3, 2, 2])?.permute([0, 2, 1, 3])?.into_shape(&[N / 3 * 2, 3, 2])?;
        let mixed = heads.bmm(&heads.permute([0, 2, 1])?)?.bmm(&heads)?;
        mixed.into_shape(&[N / 3, 2, 3, 2])?.permute([0, 2, 1, 3])?.into_shape(&[N, 4])
    };
    "matmul of a matrix and a batch": |x, own| {
        let groups = x.reshape(&[x.dims()[0] / 2, 2, 4]).transpose(1, 2);
        own["m"].matmul(&groups).transpose(1, 2).reshape(&[x.dims()[0], 4])
    }, |x, _w, m| x.matmul(&m.t()?);
    "matmul of a batch and a vector": |x, own| {
        x * x.reshape(&[x.dims()[0] / 3, 3, 4]).matmul(&own["w"]).reshape(&[x.dims()[0], 1])
    }, |x, w, _m| x.mul(&kept(&x.matmul(w)?, 1)?);
    "gather beside infinities": |x, _own| {
        let masked = x.masked_fill(x.lt(0.0), f64::NEG_INFINITY);
        x + masked.gather(1, &x.max(keepdim(1)).zeros_like().to_dtype(DType::I64)).maximum(0.0)
    }, |x, _w, _m| x.add(&x.narrow(1, 0, 1)?.maximum(0.0)?);
    "gather": |x, own| {
        let codes = x.gt(0.0).to_dtype(DType::I64).narrow(1, 0, 2);
        x * x.gather(1, &codes).sum_keepdim(1) + own["m"].gather(0, &own["m"].zeros_like().row(0).unsqueeze(0))
    }, |x, _w, m| {
        let codes = x.gt(0.0)?.to_dtype(DType::I64)?.narrow(1, 0, 2)?;
        x.mul(&kept(&x.gather(1, &codes)?.sum(1)?, 1)?)?.add(&m.narrow(0, 0, 1)?)
    };
    "stack": |x, own| Var::stack(&[x, &(x * &own["w"])], 0).sum(0), |x, w, _m| x.add(&x.mul(w)?);
    "one_hot": |x, own| x.gt(0.0).to_dtype(DType::I64).sum_to_codes().one_hot(4, x.dtype()).matmul(&own["m"]) + x,
        |x, _w, m| x.add(&codes(x)?.one_hot(4)?.to_dtype(x.dtype())?.matmul(m)?);
];

/// 0.5, 1, 1.5, 2.
fn line() -> Tensor {
    Tensor::from_slice(&[0.5f32, 1.0, 1.5, 2.0], &[WIDTH], Device::Cpu).unwrap()
}

/// The first column as codes.
trait Codes {
    fn sum_to_codes(&self) -> Var;
}

impl Codes for Var {
    fn sum_to_codes(&self) -> Var {
        self.narrow(1, 0, 1).reshape(&[self.dims()[0]])
    }
}

fn expression(of_vars: impl Fn(&Var, &Own) -> Var + Send + 'static) -> Expression {
    Expression::new("tested", WIDTH, WIDTH, of_vars)
        .parameter("w", ParamKind::NormWeight, &[WIDTH], Init::Normal(0.7))
        .parameter("m", ParamKind::Weight, &[WIDTH, WIDTH], Init::Normal(0.7))
}

fn model(layers: Sequential, device: Device, precision: Precision) -> Network {
    layers.build(Sizes { max_rows: N, device, precision }, 3).unwrap()
}

fn checked(expression: Expression, device: Device) -> std::result::Result<(), ModelError> {
    let layers = Sequential::new(3).linear(WIDTH).layer(expression).linear(2);
    let mut model = model(layers, device, Precision::F64);
    let x = Tensor::randn(&[N, 3], DType::F64, device, 5).unwrap();
    gradcheck(&mut model, x.view(), &GradcheckOptions::f64())
}

#[test]
fn every_operation_has_the_gradient_of_its_difference_quotients_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for case in CASES {
            checked(expression(case.of_vars), device)
                .unwrap_or_else(|error| panic!("{}, {device}: {error}", case.name));
        }
    }
}

#[test]
fn every_operation_has_the_value_that_it_has_on_tensors_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        // f32: sums in other orders and functions of other libraries; short formats: each operation rounds once.
        for (precision, tolerance) in
            [(Precision::F64, 1e-12), (Precision::F32, 1e-5), (Precision::Bf16, 0.06), (Precision::F16, 0.01)]
        {
            for case in CASES {
                let mut model =
                    model(Sequential::new(WIDTH).layer(expression(case.of_vars)), device, precision);
                let format = precision.activations();
                let x = Tensor::randn(&[N, WIDTH], DType::F32, device, 5).unwrap();
                let x = x.to_dtype(format).unwrap();
                model.forward(&x).unwrap();
                let got = model.outputs().unwrap().to_tensor().unwrap();
                let params = model.state_dict(device).unwrap();
                let param = |name: &str| params[name].to_dtype(format).unwrap().to_dtype(DType::F64).unwrap();
                let (x, w, m) = (x.to_dtype(DType::F64).unwrap(), param("tested.w"), param("tested.m"));
                let want = (case.of_tensors)(&x, &w, &m).unwrap();
                assert_near(case.name, precision, &got, &want, tolerance);
            }
        }
    }
}

#[track_caller]
fn assert_near(name: &str, precision: Precision, got: &Tensor, want: &Tensor, tolerance: f64) {
    let numbers = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (got, want) in numbers(got).into_iter().zip(numbers(want)) {
        let is_near = (got - want).abs() <= tolerance * (1.0 + want.abs());
        assert!(is_near, "{name}, {}: {got} against {want}", precision.name());
    }
}

#[test]
fn gradients_in_short_formats_are_near_those_in_f32_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for case in CASES {
            let gradients = |precision: Precision| {
                let layers = Sequential::new(3).linear(WIDTH).layer(expression(case.of_vars)).linear(2);
                let mut model = model(layers, device, precision);
                let x = Tensor::randn(&[N, 3], DType::F32, device, 5).unwrap();
                model.forward(&x).unwrap();
                let (_, d) = model.outputs_and_gradient().unwrap();
                ddp_kernels::ops::fill(d, ddp_kernels::ops::Pattern::Line { start: 1.0, step: 0.0 }).unwrap();
                let mut grads = Tensor::zeros(&[model.layout().flat_len()], DType::F32, device).unwrap();
                let mut sink = ddp::model::LocalGradients(grads.view_mut());
                model.backward(x.view(), None, false, &mut sink).unwrap();
                grads.to_vec::<f32>().unwrap()
            };
            let want = gradients(Precision::F32);
            let largest = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            for (precision, tolerance) in [(Precision::Bf16, 0.1), (Precision::F16, 0.02)] {
                let got = gradients(precision);
                let n_far = got
                    .iter()
                    .zip(&want)
                    .filter(|(a, b)| (*a - *b).abs().is_nan() || (*a - *b).abs() > tolerance * largest)
                    .count();
                // Rounded inputs lie on the other side of a kink here and there.
                assert!(
                    n_far * 10 <= got.len(),
                    "{}, {device}, {}: {got:?} {want:?}",
                    case.name,
                    precision.name()
                );
            }
        }
    }
}

#[test]
fn a_wrong_derivative_is_found() {
    // The derivative of the detached factor is missing.
    let error = checked(expression(|x, _| x * x.detach()), Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("gradient check: layers.0."), "{error}");
    let error = checked(expression(|x, own| x + &own["w"].detach()), Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("gradient check: tested.w"), "{error}");
}

#[test]
fn errors_of_an_expression_are_those_of_building_the_model() {
    let sizes = Sizes { max_rows: N, device: Device::Cpu, precision: Precision::F32 };
    let message = |of_vars: fn(&Var, &Own) -> Var| {
        let error = Sequential::new(WIDTH).layer(expression(of_vars)).build(sizes, 0).unwrap_err();
        ddp_kernels::hint::with_hint(&error)
    };
    for (of_vars, want) in [
        (
            (|x, own| x.matmul(&own["m"].narrow(0, 0, 3)) + x) as fn(&Var, &Own) -> Var,
            "matmul: a [6, 4] f32 on cpu and b [3, 4]",
        ),
        (|x, _| x.reshape(&[3, 3, 7]).sum(0), "reshape: 24 elements cannot fill the shape [3, 3, 7]"),
        (|x, own| x + &own["m"].row(0).narrow(0, 1, 2), "have shapes that do not broadcast"),
        (|x, _| x.narrow(1, 2, 3), "narrow: the range 2..5 exceeds the length 4"),
        (|x, _| x.sum(2), "sum: a [6, 4] f32 on cpu has no axis 2"),
        (|x, _| x.gt(0.0).exp(), "exp: a [6, 4] bool"),
        (|x, _| x.sum(1), "rows: the result [6] f32 on cpu should be [6, 4]"),
        (|x, _| x.gt(0.0), "gradients: result [6, 4] bool"),
        (|x, _| x.permute(&[0, 0]), "permute: a [6, 4] f32"),
    ] {
        let message = message(of_vars);
        assert!(message.starts_with("expression tested: ") && message.contains(want), "{message}");
        assert_eq!(
            message.contains("hint: "),
            ["matmul", "broadcast", "axis"].iter().any(|word| want.contains(word)),
            "{message}"
        );
    }
}
