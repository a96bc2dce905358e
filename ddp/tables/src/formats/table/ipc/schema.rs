//! The schema of an Arrow file, before the library reads it: its byte order, and integers of 128 bits, which the library does not know.
//!
//! Source: Apache Arrow, `format/Schema.fbs`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use arrow_ipc::{Endianness, Field, FixedSizeBinary, Int, Schema, Type};

use crate::formats::table::patched::{Patches, patch};

/// Bytes of an integer of 128 bits.
const WIDE_BYTES: i32 = 16;
// One is patched to the other.
const _: () = assert!(Int::VT_BITWIDTH == FixedSizeBinary::VT_BYTEWIDTH);

/// Types of a schema that the library has to be told.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Integers of 128 bits become binary values of 16 bytes: both types have one number in the same place.
    pub(super) patches: Patches,
    /// Columns of signed integers of 128 bits.
    pub(super) wide: Vec<usize>,
}

/// Reads the schema of a file or a stream; finds nothing in one that is damaged, which the library reports.
///
/// # Errors
/// The reason for refusing the file.
pub(super) fn facts(file: &File, is_file: bool) -> Result<Facts, String> {
    let place = if is_file { footer(file)? } else { first_message(file) };
    let Some((start, bytes)) = place.and_then(|(start, len)| Some((start, read(file, start, len)?))) else {
        return Ok(Facts::default());
    };
    let (footer, message);
    let schema = if is_file {
        footer = arrow_ipc::root_as_footer(&bytes).ok();
        footer.as_ref().and_then(arrow_ipc::Footer::schema)
    } else {
        message = arrow_ipc::root_as_message(&bytes).ok();
        message.as_ref().and_then(arrow_ipc::Message::header_as_schema)
    };
    schema.map_or(Ok(Facts::default()), |schema| facts_of(schema, start))
}

/// The schema in a message with its length in front, where integers of 128 bits are binary values, and its columns of such integers;
/// `None` for a schema without them.
pub(in crate::formats::table) fn patched(mut bytes: Vec<u8>) -> Option<(arrow_schema::Schema, Vec<usize>)> {
    bytes.drain(..if bytes.starts_with(&[0xff; 4]) { 8 } else { 0 });
    let message = arrow_ipc::root_as_message(&bytes).ok()?;
    let Facts { patches, wide } = facts_of(message.header_as_schema()?, 0).ok()?;
    if patches.is_empty() {
        return None;
    }
    patch(&mut bytes, 0, &patches);
    let message = arrow_ipc::root_as_message(&bytes).ok()?;
    Some((arrow_ipc::convert::try_fb_to_schema(message.header_as_schema()?).ok()?, wide))
}

fn facts_of(schema: Schema<'_>, start: u64) -> Result<Facts, String> {
    if schema.endianness() != Endianness::Little {
        return Err("its numbers are big-endian, expected little-endian".to_owned());
    }
    let (mut patches, mut wide) = (Vec::new(), Vec::new());
    for (root, field) in schema.fields().into_iter().flatten().enumerate() {
        if field.type_as_int().is_some_and(|of| of.bitWidth() == 8 * WIDE_BYTES && of.is_signed()) {
            wide.push(root);
        }
        put_patches(field, start, &mut patches)?;
    }
    patches.sort_unstable();
    Ok(Facts { patches: patches.into(), wide })
}

/// Adds the patches of a field and its children.
fn put_patches(field: Field<'_>, start: u64, patches: &mut Vec<(u64, u8)>) -> Result<(), String> {
    if field.type_type().variant_name().is_none() {
        let (name, of) = (field.name().unwrap_or_default(), field.type_type().0);
        return Err(format!(
            "the column \"{name}\" is of type {of}, which this version of ddp-train does not know"
        ));
    }
    if let Some(int) = field.type_as_int().filter(|int| int.bitWidth() == 8 * WIDE_BYTES) {
        let tag = field._tab.loc() + usize::from(field._tab.vtable().get(Field::VT_TYPE_TYPE));
        let width = int._tab.loc() + usize::from(int._tab.vtable().get(Int::VT_BITWIDTH));
        patches.push((start + tag as u64, Type::FixedSizeBinary.0));
        let bytes = WIDE_BYTES.to_le_bytes();
        patches.extend(bytes.iter().enumerate().map(|(at, byte)| (start + (width + at) as u64, *byte)));
    }
    field.children().into_iter().flatten().try_for_each(|child| put_patches(child, start, patches))
}

/// Where the footer starts, and its length; `None` for a file that does not end with one.
///
/// # Errors
/// The reason for refusing a footer that is longer than the file.
pub(super) fn footer(file: &File) -> Result<Option<(u64, usize)>, String> {
    let end = file.metadata().ok().and_then(|data| data.len().checked_sub(10));
    let tail = end.and_then(|end| Some((end, read(file, end, 10)?)));
    let Some((end, tail)) = tail.filter(|(_, tail)| tail.ends_with(b"ARROW1")) else { return Ok(None) };
    let len = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = u64::try_from(len).ok().and_then(|len| end.checked_sub(len));
    let start = start.ok_or_else(|| format!("its footer claims {len} bytes of {}", end + 10))?;
    Ok(Some((start, len as usize)))
}

/// Where the first message of a stream starts, and its length; streams of old versions lack the mark before the length.
fn first_message(file: &File) -> Option<(u64, usize)> {
    let begin = read(file, 0, 8)?;
    let (mark, len) = (i32::from_le_bytes(*begin.first_chunk()?), i32::from_le_bytes(*begin.last_chunk()?));
    let (start, len) = if mark == -1 { (8, len) } else { (4, mark) };
    let len = usize::try_from(len).ok()?;
    (start + len as u64 <= file.metadata().ok()?.len()).then_some((start, len))
}

pub(super) fn read(file: &File, start: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}
