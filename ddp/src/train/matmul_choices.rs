//! Algorithms and forms of a step's matmuls on GPUs, chosen by time before the first step of each shape, and the same on all ranks
//! with one GPU model: those of the first of these ranks. Timing uses scratch memory. A checkpoint keeps the
//! choices, so that a resumed run computes alike.

use ddp_comm::World;
use ddp_kernels::cuda::{Event, Gpu};
use tracing::debug;

use crate::train::error::Result;
use crate::train::step::{Replica, StepPurpose};
use crate::train::step_info::StepShape;
use crate::train::step_inputs::StepInputs;

/// Chooses the matmuls of a step with these inputs, and agrees on them with the other ranks. Collective.
pub(crate) fn choose(
    replica: &mut Replica<'_>,
    gpu: &'static Gpu,
    inputs: StepInputs<'_>,
    shape: StepShape,
) -> Result<()> {
    let world = replica.world;
    // What is under way would disturb the times, and may wait for other ranks.
    let done = Event::untimed(gpu)?;
    done.record(gpu.compute())?;
    world.tensor_group().wait_until(|| done.is_done())?;
    let kept = replica.model.copy_of_buffers()?;
    gpu.choose_matmuls(|| replica.step(inputs, shape, StepPurpose::Rehearsal))?;
    replica.model.restore_buffers(&kept)?;
    share(world, gpu)?;
    if world.local_rank().0 == 0 {
        gpu.store_matmul_choices()?;
    }
    debug!("{} choices of matmuls by time are in use", gpu.matmul_choices()?.len());
    Ok(())
}

/// Takes over the choices of all ranks with this GPU model; of several about one matmul those of the first rank. Collective.
fn share(world: &World, gpu: &'static Gpu) -> Result<()> {
    if world.world_size() == 1 {
        return Ok(());
    }
    let own = gpu.export_matmul_choices()?;
    let all = world.group().all_gather_bytes(own.as_bytes())?;
    let all: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    gpu.import_matmul_choices(&merged(&own, all.iter().map(AsRef::as_ref)))?;
    Ok(())
}

/// The lines of all texts whose first line is that of `own`, after this line.
fn merged<'a>(own: &str, all: impl Iterator<Item = &'a str>) -> String {
    let (name, _) = own.split_once('\n').unwrap_or((own, ""));
    let mut text = format!("{name}\n");
    let alike = all.filter_map(|text| text.split_once('\n')).filter(|(other, _)| *other == name);
    alike.for_each(|(_, lines)| text += lines);
    text
}

/// The choices in use, or nothing where there are none.
pub(crate) fn export(gpu: &'static Gpu) -> Result<String> {
    let text = gpu.export_matmul_choices()?;
    Ok(if text.lines().nth(1).is_some() { text } else { String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_other_gpus_are_left_out_and_the_order_is_that_of_the_ranks() {
        let texts = ["A\n1\n2\n", "B\n3\n", "A\n4\n", "A\n", ""];
        assert_eq!(merged("A\n4\n", texts.into_iter()), "A\n1\n2\n4\n");
        assert_eq!(merged("B\n3\n", texts.into_iter()), "B\n3\n");
    }
}
