//! Words about the memory that rows may take: the config's, or the container's where it allows less.

use ddp::host_memory::{container_share, size};

/// The limit of rows, as the end of a sentence.
pub(crate) fn limit(limit_mib: u64) -> String {
    words(limit_mib, container_share())
}

/// Way out in a container, as the end of the hint to raise the limit; empty elsewhere.
pub(crate) fn way_out(needed_mib: u64, limit_mib: u64) -> String {
    hint(needed_mib, limit_mib, container_share())
}

/// Whether this limit is what the container leaves: half or a quarter of a rank's share by default, three quarters at most.
fn is_of_container(limit_mib: u64, share: u64) -> bool {
    [share / 4, share / 2, share / 4 * 3].map(|bytes| bytes >> 20).contains(&limit_mib)
}

fn words(limit_mib: u64, share: Option<u64>) -> String {
    match share.filter(|share| is_of_container(limit_mib, *share)) {
        Some(share) => {
            format!("this container allows each rank {}, of which rows may take {limit_mib} MiB", size(share))
        }
        None => format!("`data.loader_memory_mib` allows {limit_mib}"),
    }
}

fn hint(needed_mib: u64, limit_mib: u64, share: Option<u64>) -> String {
    match share.filter(|share| is_of_container(limit_mib, *share)) {
        Some(share) if needed_mib <= (share / 4 * 3) >> 20 => {
            format!("; this container has room for `data.loader_memory_mib = {needed_mib}`")
        }
        Some(_) => ": that of this container".to_owned(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_container_is_named() {
        const GIB: u64 = 1 << 30;
        assert_eq!(words(1024, None), "`data.loader_memory_mib` allows 1024");
        assert_eq!(words(16, Some(GIB)), "`data.loader_memory_mib` allows 16");
        assert_eq!(
            words(512, Some(GIB)),
            "this container allows each rank 1.0 GiB, of which rows may take 512 MiB"
        );
        assert_eq!(hint(3000, 1024, None), "");
        assert_eq!(hint(700, 512, Some(GIB)), "; this container has room for `data.loader_memory_mib = 700`");
        assert_eq!(hint(3174, 512, Some(GIB)), ": that of this container");
        assert_eq!(hint(3174, 16, Some(GIB)), "");
    }
}
