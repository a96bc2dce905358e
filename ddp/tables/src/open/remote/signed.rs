//! Links with a signature in their query, which is a secret: it is taken out of the arguments before anything can show it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The queries of signed links that were typed, by their links without it: they are secrets, so nothing else gets them.
pub(super) static SIGNED: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

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
pub(super) fn shown(source: &str) -> &str {
    source.split_once('?').filter(|_| source.starts_with("http")).map_or(source, |(link, _)| link)
}

#[cfg(test)]
mod tests {
    use super::*;

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
