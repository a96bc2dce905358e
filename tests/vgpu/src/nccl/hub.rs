//! The hub of a communicator: it lives in the process that made the unique id, receives the contribution of each rank to an
//! operation, compares, computes and answers. Each rank has a reader thread and a writer thread, so that a slow rank delays
//! nobody else's requests.
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use super::call::{Header, Operation};
use super::reduce::{Reduction, reduce};
use super::wire::{self, Frame, Hello, Token, UniqueId, Words, kind};
use super::{INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR};
use crate::abi::lock;
use crate::config::CONFIG;

/// Time that a process waits for the ranks of other processes when it ends after its own ranks have left.
const LINGER: Duration = Duration::from_secs(5);

/// A message to a rank. Ranks that receive the same bytes share them.
struct Out {
    kind: u64,
    id: u64,
    words: Words,
    data: Arc<Vec<u8>>,
    range: Range<usize>,
}

/// Contribution of one rank to an operation.
struct Part {
    id: u64,
    header: Header,
    data: Vec<u8>,
}

/// Way in which a rank has left.
#[derive(Clone, Copy, PartialEq)]
enum Gone {
    /// By ncclCommDestroy, with all its work done.
    Left,
    /// By ncclCommAbort, or with its process.
    Lost,
}

#[derive(Default)]
struct State {
    /// The collectives that are still waiting for a rank, by number.
    rounds: HashMap<u64, BTreeMap<usize, Part>>,
    /// Messages sent and not yet received, and receives without a message, by (from, to).
    sent: HashMap<(usize, usize), VecDeque<Part>>,
    awaited: HashMap<(usize, usize), VecDeque<Part>>,
    gone: Vec<Option<Gone>>,
    /// After a mistake no later collective is meaningful.
    broken: Option<String>,
}

struct Hub {
    n: usize,
    /// The process of each rank.
    processes: Vec<u64>,
    outs: Vec<Sender<Out>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The hubs of this process, used when it ends.
static HUBS: Mutex<Vec<Arc<Hub>>> = Mutex::new(Vec::new());
/// The sockets on which this process still listens, used when it ends.
static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Starts a hub that waits for its ranks, and returns its id.
pub(crate) fn start() -> std::io::Result<UniqueId> {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: at_exit is a function of the C ABI without arguments that doesn't unwind.
        unsafe { libc::atexit(at_exit) };
    });
    let token = wire::random_token()?;
    let name: String = token[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let folders = [std::env::temp_dir(), PathBuf::from("/tmp")];
    let too_long = || std::io::Error::from(std::io::ErrorKind::InvalidFilename);
    let (id, path) = folders
        .into_iter()
        .map(|folder| folder.join(format!("vgpu-nccl-{name}")))
        .find_map(|path| Some((UniqueId::new(&token, &path)?, path)))
        .ok_or_else(too_long)?;
    let listener = UnixListener::bind(&path)?;
    lock(&PATHS).push(path.clone());
    std::thread::Builder::new().name("nccl hub".into()).spawn(move || {
        if let Some((ranks, verdict)) = gather(&listener, &token) {
            forget(&path);
            begin(ranks, verdict);
        }
    })?;
    Ok(id)
}

fn forget(path: &PathBuf) {
    let _ = std::fs::remove_file(path);
    lock(&PATHS).retain(|known| known != path);
}

/// Waits for all ranks; a connection without the token is dropped. Returns the ranks in order, and the reason if they can't form
/// a communicator.
#[expect(clippy::type_complexity, reason = "used once")]
fn gather(
    listener: &UnixListener,
    token: &Token,
) -> Option<(Vec<(Hello, UnixStream)>, Result<(), (i32, String)>)> {
    let mut ranks: Vec<(Hello, UnixStream)> = Vec::new();
    while ranks.first().is_none_or(|(first, _)| (ranks.len() as u64) < first.n_ranks) {
        let (mut socket, _) = listener.accept().ok()?;
        // A client that connects but sends nothing must not block the ranks.
        let _ = socket.set_read_timeout(Some(LINGER));
        if let Some(hello) = Hello::read(&mut socket, token) {
            let _ = socket.set_read_timeout(None);
            let failed = hello.failed;
            ranks.push((hello, socket));
            if failed {
                let rank = ranks[ranks.len() - 1].0.rank;
                return Some((ranks, Err((REMOTE_ERROR, format!("rank {rank} failed to initialize")))));
            }
        }
    }
    ranks.sort_by_key(|(hello, _)| hello.rank);
    let verdict = judge(&ranks.iter().map(|(hello, _)| hello).collect::<Vec<_>>());
    Some((ranks, verdict))
}

/// The bus id in NCCL's format: domain 0, one bus per device, the same one for MIG instances of a GPU.
fn bus_of(rank: &Hello) -> u64 {
    (if CONFIG.mig { 1 } else { rank.device + 1 }) << 12
}

/// Checks whether these ranks can form a communicator.
fn judge(ranks: &[&Hello]) -> Result<(), (i32, String)> {
    for (i, rank) in (0..).zip(ranks) {
        if rank.rank != i || rank.n_ranks != ranks.len() as u64 {
            return Err((
                INVALID_USAGE,
                format!(
                    "the ranks do not fit together: rank {} of {} came where rank {i} of {} was expected",
                    rank.rank,
                    rank.n_ranks,
                    ranks.len()
                ),
            ));
        }
        let twin =
            ranks[..i as usize].iter().find(|other| other.host == rank.host && bus_of(other) == bus_of(rank));
        if let Some(twin) = twin
            && !(twin.shares_gpu && rank.shares_gpu)
        {
            return Err((
                INVALID_USAGE,
                format!(
                    "Duplicate GPU detected : rank {} and rank {} both on CUDA device {:x}",
                    rank.rank,
                    twin.rank,
                    bus_of(rank)
                ),
            ));
        }
    }
    Ok(())
}

fn begin(mut ranks: Vec<(Hello, UnixStream)>, verdict: Result<(), (i32, String)>) {
    if let Err((code, why)) = verdict {
        for (_, socket) in &mut ranks {
            let words = [code as u64, 0, 0, 0, 0, 0];
            let _ = wire::write(socket, kind::REFUSED, 0, &words, why.as_bytes());
        }
        return;
    }
    let n = ranks.len();
    let mut outs = Vec::new();
    let mut threads = Vec::new();
    for (_, socket) in &ranks {
        let (sender, receiver) = channel();
        outs.push(sender);
        match socket.try_clone() {
            Ok(socket) => threads.push((socket, receiver)),
            Err(error) => {
                // Dropping the sockets informs every rank that there is no hub.
                crate::report(&format!("nccl: the hub can't serve its ranks: {error}"));
                return;
            }
        }
    }
    let processes = ranks.iter().map(|(hello, _)| hello.process).collect();
    let state = State { gone: vec![None; n], ..State::default() };
    let hub = Arc::new(Hub { n, processes, outs, state: Mutex::new(state), changed: Condvar::new() });
    lock(&HUBS).push(hub.clone());
    for (socket, receiver) in threads {
        std::thread::spawn(move || write_all(socket, &receiver));
    }
    for rank in 0..n {
        hub.answer(rank, kind::WELCOME, 0, [0; 6], Vec::new());
    }
    for (rank, (_, socket)) in ranks.into_iter().enumerate() {
        let hub = hub.clone();
        std::thread::spawn(move || hub.read_all(rank, socket));
    }
}

fn write_all(mut socket: UnixStream, messages: &Receiver<Out>) {
    while let Ok(out) = messages.recv() {
        if wire::write(&mut socket, out.kind, out.id, &out.words, &out.data[out.range]).is_err() {
            // The reader of this rank sees the end of the connection and informs the others.
            return;
        }
    }
}

impl Hub {
    fn answer(&self, rank: usize, kind: u64, id: u64, words: Words, data: Vec<u8>) {
        let range = 0..data.len();
        self.share(rank, kind, id, words, Arc::new(data), range);
    }

    fn share(&self, rank: usize, kind: u64, id: u64, words: Words, data: Arc<Vec<u8>>, range: Range<usize>) {
        // If the writer is gone, so is its rank.
        let _ = self.outs[rank].send(Out { kind, id, words, data, range });
    }

    fn mistake(&self, rank: usize, id: u64, what: &str) {
        self.answer(rank, kind::MISTAKE, id, [0; 6], what.as_bytes().to_vec());
    }

    fn read_all(&self, rank: usize, mut socket: UnixStream) {
        let how = loop {
            match wire::read(&mut socket) {
                Ok(Frame { kind: kind::COLLECTIVE, id, words, data }) => {
                    self.collective(rank, Part { id, header: Header::from_words(words), data });
                }
                Ok(Frame { kind: kind::SEND, id, words, data }) => {
                    let header = Header::from_words(words);
                    self.pair(rank, header.root as usize, true, Part { id, header, data });
                }
                Ok(Frame { kind: kind::RECEIVE, id, words, data }) => {
                    let header = Header::from_words(words);
                    self.pair(header.root as usize, rank, false, Part { id, header, data });
                }
                Ok(Frame { kind: kind::BYE, id, .. }) => break Ok(id),
                Ok(Frame { kind: kind::ABORT, .. }) => {
                    self.go_on(rank);
                    break Err("aborted its communicator");
                }
                Ok(_) | Err(_) => break Err("is gone: its connection ended"),
            }
        };
        match how {
            Ok(id) => {
                self.leave(rank);
                // The rank may end now, because this process knows that it left in an orderly way, even if this process is about
                // to end.
                self.answer(rank, kind::BYE, id, [0; 6], Vec::new());
            }
            Err(how) => self.bury(rank, how),
        }
        if lock(&self.state).gone.iter().all(Option::is_some) {
            lock(&HUBS).retain(|hub| !std::ptr::eq(&**hub, self));
        }
    }

    /// Records that the rank has destroyed its communicator; a rank that waits for it waits for ever.
    fn leave(&self, rank: usize) {
        let mut state = lock(&self.state);
        state.gone[rank] = Some(Gone::Left);
        let waiting: Vec<u64> = state.rounds.keys().copied().collect();
        for number in waiting {
            self.fail_if_left(&mut state, number);
        }
        self.changed.notify_all();
    }

    /// Records that the rank is lost: the others get an error, and their work stops.
    fn bury(&self, rank: usize, how: &str) {
        let mut state = lock(&self.state);
        state.gone[rank] = Some(Gone::Lost);
        let why = format!("rank {rank} {how}");
        for other in (0..self.n).filter(|other| state.gone[*other].is_none()) {
            self.answer(other, kind::LOST, 0, [REMOTE_ERROR as u64, 0, 0, 0, 0, 0], why.clone().into_bytes());
        }
        self.changed.notify_all();
    }

    fn fail_round(&self, state: &mut State, number: u64, why: &str) {
        for (rank, part) in state.rounds.remove(&number).unwrap_or_default() {
            self.mistake(rank, part.id, why);
        }
        state.broken.get_or_insert_with(|| why.to_owned());
    }

    fn fail_if_left(&self, state: &mut State, number: u64) {
        let Some(round) = state.rounds.get(&number) else { return };
        let left =
            (0..self.n).find(|rank| state.gone[*rank] == Some(Gone::Left) && !round.contains_key(rank));
        if let (Some(left), Some((rank, part))) = (left, round.first_key_value()) {
            let why = format!(
                "rank {rank} calls {}, but rank {left} has destroyed its communicator and will never call it",
                part.header.describe()
            );
            self.fail_round(state, number, &why);
        }
    }

    fn collective(&self, rank: usize, part: Part) {
        let mut state = lock(&self.state);
        if let Some(why) = &state.broken {
            let why = format!("no collective can follow a failed one: {why}");
            return self.mistake(rank, part.id, &why);
        }
        let number = part.header.number;
        let round = state.rounds.entry(number).or_default();
        let other = round.first_key_value().map(|(other, theirs)| (*other, theirs.header));
        let ours = part.header;
        round.insert(rank, part);
        if let Some((other, theirs)) = other
            && theirs != ours
        {
            let mut calls = [(other, theirs), (rank, ours)];
            calls.sort_by_key(|(rank, _)| *rank);
            let [(first, a), (second, b)] = calls.map(|(rank, header)| (rank, header.describe()));
            let why = format!("mismatch: rank {first} calls {a}, rank {second} calls {b}");
            return self.fail_round(&mut state, number, &why);
        }
        if round.len() < self.n {
            return self.fail_if_left(&mut state, number);
        }
        let parts = state.rounds.remove(&number).unwrap_or_default();
        drop(state);
        let all: Vec<usize> = parts.keys().copied().collect();
        self.combine(ours, &parts, &all);
    }

    /// Completes the collectives in which `rank` waits, with other numbers for the contributions that lack: once it aborts, its kernel runs
    /// through its remaining steps without waiting, and the kernels of the others take what they find for data.
    ///
    /// Source: NCCL's `prims_ll.h`, `prims_ll128.h` and `prims_simple.h`, where `abortFlag` is set.
    fn go_on(&self, rank: usize) {
        let rounds: Vec<_> =
            lock(&self.state).rounds.extract_if(|_, parts| parts.contains_key(&rank)).collect();
        for (_, mut parts) in rounds {
            let waiting: Vec<usize> = parts.keys().copied().collect();
            let Some((_, part)) = parts.first_key_value() else { continue };
            let (header, data) = (part.header, part.data.clone());
            for rank in 0..self.n {
                parts.entry(rank).or_insert_with(|| Part { id: 0, header, data: data.clone() });
            }
            self.combine(header, &parts, &waiting);
        }
    }

    /// Computes a collective of all ranks, and answers the ranks of `waiting`.
    fn combine(&self, header: Header, parts: &BTreeMap<usize, Part>, waiting: &[usize]) {
        let data: Vec<&[u8]> = parts.values().map(|part| &part.data[..]).collect();
        let reduced = || {
            let op = Reduction::from_code(header.op).unwrap_or(Reduction::Sum);
            let mut summands = data.clone();
            if header.is_reversed {
                summands.reverse();
            }
            reduce(&summands, header.dtype, op).unwrap_or_default()
        };
        let root = header.root as usize;
        let result = match header.operation {
            Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => reduced(),
            Operation::Broadcast => data[root].to_vec(),
            Operation::AllGather => data.concat(),
            Operation::Send | Operation::Receive => Vec::new(),
        };
        let result = Arc::new(result);
        for (rank, part) in parts.iter().filter(|(rank, _)| waiting.contains(rank)) {
            let range = match header.operation {
                Operation::ReduceScatter => {
                    let each = result.len() / self.n;
                    rank * each..(rank + 1) * each
                }
                Operation::Reduce if *rank != root => 0..0,
                _ => 0..result.len(),
            };
            self.share(*rank, kind::RESULT, part.id, [0; 6], result.clone(), range);
        }
    }

    /// Matches sends with receives in the order in which each arrived. A send is done once it is received, as in NCCL: a program
    /// can't rely on any buffering.
    fn pair(&self, from: usize, to: usize, is_send: bool, part: Part) {
        let mut state = lock(&self.state);
        let other = if is_send { &mut state.awaited } else { &mut state.sent };
        let Some(theirs) = other.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            let own = if is_send { &mut state.sent } else { &mut state.awaited };
            own.entry((from, to)).or_default().push_back(part);
            return;
        };
        drop(state);
        let (send, receive) = if is_send { (part, theirs) } else { (theirs, part) };
        let shape = |header: &Header| (header.count, header.dtype);
        if shape(&send.header) != shape(&receive.header) {
            let why = format!(
                "mismatch: rank {from} calls {}, rank {to} calls {}",
                send.header.describe(),
                receive.header.describe()
            );
            self.mistake(from, send.id, &why);
            self.mistake(to, receive.id, &why);
            return;
        }
        self.answer(from, kind::RESULT, send.id, [0; 6], Vec::new());
        self.answer(to, kind::RESULT, receive.id, [0; 6], send.data);
    }

    /// Whether other processes still need this hub although the ranks of this process have left in an orderly way.
    fn is_needed(&self) -> bool {
        let own = u64::from(std::process::id());
        let gone = &lock(&self.state).gone;
        let ranks = || self.processes.iter().zip(gone);
        let own_left = ranks().all(|(process, gone)| *process != own || *gone == Some(Gone::Left));
        own_left && ranks().any(|(_, gone)| gone.is_none())
    }
}

/// Called at the normal end of the process: ranks of other processes may still wait for results that the hub has not sent,
/// although the ranks of this process are done. A process that ends in the middle of its work doesn't wait.
extern "C" fn at_exit() {
    let deadline = Instant::now() + LINGER;
    let hubs = HUBS.try_lock().map(|hubs| hubs.clone()).unwrap_or_default();
    for hub in hubs {
        while hub.is_needed() && Instant::now() < deadline {
            let state = lock(&hub.state);
            let _ = hub.changed.wait_timeout(state, Duration::from_millis(20));
        }
    }
    if let Ok(paths) = PATHS.try_lock() {
        for path in paths.iter() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Connects a rank to the hub of an id. The hub answers when all ranks are there.
pub(crate) fn connect(id: &UniqueId, hello: &Hello) -> Result<UnixStream, (i32, String)> {
    let (token, path) = id
        .open()
        .ok_or_else(|| (super::INVALID_ARGUMENT, "the unique id is not one of ncclGetUniqueId".to_owned()))?;
    let lost =
        |error: std::io::Error| (SYSTEM_ERROR, format!("rank {}: no way to the hub: {error}", hello.rank));
    let mut socket = UnixStream::connect(&path).map_err(lost)?;
    hello.write(&mut socket, &token).map_err(lost)?;
    Ok(socket)
}
