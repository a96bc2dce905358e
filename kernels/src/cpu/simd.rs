//! Run-time dispatch to the widest vector instruction set, for loops that the compiler vectorises.

/// Runs `f` compiled for the widest vectors of this processor (AVX-512, AVX2 with FMA, else the baseline).
///
/// `f` must be a closure that contains the loop itself: only what is inlined into it is compiled for the wider
/// vectors.
#[inline(always)]
pub(crate) fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}
