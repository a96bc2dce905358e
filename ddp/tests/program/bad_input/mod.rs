//! Every bad input gets a clear answer from the real program: what is wrong, where, and a way out; the right exit status;
//! and nothing on disk is touched.

mod arrays;
mod bombs;
mod columns;
mod config;
mod cut_files;
mod data;
mod file_sets;
mod folder;
mod harness;
mod model_file;
mod ranks;
mod special_files;
mod usage;
