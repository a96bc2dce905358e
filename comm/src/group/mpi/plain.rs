//! Collectives as MPI offers them: between hosts, and where memory cannot be shared.
//!
//! An all-reduce is cut into chunks, each an `MPI_Iallreduce` from a copy of the chunk into the buffer; some are
//! in flight at a time, and whoever calls `progress` or `wait` moves them on. (`MPI_IN_PLACE` would save the copy,
//! but it is a C macro with another value in each MPI library; the copy stays in the cache.) Any other collective
//! first lets those in flight finish, because MPI asks for one order of calls on all ranks.

use std::collections::VecDeque;
use std::ffi::c_int;

use mpi::ffi;

use super::super::buffer::{RawMut, RawRef};
use super::call::{can_reduce, check, count, datatype, operation};
use crate::{Call, CallKind, CommError, ReduceOp, Result};

/// Bytes of one `MPI_Iallreduce`.
const CHUNK_BYTES: usize = 1 << 20;
/// How many are in flight at most.
const WINDOW: usize = 4;

/// An all-reduce that was started.
struct Job {
    buf: RawMut,
    op: ReduceOp,
    /// Elements whose chunks were started.
    started: usize,
    /// Chunks in flight.
    n_in_flight: usize,
}

/// One `MPI_Iallreduce` at a time.
struct Lane {
    /// The copy that MPI sends from, aligned as any element; allocated at first use.
    copy: Vec<u64>,
    /// The number of the job in flight.
    job: Option<u64>,
}

/// Collectives over one communicator.
pub(super) struct Plain {
    comm: ffi::MPI_Comm,
    world_size: usize,
    /// Oldest first; kept between steps, so a steady state allocates nothing.
    jobs: VecDeque<Job>,
    n_finished: u64,
    lanes: [Lane; WINDOW],
    /// Of the lanes; the null request where nothing is in flight.
    requests: [ffi::MPI_Request; WINDOW],
}

impl Plain {
    pub(super) fn new(comm: ffi::MPI_Comm, world_size: usize) -> Self {
        // SAFETY: a constant of the MPI library.
        let null = unsafe { ffi::RSMPI_REQUEST_NULL };
        Plain {
            comm,
            world_size,
            jobs: VecDeque::with_capacity(64),
            n_finished: 0,
            lanes: [const { Lane { copy: Vec::new(), job: None } }; WINDOW],
            requests: [null; WINDOW],
        }
    }

    /// Whether MPI may touch a buffer of ours.
    pub(super) fn is_in_flight(&self) -> bool {
        self.lanes.iter().any(|lane| lane.job.is_some())
    }

    /// Starts an all-reduce and returns its number.
    ///
    /// # Safety
    /// Nobody else touches `buf` before the collective was waited for.
    pub(super) unsafe fn start(&mut self, call: Call, buf: RawMut) -> Result<u64> {
        let CallKind::AllReduce(op) = call.kind else {
            unreachable!("only all-reduces are started");
        };
        can_reduce(call)?;
        self.jobs.push_back(Job { buf, op, started: 0, n_in_flight: 0 });
        let number = self.n_finished + self.jobs.len() as u64 - 1;
        self.progress()?;
        Ok(number)
    }

    /// Moves the collectives in flight on without waiting.
    pub(super) fn progress(&mut self) -> Result<()> {
        while !self.jobs.is_empty() {
            self.start_chunks()?;
            if self.jobs.is_empty() || !self.collect(ffi::MPI_Testsome, "MPI_Testsome")? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the collective of a number, and all before it; without a number, for all.
    pub(super) fn wait(&mut self, number: Option<u64>) -> Result<()> {
        while !self.jobs.is_empty() && number.is_none_or(|number| self.n_finished <= number) {
            self.start_chunks()?;
            if !self.jobs.is_empty() {
                self.collect(ffi::MPI_Waitsome, "MPI_Waitsome")?;
            }
        }
        Ok(())
    }

    /// Starts chunks, in order, while lanes are free; finishes jobs that have none left.
    fn start_chunks(&mut self) -> Result<()> {
        for index in 0..self.jobs.len() {
            let number = self.n_finished + index as u64;
            while self.jobs[index].started < self.jobs[index].buf.len {
                let Some(lane) = self.lanes.iter().position(|lane| lane.job.is_none()) else {
                    return Ok(());
                };
                self.start_chunk(index, number, lane)?;
            }
        }
        self.finish_jobs();
        Ok(())
    }

    fn start_chunk(&mut self, index: usize, number: u64, lane: usize) -> Result<()> {
        let job = &mut self.jobs[index];
        let size = job.buf.dtype.size_bytes();
        let n = (CHUNK_BYTES / size).min(job.buf.len - job.started);
        let chunk = job.buf.ptr.wrapping_add(job.started * size);
        let copy = &mut self.lanes[lane].copy;
        copy.resize(CHUNK_BYTES / size_of::<u64>(), 0);
        let copy: *mut u8 = copy.as_mut_ptr().cast();
        // SAFETY: the chunk lies within the buffer, which is as `start` asks for; the copy holds a whole chunk and
        // is not in flight, since its lane is free.
        unsafe { std::ptr::copy_nonoverlapping(chunk, copy, n * size) };
        // SAFETY: both hold `n` elements and stay until the request is finished: the buffer as `start` asks for,
        // the copy because it is replaced by nobody while the lane is taken, and `MpiGroup` ends the process
        // rather than be dropped with requests in flight. The communicator is alive.
        let status = unsafe {
            ffi::MPI_Iallreduce(
                copy.cast(),
                chunk.cast(),
                n as c_int,
                datatype(job.buf.dtype),
                operation(job.op),
                self.comm,
                &raw mut self.requests[lane],
            )
        };
        check("MPI_Iallreduce", status)?;
        job.started += n;
        job.n_in_flight += 1;
        self.lanes[lane].job = Some(number);
        Ok(())
    }

    /// Frees the lanes whose requests `complete` finds finished; says whether there were any.
    fn collect(&mut self, complete: Complete, name: &'static str) -> Result<bool> {
        let mut n_done: c_int = 0;
        let mut done = [0 as c_int; WINDOW];
        // SAFETY: a constant of the MPI library.
        let no_statuses = unsafe { ffi::RSMPI_STATUSES_IGNORE };
        // SAFETY: both arrays have WINDOW elements, and the requests are null or active.
        let status = unsafe {
            complete(
                WINDOW as c_int,
                self.requests.as_mut_ptr(),
                &raw mut n_done,
                done.as_mut_ptr(),
                no_statuses,
            )
        };
        check(name, status)?;
        // Where no request is active, the count is MPI_UNDEFINED, which is negative.
        let done = &done[..usize::try_from(n_done).unwrap_or(0)];
        for &lane in done {
            if let Some(number) = self.lanes[lane as usize].job.take() {
                self.jobs[(number - self.n_finished) as usize].n_in_flight -= 1;
            }
        }
        self.finish_jobs();
        Ok(!done.is_empty())
    }

    fn finish_jobs(&mut self) {
        let is_done = |job: &Job| job.started == job.buf.len && job.n_in_flight == 0;
        while self.jobs.front().is_some_and(is_done) {
            self.jobs.pop_front();
            self.n_finished += 1;
        }
    }

    /// Runs one collective to its end, after those in flight.
    ///
    /// # Safety
    /// As `Group::run`. After an error, [`Plain::is_in_flight`] tells whether MPI still holds the buffers; they
    /// must then not be given back.
    pub(super) unsafe fn run(&mut self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        self.wait(None)?;
        can_reduce(call)?;
        self.compare_calls(call)?;
        match call.kind {
            CallKind::AllReduce(_) => {
                // SAFETY: as this function's; waited for at once, and the caller ends the job if that fails.
                unsafe { self.start(call, output) }?;
                self.wait(None)
            }
            // SAFETY: as this function's.
            _ => unsafe { self.blocking(call, input, output) },
        }
    }

    /// # Safety
    /// As `Group::run`.
    unsafe fn blocking(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        let n = count(name_of(call.kind), call.len)?;
        let dtype = datatype(call.dtype);
        let (from, to) = (input.ptr.cast(), output.ptr.cast());
        match call.kind {
            CallKind::AllReduce(_) => unreachable!("an all-reduce is started and waited for"),
            CallKind::Broadcast { root } => {
                // SAFETY: `to` holds `n` elements; the root exists (checked by `Group`), the communicator is alive.
                let status = unsafe { ffi::MPI_Bcast(to, n, dtype, root as c_int, self.comm) };
                check("MPI_Bcast", status)
            }
            CallKind::ReduceScatter(op) => {
                let op = operation(op);
                // SAFETY: `from` holds `world_size * n` elements and `to` holds `n`, disjoint.
                let status = unsafe { ffi::MPI_Reduce_scatter_block(from, to, n, dtype, op, self.comm) };
                check("MPI_Reduce_scatter_block", status)
            }
            CallKind::AllGather => {
                // SAFETY: `from` holds `n` elements and `to` holds `world_size * n`, disjoint.
                let status = unsafe { ffi::MPI_Allgather(from, n, dtype, to, n, dtype, self.comm) };
                check("MPI_Allgather", status)
            }
            CallKind::Barrier => {
                // SAFETY: the communicator is alive.
                check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.comm) })
            }
            CallKind::Send { .. } | CallKind::Receive { .. } => {
                unreachable!("`Group` refuses sends between hosts' memories")
            }
        }
    }

    /// Compares what the ranks are about to do, so that a difference is an error and not a hang.
    fn compare_calls(&self, call: Call) -> Result<()> {
        let mine = call.to_words().map(|word| word as i64);
        let all = self.gather_words(mine)?;
        let expected = all[..2].to_vec();
        let Some(rank) = all.chunks(2).position(|words| words != expected) else {
            return Ok(());
        };
        let call_of = |words: &[i64]| Call::from_words([words[0] as u64, words[1] as u64]);
        match (call_of(&all[rank * 2..]), call_of(&expected)) {
            (Some(got), Some(expected)) => Err(CommError::CallMismatch { rank, got, expected }),
            _ => unreachable!("ranks exchange the words of calls"),
        }
    }

    /// `N` words of every rank, in rank order.
    pub(super) fn gather_words<const N: usize>(&self, mine: [i64; N]) -> Result<Vec<i64>> {
        let mut all = vec![0i64; N * self.world_size];
        let dtype = datatype(ddp_kernels::DType::I64);
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: `mine` holds N elements and `all` N a rank; the communicator is alive.
        let status = unsafe { ffi::MPI_Allgather(from, N as c_int, dtype, to, N as c_int, dtype, self.comm) };
        check("MPI_Allgather", status)?;
        Ok(all)
    }
}

/// `MPI_Testsome` or `MPI_Waitsome`.
type Complete =
    unsafe extern "C" fn(c_int, *mut ffi::MPI_Request, *mut c_int, *mut c_int, *mut ffi::MPI_Status) -> c_int;

fn name_of(kind: CallKind) -> &'static str {
    match kind {
        CallKind::AllReduce(_) => "all_reduce",
        CallKind::Broadcast { .. } => "broadcast",
        CallKind::ReduceScatter(_) => "reduce_scatter",
        CallKind::AllGather => "all_gather",
        CallKind::Barrier => "barrier",
        CallKind::Send { .. } => "send",
        CallKind::Receive { .. } => "receive",
    }
}
