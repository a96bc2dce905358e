//! Arguments of `ddp-train config`.

use clap::{Args, Subcommand};

/// `ddp-train config`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// List the config keys: type, range, default, meaning
    Keys(ConfigKeysArgs),
    /// Print the JSON schema of the config, for completion and checks in editors
    #[command(
        after_help = "For example: `ddp-train config schema > run.schema.json`, and `#:schema ./run.schema.json` as the first line of \
                      run.toml, for editors with a TOML language server (Taplo, Even Better TOML)."
    )]
    Schema,
}

/// `ddp-train config keys`
#[derive(Debug, Clone, Args)]
#[command(after_help = "For example: `ddp-train config keys optimizer`.")]
pub struct ConfigKeysArgs {
    /// Only keys that start with this prefix, such as `train` or `optimizer.w`
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: String,

    /// Print a Markdown page
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print one JSON object per key, one per line
    #[arg(long)]
    pub json: bool,
}
