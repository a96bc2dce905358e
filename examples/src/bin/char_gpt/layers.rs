//! Two custom layers of the transformer, as expressions: their backward passes follow from them. Each row is one character, and a
//! sequence is `context` consecutive rows. Linear layers, norms and the loss therefore see ordinary rows, and only these two layers
//! know about sequences.

use ddp::nn::{Expression, Init, ParamKind, ParamSpec};
use ddp::prelude::*;

/// The table of characters, `[vocab, width]`, which the embedding and the head share.
pub(crate) fn character_table(vocab: usize, width: usize) -> ParamSpec {
    ParamSpec::new("embedding.characters", ParamKind::Weight, &[vocab, width], Init::Normal(1.0)).shared()
}

/// `y = characters[x] + positions[row mod context]`, `[B, 1]` codes to `[B, width]`.
pub(crate) fn character_embedding(context: usize, vocab: usize, width: usize) -> Expression {
    let table = character_table(vocab, width);
    Expression::new("embedding", 1, width, move |x, own| {
        let n = x.dims()[0];
        let rows = x.reshape(&[n]).one_hot(vocab, x.dtype()).matmul(&own["embedding.characters"]);
        // This is an error if a sequence is incomplete.
        let rows = rows.reshape(&[n / context, context * width]);
        (rows + own["positions"].reshape(&[context * width])).reshape(&[n, width])
    })
    .parameter("positions", ParamKind::Weight, &[context, width], Init::Normal(1.0))
    .parameter(&table.name, table.kind, &table.dims, table.init)
    .shared()
}

/// Causal attention of several heads, from rows of queries, keys and values, `[B, 3 width]`, to `[B, width]`.
///
/// `y = softmax(q·kᵀ / sqrt(width / heads) + mask) · v` per sequence and head; the mask is minus infinity at later positions.
///
/// Source: arXiv:1706.03762, section 3.2; `torch.nn.functional.scaled_dot_product_attention` with `is_causal`.
pub(crate) fn causal_attention(
    name: &str,
    context: usize,
    heads: usize,
    width: usize,
) -> Result<Expression, KernelError> {
    assert!(width.is_multiple_of(heads), "{width} columns are shared by {heads} heads");
    let (head_width, scale) = (width / heads, 1.0 / ((width / heads) as f64).sqrt());
    let layer = Expression::new(name, 3 * width, width, move |x, own| {
        let (n, n_sequences) = (x.dims()[0], x.dims()[0] / context);
        let parts = x.reshape(&[n_sequences, context, 3, heads, head_width]).permute(&[2, 0, 3, 1, 4]);
        let of_heads = [n_sequences * heads, context, head_width];
        let [q, k, v] = [0, 1, 2].map(|part| parts.row(part).reshape(&of_heads));
        let weights = (q.bmm(&k.t()) * scale + &own["mask"]).softmax(2);
        let rows = weights.bmm(&v).reshape(&[n_sequences, heads, context, head_width]);
        rows.permute(&[0, 2, 1, 3]).reshape(&[n, width])
    });
    Ok(layer.constant("mask", causal_mask(context)?))
}

/// Minus infinity above the diagonal, 0 elsewhere.
pub(crate) fn causal_mask(context: usize) -> Result<Tensor, KernelError> {
    let zeros = Tensor::zeros(&[context, context], DType::F32, Device::cpu())?;
    zeros.masked_fill(&zeros.ones_like()?.triu(1)?.gt(0.0)?, f64::NEG_INFINITY)
}
