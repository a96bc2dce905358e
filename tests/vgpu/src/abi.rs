//! The C interface: the `api!` macro, which makes exported functions, and functions that read and write their pointer arguments.
//!
//! The functions below are not marked `unsafe`, although they dereference pointers, because this crate can't decide whether a
//! pointer is valid: it comes from the C caller, who must follow the contract of the CUDA function. A null pointer, the only
//! fault that can be detected, is `CUDA_ERROR_INVALID_VALUE`, as in the real libraries.

use crate::code::INVALID_VALUE;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `void` behind a C pointer.
pub(crate) type Void = std::ffi::c_void;

/// Exported C functions whose bodies may use `?` on `Result<_, i32>`; the error is the returned status.
///
/// `api! { fn cuFoo(a: T) { body } }`. Every call is counted under its name (see [`crate::counts`]).
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($a:ident: $t:ty),* $(,)?) $body:block)*) => { $(
        $(#[$meta])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
        pub(crate) unsafe extern "C" fn $name($($a: $t),*) -> i32 {
            static CALLS: $crate::counts::Counter = $crate::counts::Counter::new(stringify!($name));
            CALLS.hit();
            let body = || -> Result<(), i32> { $body; #[allow(unreachable_code)] Ok(()) };
            body().err().unwrap_or(0)
        }
    )* }
}
pub(crate) use api;

/// Writes the result of a call to the caller's pointer.
pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), i32> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the C caller vouches for room for one `T` (see the head of this file).
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Same as [`put`], for results that the caller may decline with a null pointer.
pub(crate) fn put_if_wanted<T>(to: *mut T, value: T) {
    // A null pointer means that the caller does not want the result.
    let _ = put(to, value);
}

/// Reads a plain value that the caller passes by pointer.
pub(crate) fn get<T: Copy>(from: *const T) -> Result<T, i32> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the C caller vouches for one readable `T` (see the head of this file).
    Ok(unsafe { from.read_unaligned() })
}

/// The caller's array of `n` values.
pub(crate) fn slice<'a, T>(from: *const T, n: usize) -> Result<&'a [T], i32> {
    if n == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the C caller vouches for `n` readable values (see the head of this file).
    Ok(unsafe { std::slice::from_raw_parts(from, n) })
}

/// The caller's C string.
pub(crate) fn text<'a>(from: *const c_char) -> Result<&'a CStr, i32> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the C caller vouches for a terminated string (see the head of this file).
    Ok(unsafe { CStr::from_ptr(from) })
}

/// Copies `value` and its terminator to the caller's buffer of `room` bytes, truncating it if necessary.
pub(crate) fn put_text(to: *mut c_char, room: usize, value: &str) -> Result<(), i32> {
    if to.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let n = value.len().min(room - 1);
    // SAFETY: not null; the C caller vouches for `room` bytes at `to`.
    let room = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), room) };
    room[..n].copy_from_slice(&value.as_bytes()[..n]);
    room[n] = 0;
    Ok(())
}

/// Locks the mutex even if a thread has panicked while holding it, because the findings of other threads are still needed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
