//! Tables as other programs write them: types, marks of missing values, spellings, files of pandas and NumPy.

mod bare;
mod digits_kept;
mod contents;
mod from_pandas;
#[cfg(feature = "parquet")]
mod kept_types;
#[cfg(feature = "parquet")]
mod list_elements;
#[cfg(feature = "parquet")]
mod marks;
mod meanings;
mod missing_targets;
mod odd;
mod rare_categories;
