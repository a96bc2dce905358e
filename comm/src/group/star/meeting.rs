//! Connects the ranks to rank 0, which listens where the environment says.
//!
//! A rank that connects says which one it is ([`greeting`](super::greeting)), and rank 0 answers at once, so that a rank notices when another
//! program listens there. Once all have connected, rank 0 lets them continue, or says why it does not. Each rank connects twice: for
//! collectives, and for the connection by which the ranks end together ([`lifeline`](crate::lifeline)); the second greeting repeats the
//! nonce of rank 0, so that both reach the same process. A connection that fails is made again until the time is over.
//!
//! Strangers, such as ranks of another job, are turned away; they never end the start.

use std::io::{self, ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use super::greeting::{
    GO, GREETING_LEN, Greeting, NOTICE, Purpose, REFUSED, TURNED_AWAY, WELCOME, is_same, read_text, with_text,
};
use super::peer_user;
use crate::CommError;
use crate::environment::Meeting;
use crate::error::waiting_for;
use crate::launcher_process::has_own_rank_0;
use crate::stderr::write_stderr;
use crate::this_host::{allow_files, takes_both};
use crate::token::{Token, random_token};

/// Time for which a rank tries one address, and waits for the answer there.
const ADDRESS_WAIT: Duration = Duration::from_secs(5);
/// Time that a connection may take to say which rank it is.
const GREETING_WAIT: Duration = Duration::from_secs(5);
/// Most connections that have not said which rank they are.
const MAX_STRANGERS: usize = 256;
/// Connections that are accepted before the strangers are heard again.
const ACCEPTS: usize = 64;
/// Strangers that rank 0 names.
const MAX_NAMED: usize = 16;
/// Time after which a rank reports for the first time which ranks it waits for, to a terminal and to a log.
const FIRST_NOTICE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// Time between further reports.
const NOTICES: Duration = Duration::from_secs(60);
/// Time for which rank 0 tries to listen: the port may be that of a job that is just ending.
const LISTEN_WAIT: Duration = Duration::from_secs(2);
/// Time for which a rank tries again where rank 0 of another job listens, which may be just ending.
const OTHER_JOB_WAIT: Duration = Duration::from_secs(5);
/// Time for which a rank tries again after its connection to rank 0 was lost, which may have died.
const RETURN_WAIT: Duration = Duration::from_secs(10);
/// Pauses between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];

/// A rank's connections: to all other ranks in their order on rank 0, to rank 0 on the others.
pub(super) struct Links {
    pub(super) streams: Vec<TcpStream>,
    pub(super) lifelines: Vec<TcpStream>,
}

/// Joins all ranks of the job; waits for them up to `limit`.
///
/// - `host`: name of this host
///
/// # Errors
/// [`CommError::MissingRanks`] or [`CommError::CannotListen`] on rank 0; [`CommError::NoRankZero`] or [`CommError::NotJoined`] on the
/// others.
pub(super) fn meet(meeting: &Meeting, host: &str, limit: Duration) -> crate::Result<Links> {
    if meeting.rank == 0 { receive(meeting, limit) } else { Visitor::new(meeting, host).visit(limit) }
}

/// Reports of a wait.
struct Notices {
    next: Duration,
}

impl Notices {
    fn new() -> Self {
        Notices { next: FIRST_NOTICE[usize::from(!io::stderr().is_terminal())] }
    }

    /// Whether one is due.
    fn is_due(&mut self, waited: Duration) -> bool {
        let is_due = waited >= self.next;
        if is_due {
            self.next += NOTICES;
        }
        is_due
    }
}

/// The connections of rank 0.
fn receive(meeting: &Meeting, limit: Duration) -> crate::Result<Links> {
    let began = Instant::now();
    let cannot = |error| cannot_listen(meeting, &error);
    allow_files(meeting.world_size).map_err(cannot)?;
    let listener = listen(meeting).map_err(cannot)?;
    let mut guests = Guests::new(meeting).map_err(cannot)?;
    let outcome = guests.wait(&listener, began, limit);
    let answer = match &outcome {
        Ok(()) => vec![GO],
        Err(error) => with_text(REFUSED, &error.to_string()),
    };
    // A rank that has gone is noticed at the next exchange.
    guests.send(&answer);
    outcome?;
    let links: Vec<_> =
        guests.seats.into_iter().filter_map(|seat| seat.collectives.zip(seat.lifeline)).collect();
    links.iter().for_each(|(a, b)| [a, b].iter().for_each(|stream| _ = stream.set_nonblocking(false)));
    let (streams, lifelines) = links.into_iter().unzip();
    Ok(Links { streams, lifelines })
}

fn cannot_listen(meeting: &Meeting, error: &io::Error) -> CommError {
    let hint = match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "raise the limit before the start: ulimit -n 65536 (docker run --ulimit nofile=65536)"
        }
        _ => "set MASTER_PORT to a free port of this host, the same for all ranks",
    };
    CommError::CannotListen {
        host: meeting.host.clone(),
        ports: ports(meeting),
        text: error.to_string(),
        hint,
    }
}

/// Interfaces at which rank 0 tries to listen, in this order: the loopback interface if all ranks are on this host, else all interfaces.
fn interfaces(meeting: &Meeting) -> Vec<IpAddr> {
    let addresses: Vec<SocketAddr> = resolve(meeting, *meeting.ports.start()).unwrap_or_default();
    let is_v6 = !addresses.is_empty() && addresses.iter().all(SocketAddr::is_ipv6);
    let [v4, v6]: [IpAddr; 2] = if meeting.is_one_host {
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
    } else {
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    };
    match is_v6 {
        // Other hosts may know this one by an address of either kind.
        _ if !meeting.is_one_host && takes_both() => vec![v6, v4],
        true => vec![v6],
        false => vec![v4],
    }
}

/// Addresses, with the first port, at which a rank looks for rank 0: the addresses of its name, or, if all ranks are on this host, the
/// loopback interface, on which rank 0 listens whatever its name resolves to.
fn places(meeting: &Meeting) -> io::Result<Vec<SocketAddr>> {
    let port = *meeting.ports.start();
    if !meeting.is_one_host {
        return resolve(meeting, port);
    }
    let mut both: [IpAddr; 2] = [Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
    // The last one is named by the error.
    let listens = interfaces(meeting);
    both.sort_by_key(|address| listens.contains(address));
    Ok(both.map(|address| SocketAddr::new(address, port)).to_vec())
}

/// Listens at the first port that is free.
fn listen(meeting: &Meeting) -> io::Result<TcpListener> {
    let began = Instant::now();
    let interfaces = interfaces(meeting);
    loop {
        let listening = meeting.ports.clone().flat_map(|port| {
            interfaces.iter().map(move |interface| TcpListener::bind(SocketAddr::new(*interface, port)))
        });
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

/// The place of one of the ranks 1 and up.
#[derive(Default)]
struct Seat {
    collectives: Option<TcpStream>,
    lifeline: Option<TcpStream>,
    /// Process id and host of the one that has it.
    process: (u32, String),
}

/// The ranks that have come to rank 0.
struct Guests<'a> {
    meeting: &'a Meeting,
    nonce: Token,
    strangers: Vec<Stranger>,
    seats: Vec<Seat>,
    /// Processes that were turned away.
    named: Vec<(u32, String)>,
    /// Processes of this host whose launcher has started a rank 0 of their own.
    of_others: Vec<u32>,
}

impl<'a> Guests<'a> {
    fn new(meeting: &'a Meeting) -> io::Result<Self> {
        let seats = (1..meeting.world_size).map(|_| Seat::default()).collect();
        let (strangers, named, of_others) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Guests { meeting, nonce: random_token()?, strangers, seats, named, of_others })
    }

    /// The ranks that are not there, or have gone.
    fn missing(&self) -> Vec<usize> {
        let has_come = |seat: &Seat| [&seat.collectives, &seat.lifeline].into_iter().all(is_taken);
        (1..).zip(&self.seats).filter(|(_, seat)| !has_come(seat)).map(|(rank, _)| rank).collect()
    }

    fn send(&self, answer: &[u8]) {
        for mut stream in self.seats.iter().filter_map(|seat| seat.collectives.as_ref()) {
            let _ = stream.write_all(answer);
        }
    }

    /// Waits until all ranks have come.
    fn wait(&mut self, listener: &TcpListener, began: Instant, limit: Duration) -> crate::Result<()> {
        let Meeting { world_size, host, .. } = self.meeting;
        let mut notices = Notices::new();
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
            if notices.is_due(waited) {
                let text = format!("{} at {}", waiting_for(&missing, *world_size), place(self.meeting));
                write_stderr(&format!("{text}\n"));
                self.send(&with_text(NOTICE, &text));
            }
            self.poll(listener, limit.min(notices.next) - waited);
            self.accept(listener).map_err(|error| cannot_listen(self.meeting, &error))?;
            self.hear();
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

    /// Accepts some connections. If there are too many, it drops the oldest one that had time to say something and has said nothing:
    /// the greeting of a rank follows at once.
    ///
    /// # Errors
    /// The system's error if this process may open no further file, and no stranger keeps one from it.
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let mut n_heard = self.strangers.len();
        for _ in 0..ACCEPTS {
            let accepted = listener.accept();
            let is_full = matches!(&accepted, Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)));
            // The table of the whole system is full for a moment only.
            let is_own = accepted.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE));
            if is_own && self.strangers.is_empty() {
                return accepted.map(drop);
            }
            if (is_full || self.strangers.len() >= MAX_STRANGERS) && n_heard > 0 {
                let silent =
                    self.strangers[..n_heard].iter().position(|stranger| stranger.received.is_empty());
                self.strangers.remove(silent.unwrap_or(0));
                n_heard -= 1;
            }
            match accepted {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    self.strangers.push(Stranger { stream, received: Vec::new(), since: Instant::now() });
                }
                Ok(_) => {}
                Err(_) if is_full => {
                    std::thread::sleep(PAUSES[0]);
                    break;
                }
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Hears the strangers, and gives the ranks among them their places.
    fn hear(&mut self) {
        for mut stranger in std::mem::take(&mut self.strangers) {
            let greeting = match stranger.greeting() {
                Ok(Some(greeting)) => greeting,
                Ok(None) => {
                    if stranger.since.elapsed() < GREETING_WAIT {
                        self.strangers.push(stranger);
                    }
                    continue;
                }
                Err(_) => continue,
            };
            if let Err(text) = self.seat(&greeting, &stranger.stream) {
                self.turn_away(greeting, &stranger.stream, &text);
            }
        }
    }

    /// Gives a rank its place.
    ///
    /// # Errors
    /// The reason why the process is no rank of this job.
    fn seat(&mut self, greeting: &Greeting, mut stream: &TcpStream) -> Result<(), String> {
        let Greeting { rank, world_size, pid, purpose, ref host, .. } = *greeting;
        let expected = self.meeting.world_size;
        if world_size != expected {
            return Err(format!("WORLD_SIZE={world_size}, expected {expected}: another job"));
        }
        if !is_same(&greeting.token, &self.meeting.token) {
            return Err("another job: its secret, run id, run or --out differs".to_owned());
        }
        if peer_user::is_another(stream) {
            return Err("a process of another user".to_owned());
        }
        let is_here = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        // Its rank 0 finds the port taken, and ends before this one does.
        if is_here && !self.meeting.is_named && !self.of_others.contains(&pid) {
            self.of_others.extend(has_own_rank_0(pid, *self.meeting.ports.start()).then_some(pid));
        }
        if is_here && self.of_others.contains(&pid) {
            return Err("another job: what started it has started a rank 0 too".to_owned());
        }
        let Some(seat) = rank.checked_sub(1).and_then(|index| self.seats.get_mut(index)) else {
            return Err("RANK=0, as here".to_owned());
        };
        let process = (pid, host.clone());
        match purpose {
            // One that was restarted meanwhile, or was cut off, takes its place again.
            Purpose::Collectives if is_taken(&seat.collectives) && seat.process != process => {
                let (pid, host) = &seat.process;
                return Err(format!("RANK={rank}, as host {host}, pid {pid}"));
            }
            Purpose::Collectives => *seat = Seat { process, ..Seat::default() },
            Purpose::Lifeline if seat.process != process || !is_same(&greeting.nonce, &self.nonce) => {
                return Err("its first connection is to another process".to_owned());
            }
            Purpose::Lifeline => {}
        }
        let answer = [&[WELCOME], &self.nonce[..]].concat();
        let welcome = stream.set_nodelay(true).and_then(|()| stream.write_all(&answer));
        let place = if purpose == Purpose::Lifeline { &mut seat.lifeline } else { &mut seat.collectives };
        // A rank that has gone meanwhile is missing.
        *place = welcome.and_then(|()| stream.try_clone()).ok();
        Ok(())
    }

    /// Says why to a process that is no rank of this job, and once to the user.
    fn turn_away(&mut self, greeting: Greeting, mut stream: &TcpStream, text: &str) {
        let _ = stream.write_all(&with_text(TURNED_AWAY, text));
        let process = (greeting.pid, greeting.host);
        if self.named.len() < MAX_NAMED && !self.named.contains(&process) {
            write_stderr(&format!("turned away {} (pid {}): {text}\n", process.1, process.0));
            self.named.push(process);
        }
    }
}

impl Stranger {
    /// Its greeting, once it is whole.
    ///
    /// # Errors
    /// If it is no rank.
    fn greeting(&mut self) -> io::Result<Option<Greeting>> {
        let mut bytes = [0; GREETING_LEN];
        let rest = GREETING_LEN - self.received.len();
        match self.stream.read(&mut bytes[..rest]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.received.extend(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Greeting::decode(&self.received)
    }
}

/// Whether the other end has not closed the connection, which does not block.
fn is_taken(stream: &Option<TcpStream>) -> bool {
    let is_open = |stream: &TcpStream| {
        stream.peek(&mut [0]).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |n| n > 0)
    };
    stream.as_ref().is_some_and(is_open)
}

/// Reason why a rank has not joined rank 0 yet.
enum NotYet {
    /// Rank 0 ends the job, since ranks are missing.
    Refused(String),
    /// Rank 0 belongs to another job.
    TurnedAway(String),
    /// The connection failed.
    Failed(io::Error),
}

impl From<io::Error> for NotYet {
    fn from(error: io::Error) -> Self {
        NotYet::Failed(error)
    }
}

/// A rank other than 0.
struct Visitor<'a> {
    meeting: &'a Meeting,
    host: &'a str,
    notices: Notices,
    /// Whether rank 0 knew it in the last attempt.
    was_welcome: bool,
}

impl<'a> Visitor<'a> {
    fn new(meeting: &'a Meeting, host: &'a str) -> Self {
        Visitor { meeting, host, notices: Notices::new(), was_welcome: false }
    }

    /// Its connections to rank 0.
    fn visit(mut self, limit: Duration) -> crate::Result<Links> {
        let began = Instant::now();
        let Meeting { rank, world_size, .. } = *self.meeting;
        let not_joined = |text, misses_others| CommError::NotJoined { rank, text, misses_others };
        let (mut pause, mut end, mut turned_away) = (PAUSES[0], limit, None);
        loop {
            self.was_welcome = false;
            let last = match self.join(limit.saturating_sub(began.elapsed())) {
                Ok(links) => return Ok(links),
                Err(NotYet::Refused(text)) => return Err(not_joined(text, true)),
                Err(NotYet::TurnedAway(text)) => {
                    let since: &mut Instant = turned_away.get_or_insert_with(Instant::now);
                    let text = format!("turned away: {text}");
                    // At one of several ports, rank 0 of this job may still come.
                    if self.meeting.ports.clone().count() == 1 && since.elapsed() >= OTHER_JOB_WAIT {
                        let way_out = "give each job its own MASTER_PORT, or its ranks a DDP_RANKS_SECRET";
                        return Err(not_joined(format!("{text}; {way_out}"), false));
                    }
                    text
                }
                Err(NotYet::Failed(error)) => {
                    turned_away = None;
                    error.to_string()
                }
            };
            let waited = began.elapsed();
            if self.was_welcome {
                end = limit.min(waited + RETURN_WAIT);
                pause = PAUSES[0];
            }
            if waited >= end {
                let (host, ports) = (self.meeting.host.clone(), ports(self.meeting));
                return Err(CommError::NoRankZero { rank, host, ports, waited_s: end.as_secs_f64(), last });
            }
            if self.notices.is_due(waited) {
                let missing = waiting_for(&[0], world_size);
                self.report(&format!("{missing} at {}: {last}", place(self.meeting)));
            }
            std::thread::sleep(pause);
            pause = PAUSES[1].min(2 * pause);
        }
    }

    fn report(&self, text: &str) {
        write_stderr(&format!("[rank {} {}] {text}\n", self.meeting.rank, self.host));
    }

    /// Connects twice, and waits up to `limit` until all ranks have come.
    fn join(&mut self, limit: Duration) -> Result<Links, NotYet> {
        let (mut stream, address, nonce) = self.connect()?;
        self.was_welcome = true;
        let (lifeline, _) = self.greet(address, Purpose::Lifeline, nonce)?;
        // Rank 0 waits for the others up to the same limit.
        stream.set_read_timeout(Some(limit + ADDRESS_WAIT))?;
        loop {
            let mut answer = [0];
            stream.read_exact(&mut answer)?;
            match answer {
                [GO] => break,
                [NOTICE] => self.report(&read_text(&mut stream)?),
                _ => return Err(NotYet::Refused(read_text(&mut stream)?)),
            }
        }
        stream.set_read_timeout(None)?;
        Ok(Links { streams: vec![stream], lifelines: vec![lifeline] })
    }

    /// Connects to rank 0 at the first address and port where it answers.
    fn connect(&self) -> Result<(TcpStream, SocketAddr, Token), NotYet> {
        let mut last = NotYet::from(io::Error::from(ErrorKind::AddrNotAvailable));
        let places = places(self.meeting)?;
        for port in self.meeting.ports.clone() {
            for mut address in places.iter().copied() {
                address.set_port(port);
                match self.greet(address, Purpose::Collectives, Token::default()) {
                    Ok((stream, nonce)) => return Ok((stream, address, nonce)),
                    Err(refused @ NotYet::Refused(_)) => return Err(refused),
                    Err(NotYet::Failed(_)) if matches!(last, NotYet::TurnedAway(_)) => {}
                    Err(NotYet::Failed(error)) => {
                        last = NotYet::Failed(io::Error::new(error.kind(), format!("{address}: {error}")));
                    }
                    Err(turned_away) => last = turned_away,
                }
            }
        }
        Err(last)
    }

    /// Greets rank 0 at an address; returns the connection and its nonce.
    fn greet(
        &self,
        address: SocketAddr,
        purpose: Purpose,
        nonce: Token,
    ) -> Result<(TcpStream, Token), NotYet> {
        let Meeting { rank, world_size, token, .. } = *self.meeting;
        let host = self.host.to_owned();
        let greeting = Greeting { token, rank, world_size, pid: std::process::id(), purpose, nonce, host };
        let mut stream = TcpStream::connect_timeout(&address, ADDRESS_WAIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ADDRESS_WAIT))?;
        stream.write_all(&greeting.encode())?;
        let (mut answer, mut nonce) = ([0], Token::default());
        stream.read_exact(&mut answer)?;
        match answer {
            [WELCOME] => stream.read_exact(&mut nonce).map(|()| Ok((stream, nonce)))?,
            [REFUSED] => Err(NotYet::Refused(read_text(&mut stream)?)),
            [TURNED_AWAY] => Err(NotYet::TurnedAway(read_text(&mut stream)?)),
            _ => Err(io::Error::new(ErrorKind::InvalidData, "another program answers there").into()),
        }
    }
}

fn resolve(meeting: &Meeting, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((meeting.host.as_str(), port).to_socket_addrs()?.collect())
}

/// The ports as text: `port 29500`, or `ports 29501 to 29516`.
fn ports(meeting: &Meeting) -> String {
    let (first, last) = (meeting.ports.start(), meeting.ports.end());
    if first == last { format!("port {first}") } else { format!("ports {first} to {last}") }
}

/// The place as text: `node7:29500`, or `node7:29501-29516`.
fn place(meeting: &Meeting) -> String {
    let (first, last) = (meeting.ports.start(), meeting.ports.end());
    let host = if meeting.host.contains(':') { format!("[{}]", meeting.host) } else { meeting.host.clone() };
    if first == last { format!("{host}:{first}") } else { format!("{host}:{first}-{last}") }
}
