//! Checkpoints on disk: what is written comes back on any number of ranks, every damage is found, and whatever fails at
//! whatever moment, a whole checkpoint is there.

mod command;
mod damage;
mod faults;
mod faulty_disk;
mod fixture;
mod full_disk;
mod keep;
mod kills;
mod large;
mod other_run;
mod pytorch;
mod ranks;
mod round_trip;
mod writer;
