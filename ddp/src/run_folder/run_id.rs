//! The id of a run: a random number, stored in a file of the run folder and in each of its checkpoints, so that a checkpoint of
//! another run that was copied into the folder is not resumed by mistake.
//!
//! ```
//! use ddp::run_folder::run_id::{RUN_ID_FILE, is_valid, random, read};
//!
//! let folder = tempfile::tempdir()?;
//! assert_eq!(read(folder.path()), None);
//! let id = random()?;
//! assert!(is_valid(&id));
//! std::fs::write(folder.path().join(RUN_ID_FILE), &id)?;
//! assert_eq!(read(folder.path()), Some(id));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::storage::user_file::open_regular;

/// The file in a run's folder.
pub const RUN_ID_FILE: &str = ".run-id";
/// Number of hexadecimal digits of an id, 128 bits.
const N_DIGITS: usize = 32;

/// The id of the run in the folder `run`; `None` if it has none, like runs of earlier versions.
pub fn read(run: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(&run.join(RUN_ID_FILE)).ok()?.take(N_DIGITS as u64 + 1).read_to_string(&mut text).ok()?;
    let id = text.trim_end();
    is_valid(id).then(|| id.to_owned())
}

/// Whether a string can be an id: 32 hexadecimal digits.
pub fn is_valid(id: &str) -> bool {
    id.len() == N_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A new id.
///
/// # Errors
/// I/O errors of the system's source of random numbers.
pub fn random() -> io::Result<String> {
    let mut bytes = [0; N_DIGITS / 2];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_other_texts_are_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), None);
        let ids = [random().unwrap(), random().unwrap()];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| is_valid(id)));
        let path = folder.path().join(RUN_ID_FILE);
        std::fs::write(&path, format!("{}\n", ids[0])).unwrap();
        assert_eq!(read(folder.path()).as_ref(), Some(&ids[0]));
        for other in ["", "..", &ids[0][1..], &format!("{}0", ids[0])] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(read(folder.path()), None, "{other:?}");
        }
    }
}
