//! Messages of MPI: the ranks exchange their envelopes, and then the data pass in one direction.

use std::ffi::c_int;

use super::super::buffer::{RawMut, RawRef};
use super::super::envelope::{ENVELOPE_WORDS, Envelope};
use super::call::{check, datatype};
use crate::mpi_library::{Handle, Mpi};
use crate::{CallKind, Result};

/// Tags of envelopes and of data.
const TAGS: [c_int; 2] = [1, 2];
/// Most elements of one message of MPI.
const MAX_ELEMENTS: usize = 1 << 30;

/// Runs one end of a message of rank `rank`.
///
/// # Safety
/// `comm` is alive; `input` is readable and `output` writable for the elements of the envelope, and nothing else accesses them meanwhile.
pub(super) unsafe fn run(
    mpi: &Mpi,
    comm: Handle,
    rank: usize,
    own: Envelope,
    input: RawRef,
    output: RawMut,
) -> Result<()> {
    let (other, is_sender) = match own.kind {
        CallKind::Send { to } => (to, true),
        CallKind::Receive { from } => (from, false),
        _ => unreachable!("a message is sent or received"),
    };
    let (peer, [of_envelopes, of_data]) = (other as c_int, TAGS);
    let no_status = mpi.constants.statuses_ignore as *mut _;
    let (mine, mut theirs) = (own.to_words(), [0u64; ENVELOPE_WORDS]);
    let (n_words, words) = (ENVELOPE_WORDS as c_int, mpi.constants.int64);
    let (from, to) = (mine.as_ptr().cast(), theirs.as_mut_ptr().cast());
    // SAFETY: both arrays hold as many words and stay until the call returns.
    let status = unsafe {
        (mpi.calls.MPI_Sendrecv)(
            from,
            n_words,
            words,
            peer,
            of_envelopes,
            to,
            n_words,
            words,
            peer,
            of_envelopes,
            comm,
            no_status,
        )
    };
    check(mpi, "MPI_Sendrecv", status)?;
    own.check(rank, Envelope::from_words(theirs))?;
    let call = own.call();
    let (dtype, size) = (datatype(mpi, call.dtype), call.dtype.size_bytes());
    for start in (0..call.len).step_by(MAX_ELEMENTS) {
        let (n, at) = (MAX_ELEMENTS.min(call.len - start) as c_int, start * size);
        let (name, status) = if is_sender {
            let from = input.ptr.wrapping_add(at).cast();
            // SAFETY: the input holds `n` elements from there on, as the caller promises.
            ("MPI_Send", unsafe { (mpi.calls.MPI_Send)(from, n, dtype, peer, of_data, comm) })
        } else {
            let to = output.ptr.wrapping_add(at).cast();
            // SAFETY: the output holds `n` elements from there on, as the caller promises.
            ("MPI_Recv", unsafe { (mpi.calls.MPI_Recv)(to, n, dtype, peer, of_data, comm, no_status) })
        };
        check(mpi, name, status)?;
    }
    Ok(())
}
