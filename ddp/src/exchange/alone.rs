//! No exchange: there is one rank.

use ddp_kernels::{DType, Tensor};

use crate::exchange::bucket_plan::TAIL_ELEMENTS;
use crate::exchange::error::Result;
use crate::exchange::way::{BufferSize, Exchange, Pass};
use crate::model::LocalGradients;

/// Gradients that stay on their rank.
#[derive(Debug)]
pub(crate) struct Alone {
    /// Elements of the gradients.
    pub(crate) flat_len: usize,
}

impl Exchange for Alone {
    fn describe(&self, _n_micro_batches: usize) -> String {
        "none, 1 rank".to_owned()
    }

    fn bytes_sent(&self, _n_micro_batches: usize) -> u64 {
        0
    }

    fn buffers(&self) -> Vec<BufferSize> {
        vec![BufferSize { len: self.flat_len + TAIL_ELEMENTS, dtype: DType::F32, is_exchanged: false }]
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        let writes = self.writes(pass.inputs.micro_step.index);
        pass.run(writes, &mut LocalGradients(memory[0].view_mut()))
    }
}
