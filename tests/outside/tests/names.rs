//! Names that a programmer who comes from PyTorch types first, as a user of the library.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ddp::data::{
    BatchMut, BatchPlan, DataError, DataLoader, Dataset, LoaderOptions, RowLayout, TargetLayout,
    TensorDataset, numbered_columns,
};
use ddp::distributed::CommError;
use ddp::nn::{Activation, Expression, GradientSums, Init, LossHead, ParamKind, Sequential, Sizes, Var};
use ddp::optim::{
    Optimizer, OptimizerConfig, OptimizerKind, ParamGroup, Schedule, ScheduleConfig, ScheduleShape, Span,
    Warmup,
};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};
use ddp::with_hint;

/// Rows of a program, with the three methods that they need.
#[derive(Debug)]
struct Houses(Vec<[f32; 3]>, RowLayout);

impl Houses {
    fn new(n: usize) -> Self {
        let rows = (0..n).map(|i| [i as f32, 3.0, 2.0 * i as f32]).collect();
        let targets = TargetLayout::Values { names: vec!["price".to_owned()] };
        Houses(rows, RowLayout::new(numbered_columns(2), targets))
    }
}

impl Dataset for Houses {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn layout(&self) -> &RowLayout {
        &self.1
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<(), DataError> {
        let (x, y) = (out.x.into_slice::<f32>("houses", "x")?, out.targets.into_slice::<f32>("houses", "y")?);
        for ((&row, x), y) in rows.iter().zip(x.chunks_exact_mut(2)).zip(y) {
            x.copy_from_slice(&self.0[row][..2]);
            *y = self.0[row][2];
        }
        Ok(())
    }
}

#[test]
fn a_dataset_needs_three_methods() {
    let hash = |houses: &Houses| houses.fingerprint().unwrap();
    assert_eq!(hash(&Houses::new(1000)), hash(&Houses::new(1000)));
    let mut others = [Houses::new(999), Houses::new(1000), Houses::new(1000)];
    others[1].0[0][2] = 7.0;
    others[2].1.features[0] = "area".to_owned();
    assert!(others.iter().all(|other| hash(other) != hash(&Houses::new(1000))));
    assert_ne!(hash(&Houses::new(0)), hash(&Houses::new(1)));

    let rows = Arc::new(Houses::new(100));
    let plan = BatchPlan::new(10);
    let mut loader = DataLoader::new(&World::single(), rows, &plan, LoaderOptions::new(Device::Cpu)).unwrap();
    let mut n = 0;
    for batch in loader.iter().unwrap() {
        let (x, y) = batch.unwrap();
        assert_eq!(
            x.narrow(1, 0, 1).unwrap().mul(2.0).unwrap().to_vec::<f32>().unwrap(),
            y.to_vec::<f32>().unwrap()
        );
        n += x.dims()[0];
    }
    assert_eq!(n, 100);
}

#[test]
fn bce_with_logits_is_bce() -> ddp::Result<()> {
    let model = || Sequential::new(3).linear(1).build(Sizes::new(8, Device::Cpu), 1);
    let x = Tensor::randn(&[8, 3], DType::F32, "cpu", 1)?;
    let y = x.narrow(1, 0, 1)?.gt(0.0)?.to_dtype(DType::F32)?;
    let loss = |loss: LossHead| model()?.loss((&x, &y), &loss);
    assert_eq!(loss(LossHead::bce_with_logits())?, loss(LossHead::bce())?);
    Ok(())
}

/// Encoder and decoder are one matrix: the gradient is that of both uses, and files have it once.
#[test]
fn expressions_share_a_parameter() -> ddp::Result<()> {
    let tied =
        |layer: Expression| layer.parameter("w", ParamKind::Weight, &[6, 2], Init::Normal(0.3)).shared();
    let encode = || tied(Expression::new("encode", 6, 2, |x, own| x.matmul(&own["w"])));
    let decode = || {
        let layer = Expression::new("decode", 2, 6, |x, own| x.matmul(&own["w"].t()) + &own["b"]);
        tied(layer.parameter("b", ParamKind::Bias, &[6], Init::Constant(0.0)))
    };
    let sizes = Sizes::new(32, Device::Cpu);
    let mut model = Sequential::new(6).layer(encode()).layer(decode()).build(sizes, 0)?;
    let names: Vec<_> = model.named_parameters()?.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!((names, model.n_parameters()), (vec!["w".to_owned(), "decode.b".to_owned()], 18));

    let x = Tensor::randn(&[32, 6], DType::F32, "cpu", 1)?;
    let mut grads = GradientSums::for_model(&model)?;
    model.loss_and_gradients((&x, &x), &LossHead::mse(), &mut grads)?;
    let of_model = grads.get("w")?.to_vec::<f32>()?;
    let weights = model.named_parameters()?[0].1.to_tensor()?;
    let w = Var::new(weights)?;
    let error = w.constant(&x).matmul(&w).matmul(&w.t()) - &x;
    let by_hand = error.pow(2.0).mean(None).backward()?[&w].to_vec::<f32>()?;
    for (a, b) in of_model.iter().zip(&by_hand) {
        assert!((a - b).abs() < 1e-5, "{of_model:?} {by_hand:?}");
    }
    let mut optimizer = Optimizer::adamw(&model, 1e-2)?;
    let first = model.loss((&x, &x), &LossHead::mse())?;
    grads.reset();
    for _ in 0..100 {
        model.loss_and_gradients((&x, &x), &LossHead::mse(), &mut grads)?;
        optimizer.step(&mut model, &mut grads)?;
    }
    assert!(model.loss((&x, &x), &LossHead::mse())? < 0.9 * first);
    // Without `shared` they are two parameters.
    let apart = Expression::new("encode", 6, 6, |x, own| x.matmul(&own["w"]));
    let apart = apart.parameter("w", ParamKind::Weight, &[6, 6], Init::Normal(0.1));
    let model = Sequential::new(6).layer(apart).layer(encode()).layer(decode()).build(sizes, 0)?;
    assert_eq!(model.n_parameters(), 36 + 18);
    Ok(())
}

/// A file of PyTorch has its own names; those of a model are a `state_dict`, in any collection.
#[test]
fn state_dicts_go_through_files_and_maps() -> ddp::Result<()> {
    let path = std::env::temp_dir().join(format!("ddp_names_{}.safetensors", std::process::id()));
    let model = |seed| {
        Sequential::new(4)
            .linear(5)
            .activation(Activation::Relu)
            .linear(2)
            .build(Sizes::new(8, Device::Cpu), seed)
    };
    let (from, mut to) = (model(1)?, model(2)?);
    let x = Tensor::randn(&[8, 4], DType::F32, "cpu", 1)?;
    let renamed: BTreeMap<String, Tensor> = from
        .state_dict(Device::Cpu)?
        .into_iter()
        .map(|(name, tensor)| (name.replace("layers.0", "fc1").replace("layers.1", "fc2"), tensor))
        .collect();
    assert!(renamed.contains_key("fc2.bias"), "{:?}", renamed.keys());
    io::write_safetensors(&path, &renamed)?;
    let mut state = HashMap::new();
    for (name, tensor) in io::read_safetensors(&path, "cpu")? {
        state.insert(name.replace("fc1", "layers.0").replace("fc2", "layers.1"), tensor);
    }
    to.load_state_dict(&state, true)?;
    let mut from = from;
    assert_eq!(to.forward(&x)?.to_vec::<f32>()?, from.forward(&x)?.to_vec::<f32>()?);

    // A file that is cut off, none, a pointer, and a type that no tensor holds.
    let whole = std::fs::read(&path)?;
    let error_of = |bytes: &[u8]| -> ddp::Result<String> {
        std::fs::write(&path, bytes)?;
        Ok(with_hint(&io::read_safetensors(&path, "cpu").unwrap_err()))
    };
    let cut = error_of(&whole[..whole.len() - 1])?;
    assert!(cut.contains("bytes, expected") && cut.contains("hint: ") && cut.contains("ddp_names_"), "{cut}");
    let pointer = error_of(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")?;
    assert!(pointer.contains("Git LFS pointer") && pointer.contains("git lfs pull"), "{pointer}");
    let header = br#"{"a":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}}"#;
    let of_type = error_of(&[&(header.len() as u64).to_le_bytes()[..], header, &[1, 0]].concat())?;
    assert!(of_type.contains("a is U16, which no tensor holds"), "{of_type}");
    std::fs::remove_file(&path)?;
    let missing = with_hint(&io::read_safetensors(&path, "cpu").unwrap_err());
    assert!(missing.contains("does not exist"), "{missing}");
    Ok(())
}

fn check_variables(device: Device) -> ddp::Result<()> {
    // Rosenbrock's function: its gradient in closed form.
    let p = Var::new(tensor![-1.0, 1.5].to(device)?)?;
    let (a, b) = (p.narrow(0, 0, 1), p.narrow(0, 1, 1));
    let f = (1.0 - &a).pow(2.0) + (&b - a.pow(2.0)).pow(2.0) * 100.0;
    assert_eq!(f.tensor()?.to_vec::<f32>()?, [4.0 + 25.0]);
    let gradients = f.backward()?;
    assert_eq!(gradients[&p].device(), device);
    assert_eq!(gradients[&p].to_vec::<f32>()?, [-4.0 + 400.0 * 0.5, 200.0 * 0.5]);
    // A variable is one, whatever was computed from it and wherever it is used.
    let q = Var::new(tensor![3.0].to(device)?)?;
    let u = &a * 2.0 + &q;
    let v = &q * &b;
    let both = &u * &v + &v * &u + &p.sum(None) * 0.0;
    let gradients = both.sum(None).backward()?;
    // 2 u v, where u = 2a + q and v = q b.
    let (a, b, q_is) = (-1.0f32, 1.5, 3.0);
    let (u_is, v_is) = (2.0 * a + q_is, q_is * b);
    assert_eq!(gradients[&p].to_vec::<f32>()?, [2.0 * 2.0 * v_is, 2.0 * u_is * q_is]);
    assert_eq!(gradients[&q].to_vec::<f32>()?, [2.0 * (v_is + u_is * b)]);
    // What was computed before keeps its values, and a variable those that it was made of.
    assert_eq!(q.tensor()?.to_vec::<f32>()?, [3.0]);
    assert_eq!(v.tensor()?.to_vec::<f32>()?, [4.5]);
    // One that does not depend on it.
    let gradients = q.sum(None).backward()?;
    assert_eq!(gradients[&q].to_vec::<f32>()?, [1.0]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gradients[&p].dims().len())).is_err());

    let hinted = |error: KernelError| with_hint(&error);
    let error = hinted(p.backward().unwrap_err());
    assert!(error.contains("[2] has no gradient") && error.contains(".mean(None)"), "{error}");
    let error = hinted((&p + &tensor![1.0, 2.0, 3.0].to(device)?).sum(None).backward().unwrap_err());
    assert!(error.contains("[2]") && error.contains("[3]"), "{error}");
    let error = hinted(Var::new(tensor![1, 2].to(device)?).unwrap_err());
    assert!(error.contains("i64"), "{error}");
    Ok(())
}

#[test]
fn variables_outside_a_model_have_gradients() -> ddp::Result<()> {
    check_variables(Device::Cpu)
}

#[test]
fn gpu_variables_outside_a_model_have_gradients() -> ddp::Result<()> {
    if Device::cuda_is_available() { check_variables(Device::cuda(0)) } else { Ok(()) }
}

#[test]
fn gpus_say_whether_they_copy_directly() {
    assert!(!Device::Cpu.can_access_peer(Device::Cpu) && !Device::cuda(0).can_access_peer(Device::Cpu));
    assert!(!Device::cuda(0).can_access_peer(Device::cuda(u32::MAX)));
    if Device::count() > 1 {
        let path = peer::path(Gpu::get(0).unwrap(), Gpu::get(1).unwrap()).unwrap();
        let is_direct = path == peer::PeerPath::Direct;
        assert_eq!(Device::cuda(1).can_access_peer(Device::cuda(0)), is_direct);
    }
}

#[test]
fn ranks_send_tensors_to_each_other() -> ddp::Result<()> {
    let got = ddp::launch(3, |world| -> ddp::Result<Vec<f32>> {
        let rank = world.rank().0;
        let mut x = Tensor::full(&[2, 2], rank as f32, DType::F32, Device::Cpu)?;
        // Around the ring: the first one sends first.
        if world.is_first() {
            world.send(&x, 1)?;
            world.receive(&mut x, 2)?;
        } else {
            let own = x.clone();
            world.receive(&mut x, rank - 1)?;
            world.send(&own, (rank + 1) % 3)?;
        }
        Ok(x.to_vec()?)
    })?;
    assert_eq!(got, [[2.0; 4], [0.0; 4], [1.0; 4]]);
    let error = ddp::launch(2, |world| -> ddp::Result<()> {
        let mut x = Tensor::zeros(&[4], if world.is_first() { DType::F32 } else { DType::I64 }, Device::Cpu)?;
        if world.is_first() {
            world.send(&x, 1)?
        } else {
            world.receive(&mut x, 0)?
        }
        Ok(())
    });
    let error = with_hint(&error.unwrap_err());
    assert!(error.contains("the sender has [4] f32, the receiver [4] i64"), "{error}");
    let error = World::single().send(&Tensor::zeros(&[1], DType::F32, "cpu")?, 0).unwrap_err();
    assert!(matches!(error, CommError::OwnRank { .. }), "{error}");
    Ok(())
}

fn check_functions(device: Device) -> ddp::Result<()> {
    let close = |got: Tensor, want: &[f64]| -> ddp::Result<()> {
        let want = Tensor::from_slice(want, got.dims(), device)?;
        let dtype = got.dtype();
        assert!(got.to_dtype(DType::F64)?.allclose(&want, 1e-6, 0.0)?, "{got} in {dtype}, not {want}");
        Ok(())
    };
    let infinite = f64::INFINITY;
    let x = [-infinite, -100.0, -1.0, 0.0, 1e-7, 1.0, 100.0, infinite];
    for dtype in [DType::F32, DType::F64] {
        let x_of = |x: &[f64]| Tensor::from_slice(x, &[x.len()], device)?.to_dtype(dtype);
        let own = x_of(&x)?;
        let exact = own.to_dtype(DType::F64)?.to_vec::<f64>()?;
        // In f32 e^-100 is subnormal.
        let softplus: Vec<f64> = exact.iter().map(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()).collect();
        close(own.narrow(0, 2, 6)?.softplus()?, &softplus[2..])?;
        assert!(
            own.softplus()?.to_dtype(DType::F64)?.to_vec::<f64>()?[..2]
                .iter()
                .all(|y| (0.0..1e-40).contains(y))
        );
        let small = x_of(&[-1.0, -0.5, -1e-10, 0.0, 1e-10, 3e-4, 2.0, infinite])?;
        let of_small = small.to_dtype(DType::F64)?.to_vec::<f64>()?;
        close(small.log1p()?, &of_small.iter().map(|x| x.ln_1p()).collect::<Vec<_>>())?;
        assert!(x_of(&[-1.5])?.log1p()?.isnan()?.item::<bool>()?);
        assert_eq!(own.isfinite()?.to_vec::<bool>()?, [false, true, true, true, true, true, true, false]);
        assert_eq!(own.isinf()?.to_dtype(DType::I64)?.sum(None)?.item::<i64>()?, 2);
        // What would overflow, nothing but minus infinity, and an axis that stays.
        let rows = x_of(&[1000.0, 1000.0, -infinite, -infinite, 0.0, infinite])?.into_shape(&[3, 2])?;
        close(rows.logsumexp(1)?, &[1000.0 + 2f64.ln(), -infinite, infinite])?;
        assert_eq!(rows.narrow(0, 0, 1)?.logsumexp(keepdim(1))?.dims(), [1, 1]);
        let odd = x_of(&[3.0, -1.0, 2.0, 5.0, f64::NAN, 4.0])?;
        assert_eq!(odd.narrow(0, 0, 4)?.median(None)?.to_dtype(DType::F64)?.item::<f64>()?, 2.0);
        let of_rows = odd.reshape(&[2, 3])?.median(1)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
        assert!(of_rows[0] == 2.0 && of_rows[1].is_nan(), "{of_rows:?}");
        assert!(own.allclose(&own, 0.0, 0.0)? && !odd.allclose(&odd, 1.0, 1.0)?);
        assert!(!x_of(&[1.0])?.allclose(x_of(&[1.001])?, 1e-4, 0.0)?);

        // The derivatives, at 0 too.
        let x = Var::new(x_of(&[-2.0, 0.0, 0.5, 30.0])?)?;
        let values = [-2.0f64, 0.0, 0.5, 30.0];
        let gradient = |y: Var| -> ddp::Result<Tensor> { Ok(y.sum(None).backward()?[&x].clone()) };
        let each = |f: fn(f64) -> f64| values.map(f);
        close(gradient(x.softplus())?, &each(|x| 1.0 / (1.0 + (-x).exp())))?;
        close(gradient(x.square())?, &each(|x| 2.0 * x))?;
        close(
            gradient(x.abs().log1p())?,
            &each(|x| if x == 0.0 { 0.0 } else { x.signum() / (1.0 + x.abs()) }),
        )?;
        let [sines, cosines] = [gradient(x.cos())?.neg()?, gradient(x.sin())?];
        let unit = sines.square()?.add(&cosines.square()?)?;
        assert!(unit.allclose(unit.ones_like()?, 1e-5, 0.0)?);
        assert_eq!(cosines.narrow(0, 1, 1)?.to_dtype(DType::F64)?.item::<f64>()?, 1.0);
        close(gradient(x.round() + x.floor() * x.ceil().detach())?, &[0.0; 4])?;
        let sum: f64 = values.iter().map(|x| x.exp()).sum();
        close(x.logsumexp(None).tensor()?, &[sum.ln()])?;
        close(gradient(x.logsumexp(0))?, &values.map(|x| x.exp() / sum))?;
    }
    let whole = tensor![3, -4].to(device)?;
    assert_eq!(whole.square()?.to_vec::<i64>()?, [9, 16]);
    assert!(whole.isfinite()?.all()?.item::<bool>()? && !whole.isinf()?.any()?.item::<bool>()?);
    assert!(whole.allclose(&whole, 0.0, 0.0)? && whole.softplus().is_err() && whole.logsumexp(0).is_err());
    assert!(tensor![0.0].to(device)?.narrow(0, 0, 0)?.median(None).is_err());
    Ok(())
}

#[test]
fn functions_have_the_names_of_pytorch() -> ddp::Result<()> {
    check_functions(Device::Cpu)
}

#[test]
fn gpu_functions_have_the_names_of_pytorch() -> ddp::Result<()> {
    if Device::cuda_is_available() { check_functions(Device::cuda(0)) } else { Ok(()) }
}

/// Losses, layers, loaders and worlds by the names that are typed first.
#[test]
fn losses_layers_and_loaders_by_their_names() -> ddp::Result<()> {
    type Add = fn(Sequential) -> Sequential;
    let layers = |add: Add| add(Sequential::new(3).linear(4)).linear(3);
    let named: [(Add, Activation); 5] = [
        (Sequential::relu, Activation::Relu),
        (Sequential::gelu, Activation::Gelu),
        (Sequential::silu, Activation::Silu),
        (Sequential::tanh, Activation::Tanh),
        (Sequential::sigmoid, Activation::Sigmoid),
    ];
    let x = Tensor::randn(&[8, 3], DType::F32, "cpu", 1)?;
    let labels = x.argmax(1)?;
    let sizes = Sizes::new(8, Device::Cpu);
    for (add, activation) in named {
        let one = layers(add).build(sizes, 1)?.forward(&x)?.to_tensor()?;
        let other = Sequential::new(3)
            .linear(4)
            .activation(activation)
            .linear(3)
            .build(sizes, 1)?
            .forward(&x)?
            .to_tensor()?;
        assert_eq!(one.to_vec::<f32>()?, other.to_vec::<f32>()?);
    }
    let mut model = layers(Sequential::relu).build(sizes, 1)?;
    let outputs = model.forward(&x)?.to_tensor()?;
    let absolute = outputs.sub(&x)?.abs()?.mean(None)?.item::<f32>()?;
    assert!((model.loss((&x, &x), &LossHead::l1())? - f64::from(absolute)).abs() < 1e-6);
    // With the share 0.3 of three classes the label keeps 0.8, and the others have 0.1 each.
    let log = outputs.log_softmax(1)?;
    let target = labels.one_hot(3)?.to_dtype(DType::F32)?.mul(0.7)?.add(0.1)?;
    let smoothed = log.mul(&target)?.sum(None)?.item::<f32>()? / -8.0;
    let loss = LossHead::cross_entropy().label_smoothing(0.3)?;
    assert!((model.loss((&x, &labels), &loss)? - f64::from(smoothed)).abs() < 1e-6);
    let error = with_hint(&LossHead::cross_entropy().label_smoothing(1.0).unwrap_err());
    assert!(error.contains("the share is 1") && error.contains("below 1"), "{error}");
    assert!(LossHead::mse().label_smoothing(0.1).is_err());

    let rows = || {
        TensorDataset::new(
            &Tensor::randn(&[10, 3], DType::F32, "cpu", 1)?,
            &tensor![0., 1., 2., 3., 4., 5., 6., 7., 8., 9.],
        )
    };
    let loader = rows()?.batches(4).on("cpu")?;
    assert_eq!(loader.len(), 3);
    assert_eq!(rows()?.batches(4).drop_last().on("cpu")?.len(), 2);
    let sums = ddp::launch(2, |world| -> ddp::Result<(Vec<f32>, usize)> {
        let mut x = Tensor::full(&[2], 3.0 * world.rank().0 as f32, DType::F32, Device::Cpu)?;
        world.all_reduce_mean(&mut x)?;
        assert!(world.all_reduce_mean(&mut tensor![1, 2]).is_err());
        Ok((x.to_vec()?, world.size()))
    })?;
    assert_eq!(sums, [(vec![1.5; 2], 2), (vec![1.5; 2], 2)]);
    Ok(())
}

#[test]
fn a_trainer_has_a_model_and_a_loss() -> ddp::Result<()> {
    let world = World::single();
    let x = Tensor::randn(&[8, 3], DType::F32, "cpu", 1)?;
    let y = x.sum(keepdim(1))?;
    let optimizer = OptimizerConfig::new(OptimizerKind::Sgd, 0.1);
    let layers = Sequential::new(3).linear(4).relu().linear(1);
    let options = TrainerOptions::default();
    let mut trainer = Trainer::for_layers(
        &world,
        layers,
        Sizes::new(8, Device::Cpu),
        LossHead::mse(),
        &optimizer,
        options,
    )?;
    let loss = trainer.loss((&x, &y))?;
    let predicted = trainer.model_mut().predict(&x)?;
    let error = predicted.sub(&y)?.square()?.mean(None)?.item::<f32>()?;
    assert!((loss - f64::from(error)).abs() < 1e-6, "{loss} {error}");
    Ok(())
}

/// Sizes of parts, rows of a split, groups, schedules and maps, as they are typed.
#[test]
fn arguments_take_the_forms_that_are_typed() -> ddp::Result<()> {
    let x = tensor![[3., 1., 2.], [0., 5., 4.]];
    assert_eq!(x.argsort_descending(1)?.to_vec::<i64>()?, [0, 2, 1, 1, 2, 0]);
    assert_eq!(x.full_like(2.5f32)?.sum(None)?.item::<f32>()?, 15.0);
    assert_eq!(x.new_full(&[1], 3)?.item::<f32>()?, 3.0);
    let error = x.split([1, 1], 1).unwrap_err().to_string();
    assert!(error.contains("split") && error.contains('3'), "{error}");
    assert!(x.split(0, 1).is_err());

    // A variable takes a tensor or a reference, and parts of it have gradients.
    let w = Var::new(&x)?;
    let parts = w.split([1, 2], 1);
    let loss = (&parts[0] * 2.0).sum(None) + parts[1].square().sum(None);
    assert_eq!(loss.item::<f32>()?, 6.0 + 1.0 + 4.0 + 25.0 + 16.0);
    assert_eq!(loss.backward()?[&w].to_vec::<f32>()?, [2.0, 2.0, 4.0, 2.0, 10.0, 8.0]);

    let rows = TensorDataset::new(
        &Tensor::randn(&[10, 3], DType::F32, "cpu", 1)?,
        &tensor![0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
    )?;
    let (all, labels) = (rows.x()?, rows.y()?);
    let (train, test) = rows.split(0.3, 1)?;
    assert_eq!(
        (train.x()?.dims(), test.x()?.dims(), test.y()?.dtype()),
        (&[7, 3][..], &[3, 3][..], DType::I64)
    );
    let sum = |x: Tensor| x.to_dtype(DType::F64)?.sum(None)?.item::<f64>();
    let parts = sum(train.x()?)? + sum(test.x()?)?;
    assert!((parts - sum(all)?).abs() < 1e-6 && sum(train.y()?)? + sum(test.y()?)? == sum(labels)?);
    assert_eq!(RowLayout::values(2, 1).targets.n_outputs(), 1);
    assert_eq!(RowLayout::classes(2, 5).targets.n_outputs(), 5);

    let mut model = Sequential::new(3).linear(4).relu().linear(1).build(Sizes::new(8, Device::Cpu), 1)?;
    let state = model.state_dict("cpu")?;
    assert_eq!(state["layers.0.weight"].dims(), [4, 3]);
    model.load_state_dict(&state, true)?;
    let groups = vec![ParamGroup::new("layers.0.*").lr_scale(0.0).weight_decay(0.0)];
    let config = OptimizerConfig { groups, ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1) };
    let (mut optimizer, mut grads) =
        (Optimizer::for_model(&config, &model)?, GradientSums::for_model(&model)?);
    let x = Tensor::randn(&[8, 3], DType::F32, "cpu", 1)?;
    model.loss_and_gradients((&x, &x.sum(keepdim(1))?), &LossHead::mse(), &mut grads)?;
    optimizer.step(&mut model, &mut grads)?;
    let after = model.state_dict("cpu")?;
    let moved = |name: &str| Ok::<_, KernelError>(!after[name].allclose(&state[name], 0.0, 0.0)?);
    assert!(!moved("layers.0.weight")? && moved("layers.1.weight")?, "{:?}", after.keys());

    let schedule = Schedule::cosine(0.1, 100).warmup(10);
    let warmup = Warmup { length: Span::Steps(10), start: None };
    let shape = ScheduleShape::Cosine { final_fraction: 0.0 };
    let config = ScheduleConfig { warmup, shape };
    assert_eq!(schedule, Schedule::new(&config, 0.1, Some(100))?);
    let line = Schedule::linear(1.0, 10);
    assert!((line.lr(5) - 0.5).abs() < 1e-12 && Schedule::constant(0.2).lr(1_000_000) == 0.2);
    Ok(())
}
