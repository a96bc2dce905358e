//! Collectives that run while the rank computes.
//!
//! Like [`std::thread::scope`]: buffers are lent for longer than the scope lasts, and the scope does not end before all of them
//! are returned, whether its body returns, fails or panics. Between starting a bucket and waiting for it, the rank should call
//! [`Scope::progress`] often: no background thread advances collectives in host memory.
//!
//! On GPUs the device advances them, and the compute stream waits: a collective is ordered after the work enqueued before it was
//! started, and before the work enqueued after it was waited for. A scope that is captured in a CUDA graph begins and ends within
//! the capture.
//!
//! Source: MPI 4.0, section 6.12, "Nonblocking Collective Operations"; NCCL user guide, "CUDA Stream Semantics".

use std::marker::PhantomData;
use std::ops::Range;

use ddp_kernels::TensorMut;

use super::Group;
use super::buffer::RawMut;
use crate::{CallKind, CommError, Departure, Rank, ReduceOp, Result};

/// Starts collectives and waits for them; created by [`Group::scope`].
#[derive(Debug)]
pub struct Scope<'env> {
    group: &'env Group,
    /// Receives the sum of squares of reduced buffers.
    squares: Option<Squares<'env>>,
    /// In [`Scope::together`]: buffers whose squares are summed after it.
    together: Option<Vec<(TensorMut<'env>, Range<usize>)>>,
    /// Makes the lifetime invariant: a scope cannot be used as one of shorter borrows.
    buffers: PhantomData<&'env mut &'env ()>,
}

/// `[1]` f64 that the sums of squares of reduced buffers are added to; the first one replaces what it holds.
#[derive(Debug)]
struct Squares<'env> {
    out: TensorMut<'env>,
    accumulate: bool,
}

/// One collective in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// A buffer of a collective in flight, which [`Scope::take_back`] returns before the scope ends.
#[derive(Debug)]
#[must_use = "dropped, the buffer stays lent until the scope ends"]
pub struct OnLoan<'env> {
    /// The group that the ticket belongs to.
    group: &'env Group,
    ticket: Ticket,
    buf: TensorMut<'env>,
}

/// Ensures that the buffers are returned, also if the scope's body panics.
struct Return<'a>(&'a Group);

impl Drop for Return<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up(Departure::Panicked);
        } else if self.0.wait(None).is_err() {
            self.0.give_up(Departure::Failed);
        }
    }
}

impl Group {
    /// Runs `body`, which can start collectives and wait for each of them, and then waits for the rest.
    ///
    /// If `body` panics, the group cannot be used any more: the other ranks get an error, and if MPI still uses a buffer, the job
    /// ends.
    ///
    /// # Errors
    /// The error of `body`; else the errors of [`Group::all_reduce`].
    pub fn scope<'env, R, E: From<CommError>>(
        &'env self,
        body: impl FnOnce(&mut Scope<'env>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let buffers = Return(self);
        let result = body(&mut Scope { group: self, squares: None, together: None, buffers: PhantomData })?;
        self.wait(None)?;
        drop(buffers);
        Ok(result)
    }
}

impl<'env> Scope<'env> {
    /// Starts to replace each element of `buf` by its reduction over all ranks; see [`Group::all_reduce`].
    ///
    /// Asynchronous: `buf` is lent until the scope ends. Ranks start their buffers in the same order. On a GPU it runs in the
    /// communication stream.
    ///
    /// # Errors
    /// The error of an earlier collective that has failed since; [`CommError::WrongMemory`]; [`CommError::NotReducible`].
    pub fn all_reduce(&mut self, op: ReduceOp, buf: TensorMut<'env>) -> Result<Ticket> {
        let buf = self.group.writable("all_reduce", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::AllReduce(op), buf, buf) }
    }

    /// Starts [`Scope::all_reduce`], with its errors, on a buffer that is needed again before the scope ends.
    pub fn all_reduce_on_loan(&mut self, op: ReduceOp, mut buf: TensorMut<'env>) -> Result<OnLoan<'env>> {
        let raw = self.group.writable("all_reduce", buf.reborrow())?;
        // SAFETY: `buf` is borrowed for `'env` and returned only after the collective was waited for.
        let ticket = unsafe { self.start(CallKind::AllReduce(op), raw, raw) }?;
        Ok(OnLoan { group: self.group, ticket, buf })
    }

    /// Sums the squares of buffers that [`Scope::all_reduce_squared`] and [`Scope::reduce_scatter_squared`] reduce into `out`, `[1]`
    /// f64, from now on, in the order of these calls. Its result can be read after the scope has ended.
    pub fn sum_squares_into(&mut self, out: TensorMut<'env>) {
        self.squares = Some(Squares { out, accumulate: false });
    }

    /// Starts [`Scope::all_reduce`], with its errors, and after it the sum of squares of the first `n` elements of the result, if
    /// [`Scope::sum_squares_into`] was called. On a GPU both run in the communication stream, while the rank computes; on the host
    /// the sum waits for the result.
    pub fn all_reduce_squared(&mut self, op: ReduceOp, mut buf: TensorMut<'env>, n: usize) -> Result<Ticket> {
        let raw = self.group.writable("all_reduce", buf.reborrow())?;
        // SAFETY: `buf` is borrowed for `'env`, and below it is only read, after the collective.
        let ticket = unsafe { self.start(CallKind::AllReduce(op), raw, raw) }?;
        self.square(ticket, buf, 0..n)
    }

    /// Starts [`Scope::reduce_scatter_in_place`], with its errors, and after it the sum of squares of this rank's shard, as
    /// [`Scope::all_reduce_squared`] does.
    pub fn reduce_scatter_squared(&mut self, op: ReduceOp, mut buf: TensorMut<'env>) -> Result<Ticket> {
        let (raw, own) = self.group.own_shard("reduce_scatter_in_place", buf.reborrow())?;
        // SAFETY: as in `all_reduce_squared`.
        let ticket = unsafe { self.start(CallKind::ReduceScatter(op), raw, own) }?;
        let start = self.group.rank().0 * own.len;
        self.square(ticket, buf, start..start + own.len)
    }

    /// Sums the squares of a range of a buffer in flight that `ticket` reduces; returns the ticket of both.
    fn square(&mut self, ticket: Ticket, buf: TensorMut<'env>, range: Range<usize>) -> Result<Ticket> {
        let Some(Squares { out, accumulate }) = &mut self.squares else { return Ok(ticket) };
        if let Some(later) = &mut self.together {
            later.push((buf, range));
            return Ok(ticket);
        }
        let accumulate = std::mem::replace(accumulate, true);
        let reduced = buf.as_ref().range(range.start, range.end)?;
        self.group.sum_of_squares(reduced, out.reborrow(), accumulate).map(Ticket)
    }

    /// Starts the collectives that `start` starts as one piece of work, if the ranks are joined by NCCL: see [`Group::together`]. Sums of
    /// squares follow after all of them, and only then can a ticket of one be waited for.
    ///
    /// # Errors
    /// The error of `start`; else the errors of [`Group::all_reduce`].
    ///
    /// # Panics
    /// If it is called by `start` itself.
    pub fn together<R, E: From<CommError>>(
        &mut self,
        start: impl FnOnce(&mut Self) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let group = self.group;
        if let Group::Nccl(_) = group {
            self.together = Some(Vec::new());
        }
        let started = group.together(|| start(self));
        let squares = self.together.take().unwrap_or_default();
        let started = started?;
        for (buf, range) in squares {
            // All buffers are waited for at the latest when the scope ends.
            self.square(Ticket(0), buf, range)?;
        }
        Ok(started)
    }

    /// Starts to reduce the ranks' buffers; rank `r` gets shard `r` of the result, in place. Asynchronous as
    /// [`Scope::all_reduce`]; see [`Group::reduce_scatter_in_place`].
    ///
    /// - `buf`: `world_size * n` elements
    ///
    /// # Errors
    /// [`CommError::OutputLength`] for any other length; the errors of [`Scope::all_reduce`].
    pub fn reduce_scatter_in_place(&mut self, op: ReduceOp, buf: TensorMut<'env>) -> Result<Ticket> {
        let (buf, own) = self.group.own_shard("reduce_scatter_in_place", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::ReduceScatter(op), buf, own) }
    }

    /// Starts [`Scope::reduce_scatter_in_place`], with its errors, on the first `len` elements of a buffer that is needed again
    /// before the scope ends.
    pub fn reduce_scatter_on_loan(
        &mut self,
        op: ReduceOp,
        mut buf: TensorMut<'env>,
        len: usize,
    ) -> Result<OnLoan<'env>> {
        let lent = buf.reborrow().range(0, len)?;
        let (whole, own) = self.group.own_shard("reduce_scatter_in_place", lent)?;
        // SAFETY: `buf` is borrowed for `'env` and returned only after the collective was waited for.
        let ticket = unsafe { self.start(CallKind::ReduceScatter(op), whole, own) }?;
        Ok(OnLoan { group: self.group, ticket, buf })
    }

    /// Waits for the collective as [`Scope::wait`] does, and returns its buffer.
    ///
    /// # Errors
    /// The errors of [`Group::all_reduce`]; the buffer then stays lent until the scope ends.
    ///
    /// # Panics
    /// If the buffer was lent to another group.
    pub fn take_back(&mut self, loan: OnLoan<'env>) -> Result<TensorMut<'env>> {
        let OnLoan { group, ticket, buf } = loan;
        assert!(std::ptr::eq(group, self.group), "a buffer is returned by the group that it was lent to");
        self.wait(ticket)?;
        Ok(buf)
    }

    /// Starts to gather the ranks' shards in place. Asynchronous as [`Scope::all_reduce`]; see [`Group::all_gather_in_place`].
    ///
    /// - `buf`: `world_size * n` elements, this rank's shard at `rank * n`
    ///
    /// # Errors
    /// [`CommError::OutputLength`] for any other length; the errors of [`Scope::all_reduce`].
    pub fn all_gather_in_place(&mut self, buf: TensorMut<'env>) -> Result<Ticket> {
        let (buf, own) = self.group.own_shard("all_gather_in_place", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::AllGather, buf, own) }
    }

    /// Starts to replace `buf` by the buffer of rank `root`. Asynchronous as [`Scope::all_reduce`]; see [`Group::broadcast`]. For ranks
    /// on GPUs; others wait for it.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`]; the errors of [`Scope::all_reduce`].
    pub fn broadcast(&mut self, root: Rank, buf: TensorMut<'env>) -> Result<()> {
        let Group::Nccl(_) = self.group else { return self.group.broadcast(root, buf) };
        if root.0 >= self.group.world_size() {
            let (rank, world_size) = (root.0, self.group.world_size());
            return Err(CommError::NoSuchRank { op: "broadcast", rank, world_size });
        }
        let buf = self.group.writable("broadcast", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::Broadcast { root: root.0 }, buf, buf) }.map(|_| ())
    }

    /// # Safety
    /// `buf` is borrowed for `'env`, and `own` is all of it or this rank's shard.
    unsafe fn start(&mut self, kind: CallKind, buf: RawMut, own: RawMut) -> Result<Ticket> {
        // SAFETY: `'env` outlives the call of `Group::scope`; that waits for the collective or gives it up before it returns
        // or unwinds.
        unsafe { self.group.start(kind, buf, own) }.map(Ticket)
    }

    /// Advances the collectives in flight without waiting. Cheap: about ten nanoseconds if there is nothing to do.
    ///
    /// # Errors
    /// The error of a collective in flight; see [`Group::all_reduce`].
    pub fn progress(&mut self) -> Result<()> {
        self.group.progress()
    }

    /// Waits for one collective and all before it, with the errors of [`Group::all_reduce`]. Its result can be read after the scope
    /// has ended. On a GPU the compute stream waits and the host continues.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.group.wait(Some(ticket.0))
    }

    /// Waits for all collectives in flight, as [`Scope::wait`] does.
    pub fn wait_all(&mut self) -> Result<()> {
        self.group.wait(None)
    }
}
