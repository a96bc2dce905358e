//! Targets and outputs of models with several heads.

pub(crate) mod head_outputs;
