//! Names of errors, and the version.

use crate::abi::{api, put};
use crate::code;
use crate::config::CONFIG;
use std::ffi::{CString, c_char, c_int};

api! {
    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, CONFIG.driver_version)?;
    }

    fn cuGetErrorName(error: c_int, name: *mut *const c_char) {
        put(name, texts(error).0)?;
    }

    fn cuGetErrorString(error: c_int, what: *mut *const c_char) {
        put(what, texts(error).1)?;
    }
}

fn texts(error: c_int) -> (*const c_char, *const c_char) {
    match code::describe(error) {
        Some((name, what)) => (name.as_ptr(), what.as_ptr()),
        None => {
            // Leaked, because the client may keep it; there are few such codes.
            let name = CString::new(format!("CUDA_ERROR_{error}")).unwrap_or_default();
            (name.into_raw(), c"see the number".as_ptr())
        }
    }
}
