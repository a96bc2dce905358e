//! Steps of `ddp-train bench step`: their predicted time, and how measured ones correct predictions for other models.

use crate::config::Config;
use crate::cost::calibration::{BenchStep, Ratio};
use crate::cost::hardware::Hardware;
use crate::cost::machine::Machine;
use crate::cost::memory_plan::RankPlan;
use crate::cost::step_time::StepTime;
use crate::data::absent_rows;
use crate::train::error::Result;
use crate::train::setup;

impl BenchStep {
    /// Predicts the time of a step.
    ///
    /// # Errors
    /// [`TrainError`](crate::train::TrainError) for sizes or names that no config can have.
    pub fn predict(&self, machine: &Machine) -> Result<StepTime> {
        let n = self.dims.len() - 1;
        let sets = [
            format!("model.hidden={:?}", &self.dims[1..n]),
            format!("train.batch_size={}", self.batch),
            format!("optimizer.kind={}", self.optimizer),
            format!("train.precision={}", self.precision),
            format!("data.classes={}", self.dims[n]),
            "data.train=bench.npy".to_owned(),
            "data.eval=none".to_owned(),
            "data.placement=host".to_owned(),
            "train.clip_grad_norm=0".to_owned(),
        ];
        let config = Config::load(None, &sets)?;
        let data = absent_rows(&config, self.batch, self.dims[0]).expect("the number of classes is given");
        let spec = setup::model_spec(&config, &data);
        let plan = RankPlan::new(&config, &data, &spec, 1, machine.hardware.device())?;
        let time = StepTime::new(&plan, machine);
        // The benchmark's rows are on the device.
        let step_ms = time.input_ms + time.forward_ms + time.backward_ms + time.update_ms;
        Ok(StepTime { host_to_device_ms: 0.0, step_ms, ..time })
    }
}

/// Predicted ms of such a step on the GPU with this name; `None` for an unknown GPU.
///
/// # Errors
/// See [`BenchStep::predict`].
pub fn step_ms_on_gpu(device_name: &str, step: &BenchStep) -> Result<Option<f64>> {
    let machine = Hardware::find(device_name).map(|hardware| Machine::new(hardware, 1));
    machine.map(|machine| step.predict(&machine).map(|time| time.step_ms)).transpose()
}

impl Machine {
    /// Compares the steps of the calibration with their predictions, which corrects later ones.
    ///
    /// # Errors
    /// See [`BenchStep::predict`].
    pub fn compare_steps(&mut self) -> Result<()> {
        let mut ratios = Vec::new();
        for step in &self.calibration.steps {
            let machine = Machine { n_cores: step.threads, per_host: 1, ..self.clone() };
            let time = step.predict(&machine)?;
            ratios.push(Ratio {
                threads: step.threads as f64,
                flop: time.flop,
                ratio: step.ms / time.step_ms,
            });
        }
        self.calibration.ratios = ratios;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(dims: &[usize], batch: usize, precision: &str) -> BenchStep {
        let (optimizer, precision) = ("adamw".to_owned(), precision.to_owned());
        BenchStep { dims: dims.to_vec(), batch, optimizer, precision, ..BenchStep::default() }
    }

    /// The steps of docs/gpus.md, measured on an H100 SXM: within 25%.
    #[test]
    fn the_model_agrees_with_measured_steps() {
        let measured = [
            (&[64, 128, 10][..], 32, "f32", 0.0357),
            (&[1024; 4], 1024, "bf16", 0.1246),
            (&[1024; 4], 1024, "tf32", 0.1945),
            (&[1024; 4], 1024, "f32", 0.5400),
            (&[4096; 9], 8192, "bf16", 9.658),
        ];
        for (dims, batch, precision, ms) in measured {
            let predicted = step_ms_on_gpu("NVIDIA H100 80GB HBM3", &step(dims, batch, precision));
            let ratio = predicted.unwrap().unwrap() / ms;
            assert!((0.75..1.25).contains(&ratio), "{dims:?} {precision}: {ratio}");
        }
        // Split factors are predicted where they are faster than f32.
        let ms = |dims: &[usize], batch, precision| {
            step_ms_on_gpu("NVIDIA H100 80GB HBM3", &step(dims, batch, precision)).unwrap().unwrap()
        };
        let gain = |dims: &[usize], batch| ms(dims, batch, "f32") / ms(dims, batch, "f32x3");
        assert_eq!(gain(&[64, 128, 10], 32), 1.0);
        let large = gain(&[4096; 4], 8192);
        assert!((1.7..2.3).contains(&large), "{large}");
        assert!(step_ms_on_gpu("Virtual GPU", &step(&[4, 2], 8, "f32")).unwrap().is_none());
    }
}
