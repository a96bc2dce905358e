//! A connection that never blocks: bytes wait in bounded buffers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::frame::{BadFrame, Frame, HEADER_LEN, MAX_TEXT};
use crate::token::Token;

/// Most bytes that wait to be sent: frames beyond it are dropped, whole ones.
const MAX_WAITING: usize = 4 * (HEADER_LEN + MAX_TEXT);

/// The reason why a connection is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

impl From<BadFrame> for Closed {
    fn from(_: BadFrame) -> Self {
        Closed
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    received: Vec<u8>,
    waiting: Vec<u8>,
}

impl Link {
    /// # Errors
    /// The system's error for an option of the socket.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Link { stream, received: Vec::new(), waiting: Vec::new() })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Whether bytes wait to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Reads what has arrived, at most one frame of the longest kind.
    ///
    /// # Errors
    /// [`Closed`] if the other end closed the connection or it failed.
    pub(super) fn receive(&mut self) -> Result<(), Closed> {
        let mut bytes = [0; 4096];
        while self.received.len() < HEADER_LEN + MAX_TEXT {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Closed),
                Ok(n) => self.received.extend(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        Ok(())
    }

    /// Whether the other end closes the connection within `limit`; what it sends until then is of no interest.
    pub(super) fn closes_within(mut self, limit: Duration) -> bool {
        let since = Instant::now();
        while self.receive().is_ok() {
            if since.elapsed() >= limit {
                return false;
            }
            self.received.clear();
            self.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Takes the next frame that was received.
    ///
    /// # Errors
    /// [`Closed`] for bytes that are not a frame of this job.
    pub(super) fn next(&mut self, token: &Token, world_size: usize) -> Result<Option<Frame>, Closed> {
        let Some((frame, len)) = Frame::decode(&self.received, token, world_size)? else { return Ok(None) };
        self.received.drain(..len);
        Ok(Some(frame))
    }

    /// Sends these bytes as soon as the other end takes them. An error shows when the connection is read.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() <= MAX_WAITING {
            self.waiting.extend(bytes);
        }
        self.flush();
    }

    /// Sends what waits, as far as the other end takes it.
    pub(super) fn flush(&mut self) {
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(n) if n > 0 => drop(self.waiting.drain(..n)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}
