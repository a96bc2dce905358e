//! Makes the text of `ddp-train --version`: version, commit, features, target.
//!
//! The commit is that of `git`, or the variable `DDP_COMMIT`, for builds from an archive. Only optimised builds ask `git`: they are
//! compiled again after each commit, which nobody should wait for while writing the next one.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=DDP_COMMIT");
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is_release = variable("PROFILE").is_some_and(|profile| profile == "release");
    let commit = variable("DDP_COMMIT").or_else(|| if is_release { commit() } else { None });
    let features: Vec<_> = ["mpi", "parquet"]
        .into_iter()
        .filter(|name| variable(&format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some())
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    println!(
        "cargo::rustc-env=DDP_TRAIN_VERSION={} (commit {}; features: {features}; {})",
        variable("CARGO_PKG_VERSION").unwrap_or_default(),
        commit.unwrap_or_else(|| "unknown".to_owned()),
        variable("TARGET").unwrap_or_default(),
    );
}

/// The checked-out commit, with `+` if files differ from it.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Written by each commit and checkout.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit}+") })
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
