//! Subcommands and their command lines: arguments, output, logs, and the commands that read a finished run or a table.

mod bench;
mod calibrate;
mod command_line;
mod config_schema;
mod describe;
mod devices;
mod doctor;
mod ensembles;
mod export;
mod find;
mod held_out;
mod importance;
mod logging;
mod other_names;
mod output;
mod plan;
mod predict;
mod predict_ended;
mod predict_odd;
mod predict_places;
mod report;
mod runs;
mod shared_weights;
mod short_commands;
mod sweep;
