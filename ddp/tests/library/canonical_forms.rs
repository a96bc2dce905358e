//! Values that ranks compare, hash or write have the same form in every process: they contain no Debug text, hash map order,
//! pointer or time.
//!
//! Reads the source: a function hashes or compares if it mentions `Fingerprint`, `fingerprint`, `agree` or `Sha256`.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Names that mark a function as one that hashes, or compares values between ranks.
const MARKS: [&str; 5] = ["Fingerprint", "fingerprint", "agree", "Sha256", "agreement_entries"];
/// Types whose values differ between processes.
const OF_A_PROCESS: [&str; 6] =
    ["HashMap", "HashSet", "SystemTime", "Instant", "RandomState", "DefaultHasher"];

/// Identifiers, punctuation and literals of a piece of source.
fn words<'t>(tokens: impl IntoIterator<Item = &'t TokenTree>) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                found.extend(words(&group.stream().into_iter().collect::<Vec<_>>()));
            }
            other => found.push(other.to_string()),
        }
    }
    found
}

fn is_body(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

/// Functions and types that break the rule in a piece of source, except tests.
fn found_in(source: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = source.into_iter().collect();
    let (mut found, mut attributes) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        // An item ends with its body, or at a semicolon if it has none.
        let rest = &tokens[at..];
        let end = rest
            .iter()
            .position(|token| is_body(token) || token.to_string() == ";")
            .map_or(rest.len(), |n| n + 1);
        let item = &rest[..end];
        let name = item.get(1).map(ToString::to_string).unwrap_or_default();
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                attributes.push(rest.get(1).map(ToString::to_string).unwrap_or_default());
                at += 2;
                continue;
            }
            token
                if is_word(Some(token), "mod")
                    && attributes.iter().any(|of| of.contains("cfg (test)") || of.contains("cfg(test)")) =>
            {
                at += end;
            }
            token if is_word(Some(token), "fn") => {
                found.extend(process_word(&words(item)).map(|word| format!("fn {name}: {word}")));
                at += end;
            }
            // Serde may write the type as another type.
            token if is_word(Some(token), "struct") => {
                let has = |part: &str| attributes.iter().any(|of| of.contains(part));
                let is_hashed = words(item).iter().any(|word| word == "HashMap" || word == "HashSet");
                if has("Serialize") && !has("into =") && is_hashed {
                    found.push(format!("struct {name}: written in the order of a hash map"));
                }
                at += end;
            }
            TokenTree::Group(group) => {
                found.extend(found_in(group.stream()));
                at += 1;
            }
            // A visibility or keyword before the item.
            _ => {
                at += 1;
                continue;
            }
        }
        attributes.clear();
    }
    found
}

/// The first word, in a function that hashes or compares, that differs between processes.
fn process_word(words: &[String]) -> Option<&String> {
    let is_debug = |word: &String| {
        word.starts_with(['"', 'r']) && (word.contains(":?") || word.contains(":p}") || word.contains("x?}"))
    };
    let compares = MARKS.iter().any(|mark| words.iter().any(|word| word == mark));
    words.iter().find(|word| compares && (is_debug(word) || OF_A_PROCESS.contains(&word.as_str())))
}

fn source_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" {
            source_files(&path, files);
        } else if path.extension().is_some_and(|of| of == "rs") && !name.ends_with("tests") {
            files.push(path);
        }
    }
}

#[test]
fn what_is_compared_has_one_form_in_every_process() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    ["ddp/src", "ddp/tables/src", "comm/src"]
        .iter()
        .for_each(|folder| source_files(&root.join(folder), &mut files));
    assert!(files.len() > 300);
    let found: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found_in(fs::read_to_string(path).unwrap().parse().unwrap())
                .into_iter()
                .map(move |found| format!("{name}: {found}"))
        })
        .collect();
    assert!(
        found.is_empty(),
        "values that differ in every process, among what is compared:\n{}",
        found.join("\n")
    );
}

#[test]
fn faults_are_found() {
    for fault in [
        r#"fn hash(&self, hash: &mut Fingerprint) { hash.text(&format!("{:?}", self.targets)); }"#,
        r#"fn agree_on_start(world: &World, info: &Info) { world.agree(&[("a", format!("{:x?}", info))]) }"#,
        r#"fn key(values: &HashMap<String, u32>) -> u64 { fingerprint(&values.iter().collect()) }"#,
        r#"impl Run { fn id(&self) -> u64 { fingerprint(SystemTime::now()) } }"#,
        r#"#[derive(Debug, Serialize)] struct Manifest { files: HashMap<String, u64> }"#,
    ] {
        assert_eq!(found_in(fault.parse().unwrap()).len(), 1, "{fault}");
    }
    let fine =
        r#"#[derive(Serialize)] #[serde(into = "Stored")] struct Vocabulary { codes: HashMap<String, u32> }"#;
    assert!(found_in(fine.parse().unwrap()).is_empty());
}
