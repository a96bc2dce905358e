//! Files just past each bound: they are valid, or the library refuses them too.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, Float64Array, NullArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

use super::*;

/// The bytes of a file, or of a stream without its end, with `columns` as batches of one column.
fn written(columns: &[ArrayRef], is_file: bool, compression: Option<CompressionType>) -> Vec<u8> {
    let batch =
        |column: &ArrayRef| RecordBatch::try_from_iter_with_nullable([("x", column.clone(), true)]).unwrap();
    let schema = batch(&columns[0]).schema();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut bytes = Vec::new();
    if is_file {
        let mut writer = FileWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
        columns.iter().for_each(|column| writer.write(&batch(column)).unwrap());
        writer.finish().unwrap();
    } else {
        let mut writer = StreamWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
        columns.iter().for_each(|column| writer.write(&batch(column)).unwrap());
    }
    bytes
}

/// Opens a file with these bytes with a memory of 1 MiB, and returns the error.
fn error_of(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.arrow");
    std::fs::write(&path, bytes).unwrap();
    let options = ReadOptions { memory_bytes: 1 << 20, ..ReadOptions::default() };
    open(Path::new(&path), &options).err().map(|error| error.to_string())
}

#[track_caller]
fn refuses(bytes: &[u8], parts: &[&str]) {
    let error = error_of(bytes).unwrap();
    assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
}

fn column() -> ArrayRef {
    Arc::new(Float64Array::from(vec![1.5; 9]))
}

#[test]
fn footers_and_messages_end_in_the_file() {
    let mut file = written(&[column()], true, None);
    assert_eq!(error_of(&file), None);
    let end = file.len() - 10;
    file[end..end + 4].copy_from_slice(&(end as u32 + 1).to_le_bytes());
    refuses(&file, &[&format!("its footer claims {} bytes of {}", end + 1, end + 10)]);

    let stream = written(&[column()], false, None);
    assert_eq!(error_of(&stream), None);
    refuses(&stream[..stream.len() - 1], &["the message at byte", &format!("bytes of {}", stream.len() - 1)]);
    // The length of the first message, which is the schema.
    let mut stream = stream;
    let len = stream.len() as u32 - 7;
    stream[4..8].copy_from_slice(&len.to_le_bytes());
    refuses(&stream, &[&format!("the message at byte 0 claims {len} bytes")]);
}

#[test]
fn blocks_of_a_file_do_not_overlap() {
    let mut file = written(&[column(), column()], true, None);
    let footer_len = u32::from_le_bytes(file[file.len() - 10..file.len() - 6].try_into().unwrap()) as usize;
    let footer_at = file.len() - 10 - footer_len;
    let blocks = {
        let footer = arrow_ipc::root_as_footer(&file[footer_at..file.len() - 10]).unwrap();
        footer.recordBatches().unwrap().iter().map(|block| block.offset().to_le_bytes()).collect::<Vec<_>>()
    };
    let place = file[footer_at..].windows(8).position(|bytes| bytes == blocks[1]).unwrap() + footer_at;
    file[place..place + 8].copy_from_slice(&blocks[0]);
    refuses(&file, &["its footer lists a block of", "which overlaps others or ends after the file"]);
}

#[test]
fn batches_fit_the_memory() {
    // 65 MiB of zeros in little, and as many rows of nothing as take 65 MiB.
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0; 65 << 17]));
    let nothing: ArrayRef = Arc::new(NullArray::new(65 << 18));
    for is_file in [true, false] {
        for compression in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let bytes = written(std::slice::from_ref(&zeros), is_file, Some(compression));
            assert!(bytes.len() < 1 << 20);
            refuses(&bytes, &["needs 65 MiB of memory to decode a batch of rows", "allows 64"]);
            let half =
                written(&[zeros.slice(0, 32 << 17), zeros.slice(0, 32 << 17)], is_file, Some(compression));
            assert_eq!(error_of(&half), None);
        }
        refuses(
            &written(std::slice::from_ref(&nothing), is_file, None),
            &["needs 65 MiB of memory to decode a batch"],
        );
        assert_eq!(error_of(&written(&[nothing.slice(0, 99)], is_file, None)), None);
    }
}
