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
use crate::{CommError, Departure, ReduceOp, Result};

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
        // SAFETY: `buf` is borrowed for `'env`, which outlives the call of `Group::scope`; that waits for the
        // collective or gives it up before it returns or unwinds.
        unsafe { self.group.start(op, buf) }.map(Ticket)
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
