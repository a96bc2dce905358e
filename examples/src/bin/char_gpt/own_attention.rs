//! The causal attention of `layers.rs` with its own forward and backward pass, as a profile of a model in use may ask for. It uses
//! operations on memory that the model lends it, so it runs on CPU and GPU, and can be part of a graph.

use ddp::nn::{BackwardPass, BufferSpec, ForwardPass, InputGradientPass, Layer, RegisteredBuffer, Sizes};
use ddp::ops;
use ddp::ops::MapOp;
use ddp::prelude::*;

use super::layers::causal_mask;

type Result<T> = std::result::Result<T, KernelError>;

/// Causal attention of several heads, from rows of queries, keys and values, `[B, 3 width]`, to `[B, width]`.
///
/// `y = softmax(q·kᵀ / sqrt(width / heads) + mask) · v` per sequence and head; the mask, a buffer, is minus infinity at later positions.
///
/// Source: arXiv:1706.03762, section 3.2; `torch.nn.functional.scaled_dot_product_attention` with `is_causal`.
#[derive(Debug)]
pub(crate) struct CausalAttention {
    name: String,
    context: usize,
    heads: usize,
    width: usize,
}

impl CausalAttention {
    pub(crate) fn new(name: &str, context: usize, heads: usize, width: usize) -> Self {
        assert!(width.is_multiple_of(heads), "{width} columns are shared by {heads} heads");
        CausalAttention { name: name.to_owned(), context, heads, width }
    }

    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn scale(&self) -> f64 {
        1.0 / (self.head_width() as f64).sqrt()
    }

    /// The queries (`index` 0), keys (1) or values (2) as a batch of matrices.
    fn part<'a>(&self, all: TensorRef<'a>, index: usize, n: usize) -> Result<TensorRef<'a>> {
        let len = n * self.width;
        all.range(index * len, (index + 1) * len)?.reshape(&self.batch(n, self.head_width()))
    }

    fn part_mut<'a>(&self, all: TensorMut<'a>, index: usize, n: usize) -> Result<TensorMut<'a>> {
        let len = n * self.width;
        all.range(index * len, (index + 1) * len)?.reshape(&self.batch(n, self.head_width()))
    }

    /// The shape of `[sequences · heads, context, columns]`.
    fn batch(&self, n: usize, columns: usize) -> [usize; 3] {
        [n / self.context * self.heads, self.context, columns]
    }
}

impl Layer for CausalAttention {
    fn describe(&self) -> String {
        format!("causal attention of {} heads over {} positions", self.heads, self.context)
    }

    fn out_features(&self) -> usize {
        self.width
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        Ok(vec![RegisteredBuffer::new(format!("{}.mask", self.name), causal_mask(self.context)?).not_saved()])
    }

    fn is_capturable(&self) -> bool {
        true
    }

    /// Queries, keys and values by head, the attention weights, and buffers of the same shapes: gradients, and matmul results
    /// before they become rows again.
    fn buffers(&self, Sizes { max_rows, precision, .. }: Sizes) -> Vec<BufferSpec> {
        let of_len = |len: usize| BufferSpec::activations(&[len], precision.activations());
        let (columns, weights) = (max_rows * self.width, max_rows * self.heads * self.context);
        vec![of_len(3 * columns), of_len(weights), of_len(3 * columns), of_len(weights), of_len(columns)]
    }

    /// The gradient needs another buffer, because the input is wider than the output.
    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let n = x.shape().dims()[0];
        if n == 0 {
            return Ok(());
        }
        let (n_sequences, head_width) = (n / self.context, self.head_width());
        let [qkv, weights, _, scores, by_head] = pass.buffers else { unreachable!("as declared") };
        let rows = [n_sequences, self.context, 3, self.heads, head_width];
        ops::permute(x, &rows, &[2, 0, 3, 1, 4], qkv.view_mut().range(0, 3 * n * self.width)?)?;
        let [q, k, v] = [0, 1, 2].map(|index| self.part(qkv.view(), index, n));

        let square = self.batch(n, self.context);
        let len = square.iter().product();
        let mut scores = scores.view_mut().range(0, len)?.reshape(&square)?;
        let mut weights = weights.view_mut().range(0, len)?.reshape(&square)?;
        ops::bmm(self.scale(), q?, false, k?, true, 0.0, scores.reborrow())?;
        let mask = Input::Tensor(pass.registered[0].view());
        ops::map(MapOp::Add, Input::Tensor(scores.as_ref()), mask, weights.reborrow())?;
        ops::softmax_forward(weights.reborrow())?;
        let mut by_head = self.part_mut(by_head.view_mut(), 0, n)?;
        ops::bmm(1.0, weights.as_ref(), false, v?, false, 0.0, by_head.reborrow())?;
        let heads = [n_sequences, self.heads, self.context, head_width];
        ops::permute(by_head.as_ref(), &heads, &[0, 2, 1, 3], y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let n = d.shape().dims()[0];
        if n == 0 {
            return Ok(());
        }
        let (n_sequences, head_width) = (n / self.context, self.head_width());
        let [qkv, weights, d_qkv, d_scores, d_by_head] = pass.buffers else { unreachable!("as declared") };
        let rows = [n_sequences, self.context, self.heads, head_width];
        let mut d_by_head = self.part_mut(d_by_head.view_mut(), 0, n)?;
        ops::permute(d, &rows, &[0, 2, 1, 3], d_by_head.reborrow())?;
        let [q, k, v] = [0, 1, 2].map(|index| self.part(qkv.view(), index, n));
        let (d_by_head, square) = (d_by_head.as_ref(), self.batch(n, self.context));
        let len = square.iter().product();
        let weights = weights.view().range(0, len)?.reshape(&square)?;
        let mut d_scores = d_scores.view_mut().range(0, len)?.reshape(&square)?;

        ops::bmm(1.0, weights, true, d_by_head, false, 0.0, self.part_mut(d_qkv.view_mut(), 2, n)?)?;
        ops::bmm(1.0, d_by_head, false, v?, true, 0.0, d_scores.reborrow())?;
        ops::softmax_backward(weights, d_scores.reborrow())?;
        let (d_scores, scale) = (d_scores.as_ref(), self.scale());
        ops::bmm(scale, d_scores, false, k?, false, 0.0, self.part_mut(d_qkv.view_mut(), 0, n)?)?;
        ops::bmm(scale, d_scores, true, q?, false, 0.0, self.part_mut(d_qkv.view_mut(), 1, n)?)?;
        let by_part = [3, n_sequences, self.heads, self.context, head_width];
        ops::permute(d_qkv.view().range(0, 3 * n * self.width)?, &by_part, &[1, 3, 0, 2, 4], d_x)
    }
}
