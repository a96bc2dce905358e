//! The ranks of a host that predict or evaluate hold a model's weights once.

use std::fs;

use ddp_comm::threads;
use ddp_kernels::{Device, Tensor};
use ddp_tables::predict::SavedModel;

use crate::common::ddp_folder;

/// Whether the tensor lies in a file in memory, which the ranks of a host map.
fn is_mapped(tensor: &Tensor) -> bool {
    let at = tensor.view().as_slice::<f32>("test", "weights").unwrap().as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        (address(start)..address(end)).contains(&at)
    });
    line.is_some_and(|line| line.contains("/memfd:"))
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn ranks_of_a_host_map_one_copy_and_a_rank_that_changes_it_has_its_own() {
    let run = ddp_folder().join("tests/fixtures/saved_runs/regression/finished");
    for n_ranks in [1, 3] {
        let on_rank = |world: &ddp_comm::World| {
            let saved = SavedModel::open(&run).unwrap();
            let own = saved.network(8, Device::Cpu).unwrap();
            let mut network = saved.network_of_ranks(world, 8, Device::Cpu).unwrap();
            assert!(!is_mapped(own.weights()));
            assert_eq!(is_mapped(network.weights()), n_ranks > 1, "{n_ranks} ranks");
            assert_eq!(bits(network.weights()), bits(own.weights()));
            world.group().barrier().unwrap();
            if world.rank().0 == 0 {
                let zeros = Tensor::zeros(own.weights().dims(), own.weights().dtype(), Device::Cpu).unwrap();
                network.set_weights(zeros.view()).unwrap();
            }
            world.group().barrier().unwrap();
            assert_eq!(bits(network.weights()) == bits(own.weights()), world.rank().0 > 0);
        };
        threads::run(n_ranks, |world| on_rank(&world));
    }
}
