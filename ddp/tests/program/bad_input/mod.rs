//! Every invalid input gets a clear answer from the real program: the problem, its place, and a hint; the right exit status; and
//! no changes on disk.

mod arrays;
mod bombs;
mod columns;
mod config;
mod cut_files;
mod data;
mod file_sets;
mod folder;
pub(crate) mod harness;
mod model_file;
mod ranks;
mod run_files;
mod special_files;
mod usage;
