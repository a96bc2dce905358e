//! Time of an all-reduce over ranks of one or several hosts: the better of a ring and a tree.
//!
//! Both are counted as in NCCL's own tuning: a latency per hop, within hosts or between them, and bytes over the bandwidth of the
//! narrowest link. A ring takes 2(n-1) hops, two per host between hosts; a tree is a chain within each host and binary between hosts.
//! Each rank of a ring sends 2(n-1)/n of the bytes, of a tree all of them twice, at 0.92 of the bandwidth.
//!
//! Source: NCCL, `src/graph/tuning.cc` (`ncclTopoTuneModel`); `doc/PERFORMANCE.md` of nccl-tests for bus bandwidth.

/// Bandwidth of a tree relative to a ring.
const TREE_BANDWIDTH: f64 = 0.92;

/// A link between devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Start of a collective, in µs.
    pub base_us: f64,
    /// Latency of a hop in a ring, in µs.
    pub ring_hop_us: f64,
    /// Latency of a hop in a tree, in µs.
    pub tree_hop_us: f64,
    /// Bus bandwidth of large all-reduces, of all devices of a host together where it is a network.
    pub gb_per_s: f64,
}

/// Ranks on hosts and the links between them.
#[derive(Debug, Clone, Copy)]
pub struct Topology {
    /// Ranks.
    pub n_ranks: usize,
    /// Ranks of a host.
    pub per_host: usize,
    /// Link within a host.
    pub within: Link,
    /// Link between hosts.
    pub between: Link,
}

impl Topology {
    /// Ranks of a full host.
    pub fn local_ranks(&self) -> usize {
        self.n_ranks.min(self.per_host)
    }

    /// The time in ms of an all-reduce of `bytes`.
    pub fn all_reduce_ms(&self, bytes: usize) -> f64 {
        let n_hosts = self.n_ranks.div_ceil(self.per_host);
        let (n, local) = (self.n_ranks as f64, self.local_ranks() as f64);
        if self.n_ranks < 2 {
            return 0.0;
        }
        let Topology { within, between, .. } = self;
        let between_hops = if n_hosts > 1 { 2.0 * n_hosts as f64 } else { 0.0 };
        let bandwidth = match (n_hosts, self.local_ranks()) {
            (1, _) => within.gb_per_s,
            (_, 1) => between.gb_per_s,
            _ => within.gb_per_s.min(between.gb_per_s),
        };
        let base_us = if n_hosts > 1 { within.base_us.max(between.base_us) } else { within.base_us };
        let us = |gb: f64| gb / bandwidth * 1e6;
        let gb = bytes as f64 * 1e-9;
        let ring_hops = (2.0 * (n - 1.0) - between_hops).max(0.0);
        let ring = ring_hops * within.ring_hop_us
            + between_hops * between.ring_hop_us
            + us(2.0 * (n - 1.0) / n * gb);
        let depth = (n_hosts as f64).log2().ceil();
        let tree = 2.0 * ((local - 1.0) * within.tree_hop_us + depth * between.tree_hop_us)
            + us(2.0 * gb / TREE_BANDWIDTH);
        (base_us + ring.min(tree)) * 1e-3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::hardware::{GPU_NETWORK, Hardware};

    fn on_hosts(name: &str, n_ranks: usize) -> Topology {
        let hardware = Hardware::named(name).unwrap();
        let between = Link { gb_per_s: 8.0 * hardware.network_gb_per_s, ..GPU_NETWORK };
        Topology { n_ranks, per_host: 8, within: hardware.within, between }
    }

    /// Bus bandwidth of all-reduces of `mib`, in GB/s.
    fn bus_gb_per_s(topology: &Topology, mib: usize) -> f64 {
        let n = topology.n_ranks as f64;
        2.0 * (n - 1.0) / n * (mib << 20) as f64 / topology.all_reduce_ms(mib << 20) * 1e-6
    }

    /// Published figures of 8 H200, NCCL with NVLink SHARP (nccl-tests, `all_reduce_perf`), and of 8 A100 (NVIDIA/nccl-tests issue 149).
    #[test]
    fn published_bandwidths_of_eight_gpus_are_met_within_a_quarter() {
        let of_h200 = [(1, 40.0), (4, 107.0), (32, 276.0), (64, 347.0), (128, 402.0), (16 << 10, 482.0)];
        let of_a100 = [(1 << 10, 200.0)];
        let cases = of_h200.map(|case| ("h200", case)).into_iter().chain(of_a100.map(|case| ("a100", case)));
        for (name, (mib, published)) in cases {
            let got = bus_gb_per_s(&on_hosts(name, 8), mib);
            assert!(
                (got / published - 1.0).abs() <= 0.25,
                "{name}, {mib} MiB: {got} GB/s, published {published}"
            );
        }
    }

    #[test]
    fn trees_serve_many_hosts_and_rings_large_sums() {
        let many = on_hosts("h100", 1024);
        // 128 hosts: a ring would take 2046 hops, 256 of them between hosts.
        assert!(many.all_reduce_ms(1 << 10) < 0.2, "{}", many.all_reduce_ms(1 << 10));
        assert!(many.all_reduce_ms(1 << 30) > on_hosts("h100", 8).all_reduce_ms(1 << 30));
        assert_eq!(on_hosts("h100", 1).all_reduce_ms(1 << 30), 0.0);
        // Twice the bytes of a large sum take twice as long.
        let eight = on_hosts("h100", 8);
        let ratio = eight.all_reduce_ms(2 << 30) / eight.all_reduce_ms(1 << 30);
        assert!((1.9..=2.0).contains(&ratio), "{ratio}");
    }
}
