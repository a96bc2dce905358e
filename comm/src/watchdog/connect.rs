//! Connects each rank to rank 0 and to the deputy. The addresses and a secret token travel by the ranks' collectives.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::certificate::Identity;
use super::frame::{Frame, HEADER_LEN, Kind};
use crate::progress::Standing;
use crate::this_host::takes_both;
use crate::token::Token;

/// Time for which a rank tries one address.
const ADDRESS_WAIT: Duration = Duration::from_secs(1);
/// Time for which a rank tries all addresses of another, one round after the other.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// The rank that reports the loss of rank 0: the lowest on another host, else rank 1.
pub(super) fn deputy(identities: &[Identity]) -> usize {
    identities.iter().position(|other| other.host != identities[0].host).unwrap_or(1)
}

/// Listens for the other ranks: on the loopback interface if all are on this host, else on all interfaces.
///
/// # Errors
/// The system's error.
pub(super) fn listen(is_one_host: bool) -> io::Result<(TcpListener, Vec<SocketAddr>)> {
    let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
    let addresses = if is_one_host { vec![loopback] } else { interface_addresses()? };
    let listener = if is_one_host {
        TcpListener::bind((loopback, 0))
    } else {
        let v4 = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0));
        let is_v4_alone = !takes_both() && addresses.iter().any(IpAddr::is_ipv4);
        if is_v4_alone { v4() } else { TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| v4()) }
    }?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()))
}

/// Connects to the rank that listens at one of `addresses`; blocks for [`CONNECT_WAIT`] at most.
///
/// # Errors
/// The error of the last address.
pub(super) fn connect(
    addresses: &[SocketAddr],
    own: usize,
    standing: Standing,
    token: &Token,
    world_size: usize,
) -> io::Result<TcpStream> {
    let deadline = Instant::now() + CONNECT_WAIT;
    let hello = Frame { kind: Kind::Hello, rank: own, standing, text: String::new() }.encode(token);
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
    while !addresses.is_empty() {
        for address in addresses {
            if Instant::now() >= deadline {
                return Err(last);
            }
            match greet(address, &hello, token, world_size) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        std::thread::sleep(PAUSE);
    }
    Err(last)
}

/// Connects to one address and expects a rank of this job there.
fn greet(address: &SocketAddr, hello: &[u8], token: &Token, world_size: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(address, ADDRESS_WAIT)?;
    stream.set_read_timeout(Some(ADDRESS_WAIT))?;
    stream.set_write_timeout(Some(ADDRESS_WAIT))?;
    stream.write_all(hello)?;
    let mut answer = [0; HEADER_LEN];
    stream.read_exact(&mut answer)?;
    match Frame::decode(&answer, token, world_size) {
        Ok(Some((Frame { kind: Kind::Welcome, .. }, _))) => Ok(stream),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "another program answers there")),
    }
}

/// Addresses of this host's interfaces: IPv4, then IPv6, then the IPv4 addresses that are valid on one link only.
///
/// # Errors
/// The system's error.
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is writable; the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut v4, mut v6, mut local) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = first;
    // SAFETY: for each: an entry of the list that getifaddrs made, or null at its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        if entry.ifa_addr.is_null() || !is_up || entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0 {
            continue;
        }
        // SAFETY: the address is not null, and each address begins with its family.
        match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family says that it is one of IPv4; it may be unaligned.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                let address = Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr));
                let of = if address.is_link_local() { &mut local } else { &mut v4 };
                of.push(IpAddr::from(address));
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is one of IPv6; it may be unaligned.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
                if !address.is_unicast_link_local() {
                    v6.push(IpAddr::from(address));
                }
            }
            _ => {}
        }
    }
    // SAFETY: the list of getifaddrs, freed once; nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    // Last, for hosts with no other network.
    Ok([v4, v6, local].concat())
}

/// Addresses as bytes that ranks exchange.
pub(super) fn addresses_to_bytes(addresses: &[SocketAddr]) -> Vec<u8> {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ").into_bytes()
}

/// Addresses of [`addresses_to_bytes`].
pub(super) fn addresses_from_bytes(bytes: &[u8]) -> Vec<SocketAddr> {
    String::from_utf8_lossy(bytes).split(' ').filter_map(|address| address.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deputy_is_on_another_host_where_there_is_one() {
        let of = |hosts: &[&str]| {
            let identity = |host: &&str| Identity { host: (*host).to_owned(), pid: 1 };
            deputy(&hosts.iter().map(identity).collect::<Vec<_>>())
        };
        assert_eq!((of(&["a", "a"]), of(&["a", "a", "b", "b"]), of(&["a", "b"])), (1, 2, 1));
    }

    #[test]
    fn addresses_survive_the_exchange() {
        let addresses = ["10.0.0.1:80".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap()];
        assert_eq!(addresses_from_bytes(&addresses_to_bytes(&addresses)), addresses);
        assert_eq!(addresses_from_bytes(b""), []);
        assert!(interface_addresses().unwrap().iter().all(|address| !address.is_loopback()));
    }
}
