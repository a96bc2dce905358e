//! Checkpoints on disk: written values are restored on any number of ranks, every damage is detected, and a complete checkpoint
//! exists after any failure at any moment.

mod command;
mod damage;
mod faults;
mod faulty_disk;
mod fixture;
mod full_disk;
mod keep;
mod kills;
mod large;
mod names;
mod other_run;
mod pytorch;
mod ranks;
mod round_trip;
mod writer;
