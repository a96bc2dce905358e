//! Passes features, target and whether this is a quick build (launch/build --quick) on to `ddp-train --version`. They change
//! seldom: what this file prints compiles the whole crate again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let features: Vec<_> = ["mpi", "parquet"]
        .into_iter()
        .filter(|name| variable(&format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some())
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let is_quick =
        ["PROFILE", "OPT_LEVEL"].map(variable) == ["release", "0"].map(|value| Some(value.to_owned()));
    let quick = if is_quick { "quick build; " } else { "" };
    println!(
        "cargo::rustc-env=DDP_TRAIN_BUILD=features: {features}; {quick}{}",
        variable("TARGET").unwrap_or_default()
    );
    println!("cargo::rustc-env=DDP_TRAIN_IS_QUICK={is_quick}");
}
