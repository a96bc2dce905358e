//! A multiplication on a stream: its accesses are checked before it is computed.
use std::sync::Arc;

use super::heuristic::Choice;
use super::problem::{Layout, Problem, misuse};
use super::types::{BiasGradient, Compute, Type, d_gelu, round_to_tf32};
use super::{INVALID_VALUE, Status};
use crate::abi::lock;
use crate::code::{ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};
use crate::mem::MEMORY;
use crate::order::Stamp;
use crate::stream::{Outcome, Stream, takes_longer};
use crate::{counts, fault};

/// Value that the workspace is filled with before each multiplication: a NaN in every type.
const POISON: u8 = 0xFF;
/// Required alignment of the workspace pointer of cublasLtMatmul(), 16 bytes.
const WORKSPACE_ALIGNMENT: u64 = 16;

/// A checked call of cublasLtMatmul(), which owns everything it needs: it may run later, or many times from a graph.
pub(crate) struct Matmul {
    pub(crate) problem: Problem,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) d: u64,
    pub(crate) workspace: u64,
    pub(crate) choice: Choice,
}

/// A range of device memory that the multiplication accesses.
struct Operand {
    name: &'static str,
    address: u64,
    bytes: u64,
    /// Number of bytes that count as moved; 0 for the workspace, whose use depends on the algorithm.
    moved: u64,
    writes: bool,
    /// Whether the range has no gaps, so that overlapping ranges have common elements.
    dense: bool,
}

impl Matmul {
    /// Checks everything that the library can see at the call: the workspace, missing pointers, overlaps.
    ///
    /// # Errors
    /// `INVALID_VALUE` and a finding.
    pub(crate) fn check(&self, workspace_bytes: u64) -> Result<(), Status> {
        let what = || self.problem.describe();
        let missing = [
            ("A", self.a == 0),
            ("B", self.b == 0),
            ("C", self.c == 0 && self.beta != 0.0),
            ("D", self.d == 0),
            ("the bias pointer", self.problem.epilogue.uses_bias_pointer() && self.problem.bias == 0),
            ("the auxiliary pointer", self.problem.epilogue.uses_aux() && self.problem.aux == 0),
        ];
        if let Some((name, _)) = missing.into_iter().find(|(_, missing)| *missing) {
            return Err(misuse(INVALID_VALUE, format!("{}: {name} is null", what())));
        }
        if self.choice.workspace > 0 {
            let problem = match () {
                () if self.workspace == 0 => "is null".to_owned(),
                () if !self.workspace.is_multiple_of(WORKSPACE_ALIGNMENT) => {
                    format!("at {:#x} is not aligned to {WORKSPACE_ALIGNMENT} bytes", self.workspace)
                }
                () if workspace_bytes < self.choice.workspace => format!("has {workspace_bytes} bytes"),
                () => return self.check_overlaps(),
            };
            return Err(misuse(
                INVALID_VALUE,
                format!(
                    "{}: the algorithm needs {} bytes of workspace, which {problem}",
                    what(),
                    self.choice.workspace
                ),
            ));
        }
        self.check_overlaps()
    }

    fn check_overlaps(&self) -> Result<(), Status> {
        let what = || self.problem.describe();
        if self.beta != 0.0 && self.c == self.d && self.problem.c != self.problem.d {
            return Err(misuse(
                INVALID_VALUE,
                format!("{}: C and D are one matrix, but their layouts differ", what()),
            ));
        }
        let operands = self.operands();
        for (i, x) in operands.iter().enumerate() {
            for y in &operands[..i] {
                let in_place = [x, y].iter().all(|o| matches!(o.name, "C" | "D")) && x.address == y.address;
                let overlap = x.address < y.address + y.bytes && y.address < x.address + x.bytes;
                if overlap && (x.writes || y.writes) && x.dense && y.dense && !in_place {
                    return Err(misuse(INVALID_VALUE, format!("{}: {} overlaps {}", what(), x.name, y.name)));
                }
            }
        }
        Ok(())
    }

    fn operands(&self) -> Vec<Operand> {
        let p = &self.problem;
        let matrix = |name, address, layout: &Layout, writes| Operand {
            name,
            address,
            bytes: layout.bytes(),
            moved: layout.element_bytes(),
            writes,
            dense: layout.is_dense(),
        };
        let vector = |name, address, bytes, writes| Operand {
            name,
            address,
            bytes,
            moved: bytes,
            writes,
            dense: true,
        };
        let mut all = vec![matrix("A", self.a, &p.a, false), matrix("B", self.b, &p.b, false)];
        if self.beta != 0.0 {
            all.push(matrix("C", self.c, &p.c, false));
        }
        all.push(matrix("D", self.d, &p.d, true));
        if p.epilogue.uses_bias_pointer() {
            let bytes = p.bias_len() as u64 * p.d.dtype.size();
            all.push(vector("the bias vector", p.bias, bytes, p.epilogue.bias_gradient().is_some()));
        }
        if p.epilogue.uses_aux() {
            all.push(vector("the auxiliary buffer", p.aux, p.aux_bytes(), p.epilogue.writes_aux()));
        }
        if self.choice.workspace > 0 {
            let workspace = vector("the workspace", self.workspace, self.choice.workspace, true);
            all.push(Operand { moved: 0, ..workspace });
        }
        all
    }

    /// Addresses of A, B, C, D, the bias vector and the auxiliary buffer; 0 for those that are not used.
    fn addresses(&self) -> [u64; 6] {
        let p = &self.problem;
        let used = |address, is_used: bool| if is_used { address } else { 0 };
        [
            self.a,
            self.b,
            used(self.c, self.beta != 0.0),
            self.d,
            used(p.bias, p.epilogue.uses_bias_pointer()),
            used(p.aux, p.epilogue.uses_aux()),
        ]
    }

    /// Puts the multiplication on the stream.
    pub(crate) fn enqueue(self, stream: &Arc<Stream>) {
        let device = stream.device;
        let matmul = Arc::new(self);
        stream.run("cublasLtMatmul", move |stamp: &Stamp| matmul.run(device, stamp));
    }

    fn run(&self, device: usize, stamp: &Stamp) -> Outcome {
        if self.problem.epilogue.uses_bias_pointer() {
            fault::hang_on_request("epilogue");
        }
        for one in self.products() {
            if let Some(misaligned) = self.choice.misaligned(one.addresses()) {
                return Err((MISALIGNED_ADDRESS, format!("{}: {misaligned}", self.problem.describe())));
            }
        }
        let sums_b = matches!(self.problem.epilogue.bias_gradient(), Some(BiasGradient::OfB));
        if sums_b && [self.b, self.problem.bias].iter().any(|address| !address.is_multiple_of(16)) {
            // As on an H100, whatever the search was told.
            let what = "sums columns that do not begin at a multiple of 16 bytes";
            return Err((MISALIGNED_ADDRESS, format!("{}: {what}", self.problem.describe())));
        }
        for operand in self.operands() {
            stamp.access_within(operand.address, operand.bytes, operand.moved, operand.writes)?;
            let memory = lock(&MEMORY);
            memory.real(device, operand.address, operand.bytes).map_err(|fault| {
                (ILLEGAL_ADDRESS, format!("{}: {}: {fault}", self.problem.describe(), operand.name))
            })?;
        }
        if self.choice.workspace > 0 {
            // SAFETY: the whole workspace was found to be memory of this device just above.
            unsafe {
                std::ptr::write_bytes(real(device, self.workspace), POISON, self.choice.workspace as usize)
            };
        }
        takes_longer(self.choice.slower_us(&self.problem));
        counts::add(&format!("matmul_algorithm:{}", self.choice.index()), 1);
        if let n_free @ 1.. = self.problem.multiprocessors {
            counts::add(&format!("matmul_on:{n_free}"), 1);
        }
        for one in self.products() {
            match self.problem.compute {
                Compute::F64 => one.compute(device, dot_f64),
                Compute::F32 | Compute::Tf32 => one.compute(device, dot_f32),
            }
        }
        Ok(())
    }

    /// The parts of the sum of `k` products, each as its first product and their number. Algorithms for operands that are aligned to less
    /// than the widest access are others on hardware; here they add in another order.
    fn parts(&self, k: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let middle = if self.choice.is_narrow() { k / 2 } else { 0 };
        [(0, middle), (middle, k - middle)].into_iter().filter(|(_, n)| *n > 0)
    }

    /// The matrices of a batch as separate multiplications.
    fn products(&self) -> impl Iterator<Item = Matmul> + '_ {
        let Problem { a, b, c, d, .. } = self.problem;
        let of_one = |layout: Layout| Layout { batch: 1, ..layout };
        (0..d.batch).map(move |index| Matmul {
            problem: Problem {
                a: of_one(a),
                b: of_one(b),
                c: of_one(c),
                d: of_one(d),
                ..self.problem.clone()
            },
            a: self.a + a.offset(index),
            b: self.b + b.offset(index),
            c: self.c + c.offset(index),
            d: self.d + d.offset(index),
            ..*self
        })
    }

    /// Multiplies with `dot`, then applies scalars, C and the epilogue in f64 and rounds once to the type of D.
    fn compute(&self, device: usize, dot: fn(&Matmul, usize) -> Vec<f64>) {
        let p = &self.problem;
        let sums = dot(self, device);
        let (m, n) = (p.m(), p.n());
        let (c, d) = (
            if self.beta != 0.0 { real(device, self.c) } else { std::ptr::null_mut() },
            real(device, self.d),
        );
        let bias = if p.epilogue.uses_bias_pointer() { real(device, p.bias) } else { std::ptr::null_mut() };
        let mut aux = Aux::new(p, device);
        let mut row_sums = vec![0.0; m];
        let is_fused = p.epilogue.uses_bias_pointer();
        let is_wrong = fault::is_wrong("matmul") || is_fused && fault::is_wrong("epilogue");
        for col in 0..n {
            for (row, row_sum) in row_sums.iter_mut().enumerate() {
                let mut x = self.alpha * sums[col * m + row];
                if is_wrong && (row, col) == (m - 1, n - 1) {
                    x += 1.0;
                }
                if self.beta != 0.0 {
                    if matches!(p.d.dtype, Type::F16 | Type::Bf16) {
                        // As on an H100: algorithms may round the product before they add C.
                        x = p.d.dtype.rounded(x);
                    }
                    // SAFETY: run() found all of C to be memory of this device, and its address is aligned.
                    x += self.beta * unsafe { p.c.dtype.get(c, col * p.c.ld + row) };
                }
                if p.epilogue.adds_bias() {
                    // SAFETY: run() found the bias, one element per row, to be memory of this device.
                    x += unsafe { p.d.dtype.get(bias, row) };
                }
                let y = match &mut aux {
                    Aux::None => p.epilogue.apply(x),
                    aux if p.epilogue.writes_aux() => {
                        aux.store(row, col, x);
                        p.epilogue.apply(x)
                    }
                    aux => x * aux.derivative(row, col),
                };
                *row_sum += y;
                // SAFETY: run() found all of D to be memory of this device, and its address is aligned.
                unsafe { p.d.dtype.set(d, col * p.d.ld + row, y) };
            }
        }
        self.store_bias_gradient(device, bias, row_sums);
    }

    fn store_bias_gradient(&self, device: usize, bias: *mut u8, row_sums: Vec<f64>) {
        let p = &self.problem;
        let gradient = match p.epilogue.bias_gradient() {
            None => return,
            Some(BiasGradient::OfResult) => row_sums,
            // The sum over k of op(A)[i, k] for each row i, without alpha, because the gradient depends only on the input.
            Some(BiasGradient::OfA) => line_sums(device, self.a, &p.a, !p.trans_a),
            // The sum over k of op(B)[k, j] for each column j.
            Some(BiasGradient::OfB) => line_sums(device, self.b, &p.b, p.trans_b),
        };
        for (i, sum) in gradient.into_iter().enumerate() {
            // SAFETY: run() found `bias_len` elements at the bias pointer to be memory of this device.
            unsafe { p.d.dtype.set(bias, i, sum) };
        }
    }
}

/// The real address of the bytes at a device address whose range was checked.
fn real(device: usize, address: u64) -> *mut u8 {
    let memory = lock(&MEMORY);
    memory.real(device, address, 0).unwrap_or(std::ptr::null_mut())
}

/// The sums of a stored matrix along its rows (one sum per row) or along its columns.
fn line_sums(device: usize, address: u64, layout: &Layout, of_rows: bool) -> Vec<f64> {
    let base = real(device, address);
    let mut sums = vec![0.0; if of_rows { layout.rows } else { layout.cols }];
    for col in 0..layout.cols {
        for row in 0..layout.rows {
            // SAFETY: Matmul::run() found all of the matrix to be memory of this device.
            let x = unsafe { layout.dtype.get(base, col * layout.ld + row) };
            sums[if of_rows { row } else { col }] += x;
        }
    }
    sums
}

/// The columns of a stored matrix, without gaps, converted to another type.
fn load<T>(device: usize, address: u64, layout: &Layout, convert: impl Fn(f64) -> T) -> Vec<T> {
    let base = real(device, address);
    let mut all = Vec::with_capacity(layout.rows * layout.cols);
    for col in 0..layout.cols {
        for row in 0..layout.rows {
            // SAFETY: Matmul::run() found all of the matrix to be memory of this device.
            all.push(convert(unsafe { layout.dtype.get(base, col * layout.ld + row) }));
        }
    }
    all
}

/// Row and column strides of op(X), whose columns as stored have `rows` elements and no gaps.
fn strides(rows: usize, transposed: bool) -> (isize, isize) {
    if transposed { (rows as isize, 1) } else { (1, rows as isize) }
}

/// `op(A) * op(B)`, column-major and dense, products and sums in f32.
fn dot_f32(matmul: &Matmul, device: usize) -> Vec<f64> {
    let p = &matmul.problem;
    let (m, n, k) = (p.m(), p.n(), p.k);
    let input = |x: f64| if p.compute == Compute::Tf32 { round_to_tf32(x as f32) } else { x as f32 };
    let (a, b) = (load(device, matmul.a, &p.a, input), load(device, matmul.b, &p.b, input));
    let mut sums = vec![0f32; m * n];
    let ((a_row, a_col), (b_row, b_col)) = (strides(p.a.rows, p.trans_a), strides(p.b.rows, p.trans_b));
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), sums.as_mut_ptr());
    for (first, k) in matmul.parts(k) {
        let (first, beta) = (first as isize, if first == 0 { 0.0 } else { 1.0 });
        let (a, b) = (a.wrapping_offset(first * a_col), b.wrapping_offset(first * b_row));
        // SAFETY: from the part's first product on a and b hold m*k and k*n elements in these strides, sums m*n; none overlaps another.
        unsafe {
            matrixmultiply::sgemm(m, k, n, 1.0, a, a_row, a_col, b, b_row, b_col, beta, out, 1, m as isize)
        };
    }
    sums.into_iter().map(f64::from).collect()
}

/// `op(A) * op(B)`, column-major and dense, products and sums in f64.
fn dot_f64(matmul: &Matmul, device: usize) -> Vec<f64> {
    let p = &matmul.problem;
    let (m, n, k) = (p.m(), p.n(), p.k);
    let (a, b) = (load(device, matmul.a, &p.a, |x| x), load(device, matmul.b, &p.b, |x| x));
    let mut sums = vec![0f64; m * n];
    let ((a_row, a_col), (b_row, b_col)) = (strides(p.a.rows, p.trans_a), strides(p.b.rows, p.trans_b));
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), sums.as_mut_ptr());
    for (first, k) in matmul.parts(k) {
        let (first, beta) = (first as isize, if first == 0 { 0.0 } else { 1.0 });
        let (a, b) = (a.wrapping_offset(first * a_col), b.wrapping_offset(first * b_row));
        // SAFETY: from the part's first product on a and b hold m*k and k*n elements in these strides, sums m*n; none overlaps another.
        unsafe {
            matrixmultiply::dgemm(m, k, n, 1.0, a, a_row, a_col, b, b_row, b_col, beta, out, 1, m as isize)
        };
    }
    sums
}

/// The auxiliary buffer, column-major.
enum Aux {
    None,
    /// One bit per element, lowest bit first: whether the ReLU was active. `ld` is in bits.
    Mask {
        base: *mut u8,
        ld: usize,
    },
    /// The inputs of the GELU. `ld` is in elements.
    Inputs {
        base: *mut u8,
        ld: usize,
        dtype: Type,
    },
}

impl Aux {
    fn new(problem: &Problem, device: usize) -> Aux {
        if !problem.epilogue.uses_aux() {
            return Aux::None;
        }
        let (base, ld) = (real(device, problem.aux), problem.aux_ld);
        if !problem.epilogue.aux_is_mask() {
            return Aux::Inputs { base, ld, dtype: problem.aux_type };
        }
        if problem.epilogue.writes_aux() {
            // The bits after the last row are nobody's: they get no value on which one could rely.
            // SAFETY: Matmul::run() found `aux_bytes` bytes at the auxiliary pointer to be memory of this device.
            unsafe { std::ptr::write_bytes(base, POISON, problem.aux_bytes() as usize) };
        }
        Aux::Mask { base, ld }
    }

    /// Stores the information about the input `x` of the activation that the backward pass needs.
    fn store(&mut self, row: usize, col: usize, x: f64) {
        match *self {
            Aux::None => (),
            Aux::Mask { base, ld } => {
                let bit = col * ld + row;
                // SAFETY: the bit is one of `n * ld`, all of which Matmul::run() found to be memory of this device.
                let byte = unsafe { &mut *base.wrapping_add(bit / 8) };
                let mask = 1 << (bit % 8);
                *byte = if x > 0.0 { *byte | mask } else { *byte & !mask };
            }
            // SAFETY: Matmul::run() found the matrix of inputs to be memory of this device.
            Aux::Inputs { base, ld, dtype } => unsafe { dtype.set(base, col * ld + row, x) },
        }
    }

    /// The derivative of the activation, computed from the stored information.
    fn derivative(&self, row: usize, col: usize) -> f64 {
        match *self {
            Aux::None => 1.0,
            Aux::Mask { base, ld } => {
                let bit = col * ld + row;
                // SAFETY: as in store().
                let byte = unsafe { base.wrapping_add(bit / 8).read() };
                f64::from(byte >> (bit % 8) & 1)
            }
            // SAFETY: as in store().
            Aux::Inputs { base, ld, dtype } => d_gelu(unsafe { dtype.get(base, col * ld + row) }),
        }
    }
}
