//! Constants measured on a machine: the JSON lines of `ddp-train bench addmm`, `copy`, `allreduce` and `step`, in any order.
//!
//! Lines of other benchmarks, of the other kind of device and of other formats are left out.

use serde_json::Value;

use crate::config::precision::Precision;

/// Measurements of one kind of device.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    matmuls: Vec<Matmul>,
    copies: Vec<Copy>,
    sums: Vec<Sum>,
    /// Steps of perceptrons on one rank.
    pub(super) steps: Vec<BenchStep>,
    /// Measured over predicted time of `steps`.
    pub(super) ratios: Vec<Ratio>,
    /// Cores of the machine: threads of all ranks of a benchmark, at most.
    pub n_cores: usize,
}

#[derive(Debug, Clone)]
struct Matmul {
    sizes: [f64; 3],
    precision: String,
    threads: f64,
    ms: f64,
}

/// A copy within memory, or from pinned memory to a GPU.
#[derive(Debug, Clone)]
struct Copy {
    is_upload: bool,
    threads: f64,
    bytes: f64,
    gb_per_s: f64,
}

#[derive(Debug, Clone)]
struct Sum {
    n_ranks: usize,
    bytes: f64,
    ms: f64,
}

/// A perceptron with ReLU as `bench step` trains it on one rank, and the time of its step.
#[derive(Debug, Clone, Default)]
pub struct BenchStep {
    /// Widths of all layers, inputs first.
    pub dims: Vec<usize>,
    /// Rows of a step.
    pub batch: usize,
    /// Name of the optimizer.
    pub optimizer: String,
    /// Name of the precision.
    pub precision: String,
    /// Threads of the rank.
    pub threads: usize,
    /// Measured time of a step.
    pub ms: f64,
}

/// Measured over predicted time of a step.
#[derive(Debug, Clone)]
pub(super) struct Ratio {
    pub(super) threads: f64,
    /// Floating-point operations of the step.
    pub(super) flop: f64,
    pub(super) ratio: f64,
}

/// A line that is no result of `bench --json`.
#[derive(Debug)]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// The fault.
    pub reason: String,
}

impl Calibration {
    /// Adds the results measured on GPUs, or the ones measured on CPUs.
    ///
    /// # Errors
    /// [`BadLine`] for a line that is not JSON, or not a result of `bench`.
    pub fn add_lines(&mut self, text: &str, of_gpus: bool) -> Result<(), BadLine> {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = |reason: String| BadLine { line: index + 1, reason };
            let record: Value = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
            let device = record["device"].as_str().ok_or_else(|| bad("it has no `device`".to_owned()))?;
            if (device != "cpu") == of_gpus {
                self.add(&record).ok_or_else(|| bad("a result without its numbers".to_owned()))?;
            }
        }
        Ok(())
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.matmuls.is_empty() && self.copies.is_empty() && self.sums.is_empty() && self.steps.is_empty()
    }

    fn add(&mut self, record: &Value) -> Option<()> {
        let number = |key: &str| record[key].as_f64();
        let text = |key: &str| record[key].as_str().map(str::to_owned);
        let threads = number("threads")?;
        let n_ranks = record["world_size"].as_u64()? as usize;
        self.n_cores = self.n_cores.max(threads as usize * n_ranks);
        match record["bench"].as_str() {
            Some("addmm") => self.matmuls.push(Matmul {
                sizes: [number("m")?, number("n")?, number("k")?],
                precision: text("dtype")?,
                threads,
                ms: number("ms_median")?,
            }),
            Some("copy") => {
                let (bytes, gb_per_s) = (number("counted_bytes")?, number("gb_per_s")?);
                let way = record["way"].as_str()?;
                if ["host to host", "gpu to itself", "host to gpu, pinned"].contains(&way) {
                    let is_upload = way == "host to gpu, pinned";
                    self.copies.push(Copy { is_upload, threads, bytes, gb_per_s });
                }
            }
            // Tensors of GPUs are not summed in host memory.
            Some("allreduce") => {
                let is_of_tensors = record["memory"] == "gpu" || record["device"] == "cpu";
                if n_ranks > 1 && record["path"] == "group" && is_of_tensors {
                    self.sums.push(Sum { n_ranks, bytes: number("size_bytes")?, ms: number("ms_median")? });
                }
            }
            None if n_ranks == 1 && record["step_ms_median"].is_number() => {
                let dims = record["dims"].as_array()?.iter();
                self.steps.push(BenchStep {
                    dims: dims.map(|dim| Some(dim.as_u64()? as usize)).collect::<Option<_>>()?,
                    batch: number("batch")? as usize,
                    optimizer: text("optim")?,
                    precision: text("dtype")?,
                    threads: threads as usize,
                    ms: number("step_ms_median")?,
                });
            }
            _ => {}
        }
        Some(())
    }

    /// The time of a matmul on `threads`, at the rate of the most similar one that was measured.
    pub fn matmul_ms(&self, sizes: [usize; 3], precision: Precision, threads: f64) -> Option<f64> {
        let sizes = sizes.map(|size| size as f64);
        let of_format = self.matmuls.iter().filter(|matmul| matmul.precision == precision.name());
        let found = nearest(of_format, |matmul| {
            let of_sizes: f64 = sizes.iter().zip(matmul.sizes).map(|(a, b)| distance(*a, b)).sum();
            of_sizes + distance(threads, matmul.threads)
        })?;
        let work = sizes.iter().product::<f64>() / found.sizes.iter().product::<f64>();
        Some(found.ms * work * found.threads / threads)
    }

    /// Bandwidth of memory on `threads`: that of the largest copy on the most similar number of threads.
    pub fn memory_gb_per_s(&self, threads: f64) -> Option<f64> {
        let copies = self.copies.iter().filter(|copy| !copy.is_upload);
        // The size counts little next to the threads.
        let found = nearest(copies, |copy| distance(threads, copy.threads) - copy.bytes * 1e-15)?;
        Some(found.gb_per_s * threads / found.threads)
    }

    /// Bandwidth of the largest copy from pinned host memory.
    pub fn upload_gb_per_s(&self) -> Option<f64> {
        let uploads = self.copies.iter().filter(|copy| copy.is_upload);
        nearest(uploads, |copy| -copy.bytes).map(|copy| copy.gb_per_s)
    }

    /// Time of an all-reduce over as many ranks as were measured, linear between measured sizes; `None` for other numbers of ranks.
    pub fn all_reduce_ms(&self, n_ranks: usize, bytes: usize) -> Option<f64> {
        let of_ranks = self.sums.iter().filter(|sum| sum.n_ranks == n_ranks);
        let points: Vec<_> = of_ranks.map(|sum| (sum.bytes, sum.ms)).collect();
        let largest = points.iter().map(|(bytes, _)| *bytes).fold(f64::NAN, f64::max);
        Some(between(points, bytes as f64)? * (bytes as f64 / largest).max(1.0))
    }

    /// Latency of a hop in µs and bus bandwidth in GB/s, of the smallest and the largest sum over most ranks.
    pub fn hop_us_and_gb_per_s(&self) -> Option<(f64, f64)> {
        let n_ranks = self.sums.iter().map(|sum| sum.n_ranks).max()?;
        let of_ranks = || self.sums.iter().filter(|sum| sum.n_ranks == n_ranks);
        let (smallest, largest) =
            (nearest(of_ranks(), |sum| sum.bytes)?, nearest(of_ranks(), |sum| -sum.bytes)?);
        let hops = 2.0 * (n_ranks as f64 - 1.0);
        Some((smallest.ms * 1e3 / hops, hops / n_ranks as f64 * largest.bytes / largest.ms * 1e-6))
    }

    /// Measured over predicted time of a step with `flop` operations: between those of the measured steps with less and with more, on
    /// the most similar number of threads; 1 if there are none.
    pub fn step_ratio(&self, threads: f64, flop: f64) -> f64 {
        let found =
            nearest(self.ratios.iter(), |ratio| distance(threads, ratio.threads)).map(|ratio| ratio.threads);
        let of_threads = self.ratios.iter().filter(|ratio| Some(ratio.threads) == found);
        between(of_threads.map(|ratio| (ratio.flop.ln(), ratio.ratio)).collect(), flop.ln()).unwrap_or(1.0)
    }
}

/// The difference of two positive numbers on a scale of ratios.
fn distance(a: f64, b: f64) -> f64 {
    (a / b).ln().abs()
}

fn nearest<'a, T>(all: impl Iterator<Item = &'a T>, distance: impl Fn(&T) -> f64) -> Option<&'a T> {
    all.min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The value at `x` of the line through `points`, level beyond its ends; `None` without points.
fn between(mut points: Vec<(f64, f64)>, x: f64) -> Option<f64> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let after = points.iter().position(|point| x <= point.0).unwrap_or(points.len());
    Some(match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        (Some((_, y)), None) => y,
        (None, end) => end?.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"
{"bench":"addmm","device":"cpu","threads":1,"world_size":1,"dtype":"f32","m":8,"n":4,"k":2,"ms_median":0.5}
{"bench":"copy","device":"cpu","threads":2,"world_size":1,"way":"host to host","counted_bytes":8192,"gb_per_s":40.0}
{"bench":"allreduce","device":"cpu","threads":1,"world_size":2,"path":"group","memory":"host","size_bytes":1000,"ms_median":0.01}
{"bench":"allreduce","device":"cpu","threads":1,"world_size":2,"path":"group","memory":"host","size_bytes":3000,"ms_median":0.03}
{"bench":"kernels","device":"cpu","threads":1,"world_size":1,"kernel":"add"}
{"device":"cuda:0","threads":1,"world_size":1,"dims":[4,2],"step_ms_median":1.0}
"#;

    #[test]
    fn measured_constants_are_found() {
        let mut found = Calibration::default();
        found.add_lines(LINES, false).unwrap();
        assert!(found.steps.is_empty() && found.n_cores == 2, "{found:?}");
        // Twice the work on twice the threads.
        assert_eq!(found.matmul_ms([8, 8, 2], Precision::F32, 2.0), Some(0.5));
        assert_eq!(found.matmul_ms([8, 8, 2], Precision::Bf16, 2.0), None);
        assert_eq!(found.memory_gb_per_s(1.0), Some(20.0));
        let sums = [1, 2000, 6000].map(|bytes| found.all_reduce_ms(2, bytes).unwrap());
        assert!(
            sums.iter().zip([0.01, 0.02, 0.06]).all(|(got, want)| (got - want).abs() < 1e-12),
            "{sums:?}"
        );
        assert_eq!(found.all_reduce_ms(3, 1), None);
        let (hop_us, gb_per_s) = found.hop_us_and_gb_per_s().unwrap();
        assert!((hop_us - 5.0).abs() < 1e-9 && (gb_per_s - 0.1).abs() < 1e-9);
        assert_eq!(found.step_ratio(1.0, 1e6), 1.0);
    }

    #[test]
    fn ratios_lie_between_those_of_measured_steps() {
        let ratios = [(1.0, 1e6, 2.0), (1.0, 1e8, 1.0), (2.0, 1e6, 9.0)];
        let ratios = ratios.map(|(threads, flop, ratio)| Ratio { threads, flop, ratio }).to_vec();
        let found = Calibration { ratios, ..Calibration::default() };
        let got = [1e5, 1e7, 1e9].map(|flop| found.step_ratio(0.9, flop));
        assert!(
            got.iter().zip([2.0, 1.5, 1.0]).all(|(got, want): (&f64, f64)| (got - want).abs() < 1e-9),
            "{got:?}"
        );
    }

    #[test]
    fn lines_of_something_else_are_named() {
        for (text, part) in
            [("x", "expected value"), ("{}", "no `device`"), (r#"{"device":"cpu"}"#, "without its numbers")]
        {
            let error = Calibration::default().add_lines(&format!("\n{text}"), false).unwrap_err();
            assert!(error.line == 2 && error.reason.contains(part), "{error:?}");
        }
    }
}
