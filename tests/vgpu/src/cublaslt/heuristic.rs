//! The search for an algorithm. There is one algorithm with and one without a workspace; which is offered depends on
//! the preference, so that a caller meets both. The one with a workspace splits its sum, where that is long, and adds the parts in
//! place if it may. A search can be made to refuse, see [`refused`].
use std::sync::LazyLock;

use super::desc::{self, Kind};
use super::problem::{Descriptors, Problem, misuse};
use super::types::{Compute, Type};
use super::{INVALID_VALUE, NOT_SUPPORTED, Status, record};
use crate::config::CONFIG;

/// `cublasLtMatmulAlgo_t`: opaque to the caller, who may copy it.
pub(crate) type Algo = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
pub(crate) struct HeuristicResult {
    algo: Algo,
    workspace_bytes: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

/// The first word of an [`Algo`] that comes from here.
const MARK: u64 = u64::from_le_bytes(*b"vgpualgo");
/// A larger workspace than this brings nothing on any device either.
const MAX_USEFUL_WORKSPACE: u64 = 1 << 20;
/// Wider accesses than 16 bytes don't exist, so that no larger alignment of a vector matters.
const WIDEST_ACCESS: u64 = 16;

/// Sums of at least so many products are split by the algorithm with a workspace.
const SPLIT_FROM_K: usize = 1 << 12;
/// `CUBLASLT_REDUCTION_SCHEME_NONE`, `..._INPLACE`, `..._COMPUTE_TYPE`.
const NOT_SPLIT: u64 = 0;
const IN_PLACE: u64 = 1;
const COMPUTE_TYPE: u64 = 2;

/// The operands whose alignment a search depends on. The preference names the first four
/// (`CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_*_BYTES`), and reads the addresses of the other two in the descriptor.
const ALIGNED: [&str; 6] = ["A", "B", "C", "D", "the bias vector", "the auxiliary buffer"];
/// The default of the preference; larger alignments make no difference.
const MOST_ALIGNED: u64 = 256;

/// The properties that a search promises, as stored in an [`Algo`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Choice {
    key: u64,
    /// Number of bytes of workspace that the algorithm writes.
    pub(crate) workspace: u64,
    /// The alignments in bytes that it relies on, in the order of [`ALIGNED`].
    alignments: [u64; 6],
    /// Order in which partial sums over k are added.
    scheme: u64,
    /// Index in the result of the search, from 0.
    index: u64,
}

impl Choice {
    fn encode(self) -> Algo {
        // One byte for the exponent of each alignment.
        let packed =
            self.alignments.iter().rev().fold(0, |packed, a| packed << 8 | u64::from(a.trailing_zeros()));
        // A real one may hold an address of its process.
        let process = std::process::id().into();
        [MARK, self.key, self.workspace, packed, self.index, process, 0, self.scheme]
    }

    /// Reads an algorithm that the caller passes to a multiplication.
    ///
    /// # Errors
    /// `INVALID_VALUE` and a finding if it did not come from a search, or from one for another kind of problem.
    pub(crate) fn decode(algo: &Algo, problem: &Problem) -> Result<Choice, Status> {
        let [mark, key, workspace, packed, index, .., scheme] = *algo;
        if mark != MARK {
            return Err(misuse(
                INVALID_VALUE,
                format!("{}: the algorithm came from no search", problem.describe()),
            ));
        }
        if key != problem.key() {
            return Err(misuse(
                INVALID_VALUE,
                format!(
                    "{}: the algorithm was found for other types, transposes or another epilogue",
                    problem.describe()
                ),
            ));
        }
        let alignments = std::array::from_fn(|i| 1 << (packed >> (8 * i) & 0x3F));
        Ok(Choice { key, workspace, alignments, scheme, index })
    }

    /// Index in the result of the search, from 0.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// Whether it was searched for factors that the widest access cannot read.
    pub(crate) fn is_narrow(&self) -> bool {
        self.alignments[..2].iter().any(|alignment| *alignment < WIDEST_ACCESS)
    }

    /// Number of microseconds by which it is slower than the fastest algorithm: `VGPU_LT_SLOW`, such as `0=500,DRELU=200@1,F32=900` for
    /// the first algorithm of each search, in the process of rank 1 for all algorithms of an epilogue, and for all products of f32 factors
    /// outside of tensor cores.
    pub(crate) fn slower_us(&self, problem: &Problem) -> u64 {
        static SLOW: LazyLock<String> = LazyLock::new(|| std::env::var("VGPU_LT_SLOW").unwrap_or_default());
        let rules = SLOW.split(',').filter_map(|rule| rule.trim().split_once('='));
        let is_single = problem.compute == Compute::F32 && problem.a.dtype == Type::F32;
        let is_meant = |what: &str| {
            what.parse() == Ok(self.index)
                || what.eq_ignore_ascii_case(problem.epilogue.name())
                || is_single && what.eq_ignore_ascii_case("f32")
        };
        let us = |text: &str| match text.split_once('@') {
            Some((us, rank)) => us.parse::<u64>().ok().filter(|_| rank.parse() == Ok(CONFIG.rank)),
            None => text.parse().ok(),
        };
        rules.filter(|(what, _)| is_meant(what)).filter_map(|(_, text)| us(text)).sum()
    }

    /// The search with default preferences that a multiplication without an algorithm makes: no workspace, and
    /// matrices aligned to 256 bytes.
    pub(crate) fn implicit(problem: &Problem) -> Result<Choice, Status> {
        check(problem)?;
        let alignments = all_alignments([MOST_ALIGNED; 4], problem);
        Ok(Choice { key: problem.key(), workspace: 0, alignments, scheme: NOT_SPLIT, index: 0 })
    }

    /// Compares the addresses of the operands in [`ALIGNED`], 0 for unused ones, with the alignments given to the search.
    /// Describes the first operand with a smaller alignment.
    pub(crate) fn misaligned(&self, addresses: [u64; 6]) -> Option<String> {
        let each = addresses.into_iter().zip(self.alignments).zip(ALIGNED);
        each.into_iter().find(|((address, alignment), _)| !address.is_multiple_of(*alignment)).map(
            |((address, alignment), name)| {
                format!(
                    "{name} at {address:#x} is not aligned to the {alignment} bytes that the search was given"
                )
            },
        )
    }
}

/// Adds the alignments of the vectors, which the search reads in the descriptor, to those of the matrices.
fn all_alignments(matrices: [u64; 4], problem: &Problem) -> [u64; 6] {
    let of = |address: u64| 1 << address.trailing_zeros().min(MOST_ALIGNED.trailing_zeros());
    let [a, b, c, d] = matrices;
    [a, b, c, d, of(problem.bias), of(problem.aux)]
}

/// The value of an attribute of `cublasLtMatmulAlgoConfigAttributes_t`, and its size in bytes: `CUBLASLT_ALGO_CONFIG_ID` is the index of
/// the algorithm in its search, and `..._REDUCTION_SCHEME` the order in which it adds its partial sums.
///
/// # Errors
/// `INVALID_VALUE`, for an algorithm that did not come from a search with a finding.
pub(crate) fn configuration(algo: &Algo, attribute: u32) -> Result<(u32, usize), Status> {
    let [MARK, _, workspace, _, index, .., scheme] = *algo else {
        return Err(misuse(INVALID_VALUE, "the algorithm came from no search".to_owned()));
    };
    match attribute {
        0 => Ok((index as u32, 4)),
        2 => Ok((u32::from(workspace > 0) + 1, 4)),
        3 => Ok((scheme as u32, 4)),
        1 | 4..=6 => Ok((0, 4)),
        7 | 8 => Ok((0, 2)),
        _ => Err(INVALID_VALUE),
    }
}

/// `VGPU_LT_REFUSE`: names of epilogues (`RELU_AUX_BIAS,BGRADB`) for which no algorithm is found, as can happen on a device.
/// `ALL` refuses every epilogue except `DEFAULT`, which a caller's fallback needs; `likely` refuses those of [`is_unlikely`].
fn refused(problem: &Problem) -> bool {
    let Ok(list) = std::env::var("VGPU_LT_REFUSE") else { return false };
    let epilogue = problem.epilogue;
    list.split(',').map(str::trim).any(|name| {
        name.eq_ignore_ascii_case(epilogue.name())
            || name.eq_ignore_ascii_case("all") && !epilogue.is_default()
            || name.eq_ignore_ascii_case("likely") && is_unlikely(problem)
    })
}

/// Epilogues that real devices probably lack, according to reports of users: in f32 those that write or read an auxiliary buffer
/// or write the gradient of a bias, in f64 all.
fn is_unlikely(problem: &Problem) -> bool {
    match problem.a.dtype {
        Type::F64 => !problem.epilogue.is_default(),
        Type::F32 => problem.epilogue.uses_aux() || problem.epilogue.name().starts_with("BGRAD"),
        _ => false,
    }
}

/// Factors in bf16 before Ampere.
fn is_too_new(problem: &Problem) -> bool {
    CONFIG.arch < (8, 0) && problem.a.dtype == Type::Bf16
}

/// Products of vectors, for which cuBLASLt has no reliable DRELU, DGELU (with or without BGRAD) or BGRADB: nvmath-python, whose matmul is a thin layer
/// over the library, excludes them too.
fn is_vector_product(problem: &Problem) -> bool {
    match problem.epilogue.name() {
        "DRELU" | "DGELU" | "DRELU_BGRAD" | "DGELU_BGRAD" => problem.k == 1,
        "BGRADB" => [problem.m(), problem.n(), problem.k].contains(&1),
        _ => false,
    }
}

/// Whether any algorithm can run this problem.
///
/// The addresses of the bias and of the auxiliary buffer are part of the problem: according to cublasLt.h the search depends on
/// the alignment of both. The virtual library is strict and requires the 16 bytes of the widest access. Problems that a record of
/// a real device refuses are refused too.
fn check(problem: &Problem) -> Result<(), Status> {
    let unaligned = |address: u64| !address.is_multiple_of(WIDEST_ACCESS);
    if let Some(status) = record::answer(problem).filter(|status| *status != 0) {
        return Err(status);
    }
    if refused(problem)
        || is_too_new(problem)
        || is_vector_product(problem)
        || problem.epilogue.uses_bias_pointer() && unaligned(problem.bias)
        || problem.epilogue.uses_aux() && unaligned(problem.aux)
    {
        return Err(NOT_SUPPORTED);
    }
    Ok(())
}

/// The algorithms for a problem, the best one first.
pub(crate) fn search(handles: Descriptors, preference: usize) -> Result<Vec<HeuristicResult>, Status> {
    let preference = desc::values(Kind::Preference, preference)?;
    let problem = Problem::read(handles)?;
    check(&problem)?;
    let mut alignments = [0; 4];
    for (i, alignment) in (0..).zip(&mut alignments) {
        *alignment = preference.get(desc::preference::MIN_ALIGNMENT_A + i);
        if !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
    }
    // If a pointer is less aligned than its elements, no algorithm can use it.
    let layouts = [problem.a, problem.b, problem.c, problem.d];
    if layouts.iter().zip(alignments).any(|(layout, alignment)| alignment < layout.dtype.size()) {
        return Err(NOT_SUPPORTED);
    }
    let alignments = all_alignments(alignments, &problem);
    let wanted =
        (problem.m() as u64 * problem.n() as u64 * 4).next_multiple_of(256).min(MAX_USEFUL_WORKSPACE);
    let allowed = preference.get(desc::preference::MAX_WORKSPACE_BYTES);
    let schemes = preference.get(desc::preference::REDUCTION_SCHEMES);
    let scheme = |workspace: u64| match [IN_PLACE, COMPUTE_TYPE].into_iter().find(|s| schemes & s != 0) {
        Some(scheme) if workspace > 0 && problem.k >= SPLIT_FROM_K => scheme,
        _ => NOT_SPLIT,
    };
    let workspaces = [wanted, 0];
    Ok(workspaces
        .into_iter()
        .filter(|workspace| *workspace <= allowed)
        .zip(0..)
        .map(|(workspace, index)| {
            let (key, scheme) = (problem.key(), scheme(workspace));
            HeuristicResult {
                algo: Choice { key, workspace, alignments, scheme, index }.encode(),
                workspace_bytes: workspace as usize,
                state: 0,
                waves: 1.0,
                reserved: [0; 4],
            }
        })
        .collect())
}
