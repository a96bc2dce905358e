//! Rows on their way to a GPU: in the format in which they are stored, from pinned memory or gathered there, normalised on the
//! way, they train as on the CPU.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::Arc;

use crate::made_up::gpus::gpus;
use crate::made_up::{Setup, Trained, assert_close, row_weights};
use ddp::config::Placement;
use ddp::data::batch::BatchMut;
use ddp::data::{Changes, Dataset, DatasetWrapper, Normalizer, ResidentRows, RowLayout};
use ddp_comm::threads;
use ddp_kernels::{DType, TensorMut};
use half::{bf16, f16};

/// The same rows, stored in a shorter format.
#[derive(Debug)]
struct Stored {
    of: Arc<ResidentRows>,
    layout: RowLayout,
}

impl Stored {
    fn rows(of: Arc<ResidentRows>, dtype: DType) -> Arc<dyn Dataset> {
        let layout = RowLayout { dtype, ..of.layout.clone() };
        Arc::new(Stored { of, layout })
    }
}

impl DatasetWrapper for Stored {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<(), ddp::data::DataError> {
        let n_features = self.layout.n_features();
        let mut floats = vec![0.0f32; rows.len() * n_features];
        let x = TensorMut::from_slice(&mut floats, &[rows.len(), n_features])?;
        self.of.gather(rows, BatchMut { x, targets: out.targets, weights: out.weights })?;
        let floats = floats.into_iter();
        match out.x.dtype() {
            DType::U8 => {
                // Whole numbers of about the same spread.
                let x = out.x.into_slice::<u8>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = (v * 40.0 + 128.0).clamp(0.0, 255.0) as u8);
            }
            DType::F16 => {
                let x = out.x.into_slice::<f16>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = f16::from_f32(v));
            }
            DType::BF16 => {
                let x = out.x.into_slice::<bf16>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = bf16::from_f32(v));
            }
            _ => out.x.into_slice::<f32>("test", "x")?.iter_mut().zip(floats).for_each(|(x, v)| *x = v),
        }
        Ok(())
    }
}

fn train(setup: &Setup, rows: &Arc<dyn Dataset>, world_size: usize) -> Trained {
    threads::run(world_size, |world| setup.train_rows(&world, rows)).remove(0)
}

#[test]
fn stored_rows_train_on_a_gpu_as_on_the_cpu_wherever_they_wait() {
    let Some(_alone) = gpus(1) else { return };
    for dtype in [DType::F32, DType::U8, DType::F16, DType::BF16] {
        for normalize in [false, true] {
            // Few steps: rounding grows from one to the next.
            let usual = Setup { row_weights: Some(row_weights(29)), n_epochs: 2, ..Setup::usual() };
            let n_features = usual.spec.n_features();
            let normalizer = || match dtype {
                DType::U8 => Normalizer::new(vec![128.0; n_features], vec![0.02; n_features]),
                _ => Normalizer::new(vec![0.25; n_features], vec![0.5; n_features]),
            };
            // Bytes as they are would drive the weights far away.
            let normalizer = (normalize || dtype == DType::U8).then(normalizer);
            let cpu = Setup { normalizer, ..usual };
            let rows = Stored::rows(cpu.rows(), dtype);
            let want = train(&cpu, &rows, 1);
            for placement in [Placement::Host, Placement::Device, Placement::Auto] {
                let gpu = Setup { on_gpus: true, placement, ..cpu.clone() };
                let got = train(&gpu, &rows, 1);
                assert_close(&format!("{dtype}, normalised {normalize}, {placement}"), &got, &want);
            }
        }
    }
}

#[test]
fn rows_on_each_of_two_gpus_train_as_one() {
    let Some(_alone) = gpus(2) else { return };
    let cpu = Setup::usual();
    let rows = Stored::rows(cpu.rows(), DType::F16);
    let want = train(&cpu, &rows, 1);
    for placement in [Placement::Host, Placement::Device] {
        let gpu = Setup { on_gpus: true, placement, ..cpu.clone() };
        assert_close(&placement.to_string(), &train(&gpu, &rows, 2), &want);
    }
}
