//! The groups that joined the ranks' devices, one after the other: the last one is in use, and a trial may end each of the others.

use std::cell::OnceCell;

use crate::{Group, Result};

/// Times that devices can be joined: with all features, without registered buffers, and without graphs.
const MAX_JOINS: usize = 4;

/// The groups in order.
#[derive(Debug, Default)]
pub(crate) struct DeviceGroups([OnceCell<Group>; MAX_JOINS]);

impl DeviceGroups {
    /// The group in use, once there is one.
    pub(crate) fn get(&self) -> Option<&Group> {
        self.0.iter().rev().find_map(OnceCell::get)
    }

    /// Puts `group` to use in place of the one before.
    ///
    /// # Panics
    /// If devices were joined too often.
    pub(crate) fn push(&self, group: Group) {
        let free = self.0.iter().find(|cell| cell.get().is_none());
        let is_kept = free.is_some_and(|cell| cell.set(group).is_ok());
        assert!(is_kept, "devices are joined at most {MAX_JOINS} times");
    }

    /// Closes the group in use; those before are closed already.
    pub(crate) fn close(self) -> Result<()> {
        let last = self.0.into_iter().filter_map(OnceCell::into_inner).next_back();
        last.map_or(Ok(()), Group::close)
    }
}
