//! No exchange: there is one rank. On a GPU the weights of a bucket can be updated beside backward, which still computes the gradients of
//! others.

use std::ops::Range;

use ddp_kernels::cuda::{Beside, Gpu};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};

use crate::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
use crate::exchange::error::Result;
use crate::exchange::way::{BufferSize, Exchange, Pass};
use crate::model::{AllRanks, GradientSink, LocalGradients, ParamLayout};

/// Most bytes of the largest bucket of several layers. An update of less takes hardly longer than its launch, and of much more it begins
/// late.
const MOST_BUCKET_BYTES: usize = 4 << 20;

/// Gradients that stay on their rank.
#[derive(Debug)]
pub(crate) struct Alone {
    /// Elements of the gradients.
    flat_len: usize,
    /// Buckets that an update can take while backward computes later ones; none for an update after backward.
    buckets: Vec<Range<usize>>,
    /// Made by the first update beside backward.
    beside: Option<Beside>,
}

impl Alone {
    /// Gradients of this layout.
    ///
    /// - `bucket_bytes`: largest bucket of several layers that an update may take; None for an update after backward
    pub(crate) fn new(layout: &ParamLayout, bucket_bytes: Option<usize>) -> Self {
        let plan = |bytes: usize| BucketPlan::new(layout, bytes.min(MOST_BUCKET_BYTES)).without_tail();
        let buckets = bucket_bytes.map(|bytes| plan(bytes).ranges().to_vec());
        let buckets = buckets.filter(|buckets| buckets.len() > 1).unwrap_or_default();
        Alone { flat_len: layout.flat_len(), buckets, beside: None }
    }

    /// Whether the sums of a step have memory of their own: an update reads them while gradients next to them would be written.
    fn has_tail_apart(&self) -> bool {
        !self.buckets.is_empty()
    }
}

impl Exchange for Alone {
    fn describe(&self, _n_micro_batches: usize) -> String {
        "none, 1 rank".to_owned()
    }

    fn bytes_sent(&self, _n_micro_batches: usize) -> u64 {
        0
    }

    fn buffers(&self) -> Vec<BufferSize> {
        let own = |len| BufferSize { len, dtype: DType::F32, is_exchanged: false };
        if self.has_tail_apart() {
            vec![own(self.flat_len), own(TAIL_ELEMENTS)]
        } else {
            vec![own(self.flat_len + TAIL_ELEMENTS)]
        }
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        let writes = self.writes(pass.inputs.micro_step.index);
        let Pass { world, model, inputs, squares, ranks, updates, is_rehearsal } = pass;
        let gpu = if let Device::Cuda(index) = model.device() { Some(Gpu::get(index)?) } else { None };
        let (Some(updates), Some(gpu)) = (updates, gpu) else {
            let pass = Pass { world, model, inputs, squares, ranks, updates: None, is_rehearsal };
            return pass.run(writes, &mut LocalGradients(memory[0].view_mut()));
        };
        let beside = match self.beside.take() {
            Some(beside) => beside,
            None => Beside::new(gpu, self.buckets.len())?,
        };
        let beside = &*self.beside.insert(beside);
        let gradients = LocalGradients(memory[0].view_mut());
        let mut sink =
            MarkedGradients { gradients, beside, buckets: &self.buckets, n_reached: 0, finished: 0 };
        let pass = Pass {
            world,
            model: &mut *model,
            inputs,
            squares: None,
            ranks: ranks.map(|ranks| ranks as &mut dyn AllRanks),
            updates: None,
            is_rehearsal,
        };
        pass.run(writes, &mut sink)?;
        sink.mark()?;
        let (gradients, sums) = (memory[0].view(), memory[1].view());
        let update = |(index, bucket): (usize, &Range<usize>)| {
            let of_bucket = gradients.range(bucket.start, bucket.end)?;
            beside.after(index, || updates.update(model, bucket.clone(), of_bucket, sums))
        };
        let updated = self.buckets.iter().enumerate().try_for_each(update);
        let updated = updated.and_then(|()| updates.backward_ended());
        // Also after an error: a capture must join its streams.
        let joined = beside.join();
        updated?;
        Ok(joined?)
    }

    fn updates_buckets(&self) -> bool {
        !self.buckets.is_empty()
    }

    fn with_tail<'a>(&self, memory: &'a mut [Tensor]) -> &'a mut Tensor {
        &mut memory[usize::from(self.has_tail_apart())]
    }

    fn with_sums<'a>(&self, memory: &'a [Tensor]) -> &'a Tensor {
        &memory[usize::from(self.has_tail_apart())]
    }
}

/// Gradients of buckets whose ends are points of the compute stream.
#[derive(Debug)]
struct MarkedGradients<'a> {
    gradients: LocalGradients<'a>,
    beside: &'a Beside,
    buckets: &'a [Range<usize>],
    n_reached: usize,
    /// Element before which all gradients are finished.
    finished: usize,
}

impl MarkedGradients<'_> {
    /// Marks the ends of the buckets that are finished.
    fn mark(&mut self) -> Result<(), KernelError> {
        while self.buckets.get(self.n_reached).is_some_and(|bucket| bucket.end <= self.finished) {
            self.beside.reached(self.n_reached)?;
            self.n_reached += 1;
        }
        Ok(())
    }
}

impl GradientSink for MarkedGradients<'_> {
    type Error = KernelError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>, KernelError> {
        // Between a layer's last gradient and the next layer's first one its weights are read once more, for the gradient of its input.
        self.mark()?;
        self.gradients.gradients(start, end)
    }

    fn finished(&mut self, end: usize) -> Result<(), KernelError> {
        self.finished = end;
        Ok(())
    }

    fn progress(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// A bucket is marked with the next gradients.
    fn leaves_finished(&self) -> bool {
        true
    }
}
