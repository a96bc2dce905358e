//! A loop with few names: rows of records, their batches, the rank's device, and a rule of one's own on the mean gradient.

use ddp::data::TensorDataset;
use ddp::nn::{GradientSums, LossHead, Sequential, Sizes};
use ddp::prelude::*;

/// Rows of records, a loader and a device by one call each, and an optimizer of one's own on the mean gradient: sign SGD with momentum.
#[test]
fn records_train_by_a_rule_of_ones_own() {
    let records: Vec<[f32; 3]> =
        (0..96).map(|n| [n as f32 * 0.37, n as f32 * 0.11, n as f32 * 0.05]).collect();
    let losses = ddp::launch(2, |world| -> ddp::Result<[f64; 2]> {
        let device = world.connect()?;
        let rows = TensorDataset::from_fn(&records, 3, 1, |record, x, y| {
            x.iter_mut().zip(record).for_each(|(x, value)| *x = value.sin());
            y[0] = x.iter().sum();
        })?;
        let mut loader = rows.batches(32).epochs(40).seed(7).across(world).on(device)?;
        let mut model = Sequential::new(3).linear(1).build(Sizes::new(16, device), 0)?;
        let mut grads = GradientSums::for_model(&model)?;
        let mut momentum = model.weights().zeros_like()?;
        let mut losses = [f64::NAN; 2];
        for epoch in 0..40 {
            for batch in loader.batches()? {
                let batch = batch?;
                assert!(batch.x.dims()[0] <= 16, "a rank has its half of 32 rows");
                model.loss_and_gradients(&batch, &LossHead::mse(), &mut grads)?;
                grads.all_reduce(world)?;
                losses[usize::from(epoch > 0)] = grads.mean_loss()?;
                let mean = grads.mean()?;
                momentum = &momentum * 0.9 + &mean * 0.1;
                let weights = model.weights() - momentum.sign()? * 0.01;
                model.set_weights(weights.view())?;
                grads.reset();
            }
        }
        model.loss_and_gradients(
            (&Tensor::ones(&[1, 3], DType::F32, device)?, &Tensor::ones(&[1, 1], DType::F32, device)?),
            &LossHead::mse(),
            &mut grads,
        )?;
        let mut flat = grads.mean()?.to_vec::<f32>()?;
        // What lies between parameters.
        flat.retain(|value| *value != 0.0);
        let mut by_name = Vec::new();
        for (name, gradient) in grads.named()? {
            assert_eq!(grads.get(&name)?.to_vec::<f32>()?, gradient.to_vec::<f32>()?);
            by_name.extend(gradient.to_vec::<f32>()?);
        }
        let sorted = |mut values: Vec<f32>| {
            values.sort_by(f32::total_cmp);
            values
        };
        assert_eq!(sorted(flat), sorted(by_name));
        let error = grads.get("layers.7.weight").unwrap_err();
        assert!(
            error.to_string().contains("layers.7.weight")
                && ddp::with_hint(&error).contains("layers.0.weight"),
            "{}",
            ddp::with_hint(&error)
        );
        Ok(losses)
    })
    .unwrap();
    assert_eq!(losses[0], losses[1]);
    assert!(losses[0][1] < 0.1 * losses[0][0], "{losses:?}");
}
