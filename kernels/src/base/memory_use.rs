//! Uses of device memory, and the bytes of each.

use std::fmt;

crate::named_enum! {
    /// Uses of device memory, for reports and errors.
    pub enum MemoryUse {
        /// Master weights, and compute weights in shorter formats.
        Parameters = "parameters",
        /// Gradients of the weights.
        Gradients = "gradients",
        /// The optimizer's state.
        Optimizer = "optimizer",
        /// Moving average of the weights.
        Average = "average",
        /// Activations that backward needs, and their gradients.
        Activations = "activations",
        /// Scratch memory.
        Workspace = "workspace",
        /// Rows for training or evaluation.
        Data = "data",
        /// Anything else.
        Other = "other",
    }
}

/// Bytes in use on a device, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryInUse {
    /// Bytes of each [`MemoryUse`], in the order of [`MemoryUse::ALL`].
    pub bytes: [usize; MemoryUse::ALL.len()],
    /// Bytes that the device has free for any process.
    pub free: usize,
    /// Total bytes of the device.
    pub total: usize,
}

impl MemoryInUse {
    /// Bytes of all uses.
    pub fn allocated(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// The use that takes the most bytes.
    pub fn largest(&self) -> MemoryUse {
        let of = |kind: &MemoryUse| self.bytes[*kind as usize];
        MemoryUse::ALL.into_iter().max_by_key(of).expect("there is more than one use")
    }

    /// Whether other processes hold most of the device's memory.
    pub fn is_held_by_others(&self) -> bool {
        self.allocated() < self.total / 4 && self.free < self.total / 4
    }
}

impl fmt::Display for MemoryInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        write!(f, "{:.1} MiB in use", mib(self.allocated()))?;
        let mut uses: Vec<_> =
            MemoryUse::ALL.iter().zip(self.bytes).filter(|(_, bytes)| *bytes > 0).collect();
        uses.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        for (index, (kind, bytes)) in uses.iter().enumerate() {
            write!(f, "{}{} {:.1}", if index == 0 { " (" } else { ", " }, kind.name(), mib(*bytes))?;
        }
        let close = if uses.is_empty() { "" } else { ")" };
        write!(f, "{close}; {:.1} MiB of {:.1} MiB free on the device", mib(self.free), mib(self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_names_the_largest_use_first() {
        let mut in_use = MemoryInUse { free: 3 << 20, total: 16 << 20, ..Default::default() };
        in_use.bytes[MemoryUse::Gradients as usize] = 1 << 20;
        in_use.bytes[MemoryUse::Activations as usize] = 8 << 20;
        assert_eq!(
            in_use.to_string(),
            "9.0 MiB in use (activations 8.0, gradients 1.0); 3.0 MiB of 16.0 MiB free on the device"
        );
        assert!(MemoryInUse::default().to_string().starts_with("0.0 MiB in use; "));
    }
}
