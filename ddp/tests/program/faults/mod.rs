//! Runs with faults: bad steps, failing disks, lost folders, signals at any moment.

mod bad_steps;
mod disk_faults;
mod forged_models;
mod failure;
mod lost_folder;
mod lost_launcher;
mod memory_limit;
mod signals;
