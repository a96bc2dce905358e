//! Collectives by messages of MPI: between hosts, and on one host without shared memory.
//!
//! All-reduces, reduce-scatters and all-gathers in place are cut into chunks. Each chunk is a non-blocking MPI call between the
//! buffer and a copy of the chunk. A few are in flight at a time; `progress` and `wait` advance them. (`MPI_IN_PLACE` would save
//! the copy of an all-reduce, but it is a C macro with a different value in each MPI library, and the copy stays in the cache.
//! A chunk of a reduce-scatter or all-gather has a piece of every rank's shard; the copy holds the pieces side by side.)
//! Any other collective first waits for those in flight, because MPI requires one order of calls on all ranks.
//!
//! Source: MPI 4.0, section 6.12, "Nonblocking Collective Operations".

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::super::buffer::{RawMut, RawRef};
use super::call::{can_reduce, check, count, datatype};
use crate::mpi_library::{Constants, Handle, Mpi};
use crate::{Call, CallKind, CommError, Result};

/// Bytes of one chunk, all ranks' pieces together.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of chunks in flight.
const WINDOW: usize = 4;

/// A collective in place that was started and is not finished.
struct Job {
    call: Call,
    /// The whole buffer: `call.len` elements, or as many for each rank.
    buf: RawMut,
    /// Elements, of `call.len`, whose chunks were started.
    started: usize,
    /// Chunks in flight.
    n_in_flight: usize,
}

/// A place for one chunk in flight.
struct Lane {
    /// The copy that MPI sends from, or receives into in an all-gather; aligned for every type, allocated at first use.
    copy: Vec<u64>,
    /// The chunk in flight, if any.
    chunk: Option<Chunk>,
}

/// A chunk of a job.
#[derive(Clone, Copy)]
struct Chunk {
    /// The number of its job.
    job: u64,
    /// Its first element within `call.len`, and its number of elements.
    start: usize,
    n: usize,
}

/// An array of requests as MPI lays it out: its elements may be smaller than a word.
struct Requests {
    memory: [Handle; WINDOW],
    handle_bytes: usize,
}

impl Requests {
    /// Null requests.
    fn new(constants: &Constants) -> Self {
        let Constants { request_null: null, handle_bytes, .. } = *constants;
        let mut requests = Requests { memory: [0; WINDOW], handle_bytes };
        for lane in 0..WINDOW {
            // SAFETY: both hold `handle_bytes` bytes, those of the handle first: little-endian.
            unsafe {
                ptr::copy_nonoverlapping(
                    (&raw const null).cast::<u8>(),
                    requests.at(lane).cast(),
                    handle_bytes,
                )
            };
        }
        requests
    }

    /// The request of a lane, and those after it.
    fn at(&mut self, lane: usize) -> *mut Handle {
        self.memory.as_mut_ptr().wrapping_byte_add(lane * self.handle_bytes)
    }
}

/// One rank's collectives over one communicator.
pub(crate) struct MpiCollectives {
    mpi: &'static Mpi,
    comm: Handle,
    rank: usize,
    world_size: usize,
    /// Oldest first; the memory is kept between steps, so a steady state allocates nothing.
    jobs: VecDeque<Job>,
    n_finished: u64,
    /// The first error of MPI in a collective that was started: no further one can succeed.
    broken: Option<CommError>,
    lanes: [Lane; WINDOW],
    /// The request of each lane; the null request if nothing is in flight there.
    requests: Requests,
}

impl MpiCollectives {
    pub(super) fn new(mpi: &'static Mpi, comm: Handle, rank: usize, world_size: usize) -> Self {
        MpiCollectives {
            mpi,
            comm,
            rank,
            world_size,
            jobs: VecDeque::with_capacity(64),
            n_finished: 0,
            broken: None,
            lanes: [const { Lane { copy: Vec::new(), chunk: None } }; WINDOW],
            requests: Requests::new(&mpi.constants),
        }
    }

    /// Number of collectives that are finished, which are the first ones.
    pub(crate) fn n_finished(&self) -> u64 {
        self.n_finished
    }

    /// Whether MPI may still access a buffer.
    pub(super) fn is_in_flight(&self) -> bool {
        self.lanes.iter().any(|lane| lane.chunk.is_some())
    }

    /// Starts a collective in place and returns its number.
    ///
    /// # Safety
    /// `buf` holds the call's elements; in a reduce-scatter or an all-gather, the elements of all ranks. Nothing else accesses it before
    /// the collective was waited for.
    pub(crate) unsafe fn start(&mut self, call: Call, buf: RawMut) -> Result<u64> {
        can_reduce(call)?;
        self.ensure_whole()?;
        self.jobs.push_back(Job { call, buf, started: 0, n_in_flight: 0 });
        let number = self.n_finished + self.jobs.len() as u64 - 1;
        self.progress()?;
        Ok(number)
    }

    fn ensure_whole(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Keeps an error for all further calls, and forgets the buffers, which may be gone when the next one comes; what is in flight keeps them.
    fn break_with(&mut self, error: CommError) -> CommError {
        if !self.is_in_flight() {
            self.jobs.clear();
        }
        self.broken.get_or_insert(error).clone()
    }

    /// Advances the collectives in flight without waiting.
    pub(crate) fn progress(&mut self) -> Result<()> {
        self.ensure_whole()?;
        self.try_progress().map_err(|error| self.break_with(error))
    }

    fn try_progress(&mut self) -> Result<()> {
        while !self.jobs.is_empty() {
            self.start_chunks()?;
            if self.jobs.is_empty() || !self.collect(self.mpi.calls.MPI_Testsome, "MPI_Testsome")? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the collective of this number and all before it; without a number, for all.
    pub(crate) fn wait(&mut self, number: Option<u64>) -> Result<()> {
        self.ensure_whole()?;
        self.try_wait(number).map_err(|error| self.break_with(error))
    }

    fn try_wait(&mut self, number: Option<u64>) -> Result<()> {
        while !self.jobs.is_empty() && number.is_none_or(|number| self.n_finished <= number) {
            self.start_chunks()?;
            if !self.jobs.is_empty() {
                self.collect(self.mpi.calls.MPI_Waitsome, "MPI_Waitsome")?;
            }
        }
        Ok(())
    }

    /// Starts chunks, in order, while lanes are free; finishes the jobs that have none left.
    fn start_chunks(&mut self) -> Result<()> {
        for index in 0..self.jobs.len() {
            let number = self.n_finished + index as u64;
            while self.jobs[index].started < self.jobs[index].call.len {
                let Some(lane) = self.lanes.iter().position(|lane| lane.chunk.is_none()) else {
                    return Ok(());
                };
                self.start_chunk(index, number, lane)?;
            }
        }
        self.finish_jobs();
        Ok(())
    }

    fn start_chunk(&mut self, index: usize, number: u64, lane: usize) -> Result<()> {
        let n_pieces = self.n_pieces(self.jobs[index].call.kind);
        let Job { call, buf, ref mut started, ref mut n_in_flight } = self.jobs[index];
        let size = call.dtype.size_bytes();
        let n = (CHUNK_BYTES / size / n_pieces).max(1).min(call.len - *started);
        let chunk = Chunk { job: number, start: *started, n };
        let piece = |shard: usize| buf.ptr.wrapping_add((shard * call.len + chunk.start) * size);
        let copy = &mut self.lanes[lane].copy;
        copy.resize((CHUNK_BYTES.max(n_pieces * size)).div_ceil(size_of::<u64>()), 0);
        let copy: *mut u8 = copy.as_mut_ptr().cast();
        let is_gathered = matches!(call.kind, CallKind::AllGather);
        for shard in 0..if is_gathered { 0 } else { n_pieces } {
            // SAFETY: the piece lies within the buffer, which `start`'s contract covers; the copy holds all pieces of a chunk and
            // is not in flight, since its lane is free.
            unsafe { ptr::copy_nonoverlapping(piece(shard), copy.wrapping_add(shard * n * size), n * size) };
        }
        let (count, dtype) = (n as c_int, datatype(self.mpi, call.dtype));
        let (own, comm) = (piece(self.rank).cast(), self.comm);
        let request = self.requests.at(lane);
        let Mpi { calls, constants } = self.mpi;
        // For each: buffer and copy hold the chunk's pieces and stay until the request is finished: the buffer by `start`'s
        // contract, the copy because nothing replaces it while the lane is occupied, and `MpiTransport` ends the process rather than
        // be dropped with requests in flight. The communicator is alive.
        let (name, status) = match call.kind {
            CallKind::AllReduce(op) => ("MPI_Iallreduce", {
                let (from, to) = (copy.cast(), piece(0).cast());
                let op = constants.operation(op);
                // SAFETY: as above; both hold `n` elements.
                unsafe { (calls.MPI_Iallreduce)(from, to, count, dtype, op, comm, request) }
            }),
            CallKind::ReduceScatter(op) => ("MPI_Ireduce_scatter_block", {
                let (from, op) = (copy.cast(), constants.operation(op));
                // SAFETY: as above; the copy holds `n` elements for each rank, and this rank's piece of the buffer `n`.
                unsafe { (calls.MPI_Ireduce_scatter_block)(from, own, count, dtype, op, comm, request) }
            }),
            CallKind::AllGather => ("MPI_Iallgather", {
                let to = copy.cast();
                // SAFETY: as above; this rank's piece of the buffer holds `n` elements, which nothing writes, and the copy has
                // room for `n` of each rank.
                unsafe { (calls.MPI_Iallgather)(own, count, dtype, to, count, dtype, comm, request) }
            }),
            CallKind::Broadcast { .. }
            | CallKind::Barrier
            | CallKind::Shift
            | CallKind::Send { .. }
            | CallKind::Receive { .. } => unreachable!("`Scope` starts none of these"),
        };
        check(self.mpi, name, status)?;
        *started += n;
        *n_in_flight += 1;
        self.lanes[lane].chunk = Some(chunk);
        Ok(())
    }

    /// Pieces of a chunk: one of each rank's shard, or a single one.
    fn n_pieces(&self, kind: CallKind) -> usize {
        match kind {
            CallKind::ReduceScatter(_) | CallKind::AllGather => self.world_size,
            _ => 1,
        }
    }

    /// Copies a chunk of an all-gather that has arrived into the other ranks' shards.
    fn unpack(&self, chunk: Chunk, lane: usize) {
        let Job { call, buf, .. } = self.jobs[(chunk.job - self.n_finished) as usize];
        if !matches!(call.kind, CallKind::AllGather) {
            return;
        }
        let (size, copy) = (call.dtype.size_bytes(), self.lanes[lane].copy.as_ptr().cast::<u8>());
        for shard in (0..self.world_size).filter(|&shard| shard != self.rank) {
            let piece = buf.ptr.wrapping_add((shard * call.len + chunk.start) * size);
            let from = copy.wrapping_add(shard * chunk.n * size);
            // SAFETY: the piece lies within the buffer, which `start`'s contract covers; the copy holds `n` elements of each
            // rank, and its request is finished.
            unsafe { ptr::copy_nonoverlapping(from, piece, chunk.n * size) };
        }
    }

    /// Frees the lanes whose requests `complete` reports as finished; returns whether there were any.
    fn collect(&mut self, complete: Complete, name: &'static str) -> Result<bool> {
        let mut n_done: c_int = 0;
        let mut done = [0 as c_int; WINDOW];
        let no_statuses = self.mpi.constants.statuses_ignore as *mut c_void;
        // SAFETY: both arrays have WINDOW elements, and the requests are null or active.
        let status = unsafe {
            complete(WINDOW as c_int, self.requests.at(0), &raw mut n_done, done.as_mut_ptr(), no_statuses)
        };
        check(self.mpi, name, status)?;
        // If no request is active, the count is MPI_UNDEFINED, which is negative.
        let done = &done[..usize::try_from(n_done).unwrap_or(0)];
        for &lane in done {
            if let Some(chunk) = self.lanes[lane as usize].chunk.take() {
                self.unpack(chunk, lane as usize);
                self.jobs[(chunk.job - self.n_finished) as usize].n_in_flight -= 1;
            }
        }
        self.finish_jobs();
        Ok(!done.is_empty())
    }

    fn finish_jobs(&mut self) {
        let is_done = |job: &Job| job.started == job.call.len && job.n_in_flight == 0;
        while self.jobs.front().is_some_and(is_done) {
            self.jobs.pop_front();
            self.n_finished += 1;
        }
    }

    /// Runs one collective to its end, after those in flight.
    ///
    /// # Safety
    /// Same as `Group::run`. After an error, [`MpiCollectives::is_in_flight`] says whether MPI still accesses the buffers; the borrow
    /// must then not end.
    pub(super) unsafe fn run(&mut self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        self.wait(None)?;
        can_reduce(call)?;
        self.compare_calls(call)?;
        match call.kind {
            CallKind::AllReduce(_) => {
                // SAFETY: as this function's; it is waited for at once, and the caller ends the job if that fails.
                unsafe { self.start(call, output) }?;
                self.wait(None)
            }
            // SAFETY: as this function's.
            _ => unsafe { self.blocking(call, input, output) },
        }
    }

    /// One blocking `MPI_Allreduce`, after the collectives in flight.
    ///
    /// # Safety
    /// `input` and `output` hold the call's elements, disjoint.
    pub(crate) unsafe fn all_reduce_whole(
        &mut self,
        call: Call,
        input: RawRef,
        output: RawMut,
    ) -> Result<()> {
        const NAME: &str = "MPI_Allreduce";
        self.wait(None)?;
        can_reduce(call)?;
        let CallKind::AllReduce(op) = call.kind else { unreachable!("the caller makes an all-reduce") };
        let (n, dtype, op) =
            (count(NAME, call.len)?, datatype(self.mpi, call.dtype), self.mpi.constants.operation(op));
        let (from, to) = (input.ptr.cast(), output.ptr.cast());
        // SAFETY: both hold `n` elements, disjoint; the communicator is alive.
        check(self.mpi, NAME, unsafe { (self.mpi.calls.MPI_Allreduce)(from, to, n, dtype, op, self.comm) })
    }

    /// Runs one collective in a blocking call of MPI.
    ///
    /// # Safety
    /// Same as `Group::run`.
    unsafe fn blocking(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        let n = count(call.name(), call.len)?;
        let dtype = datatype(self.mpi, call.dtype);
        let (from, to) = (input.ptr.cast(), output.ptr.cast());
        match call.kind {
            CallKind::AllReduce(_) => unreachable!("an all-reduce is started and waited for"),
            CallKind::Broadcast { root } => {
                // SAFETY: `to` holds `n` elements; the root exists (checked by `Group`), the communicator is alive.
                let status = unsafe { (self.mpi.calls.MPI_Bcast)(to, n, dtype, root as c_int, self.comm) };
                check(self.mpi, "MPI_Bcast", status)
            }
            CallKind::ReduceScatter(op) => {
                let op = self.mpi.constants.operation(op);
                // SAFETY: `from` holds `world_size * n` elements and `to` holds `n`, disjoint.
                let status =
                    unsafe { (self.mpi.calls.MPI_Reduce_scatter_block)(from, to, n, dtype, op, self.comm) };
                check(self.mpi, "MPI_Reduce_scatter_block", status)
            }
            CallKind::AllGather => {
                // SAFETY: `from` holds `n` elements and `to` holds `world_size * n`, disjoint.
                let status =
                    unsafe { (self.mpi.calls.MPI_Allgather)(from, n, dtype, to, n, dtype, self.comm) };
                check(self.mpi, "MPI_Allgather", status)
            }
            CallKind::Barrier => {
                // SAFETY: the communicator is alive.
                check(self.mpi, "MPI_Barrier", unsafe { (self.mpi.calls.MPI_Barrier)(self.comm) })
            }
            CallKind::Shift | CallKind::Send { .. } | CallKind::Receive { .. } => {
                unreachable!("`Group` refuses sends of tensors in host memory")
            }
        }
    }

    /// Compares the calls of all ranks before they run, so that a difference is an error and not a hang.
    fn compare_calls(&self, call: Call) -> Result<()> {
        let mine = call.to_words().map(|word| word as i64);
        let all = self.gather_words(&mine)?;
        let expected = all[..2].to_vec();
        let Some(rank) = all.chunks(2).position(|words| words != expected) else {
            return Ok(());
        };
        let call_of = |words: &[i64]| Call::from_words([words[0] as u64, words[1] as u64]);
        match (call_of(&all[rank * 2..]), call_of(&expected)) {
            (Some(got), Some(expected)) => Err(CommError::CallMismatch { rank, got, expected }),
            _ => unreachable!("ranks exchange words made by `Call::to_words`"),
        }
    }

    /// Gathers words from every rank, the same number from each, in rank order.
    pub(super) fn gather_words(&self, mine: &[i64]) -> Result<Vec<i64>> {
        let mut all = vec![0i64; mine.len() * self.world_size];
        let n = count("gather_words", mine.len())?;
        let dtype = datatype(self.mpi, ddp_kernels::DType::I64);
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: `mine` holds `n` elements and `all` as many a rank; the communicator is alive.
        let status = unsafe { (self.mpi.calls.MPI_Allgather)(from, n, dtype, to, n, dtype, self.comm) };
        check(self.mpi, "MPI_Allgather", status)?;
        Ok(all)
    }
}

/// `MPI_Testsome` or `MPI_Waitsome`.
type Complete = unsafe extern "C" fn(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void) -> c_int;

#[cfg(test)]
mod tests {
    use ddp_kernels::DType;

    use super::*;
    use crate::ReduceOp;

    #[test]
    fn a_collective_that_fails_leaves_no_buffer_behind() {
        let mpi = Box::leak(Box::new(Mpi::failing()));
        let mut collectives = MpiCollectives::new(mpi, 0, 0, 2);
        let call = Call { kind: CallKind::AllReduce(ReduceOp::Sum), dtype: DType::F32, len: 4 };
        let mut buf = [1f32; 4];
        let raw = RawMut { ptr: buf.as_mut_ptr().cast(), len: 4, dtype: DType::F32, gpu: None };
        // SAFETY: the buffer holds the call's elements, and nothing else accesses it meanwhile.
        let error = unsafe { collectives.start(call, raw) }.unwrap_err();
        assert!(matches!(error, CommError::Mpi { call: "MPI_Iallreduce", .. }), "{error}");
        assert!(collectives.jobs.is_empty() && !collectives.is_in_flight());
        assert_eq!((collectives.progress(), collectives.wait(None)), (Err(error.clone()), Err(error)));
    }
}
