//! Graphs: captured work with its dependencies, and how graphs are launched.
//!
//! An executable graph has lanes. A piece of work is assigned to the lane of the work that it follows, so a graph that was
//! captured from two streams has two lanes. The first lane is the stream of the launch, each other lane is a stream of the graph
//! itself, and edges that cross lanes are events. So a launch is work on streams like any other: it is fuzzed, counted and
//! checked in the same way, and each launch has its own stamps.

use crate::abi::lock;
use crate::counts;
use crate::fault;
use crate::report::report;
use crate::stream::{Flag, Kind, Stream, Task};
use std::sync::{Arc, Mutex};

/// Records an event at this point of a stream.
pub(crate) type Record = dyn Fn(&Arc<Stream>) + Send + Sync;

/// Work of a node when a graph runs.
#[derive(Clone)]
pub(crate) enum Work {
    Task(Arc<Task>),
    Record(Arc<Record>),
}

/// A captured piece of work.
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) device: usize,
    /// Priority of the stream that it was captured from.
    pub(crate) priority: i32,
    /// The nodes that must be done before it; the predecessor in its own stream comes first.
    pub(crate) after: Vec<usize>,
}

/// Result of a capture: nodes in an order in which they may run.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// Whether each node is in `from` or precedes a node in `from`.
    pub(crate) fn ancestors(nodes: &[Node], from: &[usize]) -> Vec<bool> {
        let mut marked = vec![false; nodes.len()];
        for &node in from {
            marked[node] = true;
        }
        for node in (0..nodes.len()).rev() {
            if marked[node] {
                for &before in &nodes[node].after {
                    marked[before] = true;
                }
            }
        }
        marked
    }

    /// Makes an executable graph. The graph itself may be destroyed afterward.
    ///
    /// - `keeps_priorities`: whether nodes keep the priorities of their streams; otherwise they lose them, which is a
    ///   finding where they differ
    pub(crate) fn instantiate(&self, keeps_priorities: bool) -> Exec {
        let priorities = || self.nodes.iter().map(|node| node.priority);
        if let (false, Some(least), Some(most)) = (keeps_priorities, priorities().max(), priorities().min())
            && least != most
        {
            report(&format!(
                "cuGraphInstantiate: the graph was captured from streams of priorities {least} to {most}, and without \
                 USE_NODE_PRIORITY (8) all its nodes run at the priority of the stream that launches it"
            ));
        }
        let mut lanes: Vec<Lane> = Vec::new();
        let mut steps: Vec<Step> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let follows = |&before: &usize| {
                let lane: usize = steps[before].lane;
                lanes[lane].last == before && lanes[lane].device == node.device
            };
            let lane = match node.after.iter().copied().find(follows) {
                Some(before) => steps[before].lane,
                None => {
                    let stream = Stream::new(node.device, Kind::Graph, node.priority);
                    lanes.push(Lane { device: node.device, last: index, stream });
                    lanes.len() - 1
                }
            };
            lanes[lane].last = index;
            let waits: Vec<usize> = node.after.iter().copied().filter(|&b| steps[b].lane != lane).collect();
            for &before in &waits {
                steps[before].signals = true;
            }
            steps.push(Step { work: node.work.clone(), lane, waits, signals: false });
        }
        Exec { lanes, steps, last: Mutex::new(None) }
    }
}

struct Lane {
    device: usize,
    last: usize,
    stream: Arc<Stream>,
}

struct Step {
    work: Work,
    lane: usize,
    /// Steps of other lanes that must be done first.
    waits: Vec<usize>,
    /// Whether a step of another lane waits for this one.
    signals: bool,
}

/// An executable graph.
pub(crate) struct Exec {
    lanes: Vec<Lane>,
    steps: Vec<Step>,
    /// End of the latest launch: launches of one executable graph don't overlap.
    last: Mutex<Option<Arc<Flag>>>,
}

impl Exec {
    /// Enqueues one run of the graph on `stream`. Asynchronous.
    pub(crate) fn launch(&self, stream: &Arc<Stream>) {
        counts::add("graph_nodes", self.steps.len() as u64);
        let mut last = lock(&self.last);
        if let Some(flag) = &*last {
            stream.wait_for(flag);
        }
        let streams: Vec<Arc<Stream>> =
            self.lanes
                .iter()
                .enumerate()
                .map(|(i, lane)| {
                    if i == 0 && lane.device == stream.device { stream.clone() } else { lane.stream.clone() }
                })
                .collect();
        let begin = stream.mark();
        for lane in &streams {
            lane.wait_for(&begin);
        }
        let mut done: Vec<Option<Arc<Flag>>> = Vec::with_capacity(self.steps.len());
        let n_run = self.steps.len().saturating_sub(usize::from(fault::is_wrong("graph")));
        for step in &self.steps[..n_run] {
            let lane = &streams[step.lane];
            for flag in step.waits.iter().filter_map(|&before| done[before].as_ref()) {
                lane.wait_for(flag);
            }
            match &step.work {
                Work::Task(task) => lane.enqueue(task.clone()),
                Work::Record(record) => record(lane),
            }
            done.push(step.signals.then(|| lane.mark()));
        }
        for lane in streams.iter().filter(|lane| lane.id != stream.id) {
            stream.wait_for(&lane.mark());
        }
        *last = Some(stream.mark());
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.stream.close();
        }
    }
}
