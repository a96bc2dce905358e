//! Embeddings of categorical features: names, sizes and keys of their tables.
//!
//! The last columns of the input hold codes, integers in `0..n_codes`, one column per feature; code 0 stands for a value that was
//! not seen in training. Each code is replaced by its row of a learned table, so that the input of the first linear layer is the
//! numeric features followed by these rows.
//!
//! ```
//! use ddp::model::EmbeddingSpec;
//!
//! let table = EmbeddingSpec { name: "zip.code".to_owned(), n_codes: 100, dim: 8 };
//! assert_eq!(format!("embeddings.{}.weight", table.key()), "embeddings.zip%2Ecode.weight");
//! ```

use std::collections::HashSet;

use ddp_kernels::ops::EmbeddingTable;

use crate::data::EmbeddingSpec;

/// Attributes of `torch.nn.ModuleDict`, which it rejects as keys.
const PYTORCH_ATTRIBUTES: &[&str] = &[
    "T_destination",
    "add_module",
    "apply",
    "bfloat16",
    "buffers",
    "call_super_init",
    "children",
    "clear",
    "compile",
    "cpu",
    "cuda",
    "double",
    "dump_patches",
    "eval",
    "extra_repr",
    "float",
    "forward",
    "get_buffer",
    "get_extra_state",
    "get_parameter",
    "get_submodule",
    "half",
    "ipu",
    "items",
    "keys",
    "load_state_dict",
    "modules",
    "mtia",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "pop",
    "register_backward_hook",
    "register_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_module",
    "register_parameter",
    "register_state_dict_post_hook",
    "register_state_dict_pre_hook",
    "requires_grad_",
    "set_extra_state",
    "set_submodule",
    "share_memory",
    "state_dict",
    "to",
    "to_empty",
    "train",
    "training",
    "type",
    "update",
    "values",
    "xpu",
    "zero_grad",
];

/// Widest row of a table, as wide as the widest layer.
const MAX_DIM: usize = 1 << 24;

impl EmbeddingSpec {
    /// The feature's name within its parameter's name, `embeddings.{key}.weight`, and as a key of PyTorch's `ModuleDict`.
    /// Letters, digits, `_` and `-` are kept; any other character becomes `%` and two hexadecimal digits for each of its bytes. A
    /// `%` at the end marks names that `ModuleDict` rejects as keys: the empty name, its own attributes, and names that begin
    /// with `_`. So `zip.code` becomes `zip%2Ecode`, and `type` becomes `type%`. Different names have different keys.
    pub fn key(&self) -> String {
        let mut key = String::new();
        for c in self.name.chars() {
            if c.is_alphanumeric() || c == '_' || c == '-' {
                key.push(c);
            } else {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| key += &format!("%{byte:02X}"));
            }
        }
        let is_refused = key.is_empty() || key.starts_with('_') || PYTORCH_ATTRIBUTES.contains(&key.as_str());
        if is_refused { key + "%" } else { key }
    }

    /// Checks that a model whose input has `n_features` columns can have these embeddings; returns the reason if it can't.
    pub(crate) fn check(embeddings: &[EmbeddingSpec], n_features: usize) -> Result<(), String> {
        if embeddings.len() > n_features {
            return Err(format!("{} embeddings of {n_features} columns", embeddings.len()));
        }
        let mut names = HashSet::new();
        for embedding in embeddings {
            let EmbeddingSpec { name, n_codes, dim } = embedding;
            if !names.insert(name) {
                return Err(format!("two embeddings of '{name}'"));
            }
            if *n_codes == 0 || *n_codes > EmbeddingTable::MAX_CODES || !(1..=MAX_DIM).contains(dim) {
                let most = EmbeddingTable::MAX_CODES;
                return Err(format!(
                    "the embedding of '{name}' is {n_codes} x {dim}; 1 to {most} codes, 1 to {MAX_DIM} wide"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> String {
        EmbeddingSpec { name: name.to_owned(), n_codes: 2, dim: 1 }.key()
    }

    #[test]
    fn keys_are_plain_and_those_of_other_names_differ() {
        let cases = [
            ("city", "city"),
            ("city-2_a", "city-2_a"),
            ("Städte", "Städte"),
            ("zip.code", "zip%2Ecode"),
            ("zip code", "zip%20code"),
            ("zip%20code", "zip%2520code"),
            ("€/m", "%E2%82%AC%2Fm"),
            ("", "%"),
            ("type", "type%"),
            ("type%", "type%25"),
            ("_modules", "_modules%"),
            ("Type", "Type"),
        ];
        for (name, want) in cases {
            assert_eq!(key(name), want);
        }
        let keys: HashSet<_> = cases.iter().map(|(name, _)| key(name)).collect();
        assert_eq!(keys.len(), cases.len());
    }

    #[test]
    fn what_cannot_be_is_told_by_name() {
        let spec = |name: &str, n_codes, dim| EmbeddingSpec { name: name.to_owned(), n_codes, dim };
        let check = |specs: &[EmbeddingSpec]| EmbeddingSpec::check(specs, 2);
        assert!(check(&[spec("a", 2, 1), spec("b", 1 << 24, 3)]).is_ok());
        for (specs, told) in [
            (vec![spec("a", 2, 1), spec("a", 3, 1)], "two embeddings of 'a'"),
            (vec![spec("a", 0, 1)], "the embedding of 'a' is 0 x 1"),
            (vec![spec("a", (1 << 24) + 1, 1)], "of 'a' is 16777217 x 1"),
            (vec![spec("a", 2, 0)], "of 'a' is 2 x 0"),
            (vec![spec("a", 2, (1 << 24) + 1)], "of 'a' is 2 x 16777217"),
            (vec![spec("a", 2, 1), spec("b", 2, 1), spec("c", 2, 1)], "3 embeddings of 2 columns"),
        ] {
            let message = check(&specs).unwrap_err();
            assert!(message.contains(told), "{message}");
        }
    }
}
