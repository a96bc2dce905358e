//! Operands where cuBLASLt is particular: slices that start anywhere in their memory, and layers of a single row, input or output;
//! and operands of matmuls that are chosen by time.

use super::*;
use crate::cuda::Gpu;
use crate::ops::testing::{assert_close, devices, random, rounded};
use crate::ops::{Activation, SavedForBackward};
use crate::{Element, Tensor};

/// A tensor whose first element is `offset` elements after the start of its memory.
struct Moved {
    memory: Tensor,
    offset: usize,
    dims: Vec<usize>,
}

impl Moved {
    fn new<T: Element>(values: &[T], dims: &[usize], offset: usize, device: Device) -> Self {
        let padded = [&vec![T::from_f64(0.0); offset], values].concat();
        let memory = Tensor::from_slice(&padded, &[padded.len()], device).unwrap();
        Moved { memory, offset, dims: dims.to_vec() }
    }

    fn nan(dims: &[usize], dtype: DType, offset: usize, device: Device) -> Self {
        let n = offset + dims.iter().product::<usize>();
        let memory = Tensor::full(&[n], f64::NAN, dtype, device).unwrap();
        Moved { memory, offset, dims: dims.to_vec() }
    }

    fn view(&self) -> TensorRef<'_> {
        self.memory.view().range(self.offset, self.memory.numel()).unwrap().reshape(&self.dims).unwrap()
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        let n = self.memory.numel();
        self.memory.view_mut().range(self.offset, n).unwrap().reshape(&self.dims).unwrap()
    }

    fn values<T: Element>(&self) -> Vec<f64> {
        match self.memory.dtype() {
            DType::F32 => rounded(&self.memory.to_vec::<f32>().unwrap()[self.offset..]),
            _ => rounded(&self.memory.to_vec::<T>().unwrap()[self.offset..]),
        }
    }
}

/// Runs a layer of `[rows, inputs, outputs]`, then the gradients of a layer after it with as many outputs as this one has
/// inputs. All operands start `offset` elements after the start of their memory. Returns the output and the gradients of the
/// second layer's weights, bias and input.
fn two_layers<T: Element>(
    mode: MatmulMode,
    device: Device,
    [b, i, o]: [usize; 3],
    activation: Activation,
    offset: usize,
) -> [Vec<f64>; 4] {
    let moved =
        |dims: &[usize], seed| Moved::new(&random::<T>(dims.iter().product(), seed), dims, offset, device);
    let sums = if check::is_short(T::DTYPE) { DType::F32 } else { T::DTYPE };
    let nan = |dims: &[usize]| Moved::nan(dims, T::DTYPE, offset, device);
    let nan_sums = |dims: &[usize]| Moved::nan(dims, sums, offset, device);
    let (x, weight, bias) = (moved(&[b, i], 1), moved(&[o, i], 2), moved(&[o], 3));
    let (mut y, mut pre) = (nan(&[b, o]), nan(&[b, o]));
    let mask_len = relu_mask_len(b, o);
    let mut mask = Moved::new(&vec![0i64; mask_len], &[mask_len], offset, device);
    let lens = [(i, o), (o, i)].map(|(i, o)| linear_workspace_len(mode, b, i, o, T::DTYPE, device));
    let mut scratch = Tensor::zeros(&[lens[0].max(lens[1])], sums, device).unwrap();
    let has_mask = activation == Activation::Relu && device != Device::Cpu;
    let output = LinearOutput {
        y: y.view_mut(),
        pre_activation: (!has_mask).then(|| pre.view_mut()),
        relu_mask: has_mask.then(|| mask.view_mut()),
        workspace: scratch.view_mut(),
    };
    let (x, weight, bias) = (x.view(), weight.view(), Some(bias.view()));
    let is_masked = linear_forward(mode, x, weight, bias, Some(activation), output).unwrap();

    let (d_y, weight) = (moved(&[b, i], 4), moved(&[i, o], 5));
    let (mut d_weight, mut d_bias, mut d_x) = (nan_sums(&[i, o]), nan_sums(&[i]), nan(&[b, o]));
    let saved = match activation.saved_for_backward() {
        SavedForBackward::Input => &pre,
        SavedForBackward::Output => &y,
    };
    let relu_mask = is_masked.then(|| mask.view());
    let through = Some(ThroughActivation { activation, saved: saved.view(), relu_mask, d_bias: None });
    let workspace = scratch.view_mut();
    linear_backward_input(mode, d_y.view(), weight.view(), d_x.view_mut(), through, false, workspace)
        .unwrap();
    let (of_weight, of_bias, workspace) = (d_weight.view_mut(), Some(d_bias.view_mut()), scratch.view_mut());
    linear_backward_weight(mode, d_y.view(), y.view(), of_weight, of_bias, false, workspace, None).unwrap();
    [y, d_weight, d_bias, d_x].map(|moved| moved.values::<T>())
}

/// Compares [`two_layers`] with the CPU; `rtol` is relative to the largest value.
fn assert_two_layers<T: Element>(
    mode: MatmulMode,
    device: Device,
    dims: [usize; 3],
    activation: Activation,
    offset: usize,
    rtol: f64,
) {
    let want = two_layers::<T>(mode, Device::Cpu, dims, activation, 0);
    let got = two_layers::<T>(mode, device, dims, activation, offset);
    for (got, want) in got.iter().zip(&want) {
        let largest = want.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        assert_close(got, want, rtol * largest, 0.0);
    }
}

/// Compares [`two_layers`] on every device, with operands at `offset`, with the CPU; `rtol` is relative to the largest value.
fn assert_as_on_the_cpu<T: Element>(dims: [usize; 3], offset: usize, rtol: f64) {
    for activation in [Activation::Relu, Activation::GeluTanh] {
        for device in devices() {
            assert_two_layers::<T>(MatmulMode::Strict, device, dims, activation, offset, rtol);
        }
    }
}

#[test]
fn operands_may_start_anywhere_in_their_memory() {
    // Aligned operands come first, so that plans for them are there already.
    for offset in [0, 1, 2, 5] {
        for dims in [[16, 24, 136], [5, 7, 3], [8, 16, 8]] {
            assert_as_on_the_cpu::<f32>(dims, offset, 1e-5);
            // The format rounds to 2^-9, and on a GPU the value before the activation too.
            assert_as_on_the_cpu::<half::bf16>(dims, offset, 0.02);
        }
    }
}

/// With one input, the layer after it has one output, as in a regression with one target.
#[test]
fn layers_of_one_row_input_or_output_are_sums_of_their_parts() {
    for dims in [[1, 16, 8], [16, 1, 8], [16, 8, 1], [1, 1, 8], [1, 8, 1], [1, 1, 1]] {
        assert_as_on_the_cpu::<f32>(dims, 0, 1e-5);
        assert_as_on_the_cpu::<half::bf16>(dims, 0, 0.02);
    }
}

/// Sums that a layer adds to: the gradients of its weights and bias and, through the GELU in front of it, of its input.
fn accumulated(mode: MatmulMode, device: Device) -> [Vec<f32>; 3] {
    let (b, i, o) = (16, 24, 40);
    let moved =
        |dims: &[usize], seed| Moved::new(&random::<f32>(dims.iter().product(), seed), dims, 1, device);
    let (d_y, x, weight) = (moved(&[b, o], 1), moved(&[b, i], 2), moved(&[o, i], 3));
    let (mut d_weight, mut d_bias, mut d_x) = (moved(&[o, i], 4), moved(&[o], 5), moved(&[b, i], 6));
    let n_scratch = linear_workspace_len(mode, b, i, o, DType::F32, device);
    let mut scratch = Tensor::zeros(&[n_scratch], DType::F32, device).unwrap();
    let (d_weight_view, d_bias_view) = (d_weight.view_mut(), Some(d_bias.view_mut()));
    let scratch_view = scratch.view_mut();
    linear_backward_weight(mode, d_y.view(), x.view(), d_weight_view, d_bias_view, true, scratch_view, None)
        .unwrap();
    let (activation, saved) = (Activation::GeluTanh, x.view());
    let through = ThroughActivation { activation, saved, relu_mask: None, d_bias: None };
    let scratch_view = scratch.view_mut();
    linear_backward_input(mode, d_y.view(), weight.view(), d_x.view_mut(), Some(through), true, scratch_view)
        .unwrap();
    [d_weight, d_bias, d_x].map(|sum| sum.memory.to_vec().unwrap())
}

/// Each algorithm and form is timed several times, and each of these runs would add to the sums.
#[test]
fn what_is_timed_writes_to_scratch() {
    let want = accumulated(MatmulMode::Strict, Device::Cpu);
    for device in devices() {
        let Device::Cuda(index) = device else { continue };
        let gpu = Gpu::get(index).unwrap();
        // With choices that are made, and then with those.
        for _ in 0..2 {
            let got = gpu.choose_matmuls(|| accumulated(MatmulMode::Strict, device));
            for (got, want) in got.iter().zip(&want) {
                // Sums of up to 40 products of numbers up to 1, in another order.
                assert_close(got, want, 1e-5, 1e-5);
            }
        }
    }
}

/// Gradients through the activation before a layer of 136 outputs, with the gradient of the bias before it where the matmul computes it.
fn through<T: Element>(device: Device, activation: Activation) -> (Vec<f64>, Option<Vec<f64>>) {
    let (rows, width, next) = (16, 136, 24);
    let on = |dims: &[usize], seed| Moved::new(&random::<T>(dims.iter().product(), seed), dims, 0, device);
    let (x, weight, d_y, next_weight) =
        (on(&[rows, next], 1), on(&[width, next], 2), on(&[rows, next], 3), on(&[next, width], 4));
    let [mut y, mut pre, mut d_x] = [0; 3].map(|_| Moved::nan(&[rows, width], T::DTYPE, 0, device));
    let mut d_bias = Moved::nan(&[width], T::DTYPE, 0, device);
    let mut mask = Tensor::zeros(&[relu_mask_len(rows, width)], DType::I64, device).unwrap();
    let sums = if check::is_short(T::DTYPE) { DType::F32 } else { T::DTYPE };
    let mode = MatmulMode::Tf32;
    let lens =
        [(next, width), (width, next)].map(|(i, o)| linear_workspace_len(mode, rows, i, o, T::DTYPE, device));
    let mut scratch = Tensor::zeros(&[lens[0].max(lens[1])], sums, device).unwrap();
    let has_mask = activation == Activation::Relu && device != Device::Cpu;
    let output = LinearOutput {
        y: y.view_mut(),
        pre_activation: (!has_mask).then(|| pre.view_mut()),
        relu_mask: has_mask.then(|| mask.view_mut()),
        workspace: scratch.view_mut(),
    };
    linear_forward(mode, x.view(), weight.view(), None, Some(activation), output).unwrap();
    let saved = if activation == Activation::Relu { &y } else { &pre };
    let is_written = Cell::new(false);
    let through = ThroughActivation {
        activation,
        saved: saved.view(),
        relu_mask: has_mask.then(|| mask.view()),
        d_bias: Some(BiasBefore { d: d_bias.view_mut(), is_written: &is_written }),
    };
    let (d_y, next_weight, d_x_view) = (d_y.view(), next_weight.view(), d_x.view_mut());
    linear_backward_input(mode, d_y, next_weight, d_x_view, Some(through), false, scratch.view_mut())
        .unwrap();
    (d_x.values::<T>(), is_written.get().then(|| d_bias.values::<T>()))
}

/// Makes the second option the choice of these lines.
fn choose_second(gpu: &'static Gpu, is_wanted: impl Fn(&[&str]) -> bool) {
    let in_form = |line: &str| {
        let mut fields: Vec<_> = line.split(' ').collect();
        if is_wanted(&fields) {
            fields[15] = "1";
        }
        fields.join(" ") + "\n"
    };
    let text = gpu.export_matmul_choices().unwrap();
    let (name, lines) = text.split_once('\n').unwrap();
    let lines: String = lines.lines().map(in_form).collect();
    assert!(gpu.import_matmul_choices(&format!("{name}\n{lines}")).unwrap());
}

#[test]
fn a_derivative_sums_its_columns_only_where_that_was_chosen() {
    fn check<T: Element>(rtol: f64) {
        for device in devices() {
            let Device::Cuda(index) = device else { continue };
            let gpu = Gpu::get(index).unwrap();
            for activation in [Activation::Relu, Activation::GeluTanh] {
                let (want, none) = through::<T>(Device::Cpu, activation);
                assert!(none.is_none());
                assert!(through::<T>(device, activation).1.is_none(), "nothing is chosen yet");
                gpu.choose_matmuls(|| through::<T>(device, activation));
                choose_second(gpu, |line| {
                    matches!(line, ["Form", "DReluBiasGradient" | "DGeluBiasGradient", "16", "136", "24", ..])
                });
                let (got, sums) = through::<T>(device, activation);
                let largest = want.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                assert_close(&got, &want, rtol * largest, 0.0);
                // Of 16 rows.
                let sums = sums.expect("the form is chosen");
                let want: Vec<f64> = (0..136).map(|c| want.iter().skip(c).step_by(136).sum()).collect();
                assert_close(&sums, &want, 16.0 * rtol * largest, 0.0);
            }
        }
    }
    // Factors of 11 and of 8 bits.
    check::<f32>(2e-3);
    check::<half::bf16>(0.02);
}

/// Layers whose products are of split factors, with biases, activations, masks, sums that exist and operands at odd addresses: as on the
/// CPU in f32, ten times as near as TF32 comes.
#[test]
fn split_factors_have_all_epilogues() {
    for device in devices() {
        let Device::Cuda(index) = device else { continue };
        let gpu = Gpu::get(index).unwrap();
        let mode = MatmulMode::F32x3;
        let sizes = [([16, 24, 136], 0), ([5, 7, 3], 1), ([8, 16, 8], 5)];
        let activations = [Activation::Relu, Activation::GeluTanh];
        let cases = || sizes.into_iter().flat_map(|size| activations.map(|activation| (size, activation)));
        // Here all of them are too small to be split but by choice.
        for ((dims, offset), activation) in cases() {
            gpu.choose_matmuls(|| two_layers::<f32>(mode, device, dims, activation, offset));
        }
        gpu.choose_matmuls(|| accumulated(mode, device));
        choose_second(gpu, |line| line[0] == "Factors");
        for ((dims, offset), activation) in cases() {
            assert_two_layers::<f32>(mode, device, dims, activation, offset, 1e-5);
            // The forms around split factors are chosen, too.
            gpu.choose_matmuls(|| assert_two_layers::<f32>(mode, device, dims, activation, offset, 1e-5));
            assert_two_layers::<f32>(mode, device, dims, activation, offset, 1e-5);
        }
        for (got, want) in accumulated(mode, device).iter().zip(&accumulated(mode, Device::Cpu)) {
            assert_close(got, want, 1e-5, 1e-5);
        }
        let split = |m: &str| {
            let choices = gpu.matmul_choices().unwrap();
            choices.iter().filter(|one| one.matmul.contains(m) && one.matmul.ends_with("f32x3")).count()
        };
        // Of the layer of 136: the product of three times 24 inputs, and its forms.
        assert!(split("ReluAuxBias 16x136x72 ") >= 1, "{:?}", gpu.matmul_choices());
        assert!(gpu.matmul_choices().unwrap().iter().any(|one| one.chosen == "split factors"));
    }
}

#[test]
fn a_scratch_that_is_too_short_for_split_factors_is_an_error() {
    for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
        let (mode, x) = (MatmulMode::F32x3, Tensor::zeros(&[4, 3], DType::F32, device).unwrap());
        let weight = Tensor::zeros(&[5, 3], DType::F32, device).unwrap();
        let mut y = Tensor::zeros(&[4, 5], DType::F32, device).unwrap();
        let needed = linear_workspace_len(mode, 4, 3, 5, DType::F32, device);
        let mut scratch = Tensor::zeros(&[needed - 1], DType::F32, device).unwrap();
        let (y, workspace) = (y.view_mut(), scratch.view_mut());
        let output = LinearOutput { y, pre_activation: None, relu_mask: None, workspace };
        let error = linear_forward(mode, x.view(), weight.view(), None, None, output).unwrap_err();
        assert!(matches!(error, KernelError::ElementCount { .. }), "{error}");
        assert_eq!(linear_workspace_len(MatmulMode::Tf32, 4, 3, 5, DType::F32, device), 0);
        assert_eq!(linear_workspace_len(mode, 4, 3, 5, DType::F32, Device::Cpu), 0);
    }
}
