//! Collectives on whole tensors, by the names of `torch.distributed`.

use ddp_kernels::Tensor;

use crate::{Rank, ReduceOp, Result, World};

impl World {
    /// Whether this is rank 0, which prints and writes for all.
    pub fn is_first(&self) -> bool {
        self.rank().0 == 0
    }

    /// Sums a tensor over the ranks, in place. Collective.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`](crate::Group::all_reduce).
    ///
    /// Source: `torch.distributed.all_reduce`.
    pub fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        self.tensor_group().all_reduce(ReduceOp::Sum, tensor.view_mut())
    }

    /// Averages a float tensor over the ranks, in place. Each rank divides before the sum, so that it does not overflow. Collective.
    ///
    /// # Errors
    /// Same as [`World::all_reduce`]; [`KernelError::DTypeUnsupported`](ddp_kernels::KernelError::DTypeUnsupported) for integers, which
    /// stay as they are.
    ///
    /// Source: `torch.distributed.all_reduce` with `ReduceOp.AVG`.
    pub fn all_reduce_mean(&self, tensor: &mut Tensor) -> Result<()> {
        *tensor = tensor.div(self.world_size() as f64)?;
        self.all_reduce(tensor)
    }

    /// Copies the tensor of rank `root` to all ranks. Collective.
    ///
    /// # Errors
    /// Same as [`Group::broadcast`](crate::Group::broadcast).
    ///
    /// Source: `torch.distributed.broadcast`.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        self.tensor_group().broadcast(Rank(root), tensor.view_mut())
    }

    /// The tensors of all ranks one after the other along the first axis. Collective; they have one shape.
    ///
    /// # Errors
    /// Same as [`Group::all_gather`](crate::Group::all_gather).
    ///
    /// Source: `torch.distributed.all_gather_into_tensor`.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Tensor> {
        let dims = match tensor.dims() {
            [] => vec![self.world_size()],
            [rows, rest @ ..] => [&[self.world_size() * rows], rest].concat(),
        };
        let mut all = Tensor::zeros(&dims, tensor.dtype(), tensor.device())?;
        self.tensor_group().all_gather(tensor.view(), all.view_mut())?;
        Ok(all)
    }

    /// Sends a tensor to rank `to`, which calls [`World::receive`]; in host memory, returns when it has the tensor.
    ///
    /// ```
    /// use ddp_comm::{CommError, threads};
    /// use ddp_kernels::{DType, Device, Tensor};
    ///
    /// let received = threads::run(2, |world| -> Result<Vec<f32>, CommError> {
    ///     let mut x = Tensor::full(&[3], world.rank().0 as f32, DType::F32, Device::Cpu)?;
    ///     if world.is_first() { world.send(&x, 1)? } else { world.receive(&mut x, 0)? }
    ///     Ok(x.to_vec()?)
    /// });
    /// assert_eq!(received[1].as_ref().unwrap(), &[0.0; 3]);
    /// ```
    ///
    /// # Errors
    /// Same as [`Group::send`](crate::Group::send).
    ///
    /// Source: `torch.distributed.send`.
    pub fn send(&self, tensor: &Tensor, to: usize) -> Result<()> {
        self.tensor_group().send(Rank(to), tensor.view())
    }

    /// Receives a tensor of the same shape and type that rank `from` sends.
    ///
    /// # Errors
    /// Same as [`Group::receive`](crate::Group::receive).
    ///
    /// Source: `torch.distributed.recv`.
    #[doc(alias = "recv")]
    pub fn receive(&self, tensor: &mut Tensor, from: usize) -> Result<()> {
        self.tensor_group().receive(Rank(from), tensor.view_mut())
    }

    /// Waits for all ranks. Collective.
    ///
    /// # Errors
    /// Same as [`Group::barrier`](crate::Group::barrier).
    pub fn barrier(&self) -> Result<()> {
        self.group().barrier()
    }
}
