//! The decoded rows of a row group: this rank's own, or in a slot of memory that the ranks of the host share.

use ddp::data::datasets::resident::TargetSlice;
use ddp_comm::{EmptySlot, FilledSlot};

use crate::table::exact_columns::differences;
use crate::table::mapped_arrays::{ALIGNMENT, Arrays, Places, move_array};
use crate::table::rows::{TableRows, TargetCells};

/// Bytes before the places of the arrays, which are text: the length of that text.
const LEN_BYTES: usize = size_of::<u64>();

/// Rows of a group.
#[derive(Debug)]
pub(super) enum GroupRows {
    /// In memory of this rank.
    Own(Box<TableRows>),
    /// In a slot; the arrays begin at byte `start` of it.
    Shared { slot: FilledSlot, places: Box<Places>, start: usize },
}

impl GroupRows {
    /// Most bytes of a slot for `n_rows` rows of `n_columns` features and targets, `row_bytes` each with exact values.
    pub(super) fn slot_bytes(n_rows: usize, row_bytes: usize, n_columns: usize) -> u64 {
        (LEN_BYTES + Places::max_bytes(n_rows, row_bytes, n_columns)) as u64
    }

    /// Moves the rows to a slot for all ranks of the host; they stay this rank's own if they don't fit. `None` if the system has no memory
    /// for them: part of them is gone.
    pub(super) fn share(mut rows: TableRows, slot: EmptySlot) -> Option<Self> {
        let places = Box::new(Places::new(&arrays(&rows)));
        let text = serde_json::to_vec(&places).expect("numbers are JSON");
        let start = arrays_start(text.len());
        if (start + places.end()) as u64 > slot.len() {
            slot.refuse();
            return Some(GroupRows::Own(Box::new(rows)));
        }
        let write = |at: usize, bytes: &[u8]| slot.write((start + at) as u64, bytes);
        let features = std::mem::take(&mut rows.features);
        let written = slot
            .write(0, &(text.len() as u64).to_le_bytes())
            .and_then(|()| slot.write(LEN_BYTES as u64, &text))
            // Most of the memory is freed on the way.
            .and_then(|()| move_array(places.features.start, features, write))
            .and_then(|()| places.write(&arrays(&rows), write));
        match written {
            Ok(()) => Some(GroupRows::Shared { slot: slot.fill()?, places, start }),
            Err(_) => {
                slot.refuse();
                None
            }
        }
    }

    /// The rows that another rank has copied to a slot; `None` if it holds no rows.
    pub(super) fn from_slot(slot: FilledSlot) -> Option<Self> {
        let (len, rest) = slot.bytes().split_at_checked(LEN_BYTES)?;
        let len = usize::try_from(u64::from_le_bytes(len.try_into().ok()?)).ok()?;
        let places = serde_json::from_slice(rest.get(..len)?).ok()?;
        Some(GroupRows::Shared { slot, places, start: arrays_start(len) })
    }

    /// False if rows that were read before are lost.
    pub(super) fn is_intact(&self) -> bool {
        match self {
            GroupRows::Own(_) => true,
            GroupRows::Shared { slot, .. } => slot.is_intact(),
        }
    }

    /// `[n_rows, n_features]`.
    pub(super) fn features(&self) -> &[f32] {
        match self {
            GroupRows::Own(rows) => &rows.features,
            GroupRows::Shared { slot, places, start } => places.features(&slot.bytes()[*start..]),
        }
    }

    pub(super) fn targets(&self) -> TargetSlice<'_> {
        match self {
            GroupRows::Own(rows) => targets(rows),
            GroupRows::Shared { slot, places, start } => places.targets(&slot.bytes()[*start..]),
        }
    }

    pub(super) fn weights(&self) -> Option<&[f32]> {
        match self {
            GroupRows::Own(rows) => rows.weights.as_deref(),
            GroupRows::Shared { slot, places, start } => places.weights(&slot.bytes()[*start..]),
        }
    }

    /// Writes the features of a row minus `origin`.
    pub(super) fn differences(&self, row: usize, origin: &[f64], out: &mut [f64]) {
        match self {
            GroupRows::Own(rows) => rows.exact.differences(&rows.features, &[row], origin, out),
            GroupRows::Shared { slot, places, start } => {
                let exact = |feature| places.exact(&slot.bytes()[*start..], feature);
                differences(exact, self.features(), &[row], origin, out);
            }
        }
    }

    /// Writes the targets of a row, which are values, minus `origin`.
    pub(super) fn target_differences(&self, row: usize, origin: &[f64], out: &mut [f64]) {
        let TargetSlice::Values(values) = self.targets() else {
            unreachable!("rows are decoded for the targets of the layout")
        };
        match self {
            GroupRows::Own(rows) => rows.exact_targets.differences(values, &[row], origin, out),
            GroupRows::Shared { slot, places, start } => {
                let exact = |target| places.exact_target(&slot.bytes()[*start..], target);
                differences(exact, values, &[row], origin, out);
            }
        }
    }
}

fn targets(rows: &TableRows) -> TargetSlice<'_> {
    match &rows.targets {
        TargetCells::Classes(labels) => {
            TargetSlice::Labels(labels.integers().expect("labels of known classes"))
        }
        TargetCells::Values { values, .. } => TargetSlice::Values(values),
    }
}

fn arrays(rows: &TableRows) -> Arrays<'_> {
    let TableRows { features, weights, exact, exact_targets, .. } = rows;
    Arrays { features, targets: targets(rows), weights: weights.as_deref(), exact, exact_targets }
}

/// The byte of a slot at which the arrays begin.
fn arrays_start(text_len: usize) -> usize {
    (LEN_BYTES + text_len).next_multiple_of(ALIGNMENT)
}
