//! Tables of embeddings before the other layers: rows of tables replace the codes in the last columns of the input.

use ddp_kernels::ops::{self, EmbeddingTable, EmbeddingTables};
use ddp_kernels::{DType, TensorMut, TensorRef};

use crate::model::EmbeddingSpec;
use crate::model::layer::{BufferSpec, Layer, LayerKind, Result, Sizes};
use crate::model::param::{Init, ParamEntry, ParamKind, ParamSpec, RandomStream};
use crate::model::pass::{BackwardPass, ForwardPass};

/// Standard deviation of initial values, for tables next to other features: a row that few training rows have stays small. Measured by
/// `tests/bench/category_widths.py`.
const STD: f32 = 0.03;

/// `y[n, :] = (numbers of x[n], table_0[code], table_1[code], ..)`; tables are read in f32 in every precision.
#[derive(Debug)]
pub struct EmbeddingLayer {
    embeddings: Vec<EmbeddingSpec>,
    out_features: usize,
    params: Vec<ParamSpec>,
    /// `None` before [`Layer::prepare`].
    tables: Option<EmbeddingTables>,
}

impl EmbeddingLayer {
    /// Makes tables for the last columns of the input, in order; `out_features` counts numeric features and the rows of the
    /// tables.
    pub fn new(embeddings: Vec<EmbeddingSpec>, out_features: usize) -> Self {
        let param = |(index, embedding): (usize, &EmbeddingSpec)| {
            let name = format!("embeddings.{}.weight", embedding.key());
            let dims = [embedding.n_codes, embedding.dim];
            ParamSpec::new(name, ParamKind::Embedding, &dims, Init::Normal(STD))
                .on_stream(RandomStream::Table(index as u32))
        };
        let params = embeddings.iter().enumerate().map(param).collect();
        EmbeddingLayer { embeddings, out_features, params, tables: None }
    }
}

impl Layer for EmbeddingLayer {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Embedding(&self.embeddings)
    }

    fn describe(&self) -> String {
        let tables = self.embeddings.iter().map(|e| format!("{} {} x {}", e.name, e.n_codes, e.dim));
        format!("embedding of {}", tables.collect::<Vec<_>>().join(", "))
    }

    fn out_features(&self) -> usize {
        self.out_features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        let len = EmbeddingTables::workspace_len_on(self.embeddings.len(), sizes.max_rows, sizes.device);
        vec![BufferSpec::workspace(len, DType::I64)]
    }

    fn prepare(&mut self, entries: &[&ParamEntry], sizes: Sizes) -> Result<()> {
        let first = entries.first().map_or(0, |entry| entry.start);
        let table = |entry: &&ParamEntry| EmbeddingTable {
            start: entry.start - first,
            n_codes: entry.dims[0],
            dim: entry.dims[1],
        };
        self.tables = Some(EmbeddingTables::new(entries.iter().map(table).collect(), sizes.device)?);
        Ok(())
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let tables = self.tables.as_ref().expect("made with the model");
        ops::embedding_forward(x, pass.params.master_range()?, tables, y)
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        let BackwardPass { x, grads, buffers, .. } = pass;
        let tables = self.tables.as_ref().expect("made with the model");
        let (Some(grads), [workspace]) = (grads.whole_range(), buffers) else { unreachable!("as declared") };
        ops::embedding_backward(x, d.as_ref(), tables, grads.d, workspace.view_mut(), grads.accumulate)
    }
}
