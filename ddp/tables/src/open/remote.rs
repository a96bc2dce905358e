//! Rows in object stores and behind HTTPS: their objects become files of this host, which all else reads.
//!
//! The files lie in a private folder for each source, in `data.cache` or else in the folder for temporary files, under the names of their
//! objects. Whoever comes first on a host fetches; others wait for the folder's lock. Objects are compared with the store at each start, by
//! size and entity tag, so each one is fetched once per host, and again if it has changed. Without `data.cache` the last process removes
//! the folder; what a killed one leaves, the next start removes.

#[cfg(feature = "stores")]
mod fetch;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use ddp::data::error::{DataError, Result};

use crate::error::TableError;

/// Beginnings of addresses that name objects.
const SCHEMES: &[&str] = &["s3://", "gs://", "az://", "abfs://", "abfss://", "https://", "http://", "hf://"];

/// Whether `source` is an address of objects rather than a path.
pub fn is_address(source: &str) -> bool {
    SCHEMES.iter().any(|scheme| source.starts_with(scheme))
}

/// The path, or the pattern of paths, that stands for `source` on this host, after its objects were fetched.
///
/// - `keep`: the folder of `data.cache`
///
/// # Errors
/// [`TableError::Store`] with the address and what the store has said.
pub(crate) fn local(source: &str, keep: Option<&str>) -> Result<String> {
    fetch::local(source, keep.map(Path::new)).map_err(|(reason, hint)| {
        DataError::from(TableError::Store { source_name: shown(source).to_owned(), reason, hint })
    })
}

/// The queries of signed links that were typed, by their links without it: they are secrets, so nothing else gets them.
static SIGNED: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Takes the queries of signed links out of the arguments of a command; only what fetches knows them from then on.
pub fn hide_signatures(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let hide = |arg: OsString| {
        let Some(text) = arg.to_str() else { return arg };
        let Some(begin) = ["https://", "http://"].iter().find_map(|scheme| text.find(scheme)) else {
            return arg;
        };
        let (before, link) = text.split_at(begin);
        let end = link.find(['"', '\'', ' ', ']']).unwrap_or(link.len());
        let (link, after) = link.split_at(end);
        let Some((bare, query)) = link.split_once('?') else { return arg };
        SIGNED.lock().unwrap_or_else(PoisonError::into_inner).insert(bare.to_owned(), query.to_owned());
        format!("{before}{bare}{after}").into()
    };
    args.into_iter().map(hide).collect()
}

/// The address without the query of a signed link.
fn shown(source: &str) -> &str {
    source.split_once('?').filter(|_| source.starts_with("http")).map_or(source, |(link, _)| link)
}

/// The local path of one object, such as a model; a path of this host stays.
///
/// # Errors
/// Same as for rows.
pub fn local_path(path: &Path) -> Result<PathBuf> {
    match path.to_str().filter(|text| is_address(text)) {
        Some(address) => local(address, None).map(PathBuf::from),
        None => Ok(path.to_owned()),
    }
}

/// Removes the copies of this process that no other one uses, and that are not to be kept.
pub fn release() {
    fetch::release();
}

/// The reason why a source cannot be read, and what to do.
type Fault = (String, String);

#[cfg(not(feature = "stores"))]
mod fetch {
    use std::path::Path;

    use super::Fault;

    pub(super) fn local(_: &str, _: Option<&Path>) -> Result<String, Fault> {
        let hint = "the wheel and the image can; or build with `DDP_FEATURES=parquet,stores ./launch/build`; or copy the files to a path \
                    that all hosts see";
        Err(("this build reads no object stores (feature `stores`)".to_owned(), hint.to_owned()))
    }

    pub(super) fn release() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        for address in
            ["s3://b/k.csv", "gs://b/p/*.parquet", "https://host/a.csv?x=1", "hf://datasets/o/n/a.parquet"]
        {
            assert!(is_address(address), "{address}");
        }
        for path in ["a.csv", "./s3:/b", "builtin:digits", "/s3://b"] {
            assert!(!is_address(path), "{path}");
        }
        assert_eq!(local_path(Path::new("a.csv")).unwrap(), Path::new("a.csv"));
    }

    #[test]
    fn signatures_leave_the_arguments() {
        let args = ["train", "https://h/a.csv?sig=1&x=2", r#"data.train="http://h/b.csv?s=3""#, "a?b"];
        let hidden = hide_signatures(args.map(OsString::from));
        assert_eq!(
            hidden,
            ["train", "https://h/a.csv", r#"data.train="http://h/b.csv""#, "a?b"].map(OsString::from)
        );
        assert_eq!(SIGNED.lock().unwrap().get("https://h/a.csv").map(String::as_str), Some("sig=1&x=2"));
    }
}
