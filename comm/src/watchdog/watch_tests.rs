//! The watchdog's threads of several ranks in one process, over loopback connections.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::super::connect::{connect, listen};
use super::super::monitor::{Limits, Role};
use super::*;

const TOKEN: Token = *b"the job's token.";
const INTERVAL: Duration = Duration::from_millis(20);

struct NoReport;

impl LossReport for NoReport {
    fn message(&self, _: &Certificate) -> String {
        unreachable!("no rank is lost")
    }

    fn record(&self, _: &Certificate) {}
}

/// The watchdog's thread of one rank.
struct Rank {
    commands: Sender<Command>,
    bell: UnixStream,
    thread: JoinHandle<()>,
}

impl Rank {
    fn start(rank: usize, role: Role, listener: Option<TcpListener>) -> Self {
        Self::start_in(3, rank, role, listener)
    }

    fn start_in(world_size: usize, rank: usize, role: Role, listener: Option<TcpListener>) -> Self {
        let (own, bell) = UnixStream::pair().unwrap();
        bell.set_nonblocking(true).unwrap();
        let (commands, received) = mpsc::channel();
        let progress = Arc::new(Progress::new());
        let limits = Limits { interval: INTERVAL, timeout: Duration::from_secs(60) };
        let watch = Watch {
            rank,
            token: TOKEN,
            identities: vec![Identity { host: "h".to_owned(), pid: 1 }; world_size],
            interval: INTERVAL,
            monitor: Monitor::new(role, limits, progress.standing(), Instant::now()),
            progress,
            listener,
            commands: received,
            bell,
            exit_code: 75,
            report: Box::new(NoReport),
            links: BTreeMap::new(),
            strangers: Vec::new(),
            leaving: None,
            has_failed: false,
            withdrawn_at: None,
        };
        Rank { commands, bell: own, thread: std::thread::spawn(move || watch.run()) }
    }

    fn join(&self, hub: usize, own: usize, addresses: &[SocketAddr]) {
        let stream = connect(addresses, own, Progress::new().standing(), &TOKEN, 3).unwrap();
        self.commands.send(Command::Join(hub, stream)).unwrap();
    }

    /// Asks the rank to leave; the channel is answered when it has.
    fn leave(&self) -> Receiver<()> {
        let (done, is_done) = mpsc::channel();
        self.commands.send(Command::Leave(done)).unwrap();
        (&self.bell).write_all(&[1]).unwrap();
        is_done
    }
}

#[test]
fn strangers_neither_block_nor_end_the_job() {
    let (listener, addresses) = listen(true).unwrap();
    let hub = Rank::start(0, Role::Hub, Some(listener));
    let first = Rank::start(1, Role::Deputy, None);
    first.join(0, 1, &addresses);
    // Some say nothing, some something else, and some know everything but the token.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
    let mut loud = TcpStream::connect(addresses[0]).unwrap();
    loud.write_all(&[b'x'; 100_000]).ok();
    let verdict =
        Frame { kind: Kind::Verdict, rank: 2, standing: Progress::new().standing(), text: "end".to_owned() };
    let mut forger = TcpStream::connect(addresses[0]).unwrap();
    forger.write_all(&verdict.encode(b"another token...")).unwrap();
    let started = Instant::now();
    let second = Rank::start(2, Role::Leaf, None);
    second.join(0, 2, &addresses);
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    std::thread::sleep(5 * INTERVAL);
    let left = [hub, first, second].map(|rank| (rank.leave(), rank));
    for (is_done, rank) in left {
        is_done.recv_timeout(Duration::from_secs(2)).unwrap();
        rank.thread.join().unwrap();
    }
    drop((silent, loud, forger));
}

#[test]
fn all_ranks_that_connect_together_are_welcome() {
    const N_RANKS: usize = 64;
    let (listener, addresses) = listen(true).unwrap();
    let hello = |rank| {
        let (kind, standing, text) = (Kind::Hello, Progress::new().standing(), String::new());
        let mut stream = TcpStream::connect(addresses[0]).unwrap();
        stream.write_all(&Frame { kind, rank, standing, text }.encode(&TOKEN)).unwrap();
        stream
    };
    let streams: Vec<_> = (1..N_RANKS).map(hello).collect();
    let hub = Rank::start_in(N_RANKS, 0, Role::Hub, Some(listener));
    for (rank, mut stream) in (1..).zip(&streams) {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
    let left = hub.leave();
    left.recv_timeout(Duration::from_secs(5)).unwrap();
    hub.thread.join().unwrap();
}

#[test]
fn a_rank_whose_world_is_gone_leaves() {
    let (listener, addresses) = listen(true).unwrap();
    let hub = Rank::start(0, Role::Hub, Some(listener));
    let leaf = Rank::start(1, Role::Leaf, None);
    leaf.join(0, 1, &addresses);
    std::thread::sleep(5 * INTERVAL);
    let Rank { commands, bell, thread } = leaf;
    drop((commands, bell));
    let since = Instant::now();
    while !thread.is_finished() {
        assert!(since.elapsed() < Duration::from_secs(2), "it has not left");
        std::thread::sleep(INTERVAL);
    }
    // Without a goodbye, its end would be a loss.
    hub.leave().recv_timeout(Duration::from_secs(1)).unwrap();
    hub.thread.join().unwrap();
}

#[test]
fn a_rank_that_leaves_waits_for_the_others() {
    let (listener, addresses) = listen(true).unwrap();
    let hub = Rank::start(0, Role::Hub, Some(listener));
    let leaf = Rank::start(1, Role::Leaf, None);
    leaf.join(0, 1, &addresses);
    std::thread::sleep(5 * INTERVAL);
    // The hub answers a goodbye at once, but leaves only after all others.
    leaf.leave().recv_timeout(Duration::from_secs(1)).unwrap();
    leaf.thread.join().unwrap();
    hub.leave().recv_timeout(Duration::from_secs(1)).unwrap();
    hub.thread.join().unwrap();
}
