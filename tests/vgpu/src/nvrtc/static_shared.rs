//! Static shared memory of each kernel, from the compiler's assembly.
//!
//! The section of `__shared__` variables contains those of all kernels of a module. A kernel uses the variables that its code,
//! and the functions that it calls, refer to after the compiler has removed dead code: in assembly each function names them.
//!
//! g++ ignores the section of a static variable in a template (GCC bug 41091), so [`to_section`] moves it there.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum static shared memory of a kernel on all architectures, in bytes.
const MOST: u64 = 48 << 10;

/// The name of the section of shared variables.
const SECTION: &str = "vgpu_shared";

/// Moves the shared variables of templates in `assembly` to their section: they are local variables of functions outside the
/// headers.
pub(crate) fn to_section(assembly: &str) -> String {
    let mut out = String::with_capacity(assembly.len());
    for line in assembly.lines() {
        let common =
            line.trim().strip_prefix(".comm").map(|operands| operands.trim().split(',').collect::<Vec<_>>());
        match common.as_deref() {
            Some([name, bytes, alignment]) if name.starts_with("_ZZ") && !name.starts_with("_ZZN4vgpu") => {
                out += &format!(
                    "\t.section {SECTION},\"aw\"\n\t.align {alignment}\n\t.type {name}, @object\n\t.size {name}, {bytes}\n\
                     {name}:\n\t.zero {bytes}\n\t.previous\n"
                );
            }
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}

/// Assembly that defines a word `vgpu_static_NAME` with the size of the static shared memory in bytes, for each kernel of
/// `assembly`.
///
/// # Errors
/// A message like that of ptxas, if a kernel exceeds the limit.
pub(crate) fn sizes(assembly: &str, kernels: &[String]) -> Result<String, String> {
    let program = Program::parse(assembly);
    let mut out = String::from("\t.section .rodata\n\t.align 4\n");
    for name in kernels {
        let bytes = program.shared_of(name);
        if bytes > MOST {
            return Err(format!(
                "ptxas error   : Entry function '{name}' uses too much shared data ({bytes:#x} bytes, {MOST:#x} max)"
            ));
        }
        out += &format!("\t.globl vgpu_static_{name}\nvgpu_static_{name}:\n\t.long {bytes}\n");
    }
    Ok(out)
}

/// Functions and shared variables of a translation unit.
#[derive(Default)]
struct Program<'a> {
    /// Symbols that each function refers to.
    functions: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Size in bytes of each shared variable.
    variables: BTreeMap<&'a str, u64>,
}

impl<'a> Program<'a> {
    fn parse(assembly: &'a str) -> Program<'a> {
        let mut program = Program::default();
        let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
        let mut is_shared = false;
        let mut function = None;
        for line in assembly.lines() {
            let line = line.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let mut operands = rest.split(',').map(str::trim);
            match word {
                ".section" => is_shared = operands.next() == Some(SECTION),
                ".text" | ".data" | ".bss" | ".previous" => is_shared = false,
                ".type" => {
                    let name = operands.next().unwrap_or("");
                    if operands.next() == Some("@function") {
                        program.functions.entry(name).or_default();
                    }
                }
                ".size" => {
                    let name = operands.next().unwrap_or("");
                    if function == Some(name) {
                        function = None;
                    }
                    if let Some(bytes) = operands.next().and_then(|bytes| bytes.parse().ok()) {
                        sizes.insert(name, bytes);
                    }
                }
                // An alias of a function.
                ".set" => {
                    if let (Some(name), Some(target)) = (operands.next(), operands.next()) {
                        program.functions.entry(name).or_default().insert(target);
                    }
                }
                _ => {
                    if let Some(label) = line.strip_suffix(':') {
                        if is_shared && let Some(&bytes) = sizes.get(label) {
                            program.variables.insert(label, bytes);
                        } else if program.functions.contains_key(label) {
                            function = Some(label);
                        }
                    } else if let Some(function) = function {
                        let named = program.functions.entry(function).or_default();
                        named.extend(symbols(line));
                    }
                }
            }
        }
        program
    }

    /// Total bytes of the variables that the kernel and its callees refer to, each aligned to its size.
    fn shared_of(&self, kernel: &str) -> u64 {
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut left = vec![kernel];
        while let Some(name) = left.pop() {
            let Some((&name, named)) = self.functions.get_key_value(name) else { continue };
            if reached.insert(name) {
                left.extend(named.iter().copied());
                // Rarely executed blocks of a function are a separate function, reached by local labels.
                let cold = self.functions.keys().filter(|part| part.strip_prefix(name) == Some(".cold"));
                left.extend(cold.copied());
            }
        }
        let is_named = |variable: &&str| reached.iter().any(|name| self.functions[name].contains(variable));
        let mut end = 0u64;
        for variable in self.variables.keys().copied().filter(is_named) {
            let bytes = self.variables[variable];
            // An alignment divides the size; the host's alignment, 16 for all, differs from the device's.
            let alignment = (bytes & bytes.wrapping_neg()).clamp(1, 16);
            end = end.next_multiple_of(alignment) + bytes;
        }
        end
    }
}

/// The symbols in an instruction.
fn symbols(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
    let words = line.split(move |c| !is_part(c));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSEMBLY: &str = "
	.text
	.type	helper.constprop.0, @function
helper.constprop.0:
	leaq	_ZZ6helperE4part(%rip), %rax
	ret
	.size	helper.constprop.0, .-helper.constprop.0
	.globl	first
	.type	first, @function
first:
	movb	$1, _ZZ5firstE4flag(%rip)
	jne	.L7
	call	helper.constprop.0
	ret
	.section	.text.unlikely
	.type	first.cold, @function
first.cold:
.L7:
	movq	_ZZ5firstE4rareE@GOTPCREL(%rip), %rdi
	.text
	.size	first, .-first
	.section	.text.unlikely
	.size	first.cold, .-first.cold
	.globl	second
	.type	second, @function
second:
	movl	_ZZ6secondE3big+128(%rip), %eax
	ret
	.size	second, .-second
	.globl	third
	.type	third, @function
third:
	ret
	.size	third, .-third
	.section	vgpu_shared,\"aw\"
	.align 16
	.type	_ZZ5firstE4flag, @object
	.size	_ZZ5firstE4flag, 1
_ZZ5firstE4flag:
	.zero	1
	.size	_ZZ6helperE4part, 512
_ZZ6helperE4part:
	.zero	512
	.size	_ZZ6secondE3big, 49000
_ZZ6secondE3big:
	.zero	49000
	.section	vgpu_shared,\"awG\",@progbits,_ZZ5firstE4rareE,comdat
	.size	_ZZ5firstE4rareE, 8
_ZZ5firstE4rareE:
	.zero	8
	.data
	.size	other, 4
other:
	.zero	4
";

    #[test]
    fn a_kernel_has_what_it_and_its_functions_name() {
        let program = Program::parse(ASSEMBLY);
        assert_eq!(program.shared_of("first"), 8 + 8 + 512);
        assert_eq!(program.shared_of("second"), 49000);
        assert_eq!(program.shared_of("third"), 0);
        let [first, third] = ["first", "third"].map(String::from);
        let text = sizes(ASSEMBLY, &[first, third]).unwrap();
        assert!(text.contains("vgpu_static_first:\n\t.long 528\n"), "{text}");
        assert!(text.contains("vgpu_static_third:\n\t.long 0\n"), "{text}");
    }

    #[test]
    fn variables_of_templates_are_put_into_the_section() {
        let assembly = "\t.local\t_ZZ4sumsIfEvPT_E4part\n\t.comm\t_ZZ4sumsIfEvPT_E4part,2048,32\n\
                        \t.comm\t_ZZN4vgpu3runEvE4done,4,4\n\t.comm\t_ZN4vgpuL2thE,16,16\n";
        let got = to_section(assembly);
        assert_eq!(Program::parse(&got).variables, BTreeMap::from([("_ZZ4sumsIfEvPT_E4part", 2048)]));
        assert!(
            got.contains("\t.local\t_ZZ4sumsIfEvPT_E4part\n\t.section vgpu_shared,\"aw\"\n\t.align 32\n"),
            "{got}"
        );
        assert!(got.ends_with(".comm\t_ZZN4vgpu3runEvE4done,4,4\n\t.comm\t_ZN4vgpuL2thE,16,16\n"), "{got}");
    }

    #[test]
    fn more_than_48_kib_do_not_compile() {
        let program = ASSEMBLY.replace("49000", "49153");
        let refused = sizes(&program, &["second".into()]).unwrap_err();
        assert!(
            refused.contains("'second' uses too much shared data (0xc001 bytes, 0xc000 max)"),
            "{refused}"
        );
        sizes(&ASSEMBLY.replace("49000", "49152"), &["second".into()]).unwrap();
    }
}
