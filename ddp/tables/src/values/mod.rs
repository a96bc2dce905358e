//! Values of columns: types of elements, strings, numbers, dates and times, and conditions on them.
//!
//! ```
//! use ddp_tables::values::time;
//!
//! let moment = time::parse("1970-01-02T00:00:01Z").expect("a date");
//! assert_eq!(moment.seconds, 86_401.0);
//! ```

pub mod element;
pub mod texts;
pub mod time;
pub mod number;
pub mod notation;
pub mod filter;
