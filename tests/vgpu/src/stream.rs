//! Streams: each has a queue and a thread.
//!
//! All work is enqueued on a device by [`Stream::run`]: kernels, copies, matmuls, collectives. While the stream
//! captures (see [`crate::capture`]) the work is recorded instead, so it must be repeatable: `Fn`, not `FnOnce`.
//!
//! Events report a nominal time: each piece of work takes [`TASK_US`], or longer if it requests that ([`takes_longer`]). Real
//! times of work on a CPU would be meaningless, and choices that a program makes by them would be random.
//!
//! With `VGPU_FUZZ` a stream sometimes holds its work back until somebody waits for it or a short time has passed, and
//! sometimes runs it at once, so that work that an event should have ordered happens in a different order.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::abi::lock;
use crate::capture::Branch;
use crate::config::{CONFIG, MAX_DEVICES};
use crate::counts::Tally;
use crate::graph::Work;
use crate::mem::host::Touch;
use crate::mem::{host, trap};
use crate::order::{self, Clock, Stamp};
use crate::report::{note, report};
use crate::watch::{self, Patience};
use crate::{code, fault};

/// Nominal time of a piece of work, microseconds.
const TASK_US: u64 = 100;
/// Nominal time between two consecutive events.
const EVENT_US: u64 = 1;

thread_local! {
    /// Additional time that the piece of work on this thread takes.
    static LONGER_US: Cell<u64> = const { Cell::new(0) };
}

/// Called by a piece of work that takes this much longer than [`TASK_US`] in nominal time.
pub(crate) fn takes_longer(us: u64) {
    LONGER_US.set(LONGER_US.get() + us);
}

/// Result of a piece of work: the sticky error code for the device, and the message.
pub(crate) type Outcome = Result<(), (i32, String)>;

/// A piece of work, which a graph may repeat.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    /// Counts that each run adds.
    pub(crate) tally: Tally,
    /// Host memory that is read or written when the work runs.
    pub(crate) touches: Vec<Touch>,
    /// Whether it calls back into the client.
    pub(crate) host_function: bool,
    pub(crate) work: Box<dyn Fn(&Stamp) -> Outcome + Send + Sync>,
}

/// Relation of a stream to the legacy stream of its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The legacy stream itself.
    Legacy,
    /// Waits for the legacy stream, which waits for this one too.
    Blocking,
    /// Independent of the legacy stream.
    NonBlocking,
    /// A branch of a graph that is being launched.
    Graph,
}

enum Op {
    Run { task: Arc<Task>, stamp: Stamp, flights: Vec<u64>, fails: Option<Outcome>, hangs: bool },
    Raise(Arc<Flag>),
    Wait(Arc<Flag>),
    Exit,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Number of operations that are queued or running.
    unfinished: usize,
    /// Whether somebody waits, so that nothing is held back.
    demanded: bool,
    doing: Option<(String, Instant)>,
}

/// A stream of a device.
pub(crate) struct Stream {
    /// Ordinal of the device.
    pub(crate) device: usize,
    /// Number used in findings.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    /// Set while the stream captures.
    pub(crate) branch: Mutex<Option<Branch>>,
    queue: Mutex<Queue>,
    cond: Condvar,
    thread: OnceLock<()>,
    /// Nominal time at the end of the work done so far, microseconds.
    clock_us: AtomicU64,
}

static STREAMS: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());
static STICKY: [AtomicI32; MAX_DEVICES] = [const { AtomicI32::new(0) }; MAX_DEVICES];
/// Incremented when any operation ends, for the watchdog.
pub(crate) static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// The error that every call for `device` returns from now on; 0 for none.
pub(crate) fn sticky_error(device: usize) -> i32 {
    STICKY[device].load(SeqCst)
}

/// Breaks a device permanently; the first error is kept.
pub(crate) fn break_device(device: usize, code: i32) {
    let _ = STICKY[device].compare_exchange(0, code, SeqCst, SeqCst);
}

/// All streams that exist, for the watchdog.
pub(crate) fn all() -> Vec<Arc<Stream>> {
    let mut streams = lock(&STREAMS);
    streams.retain(|stream| stream.strong_count() > 0);
    streams.iter().filter_map(Weak::upgrade).collect()
}

impl Stream {
    pub(crate) fn new(device: usize, kind: Kind, priority: i32) -> Arc<Stream> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let stream = Arc::new(Stream {
            device,
            id: IDS.fetch_add(1, Relaxed),
            kind,
            priority,
            branch: Mutex::default(),
            queue: Mutex::default(),
            cond: Condvar::new(),
            thread: OnceLock::new(),
            clock_us: AtomicU64::new(0),
        });
        lock(&STREAMS).push(Arc::downgrade(&stream));
        stream
    }

    /// Enqueues work on the stream. Asynchronous.
    ///
    /// An error of `work` becomes the sticky error of the device. `work` may run many times if it is captured.
    pub(crate) fn run(
        self: &Arc<Self>,
        name: &'static str,
        work: impl Fn(&Stamp) -> Outcome + Send + Sync + 'static,
    ) {
        let work = Box::new(work);
        self.submit(Task { name, tally: Tally::Nothing, touches: Vec::new(), host_function: false, work });
    }

    /// Same as [`Stream::run`], with information for the counts and for the checks of host memory.
    pub(crate) fn submit(self: &Arc<Self>, task: Task) {
        if let Some(branch) = &mut *lock(&self.branch) {
            branch.record(self.device, self.priority, Work::Task(Arc::new(task)));
            return;
        }
        self.enqueue(Arc::new(task));
    }

    /// Enqueues work on the stream, whether or not it captures.
    pub(crate) fn enqueue(self: &Arc<Self>, task: Arc<Task>) {
        self.order_with_legacy();
        task.tally.count();
        if task.host_function {
            host::HOST_FUNCTIONS.fetch_add(1, SeqCst);
        }
        let fails = requested_failure(&task);
        let hangs = fault::due("hang");
        self.push(|| {
            let stamp = Stamp::new(self.id, task.name);
            let begin = |touch: &Touch| host::begin(*touch, task.name, self.id, stamp.time());
            let flights = task.touches.iter().filter_map(begin).collect();
            Op::Run { task, stamp, flights, fails, hangs }
        });
    }

    /// Makes later work wait until `flag` is raised.
    pub(crate) fn wait_for(self: &Arc<Self>, flag: &Arc<Flag>) {
        if flag.from.id == self.id {
            return;
        }
        self.push(|| {
            order::after(self.id, &flag.clock);
            Op::Wait(flag.clone())
        });
    }

    /// A flag that is raised when the stream reaches this point.
    pub(crate) fn mark(self: &Arc<Self>) -> Arc<Flag> {
        self.order_with_legacy();
        self.raw_mark()
    }

    /// Makes the host wait until all work of the stream is done.
    pub(crate) fn sync(self: &Arc<Self>) {
        if self.is_idle() {
            order::host_after(&order::now(self.id));
        } else {
            self.raw_mark().host_wait();
        }
    }

    /// Whether all work of the stream is done. If so, the host counts as synchronized with it.
    pub(crate) fn query(self: &Arc<Self>) -> bool {
        let idle = self.is_idle();
        if idle {
            order::host_after(&order::now(self.id));
        } else {
            watch::poll();
        }
        idle
    }

    /// Ends the stream after its queued work.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.thread.get().is_some() {
            self.push(|| Op::Exit);
        }
    }

    /// Description of the current work, for the watchdog.
    pub(crate) fn state(&self) -> Option<String> {
        let queue = lock(&self.queue);
        if queue.unfinished == 0 {
            return None;
        }
        let doing = match &queue.doing {
            Some((what, since)) => format!("{what} for {:.1} s", since.elapsed().as_secs_f64()),
            None => "about to begin".into(),
        };
        Some(format!(
            "stream {} of device {}: {doing}, {} more queued",
            self.id,
            self.device,
            queue.ops.len()
        ))
    }

    fn is_idle(&self) -> bool {
        lock(&self.queue).unfinished == 0
    }

    fn raw_mark(self: &Arc<Self>) -> Arc<Flag> {
        let mut made = None;
        self.push(|| {
            let flag = Flag::new(self);
            made = Some(flag.clone());
            Op::Raise(flag)
        });
        made.unwrap_or_else(|| Flag::new(self))
    }

    /// The legacy stream and the blocking streams of a context wait for each other at every operation.
    fn order_with_legacy(self: &Arc<Self>) {
        let Some(others) = crate::driver::streams_to_order_with(self) else { return };
        for other in &others {
            if other.is_idle() {
                order::after(self.id, &order::now(other.id));
            } else {
                self.wait_for(&other.raw_mark());
            }
        }
    }

    /// Queues the result of `make`; the stamp is taken under the lock, so that stamps and queue agree.
    fn push(self: &Arc<Self>, make: impl FnOnce() -> Op) {
        self.thread.get_or_init(|| {
            let stream = self.clone();
            std::thread::spawn(move || stream.serve());
        });
        let mut queue = lock(&self.queue);
        let op = make();
        queue.ops.push_back(op);
        queue.unfinished += 1;
        drop(queue);
        self.cond.notify_one();
    }

    fn demand(&self) {
        lock(&self.queue).demanded = true;
        self.cond.notify_one();
    }

    fn serve(self: Arc<Self>) {
        trap::alternate_stack();
        let mut holding = Holding::new(self.id);
        loop {
            let op = self.next(&mut holding);
            match op {
                Op::Run { task, stamp, flights, fails, hangs } => {
                    if hangs {
                        loop {
                            std::thread::park();
                        }
                    }
                    if sticky_error(self.device) == 0 {
                        let outcome = fails.unwrap_or_else(|| run(&task, &stamp, &flights));
                        if let Err((code, what)) = outcome {
                            // The message comes first, because a caller that sees the error may end the process.
                            if !what.is_empty() {
                                report(&what);
                            }
                            break_device(self.device, code);
                        }
                    }
                    self.clock_us.fetch_add(TASK_US + LONGER_US.take(), SeqCst);
                    if task.host_function {
                        host::HOST_FUNCTIONS.fetch_sub(1, SeqCst);
                    }
                    flights.into_iter().for_each(host::done);
                    self.finish(None);
                }
                Op::Wait(flag) => {
                    flag.wait();
                    self.clock_us.fetch_max(flag.reached().map_or(0, |at| at.clock_us), SeqCst);
                    self.finish(None);
                }
                Op::Raise(flag) => {
                    self.clock_us.fetch_add(EVENT_US, SeqCst);
                    self.finish(Some(&flag));
                }
                Op::Exit => return,
            }
        }
    }

    fn next(&self, holding: &mut Holding) -> Op {
        let mut queue = lock(&self.queue);
        loop {
            while queue.ops.is_empty() {
                queue.demanded = false;
                queue = self.cond.wait(queue).unwrap_or_else(|e| e.into_inner());
            }
            if let Some(end) = holding.decide() {
                while !queue.demanded {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    queue = self.cond.wait_timeout(queue, left).unwrap_or_else(|e| e.into_inner()).0;
                }
            }
            let Some(op) = queue.ops.pop_front() else { continue };
            let what = match &op {
                Op::Run { task, .. } => format!("runs {}", task.name),
                Op::Wait(flag) => format!("waits for an event of stream {}", flag.from.id),
                Op::Raise(_) | Op::Exit => String::new(),
            };
            queue.doing = Some((what, Instant::now()));
            return op;
        }
    }

    /// Ends an operation; a flag is raised after the stream is known to have finished it.
    fn finish(&self, flag: Option<&Flag>) {
        let mut queue = lock(&self.queue);
        queue.unfinished -= 1;
        queue.doing = None;
        drop(queue);
        PROGRESS.fetch_add(1, Relaxed);
        if let Some(flag) = flag {
            flag.raise(self.clock_us.load(SeqCst));
        }
    }
}

fn run(task: &Task, stamp: &Stamp, flights: &[u64]) -> Outcome {
    if let Some(ms) = fault::rule("slow").and_then(|rule| rule.at) {
        std::thread::sleep(Duration::from_millis(ms));
        takes_longer(ms * 1000);
    }
    flights.iter().copied().for_each(host::check);
    if task.host_function {
        host::release(stamp.clock());
    }
    (task.work)(stamp)
}

/// Faults requested with `VGPU_FAIL` that apply to this piece of work.
fn requested_failure(task: &Task) -> Option<Outcome> {
    if fault::due("kill") {
        // SAFETY: a signal to this process, which ends it.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let kernel = matches!(task.tally, Tally::Kernel(_) | Tally::DependentKernel(_));
    let code = match () {
        () if fault::due("ecc") => code::ECC_UNCORRECTABLE,
        () if kernel && fault::due("illegal") => code::ILLEGAL_ADDRESS,
        () => return None,
    };
    note(&format!("{} gets error {code} on request", task.name));
    Some(Err((code, String::new())))
}

/// Decides when work is held back, with a fuzz seed.
struct Holding {
    random: u64,
}

impl Holding {
    fn new(id: u64) -> Holding {
        let random =
            CONFIG.fuzz.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (id + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
        Holding { random: random | 1 }
    }

    /// Time until which the next operation is held back unless somebody waits for it: one in four, for 5 ms.
    fn decide(&mut self) -> Option<Instant> {
        if CONFIG.fuzz == 0 {
            return None;
        }
        // Marsaglia's xorshift, "Xorshift RNGs", 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random & 3 == 0).then(|| Instant::now() + Duration::from_millis(5))
    }
}

/// Time at which a point of a stream was reached.
#[derive(Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) at: Instant,
    /// Nominal time of the stream.
    pub(crate) clock_us: u64,
}

/// A point in a stream, which is reached or not.
pub(crate) struct Flag {
    reached: Mutex<Option<Reached>>,
    cond: Condvar,
    /// The stream that will raise it.
    pub(crate) from: Arc<Stream>,
    clock: Clock,
}

impl Flag {
    fn new(from: &Arc<Stream>) -> Arc<Flag> {
        let clock = order::now(from.id);
        Arc::new(Flag { reached: Mutex::new(None), cond: Condvar::new(), from: from.clone(), clock })
    }

    fn raise(&self, clock_us: u64) {
        *lock(&self.reached) = Some(Reached { at: Instant::now(), clock_us });
        self.cond.notify_all();
    }

    /// Time at which it was reached, if it was.
    pub(crate) fn reached(&self) -> Option<Reached> {
        *lock(&self.reached)
    }

    /// Whether it was reached. If so, the host counts as synchronized with it.
    pub(crate) fn query(&self) -> bool {
        let reached = self.reached().is_some();
        if reached {
            order::host_after(&self.clock);
        } else {
            watch::poll();
        }
        reached
    }

    /// Makes the host wait for it.
    pub(crate) fn host_wait(&self) {
        self.from.demand();
        let mut patience = Patience::new();
        let mut reached = lock(&self.reached);
        while reached.is_none() {
            reached = self.cond.wait_timeout(reached, watch::TICK).unwrap_or_else(|e| e.into_inner()).0;
            if reached.is_none() {
                patience.check("the host waits for a stream");
            }
        }
        drop(reached);
        order::host_after(&self.clock);
    }

    /// Makes another stream wait for it.
    fn wait(&self) {
        self.from.demand();
        let mut reached = lock(&self.reached);
        while reached.is_none() {
            reached = self.cond.wait(reached).unwrap_or_else(|e| e.into_inner());
        }
    }
}
