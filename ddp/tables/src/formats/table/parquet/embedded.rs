//! The Arrow schema that writers add to a footer, if it has integers of 128 bits, which the library does not know. Without the schema it
//! would read durations of other columns as plain numbers.

use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema};
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataBuilder};

use crate::formats::table::ipc::schema;

/// The footer with a schema that the library knows, and the columns of integers of 128 bits, which are binary values in it; `None` for
/// any other footer.
pub(super) fn patched(metadata: &ParquetMetaData) -> Option<(ParquetMetaData, Vec<usize>)> {
    let of_file = metadata.file_metadata();
    let mut pairs = of_file.key_value_metadata()?.clone();
    let pair = pairs.iter_mut().find(|pair| pair.key == ARROW_SCHEMA_META_KEY)?;
    let (schema, wide) = schema::patched(decoded(pair.value.as_deref()?)?)?;
    pair.value = Some(encode_arrow_schema(&schema));
    let of_file = FileMetaData::new(
        of_file.version(),
        of_file.num_rows(),
        of_file.created_by().map(str::to_owned),
        Some(pairs),
        of_file.schema_descr_ptr(),
        of_file.column_orders().cloned(),
    );
    let groups = metadata.row_groups().to_vec();
    Some((ParquetMetaDataBuilder::new(of_file).set_row_groups(groups).build(), wide))
}

/// The bytes of a text in base 64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut word, mut n_bits) = (Vec::new(), 0u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        word = word << 6 | DIGITS.iter().position(|of| *of == digit)? as u32;
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((word >> n_bits) as u8);
        }
    }
    Some(bytes)
}
