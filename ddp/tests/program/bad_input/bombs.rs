//! Files that claim to be huge, or decompress to more than fits: refused at once, with little memory.

use std::process::Command;
use std::time::Instant;

use super::file_sets::{self, PAIR, npy_f32, pair, train, x_npy, y_npy};
use super::harness::Place;
use crate::common::ddp_train;
use crate::data::files;

/// Limit of the program's address space in KiB; each of these files claims more.
const ADDRESSES_KIB: &str = "400000";
/// glibc reserves 64 MiB of addresses for each thread that allocates at the same time as another one; their number varies.
const ONE_ARENA: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// Runs the program with little memory.
fn run(place: &Place, sets: &[&str]) -> super::harness::Ended {
    let script = format!("ulimit -v {ADDRESSES_KIB} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, ddp_train()]).args(train(sets)).args(["--threads", "1", "--device", "cpu"]);
    place.end(command.env(ONE_ARENA.0, ONE_ARENA.1))
}

#[track_caller]
fn refused(place: &Place, sets: &[&str], parts: &[&str]) {
    let ended = run(place, sets);
    ended.is_error(2, parts);
    assert!(!place.file("out").exists());
}

#[test]
fn little_memory_is_enough_for_good_rows() {
    run(&pair(&x_npy(), &y_npy()), &PAIR).is_good();
}

#[test]
fn npy_headers() {
    let rows = |shape: &str| {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        [files::npy_with(&text), vec![0; 64]].concat()
    };
    for shape in [
        "(1099511627776, 1073741824)",
        "(9223372036854775808, 9223372036854775808)",
        "(4294967296, 4294967296)",
        "(18446744073709551615, 2)",
        "(4611686018427387904, 4)",
        "(0, 9223372036854775808, 9223372036854775808)",
        "(18446744073709551615,)",
        "(99999999999999999999, 1)",
        "(1099511627776, 3)",
        "(-1, 3)",
    ] {
        let file = rows(shape);
        refused(&pair(&file, &y_npy()), &PAIR, &["`x.npy` is not a valid npy file", "hint: "]);
        refused(&pair(&x_npy(), &file), &PAIR, &["`y.npy` is not a valid npy file", "hint: "]);
    }
    // Endless rows that take no bytes.
    let nothing = &rows("(1152921504606846976, 0)")[..128];
    refused(&pair(nothing, &y_npy()), &PAIR, &["`x.npy`", "hint: "]);
    refused(&pair(&x_npy(), nothing), &PAIR, &["`y.npy`", "hint: "]);
    let place = Place::new();
    for n in 10..30 {
        place.write(&format!("x/{n}.npy"), nothing);
    }
    place.write("y.npy", &y_npy());
    refused(&place, &["data.train=x", "data.labels=y.npy"], &["`x", "hint: "]);

    for (version, len) in [(2, u32::MAX), (3, 1 << 31), (2, 20_000)] {
        let mut file = b"\x93NUMPY".to_vec();
        file.extend([version, 0]);
        file.extend(len.to_le_bytes());
        file.extend([b' '; 200]);
        refused(&pair(&file, &y_npy()), &PAIR, &[&format!("its header claims {len} bytes"), "hint: "]);
    }
    let deep = files::npy_with(&format!("{{'descr': {}", "(".repeat(10_000)));
    refused(&pair(&deep, &y_npy()), &PAIR, &["`x.npy` is not a valid npy file", "hint: "]);
}

#[test]
fn idx_headers() {
    let with = |header: &[u8], dims: &[u32]| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_be_bytes()).collect();
        [header, &dims, &[0; 64]].concat()
    };
    for file in [
        with(&[0, 0, 8, 3], &[u32::MAX; 3]),
        with(&[0, 0, 14, 1], &[u32::MAX]),
        with(&[0, 0, 8, 255], &[u32::MAX; 255]),
        with(&[0, 0, 8, 255], &[1, 2]),
        with(&[0, 0, 8, 3], &[0, u32::MAX, u32::MAX]),
        with(&[0, 0, 8, 0], &[]),
    ] {
        let place = Place::new();
        place.write("a-images-idx3-ubyte", &file);
        place.write("a-labels-idx1-ubyte", &file_sets::y_idx());
        refused(&place, &["data.train=a-images-idx3-ubyte"], &["not a valid IDX file", "hint: "]);
    }
}

#[test]
fn safetensors_headers() {
    let place = Place::new();
    let refuse = |file: &[u8]| {
        place.write("a.safetensors", file);
        refused(
            &place,
            &["data.train=a.safetensors"],
            &["`a.safetensors` is not a valid safetensors file", "hint: "],
        );
    };
    for len in [1 << 63, u64::MAX, 1 << 32, 99_999_999, 200] {
        refuse(&[&len.to_le_bytes()[..], b"{}", &[b' '; 100]].concat());
    }
    let tensor = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
    };
    let labels = tensor("labels", "I64", "[2]", 8, 24);
    let header = |tensors: &[&str]| format!("{{{}}}", tensors.join(","));
    for tensors in [
        // Terabytes, by offsets and by shape.
        [tensor("features", "F32", "[1099511627776]", 24, 24 + (1 << 42)), labels.clone()],
        [tensor("features", "F32", "[4611686018427387904, 4]", 0, 8), labels.clone()],
        [tensor("features", "F32", "[9223372036854775808, 2]", 0, 0), labels.clone()],
        [tensor("features", "F32", "[18446744073709551615]", 0, u64::MAX), labels.clone()],
        // The size contradicts the shape.
        [tensor("features", "F32", "[2, 3]", 0, 8), labels.clone()],
        [tensor("features", "F32", "[2, 1]", 8, 0), labels.clone()],
        // Overlapping tensors, and a hole.
        [tensor("features", "F32", "[2, 2]", 0, 16), labels.clone()],
        [tensor("features", "F32", "[2, 1]", 8, 16), labels.clone()],
        [tensor("features", "F32", "[1, 1]", 0, 4), labels.clone()],
        // The same tensor twice.
        [tensor("labels", "F32", "[2, 1]", 0, 8), labels.clone()],
    ] {
        refuse(&files::safetensors_with(&header(&tensors.each_ref().map(String::as_str)), &[0; 24]));
    }
    let unknown = [tensor("features", "F7", "[2, 1]", 0, 8), labels.clone()];
    place.write(
        "b.safetensors",
        &files::safetensors_with(&header(&unknown.each_ref().map(String::as_str)), &[0; 24]),
    );
    refused(&place, &["data.train=b.safetensors"], &["the array `features` has the type F7", "hint: "]);
    refuse(&files::safetensors_with(&"[".repeat(100_000), &[0; 24]));
    refuse(&files::safetensors_with(&format!("{{\"a\":{}", "{\"a\":".repeat(10_000)), &[0; 24]));
    let twice =
        [tensor("features", "F32", "[2, 1]", 0, 8), tensor("features", "I32", "[2, 1]", 0, 8), labels];
    refuse(&files::safetensors_with(&header(&twice.each_ref().map(String::as_str)), &[0; 24]));
}

/// Changes the uncompressed size that all entries of the archive claim.
fn claiming(mut archive: Vec<u8>, size: u32) -> Vec<u8> {
    for (signature, offset) in [(b"PK\x03\x04", 22), (b"PK\x01\x02", 24)] {
        let places: Vec<usize> =
            (0..archive.len() - 4).filter(|&at| &archive[at..at + 4] == signature).collect();
        for at in places {
            archive[at + offset..at + offset + 4].copy_from_slice(&size.to_le_bytes());
        }
    }
    archive
}

#[test]
fn npz_entries() {
    let place = Place::new();
    for is_deflated in [true, false] {
        let good = file_sets::npz(is_deflated);
        for (size, part) in [(u32::MAX - 1, ""), (1 << 20, ""), (100, ""), (0, "")] {
            for memory in ["data.loader_memory_mib=1024", "data.loader_memory_mib=8192"] {
                place.write("a.npz", &claiming(good.clone(), size));
                refused(&place, &["data.train=a.npz", memory], &["a.npz", part, "hint: "]);
            }
        }
    }
    // One with the correct size, and one that decompresses to more than it claims: a thousand times its own length.
    let n_rows = 3 << 20;
    let x = [npy_f32(&[n_rows, 4], &[]), vec![0; n_rows * 16]].concat();
    let y = files::npy(files::Element::U8, false, &[n_rows], &vec![1.0; n_rows]);
    let bomb = files::npz(&[("features", &x), ("labels", &y)], true);
    assert!(bomb.len() < 100_000);
    place.write("a.npz", &bomb);
    let small = ["data.train=a.npz", "data.loader_memory_mib=16"];
    refused(
        &place,
        &small,
        &["`a.npz:features` needs 49 MiB of memory to be unpacked", "allows 16", "numpy.savez"],
    );
    place.write("a.npz", &claiming(bomb, 1 << 20));
    refused(&place, &small, &["`a.npz` is not a valid npz file", "`features`", "hint: "]);
}

/// Each file fits on its own, but not all of them together.
#[test]
fn many_packed_shards() {
    let n_rows = 1 << 16;
    let x = [npy_f32(&[n_rows, 4], &[]), vec![0; n_rows * 16]].concat();
    let y = files::npy(files::Element::U8, false, &[n_rows], &vec![1.0; n_rows]);
    let (npz, gz) = (files::npz(&[("features", &x), ("labels", &y)], true), files::gzip(&x));
    let place = Place::new();
    for n in 0..8 {
        place.write(&format!("npz/{n}.npz"), &npz);
        place.write(&format!("gz/{n}.npy.gz"), &gz);
        place.write(&format!("y/{n}.npy"), &y);
    }
    let parts = ["MiB of memory", "`data.loader_memory_mib` allows 4", "hint: "];
    refused(&place, &["data.train=npz", "data.loader_memory_mib=4"], &parts);
    refused(&place, &["data.train=gz", "data.labels=y", "data.loader_memory_mib=4"], &parts);
}

#[test]
fn packed_files() {
    let zeros = vec![0; 64 << 20];
    let (gz, zst) =
        (files::gzip(&[x_npy(), zeros.clone()].concat()), files::zstd(&[x_npy(), zeros].concat()));
    let place = pair(&x_npy(), &y_npy());
    place.write("x.npy.gz", &gz);
    place.write("x.npy.zst", &zst);
    for name in ["x.npy.gz", "x.npy.zst"] {
        let sets = [&format!("data.train={name}"), "data.labels=y.npy", "data.loader_memory_mib=16"];
        refused(
            &place,
            &sets,
            &[&format!("`{name}` needs"), "or more to be unpacked", "allows 16", "hint: "],
        );
    }
    // Tables become rows of f32 in memory, whatever their format in the file.
    let row = "0,".repeat(1000);
    let names: String = (0..1000).map(|i| format!("f{i},")).collect();
    let table = format!("{names}label\n{}", format!("{row}1\n").repeat(2000));
    place.write("t.csv.gz", &files::gzip(table.as_bytes()));
    place.write("t.csv.zst", &files::zstd(table.as_bytes()));
    place.write("t.csv", table.as_bytes());
    for name in ["t.csv", "t.csv.gz", "t.csv.zst"] {
        let sets = [&format!("data.train={name}"), "data.loader_memory_mib=4"];
        refused(&place, &sets, &[&format!("`{name}` needs"), "or more as rows of f32", "allows 4", "hint: "]);
    }
}

/// One cell that is larger than the memory: as it is (zeros that take no room on the disk), in quotes, and as JSON.
#[test]
fn cells_of_a_gibibyte() {
    let place = Place::new();
    for (name, begin) in [
        ("plain.csv", "a,label\n1,0\n"),
        ("quoted.csv", "a,label\n1,0\n\""),
        ("header.csv", "a,label"),
        ("rows.jsonl", "{\"a\": 1, \"label\": 0}\n{\"a\": "),
    ] {
        place.write(name, begin.as_bytes());
        let file = std::fs::File::options().write(true).open(place.file(name)).unwrap();
        file.set_len(1 << 30).unwrap();
        let source = format!("data.train={name}");
        refused(&place, &[&source, "data.loader_memory_mib=32"], &[name, "exceeds 8 MiB", "hint: "]);
    }
}

/// Lists of 50 million zeros in 580 bytes.
#[cfg(feature = "parquet")]
#[test]
fn lists_without_end() {
    let place = Place::new();
    let file = include_bytes!("../../fixtures/tables/hostile/lists.parquet");
    assert!(file.len() < 1000);
    place.write("lists.parquet", file);
    refused(
        &place,
        &["data.train=lists.parquet"],
        &["lists.parquet", "column \"x\"", "got lists of 50000000 or more", "hint: "],
    );
}

/// A list of 50 million zeros among 9,999 lists of 3: the decoded values would exceed the memory.
#[cfg(feature = "parquet")]
#[test]
fn a_long_list_among_short_ones() {
    let place = Place::new();
    place.write("middle.parquet", include_bytes!("../../fixtures/tables/hostile/long_list.parquet"));
    place.write("first.parquet", include_bytes!("../../fixtures/tables/hostile/long_list_first.parquet"));
    let of_row =
        ["`middle.parquet`, row 5000, column \"x\": expected a list of 3 numbers", "got 50000000", "hint: "];
    let of_file = ["first.parquet", "column \"x\"", "got lists of 50000000 or more", "hint: "];
    for (name, parts) in [("middle", &of_row[..]), ("first", &of_file)] {
        refused(&place, &[&format!("data.train={name}.parquet")], parts);
        for line in
            [format!("data inspect {name}.parquet"), format!("data convert {name}.parquet rows.parquet")]
        {
            let script = format!("ulimit -v {ADDRESSES_KIB} && exec \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &script, ddp_train()]).args(line.split_whitespace());
            place.end(&mut command).is_error(2, parts);
        }
    }
}

/// Work that grows with the square of the number of columns would take minutes.
#[test]
fn wide_tables_take_linear_time() {
    let n_columns = 80_000;
    let names: String = (0..n_columns).map(|i| format!("c{i},")).collect();
    let cells = "1,".repeat(n_columns);
    let place = Place::new();
    place.write("wide.csv", format!("{names}label\n{cells}0\n{cells}1\n{cells}0\n").as_bytes());
    in_time(&place, "data inspect wide.csv");
    in_time(&place, "train wide.csv --epochs 1 --hidden 2 --out out");
}

/// Rows that each bring a key make a table that grows with the square of the file: it is refused once its keys are counted, in time
/// that grows with the file. Ten times the rows take at most some ten times the time; a square would take a hundred times it.
#[test]
fn ever_new_keys_are_refused_in_linear_time() {
    let place = Place::new();
    let rows = |n: usize| -> String {
        (0..n).map(|row| format!("{{\"k{row}\": 1, \"y\": {}}}\n", row % 2)).collect()
    };
    let time_of = |n_rows: usize| {
        place.write("rows.jsonl", rows(n_rows).as_bytes());
        let count = format!("each row has other keys: {n_rows} rows have {} keys", n_rows + 1);
        let parts = ["`rows.jsonl`", &count, "hint: a key is a column"];
        let began = Instant::now();
        place.refuses(&["train", "rows.jsonl", "--target", "y", "--out", "out"], &parts);
        place.refuses(&["data", "inspect", "rows.jsonl"], &parts);
        began.elapsed()
    };
    let few = time_of(20_000).min(time_of(20_000));
    let many = time_of(200_000);
    assert!(many < 40 * few, "{many:?} and {few:?}");
    // A table of few rows may have as many keys as it likes.
    place.write("rows.jsonl", rows(500).as_bytes());
    place.run(&["data", "inspect", "rows.jsonl"]).is_good();
}

#[test]
fn archives_of_many_arrays_take_linear_time() {
    let names: Vec<String> = (0..10_000).map(|i| format!("a{i}")).collect();
    let (x, y) = (x_npy(), y_npy());
    let mut arrays: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &y[..])).collect();
    arrays.extend([("features", &x[..]), ("labels", &y[..])]);
    let place = Place::new();
    place.write("many.npz", &files::npz(&arrays, false));
    in_time(&place, "data inspect many.npz");
    in_time(&place, "train many.npz --epochs 1 --out out");
}

/// The program succeeds within a generous time limit, also on a busy machine, and with little memory.
#[track_caller]
fn in_time(place: &Place, line: &str) {
    let script = format!("ulimit -v {ADDRESSES_KIB} && exec timeout -s KILL 60 \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, ddp_train()]).args(line.split_whitespace());
    // On a machine with many cores, each thread would reserve addresses.
    if line.starts_with("train ") {
        command.args(["--threads", "1", "--device", "cpu"]);
    }
    place.end(command.env(ONE_ARENA.0, ONE_ARENA.1)).is_good();
}
