//! Run-time dispatch to the widest vector instruction set, for loops that the compiler vectorizes.
//!
//! Not by the crate pulp: which instruction sets it chooses from depends on its features, of which gemm-common enables one only.

/// Runs `f` compiled for the widest vectors of this processor (AVX-512, AVX2 with FMA, else the baseline).
///
/// `f` must be a closure that contains the loop itself: only what is inlined into it is compiled for the wider
/// vectors.
#[inline(always)]
pub fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match x86::level() {
        // SAFETY: the processor has the instructions.
        x86::Level::Avx512 => unsafe { x86::with_avx512(f) },
        // SAFETY: likewise.
        x86::Level::Avx2 => unsafe { x86::with_avx2(f) },
        x86::Level::Baseline => x86::baseline(f),
    }
    #[cfg(not(target_arch = "x86_64"))]
    f()
}

/// The instructions that loops and matmuls use on this processor: `AVX-512 and AMX`, `AVX-512 and AVX512-BF16`, `AVX-512`, `AVX2` or `baseline`.
pub fn vector_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    return match x86::level() {
        x86::Level::Avx512 => match Bf16Unit::get() {
            Some(Bf16Unit::Amx(_)) => "AVX-512 and AMX",
            Some(Bf16Unit::Vectors(_)) => "AVX-512 and AVX512-BF16",
            None => "AVX-512",
        },
        x86::Level::Avx2 => "AVX2",
        x86::Level::Baseline => "baseline",
    };
    #[cfg(not(target_arch = "x86_64"))]
    "baseline"
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Amx, Avx2, Avx512Bf16, Bf16Unit};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    #[derive(Debug, Clone, Copy)]
    pub(super) enum Level {
        Baseline,
        Avx2,
        Avx512,
    }

    /// The instructions of this processor.
    #[inline]
    pub(super) fn level() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(detect)
    }

    /// Proof that the processor has AVX2 and FMA.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Avx2(());

    impl Avx2 {
        /// The proof, where AVX2 has the widest vectors of the processor.
        pub(crate) fn as_widest() -> Option<Self> {
            matches!(level(), Level::Avx2).then_some(Self(()))
        }

        /// Runs `f` compiled for AVX2 and FMA: what is inlined into it.
        #[inline(always)]
        pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
            // SAFETY: the processor has the instructions, which `self` proves.
            unsafe { with_avx2(f) }
        }
    }

    /// Proof that the processor has AVX-512 and multiplies tiles of bf16, and that the system lets this process do so.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Amx(());

    impl Amx {
        /// The proof, if there is one.
        pub(crate) fn get() -> Option<Self> {
            static HAS: OnceLock<bool> = OnceLock::new();
            let has = || matches!(level(), Level::Avx512) && has_tiles_of_bf16() && is_permitted();
            HAS.get_or_init(has).then_some(Self(()))
        }
    }

    /// Proof that the processor has AVX-512 and its instruction for pairs of bf16.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Avx512Bf16(());

    impl Avx512Bf16 {
        /// The proof, if there is one.
        pub(crate) fn get() -> Option<Self> {
            let has = matches!(level(), Level::Avx512) && is_x86_feature_detected!("avx512bf16");
            has.then_some(Self(()))
        }
    }

    /// Proof that the processor has AVX-512 and multiplies bf16 with sums in f32, and what does so.
    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Bf16Unit {
        Amx(Amx),
        Vectors(Avx512Bf16),
    }

    impl Bf16Unit {
        /// The fastest one, if there is one.
        pub(crate) fn get() -> Option<Self> {
            Amx::get().map(Self::Amx).or_else(|| Avx512Bf16::get().map(Self::Vectors))
        }
    }

    /// Leaf 7 of CPUID: AMX-BF16 is bit 22 and AMX-TILE bit 24 of EDX.
    fn has_tiles_of_bf16() -> bool {
        const NEEDED: u32 = 1 << 22 | 1 << 24;
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED
    }

    /// Asks Linux for the permission to use tile registers, which grow what it saves of a thread. It holds for all threads of the
    /// process. Source: the kernel's Documentation/arch/x86/xstate.rst.
    #[cfg(target_os = "linux")]
    fn is_permitted() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: it takes no pointer; a kernel that does not know it returns an error.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
        result == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn is_permitted() -> bool {
        false
    }

    /// Not inlined, so all callers that do the same share one copy, as with the other levels.
    #[inline(never)]
    pub(super) fn baseline<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    /// The instructions of the levels x86-64-v3 and x86-64-v4 of the psABI.
    macro_rules! levels {
        (avx2: $($avx2:tt),+; avx512: $($avx512:tt),+) => {
            fn detect() -> Level {
                let has_avx2 = $(is_x86_feature_detected!($avx2))&&+;
                let has_avx512 = $(is_x86_feature_detected!($avx512))&&+;
                match (has_avx2, has_avx512) {
                    (true, true) => Level::Avx512,
                    (true, false) => Level::Avx2,
                    (false, _) => Level::Baseline,
                }
            }

            $(#[target_feature(enable = $avx2)])+
            pub(super) fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
                f()
            }

            $(#[target_feature(enable = $avx2)])+
            $(#[target_feature(enable = $avx512)])+
            pub(super) fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
                f()
            }
        };
    }
    levels! {
        avx2: "fxsr", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi1", "bmi2", "fma", "lzcnt";
        avx512: "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A loop of products and sums, which without FMA calls a function for each number.
    #[inline(always)]
    fn polynomial(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.mul_add(x.mul_add(x.mul_add(0.1, 0.2), 0.3), 0.4);
        }
    }

    #[inline(never)]
    fn for_the_baseline(x: &[f32], y: &mut [f32]) {
        polynomial(x, y);
    }

    fn fastest(mut f: impl FnMut()) -> Duration {
        let time = |_| {
            let start = Instant::now();
            f();
            start.elapsed()
        };
        (0..20).map(time).min().expect("times")
    }

    /// Between the two lie a factor of 30 and more: also on a busy machine half the time is far away.
    #[test]
    fn loops_use_fma_where_the_processor_has_it() {
        if !is_x86_feature_detected!("avx2")
            || !is_x86_feature_detected!("fma")
            || cfg!(target_feature = "fma")
        {
            return;
        }
        let x: Vec<f32> = (0..4096).map(|i| i as f32 / 4096.0).collect();
        let (mut slow, mut fast) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        let baseline = fastest(|| for_the_baseline(&x, &mut slow));
        let vectorized = fastest(|| {
            vectorize(
                #[inline(always)]
                || polynomial(&x, &mut fast),
            )
        });
        assert_eq!(slow, fast);
        assert!(2 * vectorized < baseline, "{vectorized:?} with vectorize, {baseline:?} for the baseline");
    }
}
