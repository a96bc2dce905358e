//! NCCL's own report of a job, by its RAS service (from 2.24 on): one of the processes on a host answers on a TCP port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// NCCL's default of `NCCL_RAS_ADDR`.
const DEFAULT_ADDRESS: &str = "localhost:28028";
/// The longest report that is kept, bytes.
const MOST: u64 = 1 << 20;

/// NCCL's report of the job on this host, as text; `None` if nothing answers within `limit`, as where the service is turned off
/// (`NCCL_RAS_ENABLE=0`) or NCCL is older. If several jobs run on this host, it may be another one's, as its process numbers show.
///
/// Source: the protocol of NCCL's client `ncclras`.
pub fn nccl_status(limit: Duration) -> Option<String> {
    let is_off = std::env::var("NCCL_RAS_ENABLE").is_ok_and(|value| value.trim() == "0");
    let address = std::env::var("NCCL_RAS_ADDR").unwrap_or_else(|_| DEFAULT_ADDRESS.to_owned());
    // Names other than of this host could take longer to look up than the limit.
    let address = address.replacen("localhost", "127.0.0.1", 1).parse().or_else(|_| local(&address));
    if is_off { None } else { ask(address.ok()?, Instant::now() + limit) }
}

/// The address for a port without a usable host: the service listens on this host.
fn local(address: &str) -> std::io::Result<SocketAddr> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port: u16 = port.ok_or(std::io::ErrorKind::InvalidInput)?;
    ("127.0.0.1", port).to_socket_addrs()?.next().ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
}

/// The report of the service at `address`; what came of it by `deadline`.
fn ask(address: SocketAddr, deadline: Instant) -> Option<String> {
    let left = || deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    let stream = TcpStream::connect_timeout(&address, left()?).ok()?;
    stream.set_write_timeout(left()).ok()?;
    let mut lines = BufReader::new(&stream).take(MOST);
    let mut answer = |request: &str| {
        (&stream).write_all(request.as_bytes()).ok()?;
        stream.set_read_timeout(Some(left()?)).ok()?;
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        Some(line)
    };
    answer("CLIENT PROTOCOL 2\n")?.starts_with("SERVER PROTOCOL ").then_some(())?;
    // Seconds that it may wait for other processes; the least that it takes.
    answer("TIMEOUT 1\n")?.starts_with("OK").then_some(())?;

    (&stream).write_all(b"STATUS\n").ok()?;
    let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
    while let Some(left) = left() {
        stream.set_read_timeout(Some(left)).ok()?;
        match lines.read(&mut chunk) {
            Ok(n) if n > 0 => text.extend_from_slice(&chunk[..n]),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Answers one client line by line with `answers`, then closes the connection; gives what it was sent.
    fn service(answers: &'static [&'static str]) -> (SocketAddr, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream);
            let answer = |answer: &&str| {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                (&stream).write_all(answer.as_bytes()).unwrap();
                line
            };
            answers.iter().map(answer).collect()
        };
        (address, std::thread::spawn(serve))
    }

    #[test]
    fn the_report_is_read_to_its_end() {
        let (address, thread) =
            service(&["SERVER PROTOCOL 2\n", "OK\n", "NCCL version 2.28.9\n\nJob summary\n  4 processes\n"]);
        let report = ask(address, Instant::now() + SOON).unwrap();
        assert_eq!(report, "NCCL version 2.28.9\n\nJob summary\n  4 processes");
        assert_eq!(thread.join().unwrap(), ["CLIENT PROTOCOL 2\n", "TIMEOUT 1\n", "STATUS\n"]);
    }

    #[test]
    fn another_service_on_the_port_reports_nothing() {
        let (address, thread) = service(&["HTTP/1.1 400 Bad Request\r\n"]);
        assert_eq!(ask(address, Instant::now() + SOON), None);
        thread.join().unwrap();
    }

    #[test]
    fn a_service_that_never_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, begin) = (listener.local_addr().unwrap(), Instant::now());
        assert_eq!(ask(address, begin + Duration::from_millis(50)), None);
        assert!(begin.elapsed() < SOON);
        drop(listener);
        assert_eq!(ask(address, Instant::now() + SOON), None, "nobody listens");
    }

    #[test]
    fn a_port_without_a_usable_host_is_one_of_this_host() {
        assert_eq!(local("no.such.host:28028").unwrap(), SocketAddr::from(([127, 0, 0, 1], 28028)));
        assert!(local("no port").is_err());
    }
}
