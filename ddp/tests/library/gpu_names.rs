//! Checks the names of these tests: `tests/vgpu/all` runs exactly those with "gpu" in their names on virtual GPUs.

use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, Item, ItemFn};

/// Functions that provide GPUs for a test.
const TAKE_GPUS: [&str; 2] = ["gpus", "cpu_and_gpu"];

#[test]
fn a_test_that_takes_a_gpu_says_so_in_its_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library");
    let mut n_on_gpus = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        for test in file.items.into_iter().filter_map(test) {
            let mut calls = Calls { takes_gpus: false };
            calls.visit_item_fn(&test);
            if calls.takes_gpus {
                let name = test.sig.ident.to_string();
                assert!(name.contains("gpu"), "{}: {name}", path.display());
                n_on_gpus += 1;
            }
        }
    }
    assert!(n_on_gpus > 20, "{n_on_gpus} tests that take GPUs: the functions for them have other names now");
}

fn test(item: Item) -> Option<ItemFn> {
    match item {
        Item::Fn(function) => function.attrs.iter().any(|a| a.path().is_ident("test")).then_some(function),
        _ => None,
    }
}

/// Records whether one of [`TAKE_GPUS`] is called.
struct Calls {
    takes_gpus: bool,
}

impl Visit<'_> for Calls {
    fn visit_expr_call(&mut self, call: &ExprCall) {
        if let Expr::Path(function) = &*call.func {
            self.takes_gpus |= TAKE_GPUS.iter().any(|name| function.path.is_ident(name));
        }
        visit::visit_expr_call(self, call);
    }
}
