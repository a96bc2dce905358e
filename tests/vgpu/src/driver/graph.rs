//! Graphs. They are made by stream capture; building them node by node is not modeled.

use super::handle::Registry;
use super::stream::stream;
use crate::abi::{Void, api, get, lock, put};
use crate::code::NOT_SUPPORTED;
use crate::fault;
use crate::graph::{Exec, Graph};
use std::ffi::c_ulonglong;
use std::sync::Arc;

/// Captured graphs.
pub(crate) static GRAPHS: Registry<Graph> = Registry::new("a graph");
static EXECS: Registry<Exec> = Registry::new("an executable graph");

api! {
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: c_ulonglong) {
        put(exec, instantiate(graph, flags)?)?;
    }

    /// Only the result field of the parameters is written: success.
    fn cuGraphInstantiateWithParams(exec: *mut usize, graph: usize, params: *mut [u64; 4]) {
        let [flags, upload, _, _] = get(params)?;
        put(exec, instantiate(graph, flags)?)?;
        put(params, [flags, upload, 0, 0])?;
    }

    fn cuGraphUpload(exec: usize, s: *mut Void) {
        EXECS.get(exec)?;
        stream(s)?;
    }

    fn cuGraphLaunch(exec: usize, s: *mut Void) {
        let (exec, stream) = (EXECS.get(exec)?, stream(s)?);
        if let Some(branch) = &*lock(&stream.branch) {
            branch.capture.fail("cuGraphLaunch: graphs within graphs are not modeled");
            return Err(NOT_SUPPORTED);
        }
        exec.launch(&stream);
    }

    /// Queued launches still run.
    fn cuGraphExecDestroy(exec: usize) {
        if fault::due("graph-destroy") {
            loop {
                std::thread::park();
            }
        }
        EXECS.remove(exec)?;
    }

    fn cuGraphDestroy(graph: usize) {
        GRAPHS.remove(graph)?;
    }

    /// Returns only the number of nodes; the nodes themselves are not returned.
    fn cuGraphGetNodes(graph: usize, nodes: *mut Void, n: *mut usize) {
        let graph = GRAPHS.get(graph)?;
        if !nodes.is_null() {
            return Err(NOT_SUPPORTED);
        }
        put(n, graph.nodes.len())?;
    }
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`.
const USE_NODE_PRIORITY: u64 = 8;

fn instantiate(graph: usize, flags: u64) -> Result<usize, i32> {
    Ok(EXECS.insert(Arc::new(GRAPHS.get(graph)?.instantiate(flags & USE_NODE_PRIORITY != 0))))
}
