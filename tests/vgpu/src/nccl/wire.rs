//! Messages between ranks and hub over a Unix socket, and the unique id that leads a rank to its hub.
//!
//! The socket has a path instead of a port of the loopback device, so that ranks in different network namespaces of one machine
//! can connect, as different hosts can.
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The kinds of frames; the first group goes from a rank to the hub, the second back.
pub(crate) mod kind {
    /// The first frame of a rank: words are rank, number of ranks, process id, device; data is the token of the
    /// id, the name of the host and whether the rank shares its GPU, see [`super::Hello`].
    pub(crate) const HELLO: u64 = 1;
    /// A contribution to a collective; words are those of [`super::super::call::Header`].
    pub(crate) const COLLECTIVE: u64 = 2;
    pub(crate) const SEND: u64 = 3;
    pub(crate) const RECEIVE: u64 = 4;
    /// The rank leaves after all of its operations are done; the hub answers with the same kind.
    pub(crate) const BYE: u64 = 5;
    /// The rank leaves in the middle of its operations.
    pub(crate) const ABORT: u64 = 6;

    /// All ranks have joined.
    pub(crate) const WELCOME: u64 = 16;
    /// The communicator can't be created: words[0] is the `ncclResult_t`, data the reason.
    pub(crate) const REFUSED: u64 = 17;
    /// The result of the request with this id.
    pub(crate) const RESULT: u64 = 18;
    /// The request with this id is a mistake: data is the reason.
    pub(crate) const MISTAKE: u64 = 19;
    /// Another rank is lost: words[0] is the `ncclResult_t`, data the reason.
    pub(crate) const LOST: u64 = 20;
}

/// Numbers that are sent with each frame.
pub(crate) type Words = [u64; 6];
const HEADER_BYTES: usize = 9 * 8;

/// One message.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u64,
    pub(crate) id: u64,
    pub(crate) words: Words,
    pub(crate) data: Vec<u8>,
}

/// Writes one message.
pub(crate) fn write(to: &mut UnixStream, kind: u64, id: u64, words: &Words, data: &[u8]) -> Result<()> {
    let mut header = [0; HEADER_BYTES];
    let fields = [kind, id].into_iter().chain(*words).chain([data.len() as u64]);
    for (place, field) in header.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    to.write_all(&header)?;
    to.write_all(data)
}

/// Waits for one message.
pub(crate) fn read(from: &mut UnixStream) -> Result<Frame> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let mut fields = [0; 9];
    for (field, bytes) in fields.iter_mut().zip(header.chunks_exact(8)) {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        *field = u64::from_le_bytes(word);
    }
    let [kind, id, w0, w1, w2, w3, w4, w5, len] = fields;
    let mut data = vec![0; usize::try_from(len).map_err(|_| Error::from(ErrorKind::InvalidData))?];
    from.read_exact(&mut data)?;
    Ok(Frame { kind, id, words: [w0, w1, w2, w3, w4, w5], data })
}

/// First message of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) rank: u64,
    pub(crate) n_ranks: u64,
    pub(crate) process: u64,
    pub(crate) device: u64,
    pub(crate) host: String,
    /// Whether the rank may share its GPU with another one (`NCCL_MULTI_RANK_GPU_ENABLE`).
    pub(crate) shares_gpu: bool,
    /// Whether the rank can't take part; the others then get an error instead of waiting.
    pub(crate) failed: bool,
}

impl Hello {
    /// Sends the first message of the rank.
    pub(crate) fn write(&self, to: &mut UnixStream, token: &Token) -> Result<()> {
        let flags = u64::from(self.shares_gpu) | u64::from(self.failed) << 1;
        let words = [self.rank, self.n_ranks, self.process, self.device, flags, 0];
        let data = [&token[..], self.host.as_bytes()].concat();
        write(to, kind::HELLO, 0, &words, &data)
    }

    /// Reads a first message; `None` if it is invalid or has a different token.
    pub(crate) fn read(from: &mut UnixStream, token: &Token) -> Option<Hello> {
        let frame = read(from).ok()?;
        let (theirs, host) = frame.data.split_at_checked(token.len())?;
        if frame.kind != kind::HELLO || theirs != token {
            return None;
        }
        let [rank, n_ranks, process, device, flags, _] = frame.words;
        let host = String::from_utf8_lossy(host).into_owned();
        Some(Hello {
            rank,
            n_ranks,
            process,
            device,
            host,
            shares_gpu: flags & 1 != 0,
            failed: flags & 2 != 0,
        })
    }
}

/// Random bytes that prove to the hub that a rank has the id.
pub(crate) type Token = [u8; 16];

/// `ncclUniqueId`: a token and the path of a socket, padded with zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId {
    bytes: [u8; 128],
}

impl UniqueId {
    /// Packs a token and a path; `None` if the path is too long for the id or for a socket.
    pub(crate) fn new(token: &Token, path: &std::path::Path) -> Option<UniqueId> {
        let path = path.as_os_str().as_encoded_bytes();
        let mut bytes = [0; 128];
        // The path of a socket is terminated by a zero byte and has at most 108 bytes in total.
        if path.len() > 107 {
            return None;
        }
        bytes[..token.len()].copy_from_slice(token);
        bytes.get_mut(token.len()..token.len() + path.len())?.copy_from_slice(path);
        Some(UniqueId { bytes })
    }

    /// Unpacks an id; `None` if it wasn't made by [`UniqueId::new`].
    pub(crate) fn open(&self) -> Option<(Token, PathBuf)> {
        let (token, path) = self.bytes.split_first_chunk::<16>()?;
        let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        let path = std::str::from_utf8(&path[..end]).ok().filter(|path| path.starts_with('/'))?;
        Some((*token, PathBuf::from(path)))
    }
}

/// Random bytes from the operating system.
pub(crate) fn random_token() -> Result<Token> {
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(token)
}
