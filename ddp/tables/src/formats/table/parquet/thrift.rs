//! Headers of pages and schemas as the file has them, before the library reads them: values in Thrift's compact protocol.
//!
//! Values that the library reads differently than the protocol says, such as lists of truth values, are not read at all.
//!
//! Source: Apache Parquet format, `parquet.thrift`; Thrift compact protocol.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use parquet::file::metadata::ColumnChunkMetaData;

/// Page header: bytes that are read at first, and at most.
const HEADER_BYTES: Range<usize> = 512..1 << 20;
/// Nesting of structs in a header.
const MAX_DEPTH: usize = 8;

/// The pages of a column chunk: where each begins and its header; `None` and no more after one that can't be read.
pub(super) struct Pages<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl<'a> Pages<'a> {
    pub(super) fn of(file: &'a File, column: &ColumnChunkMetaData) -> Self {
        let (at, len) = column.byte_range();
        Pages { file, at, end: at + len }
    }

    fn header(&self) -> Option<Header> {
        let mut n_bytes = HEADER_BYTES.start;
        while n_bytes <= HEADER_BYTES.end {
            let mut bytes = vec![0; n_bytes.min((self.end - self.at) as usize)];
            self.file.read_exact_at(&mut bytes, self.at).ok()?;
            if let Some(header) = Header::read(&bytes) {
                return Some(header);
            }
            n_bytes *= 2;
        }
        None
    }
}

impl Iterator for Pages<'_> {
    type Item = Option<(u64, Header)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let (at, header) = (self.at, self.header());
        let size = header.as_ref().and_then(|header| u64::try_from(header.size).ok());
        self.at = match (&header, size) {
            (Some(header), Some(size)) => at + header.len as u64 + size,
            _ => self.end,
        };
        Some(size.and(header).map(|header| (at, header)))
    }
}

/// Sizes and flag of a page, from its header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the header.
    len: usize,
    /// Bytes of the page in the file.
    pub(super) size: i64,
    /// Bytes of the page once it is decompressed.
    pub(super) plain_size: i64,
    /// Values of a dictionary page.
    pub(super) n_names: i64,
    /// Place of the flag that denies compression, and the byte that states it.
    pub(super) unset_flag: Option<(usize, u8)>,
}

impl Header {
    /// Reads the header at the start of `bytes`; `None` if it is longer.
    pub(super) fn read(bytes: &[u8]) -> Option<Header> {
        let mut input = Compact { bytes, at: 0 };
        let mut header = Header::default();
        let mut id = 0;
        while let Some(kind) = input.field(&mut id)? {
            match id {
                2 => header.plain_size = input.number()?,
                3 => header.size = input.number()?,
                5 | 7 | 8 if kind != 12 => return None,
                7 => {
                    let mut id = 0;
                    while let Some(kind) = input.field(&mut id)? {
                        match id {
                            1 => header.n_names = input.number()?,
                            _ => input.skip(kind, MAX_DEPTH)?,
                        }
                    }
                }
                8 => {
                    let mut id = 0;
                    loop {
                        let place = input.at;
                        let Some(kind) = input.field(&mut id)? else { break };
                        if (id, kind) == (7, FALSE) {
                            header.unset_flag = Some((place, bytes[place] & 0xf0 | TRUE));
                        }
                        input.skip(kind, MAX_DEPTH)?;
                    }
                }
                _ => input.skip(kind, MAX_DEPTH)?,
            }
        }
        header.len = input.at;
        Some(header)
    }
}

/// Nesting and counts of a schema, from the footer of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SchemaShape {
    /// Groups within groups, that of the columns included.
    pub(super) depth: usize,
    /// Groups and columns.
    pub(super) n_elements: u64,
    /// Most children that a group claims.
    pub(super) n_children: i64,
}

impl SchemaShape {
    /// Reads the schema at the start of a footer, behind the version, where all writers put it; `None` for another footer.
    pub(super) fn read(footer: &[u8]) -> Option<SchemaShape> {
        let mut input = Compact { bytes: footer, at: 0 };
        let mut id = 0;
        let is_version = input.field(&mut id)? == Some(5) && id == 1;
        input.number().filter(|_| is_version)?;
        let is_list = input.field(&mut id)? == Some(9) && id == 2;
        let (kind, n_elements) = input.list().filter(|_| is_list)?;
        let mut shape = SchemaShape { n_elements, ..SchemaShape::default() };
        // Children that are still to come of each open group.
        let mut open: Vec<i64> = Vec::new();
        for _ in 0..n_elements {
            (kind == 12).then_some(())?;
            let (mut id, mut n_children) = (0, 0);
            while let Some(kind) = input.field(&mut id)? {
                match id {
                    5 => n_children = i64::from(input.number()? as i32),
                    _ => input.skip(kind, MAX_DEPTH)?,
                }
            }
            shape.n_children = shape.n_children.max(n_children);
            while open.pop_if(|n_left| *n_left == 0).is_some() {}
            open.iter_mut().last().into_iter().for_each(|n_left| *n_left -= 1);
            if n_children > 0 {
                open.push(n_children);
                shape.depth = shape.depth.max(open.len());
            }
        }
        Some(shape)
    }
}

pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;

/// Values in Thrift's compact protocol.
struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Compact<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at)?;
        self.at += 1;
        Some(*byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The type of the next field, whose number replaces that of the one before; `Some(None)` at the end of the struct.
    fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte & 0xf == 0 {
            return Some(None);
        }
        *id = match byte >> 4 {
            // As the library reads it.
            0 => i64::from(self.number()? as i16),
            step => *id + i64::from(step),
        };
        Some(Some(byte & 0xf))
    }

    /// Type and number of the elements of a list.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let n = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Some((byte & 0xf, n))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            TRUE | FALSE => {}
            3 => self.at += 1,
            4..=6 => drop(self.varint()?),
            7 => self.at += 8,
            8 => {
                let len = usize::try_from(self.varint()?).ok()?;
                self.at = self.at.checked_add(len)?;
            }
            9 | 10 => {
                let (kind, n) = self.list()?;
                // The library takes truth values in a list to have no bytes, and writers to have one each.
                (n == 0 || !matches!(kind, TRUE | FALSE)).then_some(())?;
                for _ in 0..n {
                    self.skip(kind, depth)?;
                }
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
            }
            _ => return None,
        }
        (self.at <= self.bytes.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_a_schema_is_read() {
        // Version 2; four parts: the root with two children, a group "g" with one, its leaf "ab", and a leaf "c".
        let footer = [
            &[0x15, 4, 0x19, 0x4c, 0x48, 1, b'r', 0x15, 4, 0, 0x48, 1, b'g', 0x15, 2, 0][..],
            &[0x15, 4, 0x38, 2, b'a', b'b', 0, 0x15, 4, 0x38, 1, b'c', 0, 0x16, 9],
        ]
        .concat();
        let shape = SchemaShape { depth: 2, n_elements: 4, n_children: 2 };
        assert_eq!(SchemaShape::read(&footer).as_ref(), Some(&shape));
        assert!((0..footer.len() - 2).all(|len| SchemaShape::read(&footer[..len]).is_none()));
    }

    #[test]
    fn headers_end_where_they_end() {
        // Fields 1 to 3, then an unknown list of two structs, then the flag of version 2.
        let header = [0x15, 6, 0x15, 20, 0x15, 10, 0x39, 0x2c, 0x11, 0, 0x12, 0, 0x2c, 0x72, 0, 0, 9];
        let found = Header::read(&header).unwrap();
        assert_eq!(
            found,
            Header { len: 16, size: 5, plain_size: 10, n_names: 0, unset_flag: Some((13, 0x71)) }
        );
        assert!((0..16).all(|len| Header::read(&header[..len]).is_none()));
    }
}
