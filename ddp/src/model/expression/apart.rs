//! Values of a recording outside a model: which are variables, and which come from another recording.

use std::collections::HashMap;
use std::rc::Rc;

use super::graph::{Graph, Id};

/// A mark of one value, in all recordings that have it.
pub(super) type Mark = Rc<()>;

/// Values outside a model.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Whether this is the recording of a variable alone: what is computed from it is recorded elsewhere, so that a variable keeps no
    /// operations alive.
    pub(super) is_variable: bool,
    /// One for each value.
    pub(super) marks: Vec<Mark>,
    ids: HashMap<*const (), Id>,
    pub(super) variables: Vec<Id>,
}

impl Apart {
    /// Marks the values that have no mark yet.
    pub(super) fn mark_all(&mut self, graph: &Graph) {
        while self.marks.len() < graph.nodes.len() {
            self.mark(Mark::new(()));
        }
    }

    /// Gives the next value this mark.
    pub(super) fn mark(&mut self, mark: Mark) {
        self.ids.insert(Rc::as_ptr(&mark), self.marks.len());
        self.marks.push(mark);
    }

    /// The value with this mark.
    pub(super) fn find(&self, mark: &Mark) -> Option<Id> {
        self.ids.get(&Rc::as_ptr(mark)).copied()
    }
}
