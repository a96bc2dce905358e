//! Translates preprocessed CUDA C to C++ for a host compiler.
//!
//! Almost all of CUDA C is C++ with the macros of `device/language.h`. Two things are not: `extern __shared__ T x[]`, and the
//! list of kernels and their types, which the launcher needs. Both are found in the text. The text has been preprocessed, so it
//! has no comments, and kernels that a macro makes are found too.

/// Returns the translation unit for `preprocessed` text, without the [`HEADER`] that must precede it, and the names of its
/// kernels.
///
/// # Errors
/// Reports source that could not be parsed, for the compilation log.
pub(crate) fn translate(preprocessed: &str) -> Result<(String, Vec<String>), String> {
    let text = dynamic_shared(preprocessed)?;
    let (mut kernels, mut names) = (String::new(), Vec::new());
    for (name, most_threads) in find_kernels(preprocessed) {
        kernels += &format!("VGPU_KERNEL({name}, ({most_threads}))\n");
        names.push(name);
    }
    Ok((format!("{text}\n{kernels}"), names))
}

/// The four headers that translate CUDA C to C++.
pub(crate) const HEADER: &str = concat!(
    include_str!("../device/fibers.h"),
    include_str!("../device/check.h"),
    include_str!("../device/launch.h"),
    include_str!("../device/language.h"),
);

/// `extern __shared__ T name[];` becomes `T *name = vgpu::dyn_smem<T>();`.
fn dynamic_shared(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("extern __shared__") {
        let (declaration, tail) = after.split_once(';').ok_or("error: unfinished extern __shared__")?;
        let declarator = declaration.split('[').next().unwrap_or("").trim();
        let bare = without_alignment(declarator);
        let split = bare.rsplit_once(|c: char| c.is_whitespace() || c == '*');
        let (kind, name) = split.ok_or("error: extern __shared__ needs a type and a name")?;
        let kind = kind.trim();
        out += &format!("{before}{kind} *{name} = vgpu::dyn_smem<{kind}>();");
        rest = tail;
    }
    Ok(out + rest)
}

/// Removes `__align__(16)` or `alignas(16)`, because the buffer is aligned for every type.
fn without_alignment(declarator: &str) -> String {
    for word in ["__align__", "alignas"] {
        if let Some((before, after)) = declarator.split_once(word) {
            let after = after.split_once(')').map_or("", |(_, after)| after);
            return format!("{} {}", before.trim(), after.trim()).trim().to_string();
        }
    }
    declarator.to_string()
}

/// Names of the kernels with C linkage, and the number of threads in their `__launch_bounds__` as an expression, 0 without it.
fn find_kernels(text: &str) -> Vec<(String, String)> {
    let in_block = text.contains("extern \"C\" {") || text.contains("extern \"C\"{");
    let mut kernels: Vec<(String, String)> = Vec::new();
    for (at, word) in text.match_indices("__global__") {
        let before = text[..at].trim_end();
        let is_c = before.ends_with("\"C\"") || (in_block && !before.ends_with('>'));
        if !is_c {
            continue;
        }
        let mut rest = text[at + word.len()..].trim_start();
        let mut most_threads = "0".to_string();
        loop {
            if let Some(after) = rest.strip_prefix("void") {
                rest = after.trim_start();
            } else if let Some(after) = rest.strip_prefix("__launch_bounds__") {
                let Some((bounds, after)) = parenthesized(after) else { break };
                most_threads = first_argument(bounds).to_string();
                rest = after.trim_start();
            } else {
                break;
            }
        }
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !name.is_empty() && !kernels.iter().any(|(known, _)| *known == name) {
            kernels.push((name, most_threads));
        }
    }
    kernels
}

/// Text between the parentheses at the beginning of `text`, and the rest.
fn parenthesized(text: &str) -> Option<(&str, &str)> {
    let inner = text.trim_start().strip_prefix('(')?;
    let mut depth = 1;
    for (i, c) in inner.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => (),
        }
        if depth == 0 {
            return Some((&inner[..i], &inner[i + 1..]));
        }
    }
    None
}

fn first_argument(list: &str) -> &str {
    let mut depth = 0;
    let comma = list.char_indices().find(|&(_, c)| {
        depth += match c {
            '(' | '<' => 1,
            ')' | '>' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    comma.map_or(list, |(i, _)| &list[..i]).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let text = r#"
            extern "C" __global__ void a(int n) {}
            extern "C" __global__ void __launch_bounds__(f(1, 2) * 4, 2) b(int n) {}
            extern "C" __global__ __launch_bounds__(256) void
            c(int n) {}
            template <class T> __global__ void d(T n) {}
            __device__ float e(float x);
        "#;
        let found = find_kernels(text);
        let found: Vec<_> = found.iter().map(|(n, b)| (&n[..], &b[..])).collect();
        assert_eq!(found, [("a", "0"), ("b", "f(1, 2) * 4"), ("c", "256")]);
    }

    #[test]
    fn dynamic_shared_memory_becomes_a_pointer() {
        let text = "{ extern __shared__ __align__(16) unsigned char s[]; extern __shared__ float4 v[]; }";
        let want =
            "{ unsigned char *s = vgpu::dyn_smem<unsigned char>(); float4 *v = vgpu::dyn_smem<float4>(); }";
        assert_eq!(dynamic_shared(text).unwrap(), want);
    }
}
