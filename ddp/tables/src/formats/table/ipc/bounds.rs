//! Bounds of a file that are checked before the library decodes it, which trusts them: a small file could have it take gigabytes or
//! panic. The library itself checks the depth of a schema (64) and that buffers lie in their message.
//!
//! Source: <https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc>.

use std::fs::File;
use std::path::Path;

use arrow_ipc::{Message, RecordBatch};

use crate::formats::error::{Result, RowsError};
use crate::formats::table::ipc::schema::{footer, read};
use crate::formats::table::source::decode_limit;

/// Times the stored bytes that regular columns take once they are decompressed; only ones of few values take more.
const PLAIN_PER_STORED: u64 = 64;

/// Checks the lengths in a file or a stream: of the footer, of messages and of buffers. What can't be read at all, the library reports.
///
/// # Errors
/// [`RowsError::Malformed`] for a length that ends after the file, [`RowsError::TooLarge`] for a batch that claims far more than it
/// stores.
pub(super) fn check(path: &Path, file: &File, is_file: bool, memory_bytes: u64) -> Result<()> {
    let n_bytes = file.metadata().map_or(0, |data| data.len());
    let bounds = Bounds { path, file, n_bytes, limit: decode_limit(memory_bytes) };
    if is_file { bounds.check_file() } else { bounds.check_stream() }
}

struct Bounds<'a> {
    path: &'a Path,
    file: &'a File,
    n_bytes: u64,
    /// Bytes that a batch may take in any case.
    limit: u64,
}

impl Bounds<'_> {
    fn check_file(&self) -> Result<()> {
        let Some((start, len)) = footer(self.file).map_err(|reason| malformed(self.path, reason))? else {
            return Ok(());
        };
        let Some(bytes) = read(self.file, start, len) else { return Ok(()) };
        let Ok(footer) = arrow_ipc::root_as_footer(&bytes) else { return Ok(()) };
        let mut last_end = 0;
        let blocks =
            footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten());
        let mut blocks: Vec<_> =
            blocks.map(|of| (of.offset(), of.metaDataLength(), of.bodyLength())).collect();
        blocks.sort_unstable();
        for (offset, metadata_len, body_len) in blocks {
            let wrong = || {
                malformed(
                    self.path,
                    format!(
                        "its footer lists a block of {metadata_len} and {body_len} bytes at {offset}, which overlaps others or ends after the file"
                    ),
                )
            };
            let [at, metadata_len, body_len] =
                [offset, i64::from(metadata_len), body_len].map(|n| u64::try_from(n).ok());
            let (at, metadata_len, body_len) =
                at.zip(metadata_len).zip(body_len).map(|((a, b), c)| (a, b, c)).ok_or_else(wrong)?;
            let end = at.checked_add(metadata_len).and_then(|body| body.checked_add(body_len));
            if at < last_end || metadata_len < 8 || end.is_none_or(|end| end > start) {
                return Err(wrong());
            }
            last_end = at + metadata_len + body_len;
            let Some(bytes) = read(self.file, at, metadata_len as usize) else { return Ok(()) };
            let message = if bytes[..4] == [0xff; 4] { &bytes[8..] } else { &bytes[4..] };
            if let Ok(message) = arrow_ipc::root_as_message(message) {
                self.check_message(message, at + metadata_len, body_len)?;
            }
        }
        Ok(())
    }

    fn check_stream(&self) -> Result<()> {
        let mut at = 0;
        while let Some(begin) = read(self.file, at, 4) {
            let is_marked = begin == [0xff; 4];
            let start = if is_marked { at + 8 } else { at + 4 };
            let len = if is_marked { read(self.file, at + 4, 4) } else { Some(begin) };
            let len = len.map(|len| i32::from_le_bytes([len[0], len[1], len[2], len[3]]));
            // Zero is the end of a stream.
            let Some(len) = len.and_then(|len| usize::try_from(len).ok()).filter(|len| *len > 0) else {
                break;
            };
            let body = start + len as u64;
            if body > self.n_bytes {
                return Err(malformed(
                    self.path,
                    format!("the message at byte {at} claims {len} bytes of {}", self.n_bytes),
                ));
            }
            let Some(bytes) = read(self.file, start, len) else { break };
            let Ok(message) = arrow_ipc::root_as_message(&bytes) else { break };
            let claimed = message.bodyLength();
            let body_len = u64::try_from(claimed).ok().filter(|len| *len <= self.n_bytes - body);
            let body_len = body_len.ok_or_else(|| {
                malformed(
                    self.path,
                    format!("the message at byte {at} claims {claimed} bytes of {}", self.n_bytes),
                )
            })?;
            self.check_message(message, body, body_len)?;
            at = body + body_len;
        }
        Ok(())
    }

    fn check_message(&self, message: Message<'_>, body: u64, body_len: u64) -> Result<()> {
        let of_dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
        match message.header_as_record_batch().or(of_dictionary) {
            Some(batch) => self.check_batch(batch, body, body_len),
            None => Ok(()),
        }
    }

    /// Checks the rows that a batch claims, and the bytes of its buffers once they are decompressed.
    fn check_batch(&self, batch: RecordBatch<'_>, body: u64, body_len: u64) -> Result<()> {
        let mut plain = 0u64;
        for buffer in batch.buffers().into_iter().flatten() {
            let [offset, len] =
                [buffer.offset(), buffer.length()].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
            if offset.checked_add(len).is_none_or(|end| end > body_len) {
                let reason =
                    format!("the buffer of {len} bytes at {offset} ends after its message of {body_len}");
                return Err(malformed(self.path, reason));
            }
            let prefix = batch.compression().filter(|_| len >= 8);
            let prefix = prefix.and_then(|_| read(self.file, body + offset, 8)?.try_into().ok());
            // A negative length says that the buffer is stored as it is.
            let bytes = prefix.and_then(|prefix| u64::try_from(i64::from_le_bytes(prefix)).ok());
            plain = plain.saturating_add(bytes.unwrap_or(len));
        }
        let n_rows = u64::try_from(batch.length()).unwrap_or(u64::MAX);
        // Columns of runs and of nothing have any number of rows in few bytes; others take a bit for each.
        let of_rows = if n_rows / 8 > plain { n_rows.saturating_mul(4) } else { 0 };
        let (needed, stored) = (plain.max(of_rows), body_len.max(1));
        if needed <= self.limit || needed / PLAIN_PER_STORED <= stored {
            return Ok(());
        }
        Err(RowsError::TooLarge {
            source_name: self.path.display().to_string(),
            what: "to decode a batch of rows",
            needed_mib: needed.div_ceil(1 << 20),
            limit_mib: self.limit >> 20,
            hint: "raise it, or write the file with fewer rows per batch".to_owned(),
        })
    }
}

/// The error of a file that contradicts itself.
pub(super) fn malformed(path: &Path, reason: String) -> RowsError {
    let hint = "is the file cut off, damaged or still being written?";
    RowsError::Malformed { path: path.to_owned(), format: "Arrow IPC", reason, hint }
}
