//! Sources of kernels, part of the binary, and the format that a kernel is compiled for.

/// Code shared by all kernels: reductions, formats, random numbers.
const PRELUDE: &str = include_str!("prelude.cuh");

/// One kernel file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(super) name: &'static str,
    preamble: &'static str,
    text: &'static str,
    /// Whether its kernels wait for the kernel before them, so that they may be launched while that one ends.
    pub(super) follows: bool,
}

impl Source {
    /// The kernels of operation `name`.
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Self::with_preamble(name, "", text)
    }

    /// The same kernels with row weights, compiled with `ROW_WEIGHTS` 1: in a module of their own, so that the other kernels use no
    /// more registers and a run without weights compiles nothing more.
    pub(crate) const fn with_row_weights(name: &'static str, text: &'static str) -> Self {
        Self::with_preamble(name, "#define ROW_WEIGHTS 1\n", text)
    }

    /// The same with `preamble` between the prelude and `text`.
    pub(crate) const fn with_preamble(
        name: &'static str,
        preamble: &'static str,
        text: &'static str,
    ) -> Self {
        Source { name, preamble, text, follows: true }
    }

    /// The same kernels, launched only when the work before them is complete: the compiler may read as constants (`ld.global.nc`) what
    /// that work writes.
    pub(crate) const fn after_others(self) -> Self {
        Source { follows: false, ..self }
    }

    /// Preamble and text, whose kernels wait for the kernel before them, if they may be launched before it is complete.
    fn parts(&self) -> [String; 2] {
        [self.preamble, self.text].map(|part| if self.follows { following(part) } else { part.to_owned() })
    }

    /// The lines before the text, where kernels of this format are wanted, or of all.
    fn head(&self, wanted: Option<KernelFormat>) -> String {
        let mut head = format!("{PRELUDE}\n");
        for format in KernelFormat::ALL {
            let is_wanted = wanted.is_none_or(|wanted| wanted == format);
            let body = if is_wanted { "__VA_ARGS__" } else { "" };
            head += &format!("#define ONLY_{}(...) {body}\n", format.name().to_uppercase());
        }
        head + &format!("{}#line 1 \"{}.cu\"\n", self.parts()[0], self.name)
    }

    /// Name of the file, without extension.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The text with the kernels of all formats.
    pub(crate) fn whole(&self) -> String {
        self.head(None) + &self.parts()[1]
    }

    /// The text with the kernels of one format only, which compiles in a fraction of the time: a line that consists of a macro call
    /// instantiates kernels of the format that its arguments name, and a macro for kernels of several formats wraps the kernels of each in
    /// `ONLY_F32(...)` and its like.
    pub(super) fn for_format(&self, format: KernelFormat) -> String {
        let mut text = self.head(Some(format));
        for line in self.parts()[1].lines() {
            let is_wanted = instance_arguments(line).is_none_or(|args| KernelFormat::of(args) == format);
            text += if is_wanted { line } else { "" };
            text.push('\n');
        }
        text
    }
}

/// The text with `follow_kernels` of the prelude as the first statement of each kernel, on the same line.
fn following(text: &str) -> String {
    const KERNEL: &str = "__global__";
    let mut parts = text.split(KERNEL);
    let mut followed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        followed += KERNEL;
        followed += &part.replacen('{', "{ follow_kernels();", 1);
    }
    followed
}

/// The arguments of a line that instantiates kernels, such as `UPDATE(sgd, f32, float, float)`; None for other lines, among them
/// macro calls whose arguments name no format.
fn instance_arguments(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once('(')?;
    let is_macro = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let args = rest.trim_end().strip_suffix(')').filter(|_| is_macro)?;
    ["f32", "f64", "f16", "float", "double", "int"].iter().any(|format| args.contains(format)).then_some(args)
}

crate::named_enum! {
    /// Format of a module's kernels.
    pub(super) enum KernelFormat {
        F32 = "f32",
        F64 = "f64",
        /// Includes conversions between bf16 and another format.
        Bf16 = "bf16",
        /// Includes conversions between f16 and a format other than bf16.
        F16 = "f16",
        /// Integers and truth values, as `int32` in names.
        Int = "int",
    }
}

impl KernelFormat {
    /// The format of the module that a kernel is loaded from, by the kernel's name or the arguments of its macro.
    pub(super) fn of(name: &str) -> Self {
        Self::named(name).unwrap_or(KernelFormat::F32)
    }

    /// The format in a kernel's name, or in the arguments of its macro.
    fn named(name: &str) -> Option<Self> {
        // Not within "fingerprint".
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        match name {
            _ if name.contains("bf16") => Some(KernelFormat::Bf16),
            _ if name.contains("f16") => Some(KernelFormat::F16),
            _ if name.contains("f64") => Some(KernelFormat::F64),
            _ if words.any(|word| word.starts_with("int")) => Some(KernelFormat::Int),
            _ => name.contains("f32").then_some(KernelFormat::F32),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_module_holds_the_kernels_of_its_format() {
        static SOURCE: Source =
            Source::new("test", "#define SGD(name, T) x\nSGD(f32, float)\nSGD(f64, double)\n  SGD(f32)\n");
        let text = SOURCE.for_format(KernelFormat::F64);
        let own = text.rsplit_once("\"test.cu\"\n").unwrap().1;
        assert_eq!(
            own, "#define SGD(name, T) x\n\nSGD(f64, double)\n  SGD(f32)\n",
            "lines keep their numbers"
        );
    }

    /// Constants may be read before the kernel waits, and from a cache that does not know of the kernel before.
    #[test]
    fn kernels_wait_before_they_read() {
        let text =
            "__global__ void __launch_bounds__(256) a(int n) {\n x; { y; } }\n__global__ void b() { }\n";
        let want = "__global__ void __launch_bounds__(256) a(int n) { follow_kernels();\n x; { y; } }\n\
                    __global__ void b() { follow_kernels(); }\n";
        assert_eq!(following(text), want);
        for source in crate::ops::sources::all() {
            let text = source.parts().concat();
            let has_constants = text.contains("__restrict__") || text.contains("__ldg");
            assert!(text.contains("__global__") && !(source.follows && has_constants), "{}", source.name);
            for kernel in text.split("__global__").skip(1).filter(|_| source.follows) {
                let (head, _) = kernel.split_once("{ follow_kernels();").unwrap();
                assert!(head.contains('(') && !head.contains(['{', '}', ';']), "{}: {head}", source.name);
            }
        }
    }

    #[test]
    fn each_kernel_of_a_format_is_in_one_module() {
        for source in crate::ops::sources::all() {
            for line in source.text.lines() {
                if instance_arguments(line).is_none() {
                    continue;
                }
                let n = KernelFormat::ALL
                    .into_iter()
                    .filter(|&f| source.for_format(f).lines().any(|l| l == line))
                    .count();
                assert_eq!(n, 1, "{}: {line}", source.name);
            }
        }
    }

    /// Names of the kernels in `text`, by the preprocessor of a C++ compiler.
    fn kernel_names(compiler: &str, text: &str) -> Vec<String> {
        let mut command = Command::new(compiler);
        command.args(["-E", "-P", "-x", "c++", "-D__launch_bounds__(...)=", "-"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let preprocessed = String::from_utf8(output.stdout).unwrap();
        let kernels = preprocessed.split("extern \"C\" __global__ void").skip(1);
        kernels.map(|rest| rest.split('(').next().unwrap().trim().to_owned()).collect()
    }

    /// Also those that one macro makes for several formats.
    #[test]
    #[allow(clippy::print_stdout)] // A skipped test prints its reason.
    fn the_modules_of_all_formats_together_hold_each_kernel_once() {
        let compiler = &std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        if Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: needs a C++ compiler, g++ or CXX");
            return;
        }
        let mut faults = Vec::new();
        for source in crate::ops::sources::all() {
            // A kernel whose name has no format is in each module.
            let names = |text: String| {
                let mut names = kernel_names(compiler, &text.replacen(PRELUDE, "", 1));
                names.retain(|name| KernelFormat::named(name).is_some());
                names
            };
            let mut all = names(source.whole());
            let by_format = KernelFormat::ALL.map(|format| (format, names(source.for_format(format))));
            for (format, names) in &by_format {
                let others = names.iter().filter(|name| KernelFormat::of(name) != *format);
                faults.extend(others.map(|name| format!("{name} of {}.cu is in {format:?}", source.name)));
            }
            let mut found: Vec<String> = by_format.into_iter().flat_map(|(_, names)| names).collect();
            all.sort();
            found.sort();
            if found != all {
                faults.push(format!(
                    "the kernels of {}.cu are {all:?}, but {found:?} are in modules",
                    source.name
                ));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
