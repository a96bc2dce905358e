//! Collectives that go on while the rank computes.
//!
//! As [`std::thread::scope`]: buffers are lent for longer than the scope lasts, and the scope does not end before
//! all of them are back, whether its body returns, fails or panics. Between starting a bucket and waiting for it,
//! the rank calls [`Scope::progress`] whenever it is cheap to: there is no thread that does it in the background.
//!
//! On GPUs it is the device that goes on, and waiting is its compute stream's: a collective is ordered behind the work that
//! was asked for before it was started, and before the work that is asked for after it was waited for. A scope that is
//! captured in a CUDA graph begins and ends inside of the capture.

use std::marker::PhantomData;

use ddp_kernels::TensorMut;

use super::Group;
use super::buffer::RawMut;
use crate::{CallKind, CommError, Departure, ReduceOp, Result};

/// Collectives in flight, made by [`Group::scope`].
#[derive(Debug)]
pub struct Scope<'env> {
    group: &'env Group,
    /// Makes the lifetime invariant: a scope of longer borrows is none of shorter ones.
    buffers: PhantomData<&'env mut &'env ()>,
}

/// One collective in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// A buffer of a collective in flight, which [`Scope::take_back`] gives back before the scope ends.
#[derive(Debug)]
#[must_use = "dropped, the buffer stays lent until the scope ends"]
pub struct OnLoan<'env> {
    /// Whose number the ticket is.
    group: &'env Group,
    ticket: Ticket,
    buf: TensorMut<'env>,
}

/// Sees to it that the buffers come back, also when the scope's body panics.
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
    /// Runs `body`, in which all-reduces can be started and waited for one by one, and then waits for the rest.
    ///
    /// If `body` panics, the group is given up: the other ranks get an error in threads, and the job is ended
    /// where MPI still holds a buffer.
    ///
    /// # Errors
    /// What `body` returns; else the error of a collective, as [`Group::all_reduce`].
    pub fn scope<'env, R, E: From<CommError>>(
        &'env self,
        body: impl FnOnce(&mut Scope<'env>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let buffers = Return(self);
        let result = body(&mut Scope { group: self, buffers: PhantomData })?;
        self.wait(None)?;
        drop(buffers);
        Ok(result)
    }
}

impl<'env> Scope<'env> {
    /// Starts to replace each element of `buf` by its combination over all ranks; see [`Group::all_reduce`].
    ///
    /// Asynchronous: `buf` is lent until the scope ends. Ranks start their buffers in the same order. On a GPU it runs in the
    /// communication stream.
    ///
    /// # Errors
    /// That of an earlier collective which failed meanwhile.
    pub fn all_reduce(&mut self, op: ReduceOp, buf: TensorMut<'env>) -> Result<Ticket> {
        let buf = self.group.writable("all_reduce", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::AllReduce(op), buf, buf) }
    }

    /// Starts to combine the ranks' buffers and to leave each rank its part, where it stands; see
    /// [`Group::reduce_scatter_in_place`]. Asynchronous, as [`Scope::all_reduce`].
    ///
    /// - `buf`: `world_size * n`
    ///
    /// # Errors
    /// [`CommError::OutputLength`] for another length; else as [`Scope::all_reduce`].
    pub fn reduce_scatter_in_place(&mut self, op: ReduceOp, buf: TensorMut<'env>) -> Result<Ticket> {
        let (buf, own) = self.group.own_part("reduce_scatter_in_place", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::ReduceScatter(op), buf, own) }
    }

    /// As [`Scope::reduce_scatter_in_place`], of the first `len` elements of a buffer that is needed again before the scope
    /// ends.
    ///
    /// # Errors
    /// As there.
    pub fn reduce_scatter_on_loan(
        &mut self,
        op: ReduceOp,
        mut buf: TensorMut<'env>,
        len: usize,
    ) -> Result<OnLoan<'env>> {
        let lent = buf.reborrow().range(0, len)?;
        let (whole, own) = self.group.own_part("reduce_scatter_in_place", lent)?;
        // SAFETY: `buf` is borrowed for `'env` and given to nobody before the collective was waited for.
        let ticket = unsafe { self.start(CallKind::ReduceScatter(op), whole, own) }?;
        Ok(OnLoan { group: self.group, ticket, buf })
    }

    /// Waits for the collective, as [`Scope::wait`], and gives its buffer back.
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; the buffer then stays lent until the scope ends.
    ///
    /// # Panics
    /// If the buffer was lent to another group.
    pub fn take_back(&mut self, loan: OnLoan<'env>) -> Result<TensorMut<'env>> {
        let OnLoan { group, ticket, buf } = loan;
        assert!(std::ptr::eq(group, self.group), "a buffer comes back from the group that has it");
        self.wait(ticket)?;
        Ok(buf)
    }

    /// Starts to collect the ranks' parts of one buffer, each of which begins where it stays; see
    /// [`Group::all_gather_in_place`]. Asynchronous, as [`Scope::all_reduce`].
    ///
    /// - `buf`: `world_size * n`
    ///
    /// # Errors
    /// As [`Scope::reduce_scatter_in_place`].
    pub fn all_gather_in_place(&mut self, buf: TensorMut<'env>) -> Result<Ticket> {
        let (buf, own) = self.group.own_part("all_gather_in_place", buf)?;
        // SAFETY: `buf` is borrowed for `'env`.
        unsafe { self.start(CallKind::AllGather, buf, own) }
    }

    /// # Safety
    /// `buf` is borrowed for `'env`, and `own` is all of it or this rank's part.
    unsafe fn start(&mut self, kind: CallKind, buf: RawMut, own: RawMut) -> Result<Ticket> {
        // SAFETY: `'env` outlives the call of `Group::scope`; that waits for the collective or gives it up before it returns
        // or unwinds.
        unsafe { self.group.start(kind, buf, own) }.map(Ticket)
    }

    /// Carries the collectives in flight as far as they go without waiting. Cheap: some ten nanoseconds where
    /// there is nothing to do.
    ///
    /// # Errors
    /// That of a collective in flight, as [`Group::all_reduce`].
    pub fn progress(&mut self) -> Result<()> {
        self.group.progress()
    }

    /// Waits for one collective, and those before it. Its result can be read when the scope has ended. On a GPU the compute
    /// stream waits, and the host goes on.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.group.wait(Some(ticket.0))
    }

    /// Waits for all collectives in flight.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn wait_all(&mut self) -> Result<()> {
        self.group.wait(None)
    }
}
