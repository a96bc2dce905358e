//! The user at the other end of a connection within this host, as the system knows it.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Whether a process of another user of this host has made this connection; `false` if it comes from elsewhere, or if the system does not
/// say.
pub(super) fn is_another(stream: &TcpStream) -> bool {
    // SAFETY: the function has no preconditions.
    let own = unsafe { libc::geteuid() };
    user_of(stream).is_some_and(|user| user != own && user != 0)
}

fn user_of(stream: &TcpStream) -> Option<u32> {
    let (peer, local) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    if !peer.ip().to_canonical().is_loopback() {
        return None;
    }
    // An IPv4 client of a listener of both kinds is in the table of IPv4, where its own socket is one of IPv4.
    let canonical = [peer, local].map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    user_in(canonical).or_else(|| user_in([peer, local]))
}

/// The user of the connection between these ends, its own one first.
fn user_in(ends: [SocketAddr; 2]) -> Option<u32> {
    let table = if ends[0].is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let ends = ends.map(entry);
    let lines = fs::read_to_string(table).ok()?;
    let is_it = |words: &Vec<&str>| words.get(1..3).is_some_and(|words| words == ends);
    let words = lines.lines().map(|line| line.split_whitespace().collect()).find(is_it)?;
    words.get(7)?.parse().ok()
}

/// An address as the table shows it: words of the host's byte order, and the port.
fn entry(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |word: &[u8]| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let words: String = bytes.chunks_exact(4).map(word).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_within_this_host_is_that_of_its_user() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            // Some containers have no IPv6.
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            // SAFETY: the function has no preconditions.
            let own = unsafe { libc::geteuid() };
            assert_eq!(user_of(&accepted), Some(own), "{place}");
            assert!(!is_another(&accepted));
        }
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let Ok(_client) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let (accepted, _) = listener.accept().unwrap();
        // SAFETY: the function has no preconditions.
        assert_eq!(user_of(&accepted), Some(unsafe { libc::geteuid() }), "IPv4 at a listener of both");
    }
}
