//! The options of NVRTC, and their translation for a C++ compiler.

/// Checked options.
#[derive(Debug, PartialEq, Hash)]
pub(crate) struct Options {
    /// The architecture, e.g. 90.
    pub(crate) arch: i32,
    /// Whether it is `sm_90` rather than `compute_90`, so that there is a cubin.
    pub(crate) is_real: bool,
    /// Options for the preprocessor.
    pub(crate) preprocessor: Vec<String>,
    /// Options for the compiler.
    pub(crate) compiler: Vec<String>,
}

/// Options that have no effect here, by their prefix. From the NVRTC documentation, "Supported Compile Options".
const IGNORED: [&str; 25] = [
    "--use_fast_math",
    "-use_fast_math",
    "--ftz",
    "-ftz",
    "--prec-div",
    "-prec-div",
    "--prec-sqrt",
    "-prec-sqrt",
    "--maxrregcount",
    "-maxrregcount",
    "--extra-device-vectorization",
    "--device-debug",
    "-G",
    "--generate-line-info",
    "-lineinfo",
    "--restrict",
    "-restrict",
    "--device-as-default-execution-space",
    "-default-device",
    "--disable-warnings",
    "-w",
    "--display-error-number",
    "--minimal",
    "--dopt",
    "--split-compile",
];

impl Options {
    /// # Errors
    /// The first option that NVRTC would not know.
    pub(crate) fn parse(options: &[String]) -> Result<Options, String> {
        // By default, CUDA 13 compiles for compute_75 and contracts to FMA.
        let mut parsed = Options { arch: 75, is_real: false, preprocessor: Vec::new(), compiler: Vec::new() };
        let mut contract = "-ffp-contract=fast";
        let mut standard = "-std=gnu++17";
        let mut options = options.iter().map(|option| option.trim());
        while let Some(option) = options.next() {
            // A value follows "=", or, for short names, is the next option.
            let (name, mut value) = match option.split_once('=') {
                Some((name, value)) => (name, value),
                None => (option, ""),
            };
            if value.is_empty() && matches!(name, "-arch" | "-std" | "-D" | "-U" | "-I" | "-maxrregcount") {
                value = options.next().unwrap_or("");
            }
            match name {
                "--gpu-architecture" | "-arch" => {
                    let (kind, number) = value.rsplit_once('_').ok_or(option)?;
                    // sm_90a: features of a single architecture, which have no effect here.
                    parsed.arch = number.trim_end_matches(['a', 'f']).parse().map_err(|_| option)?;
                    parsed.is_real = match kind {
                        "sm" => true,
                        "compute" => false,
                        _ => return Err(option.into()),
                    };
                }
                "--define-macro" | "-D" => {
                    parsed.preprocessor.push(format!("-D{}", definition(option, value)))
                }
                "--undefine-macro" | "-U" => parsed.preprocessor.push(format!("-U{value}")),
                "--include-path" | "-I" => parsed.preprocessor.push(format!("-I{value}")),
                "--std" | "-std" => {
                    standard = match value {
                        "c++03" | "c++11" | "c++14" | "c++17" => "-std=gnu++17",
                        "c++20" => "-std=gnu++20",
                        _ => return Err(option.into()),
                    }
                }
                "--fmad" | "-fmad" => {
                    contract = if value == "false" { "-ffp-contract=off" } else { contract }
                }
                _ if option.starts_with("-D") || option.starts_with("-I") || option.starts_with("-U") => {
                    parsed.preprocessor.push(option.into());
                }
                _ if IGNORED.contains(&name) || option.starts_with("--diag-") => (),
                _ => return Err(option.into()),
            }
        }
        parsed.compiler.extend([contract.into(), standard.into()]);
        Ok(parsed)
    }
}

/// Normalizes `--define-macro=A=1` and `-D A=1` to `A=1`.
fn definition<'a>(option: &'a str, value: &'a str) -> &'a str {
    option.strip_prefix("--define-macro=").unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(options: &[&str]) -> Result<Options, String> {
        Options::parse(&options.iter().map(|o| o.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn architectures_definitions_and_contraction() {
        let o =
            parse(&["--gpu-architecture=sm_90", "-DN=4", "--define-macro=T=float", "--fmad=false"]).unwrap();
        assert_eq!((o.arch, o.is_real), (90, true));
        assert_eq!(o.preprocessor, ["-DN=4", "-DT=float"]);
        assert!(o.compiler.contains(&"-ffp-contract=off".to_string()));
        let o = parse(&["-arch", "compute_80", "-std=c++17"]).unwrap();
        assert_eq!((o.arch, o.is_real), (80, false));
    }

    #[test]
    fn an_unknown_option_is_named() {
        assert_eq!(parse(&["--fast"]), Err("--fast".to_string()));
        assert_eq!(parse(&["--gpu-architecture=turing"]), Err("--gpu-architecture=turing".to_string()));
    }
}
