//! Connects the ranks to rank 0, which listens where the environment says.
//!
//! A rank that connects says which one it is, and rank 0 answers at once, so that a rank notices when another program listens there.
//! Once all have connected, rank 0 lets them continue, or says why it does not. Each rank connects twice: for collectives, and for the
//! connection by which the ranks end together ([`lifeline`](crate::lifeline)).
//!
//! | bytes of a greeting | content                                     |
//! |---------------------|---------------------------------------------|
//! | 0..8                | version of this exchange                    |
//! | 8..24               | token of the job                            |
//! | 24..40              | rank, number of ranks, process id, purpose  |
//! | 40..104             | name of the host, padded with zeros         |
//!
//! Numbers are little-endian.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use crate::environment::Meeting;
use crate::error::waiting_for;
use crate::stderr::write_stderr;
use crate::token::Token;
use crate::{CommError, Result};

const VERSION: [u8; 8] = *b"ddprank1";
const GREETING_LEN: usize = 104;
const HOST_LEN: usize = 64;
/// Answers of rank 0: it knows the rank, all have connected, it does not continue. A text follows the last one.
const WELCOME: u8 = 1;
const GO: u8 = 2;
const REFUSED: u8 = 3;

/// Time for which a rank tries one address, and waits for the answer there.
const ADDRESS_WAIT: Duration = Duration::from_secs(5);
/// Time that a connection may take to say which rank it is.
const GREETING_WAIT: Duration = Duration::from_secs(5);
/// Most connections that have not said which rank they are.
const MAX_STRANGERS: usize = 64;
/// Time after which rank 0 reports for the first time which ranks it waits for, and between further reports.
const NOTICES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
/// Time for which rank 0 tries to listen: the port may be that of a job that is just ending.
const LISTEN_WAIT: Duration = Duration::from_secs(2);
/// Pauses between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];

/// A rank's connections: to all other ranks in their order on rank 0, to rank 0 on the others.
pub(super) struct Links {
    pub(super) streams: Vec<TcpStream>,
    pub(super) lifelines: Vec<TcpStream>,
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Collectives,
    Lifeline,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Greeting {
    rank: usize,
    world_size: usize,
    pid: u32,
    purpose: Purpose,
    host: String,
}

/// Joins all ranks of the job; waits for them up to `limit`.
///
/// - `host`: name of this host
///
/// # Errors
/// [`CommError::MissingRanks`], [`CommError::CannotListen`] or [`CommError::RankConflict`] on rank 0; [`CommError::NoRankZero`] or
/// [`CommError::NotJoined`] on the others.
pub(super) fn meet(meeting: &Meeting, host: &str, limit: Duration) -> Result<Links> {
    if meeting.rank == 0 { receive(meeting, limit) } else { visit(meeting, host, limit) }
}

/// The connections of rank 0.
fn receive(meeting: &Meeting, limit: Duration) -> Result<Links> {
    let began = Instant::now();
    let listener = listen(meeting).map_err(|error| CommError::CannotListen {
        host: meeting.host.clone(),
        ports: ports(meeting),
        text: error.to_string(),
    })?;
    let mut guests = Guests::new(meeting);
    let outcome = guests.wait(&listener, began, limit);
    for stream in guests.collectives.iter_mut().flatten() {
        let answer = match &outcome {
            Ok(()) => vec![GO],
            Err(error) => refusal(&error.to_string()),
        };
        // A rank that has gone is noticed at the next exchange.
        let _ = stream.set_nonblocking(false).and_then(|()| stream.write_all(&answer));
    }
    outcome?;
    let streams: Vec<_> = guests.collectives.into_iter().flatten().collect();
    let lifelines: Vec<_> = guests.lifelines.into_iter().flatten().collect();
    lifelines.iter().for_each(|stream| _ = stream.set_nonblocking(false));
    Ok(Links { streams, lifelines })
}

fn refusal(text: &str) -> Vec<u8> {
    [&[REFUSED], &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Listens at the first port that is free: on the loopback interface if all ranks are on this host, else on all interfaces.
fn listen(meeting: &Meeting) -> io::Result<TcpListener> {
    let began = Instant::now();
    let addresses: Vec<SocketAddr> = resolve(meeting, *meeting.ports.start()).unwrap_or_default();
    let is_v6 = !addresses.is_empty() && addresses.iter().all(SocketAddr::is_ipv6);
    let interface = match (meeting.is_one_host, is_v6) {
        (true, false) => Ipv4Addr::LOCALHOST.into(),
        (true, true) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::UNSPECIFIED.into(),
    };
    loop {
        let listening = meeting.ports.clone().map(|port| TcpListener::bind(SocketAddr::new(interface, port)));
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for listener in listening {
            match listener {
                Ok(listener) => return listener.set_nonblocking(true).map(|()| listener),
                Err(error) => last = error,
            }
        }
        if last.kind() != ErrorKind::AddrInUse || began.elapsed() > LISTEN_WAIT {
            return Err(last);
        }
        std::thread::sleep(PAUSES[1]);
    }
}

/// A connection that has not said yet which rank it is.
struct Stranger {
    stream: TcpStream,
    received: Vec<u8>,
    since: Instant,
}

/// The ranks that have come to rank 0.
struct Guests<'a> {
    meeting: &'a Meeting,
    strangers: Vec<Stranger>,
    /// Of ranks 1 and up.
    collectives: Vec<Option<TcpStream>>,
    lifelines: Vec<Option<TcpStream>>,
}

impl<'a> Guests<'a> {
    fn new(meeting: &'a Meeting) -> Self {
        let n = meeting.world_size - 1;
        let (collectives, lifelines) = ((0..n).map(|_| None).collect(), (0..n).map(|_| None).collect());
        Guests { meeting, strangers: Vec::new(), collectives, lifelines }
    }

    fn missing(&self) -> Vec<usize> {
        let have_come = self.collectives.iter().zip(&self.lifelines).map(|(a, b)| a.is_some() && b.is_some());
        have_come.enumerate().filter(|(_, has_come)| !has_come).map(|(index, _)| index + 1).collect()
    }

    /// Waits until all ranks have come.
    fn wait(&mut self, listener: &TcpListener, began: Instant, limit: Duration) -> Result<()> {
        let Meeting { world_size, host, .. } = self.meeting;
        let mut notices = NOTICES[0];
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            let waited = began.elapsed();
            if waited >= limit {
                let (host, ports) = (host.clone(), ports(self.meeting));
                let (world_size, waited_s) = (*world_size, limit.as_secs_f64());
                return Err(CommError::MissingRanks { missing, world_size, host, ports, waited_s });
            }
            if waited >= notices {
                let text = waiting_for(&missing, *world_size);
                write_stderr(&format!("{text} (at {host}, {})\n", ports(self.meeting)));
                notices += NOTICES[1];
            }
            self.poll(listener, limit.min(notices) - waited);
            while let Ok((stream, _)) = listener.accept() {
                if self.strangers.len() == MAX_STRANGERS {
                    self.strangers.remove(0);
                }
                if stream.set_nonblocking(true).is_ok() {
                    self.strangers.push(Stranger { stream, received: Vec::new(), since: Instant::now() });
                }
            }
            for mut stranger in std::mem::take(&mut self.strangers) {
                match stranger.greeting(&self.meeting.token) {
                    Ok(Some(greeting)) => {
                        if let Err(conflict) = self.seat(greeting, &stranger.stream) {
                            // To the one that is too many; the others hear of it once this returns.
                            let _ = stranger.stream.write_all(&refusal(&conflict.to_string()));
                            return Err(conflict);
                        }
                    }
                    Ok(None) if stranger.since.elapsed() < GREETING_WAIT => self.strangers.push(stranger),
                    _ => {}
                }
            }
        }
    }

    /// Waits for connections or bytes.
    fn poll(&self, listener: &TcpListener, limit: Duration) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = vec![entry(listener.as_raw_fd())];
        entries.extend(self.strangers.iter().map(|stranger| entry(stranger.stream.as_raw_fd())));
        let limit_ms = limit.min(GREETING_WAIT).as_millis() as i32 + 1;
        // SAFETY: the array is writable for its length; what is readable is found by reading.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, limit_ms) };
    }

    /// Gives a rank its place.
    fn seat(&mut self, greeting: Greeting, mut stream: &TcpStream) -> Result<()> {
        let Greeting { rank, world_size, pid, purpose, host } = greeting;
        let expected = self.meeting.world_size;
        if world_size != expected {
            let what = format!(
                "rank {rank} (host {host}, pid {pid}) has WORLD_SIZE={world_size}, rank 0 has {expected}"
            );
            return Err(CommError::RankConflict { what });
        }
        if rank == 0 {
            let what = format!("a second process (host {host}, pid {pid}) has RANK=0");
            return Err(CommError::RankConflict { what });
        }
        let index = rank - 1;
        let place = match purpose {
            Purpose::Collectives => &mut self.collectives[index],
            Purpose::Lifeline => &mut self.lifelines[index],
        };
        // One that was restarted meanwhile takes its place again.
        if place.as_ref().is_some_and(is_open) {
            let what = format!("two processes have RANK={rank}; one of them is on host {host}, pid {pid}");
            return Err(CommError::RankConflict { what });
        }
        let welcome = stream.set_nodelay(true).and_then(|()| stream.write_all(&[WELCOME]));
        // A rank that has gone meanwhile is missing.
        *place = welcome.and_then(|()| stream.try_clone()).ok();
        Ok(())
    }
}

impl Stranger {
    /// Its greeting, once it is whole.
    ///
    /// # Errors
    /// If it is no rank of this job.
    fn greeting(&mut self, token: &Token) -> io::Result<Option<Greeting>> {
        let mut bytes = [0; GREETING_LEN];
        let rest = GREETING_LEN - self.received.len();
        match self.stream.read(&mut bytes[..rest]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.received.extend(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        match <&[u8; GREETING_LEN]>::try_from(&self.received[..]) {
            Ok(bytes) => {
                Greeting::decode(bytes, token).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
            }
            Err(_) => Ok(None),
        }
    }
}

/// Whether the other end has not closed the connection, which does not block.
fn is_open(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |n| n > 0)
}

/// The connections of a rank other than 0.
fn visit(meeting: &Meeting, host: &str, limit: Duration) -> Result<Links> {
    let began = Instant::now();
    let Meeting { rank, world_size, .. } = *meeting;
    let greeting =
        |purpose| Greeting { rank, world_size, pid: std::process::id(), purpose, host: host.to_owned() };
    let mut pause = PAUSES[0];
    let refused = |text| CommError::NotJoined { rank, is_reported: meeting.is_one_host, text };
    // Rank 0 may have died.
    let gone = |error: io::Error| CommError::NotJoined { rank, is_reported: false, text: error.to_string() };
    let (mut stream, address) = loop {
        let last = match connect(meeting, &greeting(Purpose::Collectives)) {
            Ok((Answer::Welcome(stream), address)) => break (stream, address),
            Ok((Answer::Refused(text), _)) => return Err(refused(text)),
            Err(error) => error.to_string(),
        };
        if began.elapsed() >= limit {
            let (host, ports, waited_s) = (meeting.host.clone(), ports(meeting), limit.as_secs_f64());
            return Err(CommError::NoRankZero { rank, host, ports, waited_s, last });
        }
        std::thread::sleep(pause);
        pause = PAUSES[1].min(2 * pause);
    };
    let lifeline = match greet(address, &greeting(Purpose::Lifeline).encode(&meeting.token)).map_err(gone)? {
        Answer::Welcome(stream) => stream,
        Answer::Refused(text) => return Err(refused(text)),
    };
    // Rank 0 waits for the others up to the same limit.
    stream.set_read_timeout(Some(limit + ADDRESS_WAIT)).map_err(gone)?;
    let mut answer = [0];
    stream.read_exact(&mut answer).map_err(gone)?;
    if answer != [GO] {
        return Err(refused(read_refusal(&mut stream).map_err(gone)?));
    }
    stream.set_read_timeout(None).map_err(gone)?;
    Ok(Links { streams: vec![stream], lifelines: vec![lifeline] })
}

/// First answer of rank 0.
enum Answer {
    Welcome(TcpStream),
    Refused(String),
}

/// Connects to rank 0 at the first address and port where it answers.
fn connect(meeting: &Meeting, greeting: &Greeting) -> io::Result<(Answer, SocketAddr)> {
    let bytes = greeting.encode(&meeting.token);
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for port in meeting.ports.clone() {
        for address in resolve(meeting, port)? {
            match greet(address, &bytes) {
                Ok(answer) => return Ok((answer, address)),
                Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
    }
    Err(last)
}

fn greet(address: SocketAddr, greeting: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, ADDRESS_WAIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ADDRESS_WAIT))?;
    stream.write_all(greeting)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    match answer {
        [WELCOME] => Ok(Answer::Welcome(stream)),
        [REFUSED] => read_refusal(&mut stream).map(Answer::Refused),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "another program answers there")),
    }
}

fn read_refusal(stream: &mut TcpStream) -> io::Result<String> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut text = Vec::new();
    stream.take(u32::from_le_bytes(len).into()).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn resolve(meeting: &Meeting, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((meeting.host.as_str(), port).to_socket_addrs()?.collect())
}

/// The ports as text: `port 29500`, or `ports 29501 to 29516`.
fn ports(meeting: &Meeting) -> String {
    let (first, last) = (meeting.ports.start(), meeting.ports.end());
    if first == last { format!("port {first}") } else { format!("ports {first} to {last}") }
}

impl Greeting {
    fn encode(&self, token: &Token) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..8].copy_from_slice(&VERSION);
        bytes[8..24].copy_from_slice(token);
        let numbers = [self.rank as u32, self.world_size as u32, self.pid, self.purpose as u32];
        for (to, number) in bytes[24..40].chunks_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        let len = self.host.len().min(HOST_LEN);
        bytes[40..40 + len].copy_from_slice(&self.host.as_bytes()[..len]);
        bytes
    }

    /// `None` for bytes that no rank of this job sends.
    fn decode(bytes: &[u8; GREETING_LEN], token: &Token) -> Option<Self> {
        // Every byte is compared, so that the time does not show where they differ.
        let expected = VERSION.iter().chain(token);
        let differs = bytes.iter().zip(expected).fold(0, |differs, (a, b)| differs | (a ^ b));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (rank, world_size, pid) = (word(24) as usize, word(28) as usize, word(32));
        let purpose = match word(36) {
            0 => Purpose::Collectives,
            1 => Purpose::Lifeline,
            _ => return None,
        };
        let host = bytes[40..].split(|&byte| byte == 0).next().unwrap_or_default();
        let host = String::from_utf8_lossy(host).chars().filter(|c| !c.is_control()).collect();
        (differs == 0 && rank < world_size).then_some(Greeting { rank, world_size, pid, purpose, host })
    }
}
