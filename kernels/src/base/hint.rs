//! An error as text: its message, then its hint on a line of its own.
//!
//! ```
//! use ddp_kernels::Device;
//! use ddp_kernels::hint::with_hint;
//!
//! let error = "gpu".parse::<Device>().unwrap_err();
//! assert_eq!(error.to_string(), "unknown device 'gpu'");
//! assert_eq!(with_hint(&error), "unknown device 'gpu'\nhint: cpu, cuda, cuda:N (N from 0), or auto");
//! ```

use miette::Diagnostic;

/// The message of an error, and its hint, if it has one.
pub fn with_hint(error: &dyn Diagnostic) -> String {
    joined(error.to_string(), error.help().map(|hint| hint.to_string()).as_deref())
}

/// A message and its hint.
pub fn joined(message: String, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{message}\nhint: {hint}"),
        None => message,
    }
}
