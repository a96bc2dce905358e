//! Random expressions: values that live for different times share memory, and each gradient is right for several numbers of rows.

use ddp::config::precision::Precision;
use ddp::model::expression::{Expression, Own, Var};
use ddp::model::layer::Sizes;
use ddp::model::param::{Init, ParamKind};
use ddp::model::{GradcheckOptions, Sequential, gradcheck};
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::cpu_and_gpu;

const WIDTH: usize = 4;
const N_EXPRESSIONS: u64 = 60;
const N_OPERATIONS: usize = 12;

/// Numbers that depend on the seed alone.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// One of the operations on values of the shape `[n, 4]`, smooth and of a size near 1.
fn operation(index: usize, a: &Var, b: &Var, own: &Own) -> Var {
    let n = a.dims()[0];
    let groups = |x: &Var| x.reshape(&[n / 2, 2, WIDTH]);
    match index {
        0 => a + b,
        1 => (a * b).tanh(),
        2 => a.sigmoid(),
        3 => a.softmax(1),
        4 => a.matmul(&own["m"]),
        5 => a.layer_norm(0.1),
        6 => a - b * 0.5,
        7 => Var::cat(&[&a.narrow(1, 2, 2), &b.narrow(1, 0, 2)], 1),
        8 => groups(a).bmm(&groups(b).t()).bmm(&groups(a)).tanh().reshape(&[n, WIDTH]),
        9 => a.matmul(&(a.t().matmul(b) * (1.0 / n as f64)).tanh()),
        10 => a.reshape(&[n / 2, 2, 2, 2]).permute(&[0, 2, 1, 3]).reshape(&[n, WIDTH]),
        11 => a * b.sum_keepdim(1).tanh(),
        12 => Var::cat(&[&a.narrow(0, n / 2, n - n / 2), &b.narrow(0, 0, n / 2)], 0),
        13 => a / (b * b + 1.0),
        14 => (a + &own["w"]).gelu(),
        15 => a * &Tensor::arange(WIDTH, DType::F32, Device::Cpu).unwrap() - b,
        16 => (a + &Tensor::full(&[n, 1], 0.5, DType::F64, Device::Cpu).unwrap()).normalize(1),
        _ => a + b.mean(0).exp() * 0.3,
    }
}

fn expression(seed: u64) -> Expression {
    let of_vars = move |x: &Var, own: &Own| {
        let mut numbers = Numbers(seed);
        let mut values = vec![x.clone()];
        for _ in 0..N_OPERATIONS {
            let [a, b] = [0, 1].map(|_| values[numbers.below(values.len())].clone());
            values.push(operation(numbers.below(18), &a, &b, own));
        }
        // Some values have no use, some several.
        let last = values.len() - 1;
        &values[last] + &values[last - 1] * &values[last - 3]
    };
    Expression::new("random", WIDTH, WIDTH, of_vars)
        .parameter("w", ParamKind::NormWeight, &[WIDTH], Init::Normal(0.7))
        .parameter("m", ParamKind::Weight, &[WIDTH, WIDTH], Init::Normal(0.7))
}

#[test]
fn random_expressions_have_the_right_gradients_for_any_number_of_rows_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let sizes = Sizes { max_rows: 8, device, precision: Precision::F64 };
        let n_expressions = if device == Device::Cpu { N_EXPRESSIONS } else { 6 };
        for seed in 0..n_expressions {
            let layers = Sequential::new(3).linear(WIDTH).layer(expression(seed)).linear(2);
            let mut model = layers.build(sizes, seed).unwrap();
            for n in [8, 2, 6] {
                let x = Tensor::randn(&[n, 3], DType::F64, device, seed).unwrap();
                let options =
                    GradcheckOptions { max_elements: 8, tolerance: 1e-5, ..GradcheckOptions::f64() };
                gradcheck(&mut model, x.view(), &options)
                    .unwrap_or_else(|error| panic!("seed {seed}, {n} rows, {device}: {error}"));
            }
        }
    }
}
