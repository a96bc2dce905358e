//! A rank as the tests see it: on a thread of its own, or in a process of its own.
use crate::libs::inside;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use cudarc::nccl::sys::{self, ncclDataType_t as Dtype, ncclRedOp_t as Op, ncclResult_t as Code};
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A communicator of one rank, with its stream.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) n: usize,
    pub(crate) comm: sys::ncclComm_t,
    pub(crate) stream: Arc<CudaStream>,
}

pub(crate) fn unique_id() -> sys::ncclUniqueId {
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // SAFETY: the pointer is good.
    let code = unsafe { sys::ncclGetUniqueId(&mut id) };
    assert_eq!(code, Code::ncclSuccess, "{}", last_error());
    id
}

pub(crate) fn last_error() -> String {
    // SAFETY: the communicator may be null.
    let text = unsafe { sys::ncclGetLastError(std::ptr::null_mut()) };
    // SAFETY: the text lives as long as the process.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Makes `calls` as one group.
pub(crate) fn group(calls: impl FnOnce()) -> Code {
    // SAFETY: nothing to keep.
    assert_eq!(unsafe { sys::ncclGroupStart() }, OK);
    calls();
    // SAFETY: nothing to keep.
    unsafe { sys::ncclGroupEnd() }
}

pub(crate) fn stream(device: usize) -> Arc<CudaStream> {
    let context = CudaContext::new(device).unwrap();
    // SAFETY: each buffer of these tests is used on one stream.
    unsafe { context.disable_event_tracking() };
    context.new_stream().unwrap()
}

pub(crate) fn join(id: sys::ncclUniqueId, n: usize, rank: usize, device: usize) -> Result<Rank, Code> {
    let stream = stream(device);
    let mut comm = std::ptr::null_mut();
    // SAFETY: the pointer is good.
    match unsafe { sys::ncclCommInitRank(&mut comm, n as i32, id, rank as i32) } {
        Code::ncclSuccess => Ok(Rank { rank, n, comm, stream }),
        code => Err(code),
    }
}

/// Runs `body` on `n` ranks, each on a thread and a device of its own.
pub(crate) fn ranks<T: Send>(n: usize, body: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    let id = unique_id();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                let body = &body;
                scope.spawn(move || body(&join(id, n, rank, rank).unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl Rank {
    pub(crate) fn upload<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    pub(crate) fn address<T>(&self, slice: &CudaSlice<T>) -> u64 {
        slice.device_ptr(&self.stream).0
    }

    pub(crate) fn all_reduce(&self, send: u64, recv: u64, count: usize, dtype: Dtype, op: Op) -> Code {
        let (send, recv, stream) =
            (send as *const c_void, recv as *mut c_void, self.stream.cu_stream().cast());
        // SAFETY: the library checks the addresses.
        unsafe { sys::ncclAllReduce(send, recv, count, dtype, op, self.comm, stream) }
    }

    /// All-reduce of f32 in place, without waiting.
    pub(crate) fn sum(&self, buffer: &CudaSlice<f32>) -> Code {
        let address = self.address(buffer);
        self.all_reduce(address, address, buffer.len(), Dtype::ncclFloat32, Op::ncclSum)
    }

    pub(crate) fn status(&self) -> Code {
        let mut code = Code::ncclSuccess;
        // SAFETY: the pointer is good.
        assert_eq!(unsafe { sys::ncclCommGetAsyncError(self.comm, &mut code) }, Code::ncclSuccess);
        code
    }

    /// Waits until the asynchronous state is no longer success.
    pub(crate) fn await_error(&self) -> Code {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            match self.status() {
                Code::ncclSuccess => std::thread::sleep(Duration::from_millis(1)),
                code => return code,
            }
        }
        panic!("no asynchronous error came on rank {}", self.rank);
    }

    pub(crate) fn is_busy(&self) -> bool {
        // SAFETY: the stream lives.
        let code = unsafe { cudarc::driver::sys::cuStreamQuery(self.stream.cu_stream()) };
        code == cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_READY
    }

    pub(crate) fn abort(&self) {
        // SAFETY: the communicator lives, and nobody uses it after this.
        assert_eq!(unsafe { sys::ncclCommAbort(self.comm) }, Code::ncclSuccess);
    }

    /// Finalizes a communicator whose calls wait.
    pub(crate) fn finalize(&self) {
        // SAFETY: the communicator lives.
        assert_eq!(unsafe { sys::ncclCommFinalize(self.comm) }, Code::ncclSuccess, "{}", last_error());
    }

    pub(crate) fn destroy(&self) {
        // SAFETY: the communicator lives, and nobody uses it after this.
        assert_eq!(unsafe { sys::ncclCommDestroy(self.comm) }, Code::ncclSuccess, "{}", last_error());
    }
}

pub(crate) const OK: Code = Code::ncclSuccess;

/// Runs `body` on `n` ranks in processes of their own: this one is rank 0 and starts the others, which get here by the
/// same test.
pub(crate) fn processes(n: usize, body: impl Fn(sys::ncclUniqueId, usize)) {
    if let Ok(rank) = std::env::var("VGPU_TEST_RANK") {
        let hex = std::env::var("VGPU_TEST_ID").unwrap();
        let byte = |i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap() as _;
        let id = sys::ncclUniqueId { internal: std::array::from_fn(byte) };
        return body(id, rank.parse().unwrap());
    }
    let name = inside().unwrap();
    let id = unique_id();
    let hex: String = id.internal.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    let others: Vec<_> = (1..n)
        .map(|rank| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args([name.as_str(), "--exact", "--nocapture", "--test-threads=1"]);
            command.env("VGPU_TEST_RANK", rank.to_string()).env("VGPU_TEST_ID", &hex);
            command.spawn().unwrap()
        })
        .collect();
    body(id, 0);
    // No waiting for the others: the hub in this process has to outlive it for as long as they need it.
    if std::env::var_os("VGPU_TEST_LEAVE").is_none() {
        for mut other in others {
            assert!(other.wait().unwrap().success(), "a rank failed");
        }
    }
}

/// Dies at once, without handlers.
pub(crate) fn die() -> ! {
    // SAFETY: sends a signal to this process alone.
    unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    loop {
        std::thread::park();
    }
}

/// The configuration of a communicator whose calls don't wait.
pub(crate) fn non_blocking() -> sys::ncclConfig_t {
    // SAFETY: all fields are numbers and pointers.
    let mut config: sys::ncclConfig_t = unsafe { std::mem::zeroed() };
    config.size = size_of::<sys::ncclConfig_t>();
    config.magic = 0xcafe_beef;
    config.version = 23_003;
    config
}

pub(crate) fn begin_join(id: sys::ncclUniqueId, n: usize, rank: usize) -> Rank {
    let stream = stream(rank);
    let mut comm = std::ptr::null_mut();
    let mut config = non_blocking();
    // SAFETY: the pointers are good.
    let code = unsafe { sys::ncclCommInitRankConfig(&mut comm, n as i32, id, rank as i32, &mut config) };
    assert_eq!(code, Code::ncclInProgress);
    Rank { rank, n, comm, stream }
}

/// Asks until a non-blocking call is done.
pub(crate) fn finish(rank: &Rank) -> Code {
    loop {
        match rank.status() {
            Code::ncclInProgress => std::thread::sleep(Duration::from_micros(100)),
            code => return code,
        }
    }
}
