//! Links with a signature in their query, which is a secret: it is taken out of the arguments before anything can show it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The queries of signed links that were typed, by their links without it: they are secrets, so nothing else gets them.
pub(super) static SIGNED: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Takes the queries of signed links out of the arguments of a command; only what fetches knows them from then on.
pub fn hide_signatures(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let hide = |arg: OsString| arg.to_str().map(|text| hidden(text).into()).unwrap_or(arg);
    args.into_iter().map(hide).collect()
}

/// The text without the queries of its links. Of links that differ by their query alone, the later ones end in `#2` and so on.
fn hidden(text: &str) -> String {
    let Some(begin) = ["https://", "http://"].iter().filter_map(|scheme| text.find(scheme)).min() else {
        return text.to_owned();
    };
    let (before, link) = text.split_at(begin);
    let end = link.find(['"', '\'', ' ', ']']).unwrap_or(link.len());
    let (link, after) = link.split_at(end);
    let name = link.split_once('?').map_or(link.to_owned(), |(bare, query)| {
        let mut signed = SIGNED.lock().unwrap_or_else(PoisonError::into_inner);
        let others = (2..).map(|n| format!("{bare}#{n}"));
        let is_free = |name: &String| signed.get(name).is_none_or(|known| known == query);
        let name = std::iter::once(bare.to_owned()).chain(others).find(is_free).expect("numbers do not end");
        signed.insert(name.clone(), query.to_owned());
        name
    });
    format!("{before}{name}{}", hidden(after))
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

    #[test]
    fn links_that_differ_by_their_query_stay_apart() {
        let args = [
            r#"data.train=["https://h/get?f=1","https://h/get?f=2"]"#,
            "https://h/get?f=1",
            "https://h/get?f=3",
        ];
        let hidden = hide_signatures(args.map(OsString::from));
        let want = [r#"data.train=["https://h/get","https://h/get#2"]"#, "https://h/get", "https://h/get#3"];
        assert_eq!(hidden, want.map(OsString::from));
        assert_eq!(SIGNED.lock().unwrap().get("https://h/get#2").map(String::as_str), Some("f=2"));
    }
}
