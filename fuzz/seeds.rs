//! Writes valid files as a starting point for the fuzzer: `cargo run --example seeds -- CORPUS`.

#[path = "../ddp/tests/program/data/files.rs"]
mod files;

use std::fs;
use std::path::Path;

use files::Element;

fn main() {
    let corpus = std::env::args().nth(1).expect("usage: seeds CORPUS");
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(&corpus).join(target);
        fs::create_dir_all(&folder).expect("a folder can be made");
        fs::write(folder.join(name), bytes).expect("a file can be written");
    };
    let (x, y) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, 1.0, 2.0]);
    let npy = |element| files::npy(element, false, &[3, 2], &x);
    let labels = files::npy(Element::I64, false, &[3], &y);
    let arrays = [("features", npy(Element::F32)), ("labels", labels)];
    let arrays = arrays.each_ref().map(|(name, bytes)| (*name, &bytes[..]));
    let tensors: [(&str, Element, &[usize], &[f64]); 2] =
        [("features", Element::Bf16, &[3, 2], &x), ("labels", Element::I64, &[3], &y)];
    let csv = b"a,b,label\n1,2.5,0\n-3e2,4,1\n".to_vec();
    let lines = b"{\"a\": 1, \"b\": {\"c\": [1, 2.5]}, \"label\": 0}\n{\"a\": NaN, \"b\": null, \"label\": \"x\"}\n";
    let array = b"[\n{\"a\": 1, \"label\": 0},\n{\"a\": 2e3,\n\"label\": 1}, {\"label\": 0}]\n";
    let whole: [(u8, &str, Vec<u8>); 13] = [
        (0, "f32", npy(Element::F32)),
        (0, "f16", npy(Element::F16)),
        (0, "big", files::npy(Element::F64, true, &[3, 2], &x)),
        (1, "npz", files::npz(&arrays, false)),
        (1, "deflated", files::npz(&arrays, true)),
        (2, "safetensors", files::safetensors(&tensors)),
        (3, "idx", files::idx(Element::U8, &[3, 2], &x)),
        (4, "csv", csv.clone()),
        (5, "gz", files::gzip(&csv)),
        (6, "zst", files::zstd(&csv)),
        (7, "npy.gz", files::gzip(&npy(Element::F32))),
        (8, "jsonl", lines.to_vec()),
        (9, "json", array.to_vec()),
    ];
    for (kind, name, bytes) in whole {
        put("whole_file", name, &[&[kind], &bytes[..]].concat());
    }
    put("npy_header", "f4", &npy(Element::F32));
    put("npy_header", "text", b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }");
    put("idx_header", "u8", &files::idx(Element::U8, &[3, 2], &x));
}
