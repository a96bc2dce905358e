//! Short texts kept next to the compiled kernels, by everything on which they depend.

use super::cache::{Cache, Key};

/// Reads the text of these parts, if one was written and is intact.
pub fn read(parts: &[String]) -> Option<String> {
    String::from_utf8(Cache::for_user()?.read(&key(parts))?).ok()
}

/// Writes the text of these parts. Without a private folder for the cache it is lost.
pub fn write(parts: &[String], text: &str) {
    if let Some(cache) = Cache::for_user() {
        cache.write(&key(parts), text.as_bytes());
    }
}

fn key(parts: &[String]) -> Key {
    Key::new(
        &std::iter::once("record")
            .chain(parts.iter().map(String::as_str))
            .map(str::as_bytes)
            .collect::<Vec<_>>(),
    )
}
