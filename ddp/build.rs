//! Passes features, optimisation and target on to `ddp-train --version`. They change seldom: what this file prints compiles the whole crate again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let features: Vec<_> = ["mpi", "parquet"]
        .into_iter()
        .filter(|name| variable(&format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some())
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    // `launch/build --quick`.
    let optimised = if variable("OPT_LEVEL").as_deref() == Some("0") { "not optimised; " } else { "" };
    println!(
        "cargo::rustc-env=DDP_TRAIN_BUILD=features: {features}; {optimised}{}",
        variable("TARGET").unwrap_or_default()
    );
    println!("cargo::rustc-env=DDP_TRAIN_IS_OPTIMISED={}", optimised.is_empty());
}
