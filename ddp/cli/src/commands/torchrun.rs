//! Detects processes of PyTorch's launcher: without MPI each of them would train alone, on the same data, into the same folder.

use ddp_comm::World;

use crate::cli::Command;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Refuses commands that compute on ranks if `torchrun` started this process as one of several.
///
/// # Errors
/// [`CommandError::Torchrun`].
pub fn refuse_torchrun(world: &World, command: &Command) -> Result<(), Stop> {
    let uses_ranks = matches!(command, Command::Train(_) | Command::Eval(_) | Command::Predict(_));
    match refusal(world).filter(|_| uses_ranks) {
        None => Ok(()),
        Some(refusal) => Err(refusal.into()),
    }
}

/// The error if `torchrun` started this process as one of several.
pub(super) fn refusal(world: &World) -> Option<CommandError> {
    let (rank, world_size) = match world.launcher() {
        None => found(|name| std::env::var(name).ok())?,
        Some(_) => return None,
    };
    let arguments: Vec<_> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    Some(CommandError::Torchrun { rank, world_size, arguments: arguments.join(" ") })
}

/// Rank and number of processes, if `torchrun` started more than one.
///
/// Source: PyTorch, `torch.distributed.run`, "Environment Variables".
fn found(lookup: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let number = |name: &str| lookup(name)?.trim().parse::<usize>().ok();
    lookup("MASTER_ADDR").filter(|address| !address.is_empty())?;
    Some((number("RANK")?, number("WORLD_SIZE").filter(|n| *n > 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_variables_and_several_processes_are_needed() {
        let found = |vars: &[(&str, &str)]| {
            found(|name| vars.iter().find(|var| var.0 == name).map(|var| var.1.to_owned()))
        };
        let all = [("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "localhost")];
        assert_eq!(found(&all), Some((1, 2)));
        for missing in 0..3 {
            let rest: Vec<_> = (0..3).filter(|i| *i != missing).map(|i| all[i]).collect();
            assert_eq!(found(&rest), None);
        }
        assert_eq!(found(&[("WORLD_SIZE", "1"), all[1], all[2]]), None);
    }
}
