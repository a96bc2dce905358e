//! Files that are truncated, garbage, or of a different format than their name says.

use super::file_sets::{self, PAIR, pair, train};
use super::harness::{GOOD_CSV, Place};
use crate::data::files;

/// A file that the settings name, its content, and the name of its format in messages.
struct Case {
    name: &'static str,
    content: Vec<u8>,
    sets: &'static [&'static str],
    format: &'static str,
    /// Length of its header in bytes.
    header: usize,
}

fn cases() -> Vec<Case> {
    let case = |name, content, sets, format, header| Case { name, content, sets, format, header };
    let npz = ["data.train=a.npz"].as_slice();
    vec![
        case("x.npy", file_sets::x_npy(), &PAIR, "npy", 128),
        case("y.npy", file_sets::y_npy(), &PAIR, "npy", 128),
        case("a.npz", file_sets::npz(false), npz, "npz", 30),
        case("a.npz", file_sets::npz(true), npz, "npz", 30),
        case("a.safetensors", file_sets::safetensors(), &["data.train=a.safetensors"], "safetensors", 100),
        case("a-images-idx3-ubyte", file_sets::x_idx(), &["data.train=a-images-idx3-ubyte"], "IDX", 16),
        case("a-labels-idx1-ubyte", file_sets::y_idx(), &["data.train=a-images-idx3-ubyte"], "IDX", 8),
        case("a.csv.gz", files::gzip(GOOD_CSV.as_bytes()), &["data.train=a.csv.gz"], "", 10),
        case("a.csv.zst", files::zstd(GOOD_CSV.as_bytes()), &["data.train=a.csv.zst"], "", 8),
        case("a.npz.gz", files::gzip(&file_sets::npz(false)), &["data.train=a.npz.gz"], "gzip", 10),
    ]
}

impl Case {
    /// A place with all files; this one has `content`.
    fn place(&self, content: &[u8]) -> Place {
        let place = pair(&file_sets::x_npy(), &file_sets::y_npy());
        place.write("a-images-idx3-ubyte", &file_sets::x_idx());
        place.write("a-labels-idx1-ubyte", &file_sets::y_idx());
        place.write(self.name, content);
        place
    }

    #[track_caller]
    fn refused(&self, content: &[u8], parts: &[&str]) {
        let named = format!("data file `{}`", self.name);
        self.place(content).refuses(&train(self.sets), &[parts, &[&named, "hint: "]].concat());
    }
}

#[test]
fn good_files_train() {
    for case in cases() {
        case.place(&case.content).run(&train(case.sets)).is_good();
    }
}

#[test]
fn cut_off_anywhere() {
    for case in cases() {
        let len = case.content.len();
        for cut in [0, 1, 5, case.header / 2, case.header, (case.header + len) / 2, len - 1] {
            case.refused(&case.content[..cut], &[case.format]);
        }
    }
}

#[test]
fn longer_than_the_header_says() {
    for case in cases().into_iter().filter(|case| ["npy", "safetensors", "IDX"].contains(&case.format)) {
        case.refused(&[&case.content[..], b"more"].concat(), &[case.format]);
    }
}

#[test]
fn garbage_and_other_formats() {
    let noise: Vec<u8> = (0..500u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for case in cases() {
        case.refused(&noise, &[case.format]);
        case.refused(&vec![0; 500], &[case.format]);
    }
    let [npy, npz, .., safetensors] = [file_sets::x_npy(), file_sets::npz(false), file_sets::safetensors()];
    // The content decides, not the name.
    for (case, other) in [(0, &npz), (0, &safetensors), (2, &safetensors)] {
        let case = &cases()[case];
        case.place(other).run(&train(case.sets)).is_good();
    }
    for (case, other) in [(2, &npy), (4, &npy), (5, &npy)] {
        let case = &cases()[case];
        case.place(other).refuses(&train(case.sets), &[case.name, "has no labels", "hint: "]);
    }
}
