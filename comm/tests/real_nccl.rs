//! Checks that the installed NCCL has every function that is called; needs no GPU.

#![allow(clippy::print_stdout)]

use ddp_kernels::cuda::library::{self, Library};

#[test]
fn the_functions_that_are_called_exist() {
    match library::open(Library::Nccl, i32::MAX) {
        Err(why) => println!("skipped: needs libnccl: {why}"),
        Ok(open) => {
            // There is a version only if all functions were found.
            let version = ddp_comm::nccl_version();
            assert!(version.is_some(), "{} lacks a function", open.path.display());
            println!("{}: NCCL {}", open.path.display(), version.unwrap_or_default());
        }
    }
}
