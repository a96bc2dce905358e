//! CUDA graphs: work captured once and replayed, with one call instead of one per kernel.

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use super::feature::GpuFeature;
use super::gpu::Gpu;
use crate::{KernelError, Result};

/// Captured work of a device, ready to be replayed with the same buffers.
///
/// Numbers that change from replay to replay must be in device memory. Memory that is freed while any graph of the device
/// exists stays allocated until none does, so a replay never touches memory of others.
#[derive(Debug)]
pub struct Graph {
    gpu: &'static Gpu,
    /// Its number among the captures of the device.
    number: u64,
    n_nodes: usize,
}

impl Graph {
    /// Captures the work that `body` enqueues on the compute stream, and on other streams that it joins by events.
    ///
    /// The work does not run. During the capture, no memory may be allocated and the host may wait for no event or stream. Work of
    /// other threads on the same streams would be captured too: only one thread trains on a device.
    ///
    /// # Errors
    /// Errors of `body`; [`KernelError::Cuda`] if the driver rejects the capture.
    pub fn capture<E: From<KernelError>>(
        gpu: &'static Gpu,
        body: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        gpu.bind()?;
        let stream = gpu.compute().raw();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let number = gpu.graphs.begin();
        // SAFETY: the stream lives as long as the process.
        let begun = unsafe { result::stream::begin_capture(stream, mode) };
        let captured =
            check_driver(gpu.index(), "cuStreamBeginCapture", begun).map_err(E::from).and_then(|()| {
                let body = body();
                // Also after an error: ends the capture of the stream.
                // SAFETY: the capture was begun above.
                let graph = unsafe { result::stream::end_capture(stream) };
                if let (Err(_), Ok(graph)) = (&body, graph) {
                    // SAFETY: nobody else has the graph.
                    let _ = unsafe { result::graph::destroy(graph) };
                }
                body?;
                Ok(check_driver(gpu.index(), "cuStreamEndCapture", graph)?)
            });
        let graph = captured.inspect_err(|_| gpu.graphs.end(gpu.compute()))?;
        let instantiated = instantiate(gpu, graph);
        // SAFETY: the executable graph holds copies; the graph is destroyed once.
        let _ = unsafe { result::graph::destroy(graph) };
        let (exec, n_nodes) = instantiated.inspect_err(|_| gpu.graphs.end(gpu.compute()))?;
        gpu.graphs.insert(number, exec);
        Ok(Graph { gpu, number, n_nodes })
    }

    /// Replays the work on the compute stream.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also after [`Gpu::destroy_graphs`].
    pub fn launch(&mut self) -> Result<()> {
        self.gpu.bind()?;
        let launched = self.gpu.graphs.launch(self.number, self.gpu.compute());
        check_driver(self.gpu.index(), "cuGraphLaunch", launched)
    }

    /// Number of kernels, copies and collectives in the graph.
    pub fn n_nodes(&self) -> usize {
        self.n_nodes
    }
}

impl Gpu {
    /// Destroys the executable graphs of this device without waiting; replays in progress still run. No [`Graph`] of it can be
    /// launched any more, and each keeps its memory until it is dropped.
    ///
    /// For the end of a communicator whose collectives are part of graphs: up to 2.21 NCCL's abort waits until no graph holds any.
    pub fn destroy_graphs(&self) {
        self.graphs.destroy_all();
    }
}

fn instantiate(gpu: &Gpu, graph: sys::CUgraph) -> Result<(sys::CUgraphExec, usize)> {
    let mut n_nodes = 0;
    // SAFETY: without an array the call only counts.
    let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut n_nodes) };
    check_driver(gpu.index(), "cuGraphGetNodes", counted.result())?;
    let mut exec = std::ptr::null_mut();
    // Each node keeps the priority of the stream that it was captured from. Otherwise all run at the priority of the launching stream, and
    // collectives wait for the blocks of matmuls.
    let priorities = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0.into();
    let flags: u64 = if gpu.uses(GpuFeature::StreamPriorities) { priorities } else { 0 };
    // SAFETY: the graph is alive, the pointer valid for one handle.
    let instantiated = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, flags) };
    check_driver(gpu.index(), "cuGraphInstantiate", instantiated.result())?;
    // SAFETY: both are alive.
    let uploaded = unsafe { result::graph::upload(exec, gpu.compute().raw()) };
    check_driver(gpu.index(), "cuGraphUpload", uploaded).inspect_err(|_| {
        // SAFETY: nobody else has it.
        let _ = unsafe { result::graph::exec_destroy(exec) };
    })?;
    Ok((exec, n_nodes))
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Replays in progress must end before the memory that they use can be freed.
        let _ = self.gpu.synchronize();
        self.gpu.graphs.destroy(self.number);
        self.gpu.graphs.end(self.gpu.compute());
    }
}
