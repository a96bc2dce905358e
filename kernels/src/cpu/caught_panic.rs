//! Panics of third-party code that are results of a call, not failures of the program.
//!
//! ```
//! use ddp_kernels::cpu::caught_panic::{catch_panic, is_caught};
//!
//! assert!(catch_panic(|| assert!(!is_caught())).is_err());
//! assert!(!is_caught());
//! ```

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `call` and returns its panic as an error; a panic hook that asks [`is_caught`] prints nothing. For third-party code that
/// panics at bad input.
///
/// # Errors
/// The payload of the panic.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_CAUGHT.set(before);
    result
}

/// Whether a panic of this thread is expected, and caught by [`catch_panic`].
pub fn is_caught() -> bool {
    IS_CAUGHT.get()
}
