//! Opens the store of an address, with credentials from the environment, and says what stores say.

use std::path::{Component, Path};
use std::sync::PoisonError;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, HeaderMap, ObjectStore, RetryConfig};

use super::signed::SIGNED;
use super::terms::Fault;
use crate::open::pattern::{is_pattern, without_lists};

/// Time without a byte after which a request is tried again, and time for all its tries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    read: Duration,
    tries: Duration,
}

/// Limits of reading, which happens at the start.
pub(super) const OF_READING: Limits =
    Limits { read: Duration::from_secs(60), tries: Duration::from_secs(60) };
/// Limits of a run's results, whose writer must know soon whether it still is the writer.
pub(super) const OF_RESULTS: Limits =
    Limits { read: Duration::from_secs(20), tries: Duration::from_secs(25) };
/// More than fit into it.
const MAX_RETRIES: usize = 100;
/// Remedies.
pub(super) const CHANGED: &str = "the object has changed while it was read: start again when it is complete";
pub(super) const NOT_THERE: &str = "check bucket, key and spelling; keys are case-sensitive";

/// A store, and the keys in it that a source names.
pub(super) struct Source {
    pub(super) store: Box<dyn ObjectStore>,
    pub(super) key: Key,
    /// Path of the store below the folder of copies.
    pub(super) place: String,
    /// The key as typed, with wildcards.
    pub(super) typed: String,
    /// Whether the address is one object whatever its name, of a server that lists nothing.
    pub(super) is_single: bool,
}

/// Opens the store of an address, and tells which keys it names.
pub(super) fn open(address: &str, limits: Limits) -> Result<Source, Fault> {
    let (scheme, rest) = address.split_once("://").expect("checked by the caller");
    let failed = |error: object_store::Error| said(&error);
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: MAX_RETRIES,
        retry_timeout: limits.tries,
    };
    let options = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout_disabled()
        .with_read_timeout(limits.read);
    if let "http" | "https" | "hf" = scheme {
        let (url, options) =
            if scheme == "hf" { hugging_face(rest, options)? } else { (address.to_owned(), options) };
        if rest.split('/').next().is_some_and(|host| host.contains('@')) {
            let hint = "a password in an address shows in files and lists of processes: sign a link instead"
                .to_owned();
            return Err(("the address holds a user".to_owned(), hint));
        }
        let query = SIGNED.lock().unwrap_or_else(PoisonError::into_inner).get(&url).cloned();
        let link = url.split('#').next().unwrap_or_default();
        let url = query.map_or(url.clone(), |query| format!("{link}?{query}"));
        let plain = url.split(['?', '#']).next().unwrap_or_default();
        let name = plain.rsplit('/').next().unwrap_or_default().to_owned();
        if name.is_empty() || is_pattern(&name) {
            let hint = "name one file; a server of plain HTTPS lists nothing".to_owned();
            return Err(("the address names no file".to_owned(), hint));
        }
        let options = options.with_allow_http(scheme == "http" || url.starts_with("http://"));
        let store = HttpBuilder::new().with_url(&url).with_client_options(options).with_retry(retry).build();
        let store = Box::new(store.map_err(failed)?);
        return Ok(Source {
            store,
            key: Key::default(),
            place: scheme.to_owned(),
            typed: name,
            is_single: true,
        });
    }
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let root = format!("{scheme}://{bucket}/");
    let store: Box<dyn ObjectStore> = match scheme {
        "s3" => {
            let is_plain = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"]
                .iter()
                .any(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")));
            let builder = AmazonS3Builder::from_env().with_url(&root).with_retry(retry);
            let builder = builder.with_client_options(options.with_allow_http(is_plain));
            Box::new(builder.build().map_err(failed)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(&root).with_retry(retry);
            Box::new(builder.with_client_options(options).build().map_err(failed)?)
        }
        _ => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(&root).with_retry(retry);
            Box::new(builder.with_client_options(options).build().map_err(failed)?)
        }
    };
    let typed = key.trim_end_matches('/').to_owned();
    if bucket.is_empty() || !(typed.is_empty() || without_lists(&typed).iter().all(|key| is_inside(key))) {
        let hint = "write it as SCHEME://BUCKET/KEY, without empty parts, `.` and `..`".to_owned();
        return Err(("the address is not one of a bucket and a key".to_owned(), hint));
    }
    let fixed = match typed.find(['*', '?', '[', '{']).filter(|_| is_pattern(&typed)) {
        Some(at) => typed[..at].rsplit_once('/').map_or("", |(before, _)| before),
        None => &typed,
    };
    let key = Key::parse(fixed)
        .map_err(|error| (error.to_string(), "write the key as the store lists it".to_owned()))?;
    Ok(Source { store, key, place: format!("{scheme}/{bucket}"), typed, is_single: false })
}

/// The address of a file of a data set of Hugging Face, `datasets/OWNER/NAME[@REVISION]/PATH`, and the token for it.
///
/// Source: the Hub's documentation, "Download files", for the form `/resolve/REVISION/PATH`.
fn hugging_face(rest: &str, options: ClientOptions) -> Result<(String, ClientOptions), Fault> {
    let parts: Vec<&str> = rest.splitn(4, '/').collect();
    let &["datasets", owner, name, file] = &parts[..] else {
        let hint = "for example hf://datasets/OWNER/NAME/data/train.parquet, with NAME@REVISION for another one than main".to_owned();
        return Err(("the address names no file of a data set".to_owned(), hint));
    };
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let host = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".to_owned());
    let url = format!("{}/datasets/{owner}/{name}/resolve/{revision}/{file}", host.trim_end_matches('/'));
    let options =
        match std::env::var("HF_TOKEN").ok().and_then(|token| format!("Bearer {token}").parse().ok()) {
            Some(token) => {
                let mut headers = HeaderMap::new();
                headers.insert("authorization", token);
                options.with_default_headers(headers)
            }
            None => options,
        };
    Ok((url, options))
}

/// Whether a name stays below the folder that it is joined to.
pub(super) fn is_inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
        && !name.split('/').any(str::is_empty)
}

/// Words of a store, with all causes, and a remedy.
pub(super) fn said(error: &object_store::Error) -> Fault {
    use object_store::Error;
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut text = error.to_string();
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    // Links in it may be signed.
    let words = text
        .split(' ')
        .map(|word| if word.contains("://") { word.split('?').next().unwrap_or(word) } else { word });
    text = words.collect::<Vec<_>>().join(" ");
    // Stores answer in XML.
    let inside = |tag: &str| Some(text.split_once(&format!("<{tag}>"))?.1.split_once("</")?.0.to_owned());
    if let (Some(code), Some(message)) = (inside("Code"), inside("Message")) {
        text = format!("{code}: {message}");
    }
    let hint = match error {
        Error::NotFound { .. } => NOT_THERE,
        _ if text.starts_with("NoSuch") => NOT_THERE,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "the credentials are refused: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (GOOGLE_*, AZURE_*, HF_TOKEN), their rights to list \
             and read, and the clock; for a public bucket of S3 set AWS_SKIP_SIGNATURE=true"
        }
        Error::Precondition { .. } => CHANGED,
        _ if ["InternalError", "SlowDown", "ServiceUnavailable", "500", "503"]
            .iter()
            .any(|code| text.contains(code)) =>
        {
            "the store fails, also after tries for a minute: start again later"
        }
        _ if text.contains("169.254.169.254") => {
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        _ => "check the network, AWS_ENDPOINT_URL and AWS_REGION; docs/buckets.md",
    };
    (text, hint.to_owned())
}
