//! GPUs of this host whose faults end attempts: after two of them a GPU is left out, if enough others remain.

use std::collections::BTreeMap;

/// Faults of a GPU after which it is left out.
const MAX_FAULTS: usize = 2;

/// The GPUs that have failed in this job.
#[derive(Debug, Default)]
pub(crate) struct FaultyGpus {
    /// UUIDs of all GPUs, as they were listed first: a broken one may be missing later, and keep others from being listed.
    all: Vec<String>,
    /// Faults by UUID.
    n_faults: BTreeMap<String, usize>,
    /// UUIDs of those that are left out.
    left_out: Vec<String>,
}

impl FaultyGpus {
    /// Number of all GPUs, which `list` names, unless they were listed before.
    pub(crate) fn n_listed(&mut self, list: impl FnOnce() -> Vec<String>) -> usize {
        if self.all.is_empty() {
            self.all = list();
        }
        self.all.len()
    }

    /// Notes a fault of the GPU `uuid`; returns whether it is left out from now on. Then at least `least` GPUs remain.
    pub(crate) fn has_failed(&mut self, uuid: &str, least: usize) -> bool {
        let n_faults = self.n_faults.entry(uuid.to_owned()).or_default();
        *n_faults += 1;
        let is_left_out = *n_faults >= MAX_FAULTS && self.all.iter().any(|other| other == uuid);
        let n_left = self.others().filter(|other| *other != uuid).count();
        if is_left_out && n_left >= least.max(1) && !self.left_out.iter().any(|other| other == uuid) {
            self.left_out.push(uuid.to_owned());
            return true;
        }
        false
    }

    /// GPUs that are not left out.
    fn others(&self) -> impl Iterator<Item = &str> {
        let is_used = |uuid: &&str| !self.left_out.iter().any(|other| other == uuid);
        self.all.iter().map(String::as_str).filter(is_used)
    }

    /// The GPUs that remain, as CUDA_VISIBLE_DEVICES names them, and their number; None if all do.
    pub(crate) fn remaining(&self) -> Option<(String, usize)> {
        let others: Vec<&str> = self.others().collect();
        (!self.left_out.is_empty()).then(|| (others.join(","), others.len()))
    }
}

/// The first UUID of a GPU, or of an instance of one, in a message.
pub(crate) fn uuid_in(text: &str) -> Option<&str> {
    const PREFIXES: [&str; 2] = ["GPU-", "MIG-"];
    const LEN: usize = 36;
    let starts = text.match_indices('-').filter_map(|(dash, _)| dash.checked_sub(3));
    starts.filter_map(|start| text.get(start..start + 4 + LEN)).find(|word| {
        let (prefix, digits) = word.split_at(4);
        PREFIXES.contains(&prefix) && digits.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-76697274-7561-6c20-4750-552020203031";

    #[test]
    fn the_uuid_of_a_message_is_found() {
        let text = format!("rank 1 - cuda:0: an error on Virtual GPU, {UUID}, PCI 0000:01:00.0, host a");
        assert_eq!(uuid_in(&text), Some(UUID));
        for text in ["", "GPU-1234", "a GPU-zz697274-7561-6c20-4750-552020203031", "é-GPU-"] {
            assert_eq!(uuid_in(text), None, "{text}");
        }
    }

    #[test]
    fn a_gpu_is_left_out_after_two_faults_if_enough_remain() {
        let mut gpus = FaultyGpus::default();
        assert!(!gpus.has_failed("b", 0) && !gpus.has_failed("b", 0), "nothing is listed");
        let mut gpus = FaultyGpus::default();
        assert_eq!(gpus.n_listed(|| ["a", "b", "c"].map(str::to_owned).into()), 3);
        assert_eq!(gpus.n_listed(Vec::new), 3, "as they were listed first");
        assert!(!gpus.has_failed("b", 2), "once");
        assert_eq!(gpus.remaining(), None);
        assert!(gpus.has_failed("b", 2));
        assert_eq!(gpus.remaining(), Some(("a,c".to_owned(), 2)));
        assert!(!gpus.has_failed("c", 2) && !gpus.has_failed("c", 2), "two are needed");
        assert!(gpus.has_failed("c", 1));
        assert!(!gpus.has_failed("a", 0) && !gpus.has_failed("a", 0), "the last one stays");
        assert!(!gpus.has_failed("x", 0) && !gpus.has_failed("x", 0), "of another host");
    }
}
