//! Division of rows into those to train on and those to evaluate on.

pub(crate) mod class_rows;
pub mod held_out;
pub mod own_eval;
pub(crate) mod split_values;
pub(crate) mod column_split;
