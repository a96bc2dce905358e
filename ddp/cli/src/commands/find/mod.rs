//! `ddp-train find-lr` and `find-batch-size`: settings of a run that its data, model and devices decide, by steps of the run itself.
//!
//! They prepare the run as `train` does, and write nothing.

mod lr;
mod batch_size;

pub use self::batch_size::find_batch_size;
pub use self::lr::find_lr;

use ddp_comm::World;

use crate::cli::TrainArgs;
use crate::commands::train::train_command;
use crate::error::command::CommandError;

/// Refuses flags about the folder of a run.
fn refuse_folder(args: &TrainArgs) -> Result<(), CommandError> {
    args.flag_of_folder().map_or(Ok(()), |flag| Err(CommandError::NoFolder { flag }))
}

/// The command that trains this run with these values of keys.
fn next_command(world: &World, args: &TrainArgs, sets: &[(&str, String)]) -> String {
    let mut words = args.run.words_with(sets);
    if let Some(path) = &args.init_from {
        words.extend(["--init-from".to_owned(), path.display().to_string()]);
        words.extend(args.refit_preprocessing.then(|| "--refit-preprocessing".to_owned()));
        words.extend(args.new_head.then(|| "--new-head".to_owned()));
    }
    train_command(world, args, &words)
}
