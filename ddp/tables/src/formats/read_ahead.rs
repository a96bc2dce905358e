//! Content of a long file, read and decompressed on a thread while its parser works on what was read before.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use ddp_kernels::cpu::start_thread::start_thread;

const BLOCK_BYTES: usize = 1 << 20;
/// Blocks that wait for the parser.
const N_WAITING: usize = 2;
/// Bytes that are read without a thread: of many files only the beginning is looked at.
const FIRST_BYTES: usize = 4 << 20;

/// A block, empty at the end of the content.
type Block = io::Result<Vec<u8>>;

/// Reads content ahead.
pub(super) struct ReadAhead {
    from: From,
    /// Bytes read so far, until a thread was asked for.
    n_first: usize,
}

enum From {
    Here(Box<dyn Read + Send>),
    Thread {
        blocks: Receiver<Block>,
        /// Takes blocks back that were read.
        used: Sender<Vec<u8>>,
        block: Vec<u8>,
        at: usize,
    },
    /// The end, or an error, was returned.
    Ended,
}

impl ReadAhead {
    pub(super) fn new(content: Box<dyn Read + Send>) -> Self {
        ReadAhead { from: From::Here(content), n_first: 0 }
    }

    /// Hands the content to a thread, if the system starts one.
    fn start(&mut self) {
        let ((to, blocks), (used, blank)) = (sync_channel(N_WAITING), channel());
        let (give, given) = sync_channel::<Box<dyn Read + Send>>(1);
        let work = move || _ = given.recv().map(|content| read_all(content, &to, &blank));
        if start_thread("read-ahead", work).is_err() {
            return;
        }
        let from = From::Thread { blocks, used, block: Vec::new(), at: 0 };
        if let From::Here(content) = std::mem::replace(&mut self.from, from) {
            // The thread waits for it.
            let _ = give.send(content);
        }
    }
}

impl Read for ReadAhead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let From::Here(content) = &mut self.from {
            if self.n_first < FIRST_BYTES {
                let n = content.read(out)?;
                self.n_first += n;
                if self.n_first >= FIRST_BYTES {
                    self.start();
                }
                return Ok(n);
            }
            return content.read(out);
        }
        let From::Thread { blocks, used, block, at } = &mut self.from else { return Ok(0) };
        if *at == block.len() {
            let next = blocks.recv().unwrap_or_else(|_| Err(io::Error::other("its reader has ended")));
            match next {
                Ok(next) if !next.is_empty() => _ = used.send(std::mem::replace(block, next)),
                end => {
                    self.from = From::Ended;
                    return end.map(|_| 0);
                }
            }
            *at = 0;
        }
        let n = out.len().min(block.len() - *at);
        out[..n].copy_from_slice(&block[*at..][..n]);
        *at += n;
        Ok(n)
    }
}

/// Sends the content block by block, until its end, an error, or nobody takes more.
fn read_all(mut content: Box<dyn Read + Send>, to: &SyncSender<Block>, blank: &Receiver<Vec<u8>>) {
    loop {
        let mut block = blank.try_recv().unwrap_or_default();
        block.clear();
        let read = content.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block);
        let is_end = block.is_empty();
        // What was read before an error comes first.
        let is_taken = (is_end && read.is_err()) || to.send(Ok(block)).is_ok();
        match read {
            Ok(_) if is_taken && !is_end => {}
            Ok(_) => return,
            Err(error) => {
                if is_taken {
                    let _ = to.send(Err(error));
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;

    /// Bytes that a reader counts on its way, a few at a time, then an error or the end.
    struct Counting {
        left: usize,
        fault: Option<io::Error>,
    }

    impl Read for Counting {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = out.len().min(self.left).min(70_001);
            if n == 0 {
                return self.fault.take().map_or(Ok(0), Err);
            }
            for (at, byte) in out[..n].iter_mut().enumerate() {
                *byte = ((self.left - at) % 251) as u8;
            }
            self.left -= n;
            Ok(n)
        }
    }

    fn read_through(n_bytes: usize, fault: Option<io::Error>) -> (Vec<u8>, io::Result<()>) {
        let mut ahead = ReadAhead::new(Box::new(Counting { left: n_bytes, fault }));
        let (mut all, mut part) = (Vec::new(), vec![0; 300_007]);
        let end = loop {
            match ahead.read(&mut part) {
                Ok(0) => break Ok(()),
                Ok(n) => all.extend_from_slice(&part[..n]),
                Err(error) => break Err(error),
            }
        };
        // The end stays the end.
        assert_eq!(ahead.read(&mut part).ok(), Some(0));
        (all, end)
    }

    #[test]
    fn content_of_any_length_is_read_whole() {
        for n_bytes in
            [0, 1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, FIRST_BYTES + 5 * BLOCK_BYTES + 3]
        {
            let (all, end) = read_through(n_bytes, None);
            end.unwrap();
            let expected = (0..n_bytes).map(|at| ((n_bytes - at) % 251) as u8);
            assert!(all.into_iter().eq(expected), "{n_bytes} bytes");
        }
    }

    #[test]
    fn an_error_comes_after_all_that_was_read_before_it() {
        for n_bytes in [10, FIRST_BYTES + BLOCK_BYTES / 2, FIRST_BYTES + 4 * BLOCK_BYTES] {
            let (all, end) = read_through(n_bytes, Some(io::Error::other("cut off")));
            assert_eq!((all.len(), end.unwrap_err().to_string()), (n_bytes, "cut off".to_owned()));
        }
    }

    /// Zeros without an end, for as long as somebody reads.
    struct Endless {
        held: Arc<()>,
    }

    impl Read for Endless {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            assert!(Arc::strong_count(&self.held) > 1);
            Ok(out.len())
        }
    }

    #[test]
    fn a_reader_that_is_dropped_ends_its_thread() {
        let held = Arc::new(());
        let mut ahead = ReadAhead::new(Box::new(Endless { held: held.clone() }));
        ahead.read_exact(&mut vec![0; FIRST_BYTES + BLOCK_BYTES]).unwrap();
        assert!(matches!(ahead.from, From::Thread { .. }));
        drop(ahead);
        let start = Instant::now();
        while Arc::strong_count(&held) > 1 && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
