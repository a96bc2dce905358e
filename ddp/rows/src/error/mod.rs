//! Errors of files of rows, one file per kind; their union is [`RowsError`].
//!
//! ```
//! use ddp_rows::error::CellProblem;
//!
//! let problem = CellProblem::NotFinite { text: "inf".to_owned() };
//! assert_eq!(problem.to_string(), "expected a finite number, got \"inf\"");
//! ```

mod write_error;
pub mod formatted;
mod cell_problem;
mod column_error;
mod csv_error;
mod rows_error;

pub use cell_problem::CellProblem;
pub use column_error::ColumnError;
pub use csv_error::CsvError;
pub use rows_error::{Result, RowsError};
pub use write_error::{FILE_TOO_LARGE, WriteError, is_out_of_inodes};
