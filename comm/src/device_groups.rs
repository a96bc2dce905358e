//! The groups that joined the ranks' devices, one after the other: the last one is in use, and a trial may end each of the others.

use std::cell::OnceCell;

use crate::{Group, Result};

/// The groups in order.
#[derive(Debug, Default)]
pub(crate) struct DeviceGroups(OnceCell<Box<Joined>>);

/// A group, and those after it.
#[derive(Debug)]
struct Joined {
    group: Group,
    next: DeviceGroups,
}

impl DeviceGroups {
    /// The group in use, once there is one.
    pub(crate) fn get(&self) -> Option<&Group> {
        let joined = self.0.get()?;
        joined.next.get().or(Some(&joined.group))
    }

    /// Puts `group` to use in place of the one before.
    pub(crate) fn push(&self, group: Group) {
        match self.0.get() {
            Some(joined) => joined.next.push(group),
            None => drop(self.0.set(Box::new(Joined { group, next: DeviceGroups::default() }))),
        }
    }

    /// Closes the group in use; those before are closed already.
    pub(crate) fn close(self) -> Result<()> {
        match self.0.into_inner() {
            None => Ok(()),
            Some(joined) if joined.next.0.get().is_some() => joined.next.close(),
            Some(joined) => joined.group.close(),
        }
    }
}
