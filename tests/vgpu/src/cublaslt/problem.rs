//! One checked multiplication: the contents of the descriptors, which of them cuBLASLt supports, and the locations of its
//! operands.
//!
//! `D = epilogue(alpha * op(A) * op(B) + beta * C)`, all matrices column-major.
use super::desc::{self, Kind, Values};
use super::types::{Compute, Epilogue, Type};
use super::{INVALID_VALUE, NOT_SUPPORTED, Status};
use crate::report;

/// A matrix, or a batch of them, without its address: type, shape and leading dimension (in elements) as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: Type,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) ld: usize,
    /// Number of matrices, and distance from one to the next in elements.
    pub(crate) batch: usize,
    pub(crate) batch_stride: usize,
}

impl Layout {
    fn read(handle: usize) -> Result<Layout, Status> {
        let values = desc::values(Kind::Layout, handle)?;
        let get = |attribute| values.get(attribute);
        let dtype = Type::from_code(get(desc::layout::TYPE)).ok_or(NOT_SUPPORTED)?;
        // Orders other than column-major are not implemented.
        if get(desc::layout::ORDER) != 0 {
            return Err(NOT_SUPPORTED);
        }
        let (batch, batch_stride) =
            (get(desc::layout::BATCH_COUNT) as i32, get(desc::layout::BATCH_STRIDE) as i64);
        let (rows, cols, ld) =
            (get(desc::layout::ROWS), get(desc::layout::COLS), get(desc::layout::LD) as i64);
        if rows == 0 || cols == 0 || ld < rows as i64 || batch < 1 || batch_stride < 0 {
            return Err(INVALID_VALUE);
        }
        let (rows, cols, ld) = (rows as usize, cols as usize, ld as usize);
        let (batch, batch_stride) = (batch as usize, batch_stride as usize);
        Ok(Layout { dtype, rows, cols, ld, batch, batch_stride })
    }

    /// The bytes from the first element to the last.
    pub(crate) fn bytes(&self) -> u64 {
        let of_one = (self.cols - 1) * self.ld + self.rows;
        ((self.batch - 1) * self.batch_stride + of_one) as u64 * self.dtype.size()
    }

    /// Bytes of the elements alone, of all matrices.
    pub(crate) fn element_bytes(&self) -> u64 {
        (self.batch * self.cols * self.rows) as u64 * self.dtype.size()
    }

    /// Whether there are no gaps between its columns and between its matrices.
    pub(crate) fn is_dense(&self) -> bool {
        let is_batch_dense = self.batch == 1 || self.batch_stride == self.rows * self.cols;
        (self.ld == self.rows || self.cols == 1) && is_batch_dense
    }

    /// Bytes from the first matrix to matrix `index`.
    pub(crate) fn offset(&self, index: usize) -> u64 {
        (index * self.batch_stride) as u64 * self.dtype.size()
    }
}

/// Everything about a multiplication except for the addresses of A, B, C, D and the scalars.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) compute: Compute,
    pub(crate) epilogue: Epilogue,
    pub(crate) trans_a: bool,
    pub(crate) trans_b: bool,
    pub(crate) a: Layout,
    pub(crate) b: Layout,
    pub(crate) c: Layout,
    pub(crate) d: Layout,
    /// Number of terms in the sum of products.
    pub(crate) k: usize,
    /// Multiprocessors that it is made for; 0 for all.
    pub(crate) multiprocessors: u64,
    pub(crate) bias: u64,
    pub(crate) aux: u64,
    /// Leading dimension in elements of the auxiliary buffer: bits for a ReLU.
    pub(crate) aux_ld: usize,
    pub(crate) aux_type: Type,
}

/// The handles that define a problem.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    pub(crate) operation: usize,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) c: usize,
    pub(crate) d: usize,
}

impl Problem {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the descriptors contradict each other, `NOT_SUPPORTED` for features that cuBLASLt or the
    /// virtual library does not have. A mistake of the caller (a shape that does not fit, a missing pointer, an invalid
    /// leading dimension) is also reported as a finding.
    pub(crate) fn read(handles: Descriptors) -> Result<Problem, Status> {
        let operation = desc::values(Kind::Operation, handles.operation)?;
        let get = |attribute| operation.get(attribute);
        let compute = Compute::from_code(get(desc::operation::COMPUTE_TYPE)).ok_or(NOT_SUPPORTED)?;
        let scale = Type::from_code(get(desc::operation::SCALE_TYPE)).ok_or(NOT_SUPPORTED)?;
        let epilogue = Epilogue::from_code(get(desc::operation::EPILOGUE)).ok_or(INVALID_VALUE)?;
        // Scalars on the device and a transposed C are not implemented.
        if get(desc::operation::POINTER_MODE) != 0 || get(desc::operation::TRANS_C) != 0 {
            return Err(NOT_SUPPORTED);
        }
        let transposed = |attribute| match get(attribute) {
            0 => Ok(false),
            // The conjugate transpose (2) of a real matrix is its transpose.
            1 | 2 => Ok(true),
            _ => Err(INVALID_VALUE),
        };
        let (trans_a, trans_b) =
            (transposed(desc::operation::TRANS_A)?, transposed(desc::operation::TRANS_B)?);
        let [a, b, c, d] = [
            Layout::read(handles.a)?,
            Layout::read(handles.b)?,
            Layout::read(handles.c)?,
            Layout::read(handles.d)?,
        ];
        if !compute.supports(scale, a.dtype, b.dtype, c.dtype, d.dtype) {
            return Err(NOT_SUPPORTED);
        }
        let (m, k) = if trans_a { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (k_of_b, n) = if trans_b { (b.cols, b.rows) } else { (b.rows, b.cols) };
        if k != k_of_b || (d.rows, d.cols) != (m, n) || (c.rows, c.cols) != (m, n) {
            return Err(misuse(
                INVALID_VALUE,
                format!(
                    "op(A) is {m}x{k}, op(B) {k_of_b}x{n}, C {}x{}, D {}x{}: they do not fit together",
                    c.rows, c.cols, d.rows, d.cols
                ),
            ));
        }
        if [a, b, c].iter().any(|layout| layout.batch != d.batch) {
            let batches = [a, b, c, d].map(|layout| layout.batch);
            return Err(misuse(INVALID_VALUE, format!("A, B, C, D are batches of {batches:?} matrices")));
        }
        // The matrices of D must not overlap.
        if d.batch > 1 && d.batch_stride < (d.cols - 1) * d.ld + d.rows {
            let what = format!("the matrices of D are {} elements apart, and overlap", d.batch_stride);
            return Err(misuse(INVALID_VALUE, what));
        }
        // Vectors and auxiliary buffers of batches are not implemented.
        if d.batch > 1 && !epilogue.is_default() {
            return Err(NOT_SUPPORTED);
        }
        let mut problem = Problem {
            compute,
            epilogue,
            trans_a,
            trans_b,
            a,
            b,
            c,
            d,
            k,
            multiprocessors: get(desc::operation::SM_COUNT_TARGET),
            bias: get(desc::operation::BIAS_POINTER),
            aux: get(desc::operation::AUX_POINTER),
            aux_ld: 0,
            aux_type: d.dtype,
        };
        problem.read_epilogue(&operation)?;
        Ok(problem)
    }

    fn read_epilogue(&mut self, operation: &Values) -> Result<(), Status> {
        let other_type = |attribute| {
            let code = operation.get(attribute);
            code != u64::from(desc::operation::TYPE_OF_D) && Type::from_code(code) != Some(self.d.dtype)
        };
        // In each supported row of the table the bias has the type of D.
        if self.epilogue.uses_bias_pointer() && other_type(desc::operation::BIAS_TYPE) {
            return Err(NOT_SUPPORTED);
        }
        if !self.epilogue.uses_aux() {
            return Ok(());
        }
        // The inputs of a GELU are kept in the type of D; a bit mask has no element type.
        if !self.epilogue.aux_is_mask() && other_type(desc::operation::AUX_TYPE) {
            return Err(NOT_SUPPORTED);
        }
        let ld = operation.get(desc::operation::AUX_LD) as i64;
        // CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: divisible by 128 (bits of a ReLU's mask) or by 8 (elements of a
        // GELU's input), and at least the number of rows of the output.
        let (step, unit) = if self.epilogue.aux_is_mask() { (128, "bits") } else { (8, "elements") };
        if ld < self.d.rows as i64 || ld % step != 0 {
            return Err(misuse(
                INVALID_VALUE,
                format!(
                    "{}: EPILOGUE_AUX_LD is {ld} {unit}; it must be a multiple of {step} and at least the {} rows of D",
                    self.epilogue.name(),
                    self.d.rows
                ),
            ));
        }
        self.aux_ld = ld as usize;
        Ok(())
    }

    /// Rows of D.
    pub(crate) fn m(&self) -> usize {
        self.d.rows
    }

    /// Columns of D.
    pub(crate) fn n(&self) -> usize {
        self.d.cols
    }

    /// Bytes of the auxiliary buffer: whole columns for a mask, because hardware stores words of it.
    pub(crate) fn aux_bytes(&self) -> u64 {
        if self.epilogue.aux_is_mask() {
            (self.n() * self.aux_ld / 8) as u64
        } else {
            ((self.n() - 1) * self.aux_ld + self.m()) as u64 * self.aux_type.size()
        }
    }

    /// Elements of the vector at the bias pointer.
    ///
    /// A bias and the gradients DRELU_BGRAD, DGELU_BGRAD and BGRADA are as long as D has rows; BGRADB, which sums
    /// op(B) over k, is as long as D has columns.
    pub(crate) fn bias_len(&self) -> usize {
        match self.epilogue.bias_gradient() {
            Some(super::types::BiasGradient::OfB) => self.n(),
            _ => self.m(),
        }
    }

    /// Hash of everything that an algorithm depends on, except sizes and addresses.
    pub(crate) fn key(&self) -> u64 {
        let types = [self.a.dtype, self.b.dtype, self.c.dtype, self.d.dtype];
        let mut key = u64::from(self.epilogue.code());
        for part in types.map(|t| t as u64).into_iter().chain([self.compute as u64]) {
            key = key << 3 | part;
        }
        key << 2 | u64::from(self.trans_a) << 1 | u64::from(self.trans_b)
    }

    /// Sizes and kind of the problem, for messages.
    pub(crate) fn describe(&self) -> String {
        let op = |t| if t { 'T' } else { 'N' };
        format!(
            "matmul {}{} {}{}x{}x{} {:?} {}",
            op(self.trans_a),
            op(self.trans_b),
            if self.d.batch == 1 { String::new() } else { format!("{} of ", self.d.batch) },
            self.m(),
            self.n(),
            self.k,
            self.d.dtype,
            self.epilogue.name()
        )
    }
}

/// Reports a mistake of the caller and returns the status for it.
pub(crate) fn misuse(status: Status, what: String) -> Status {
    report(&format!("cublasLt: {what}"));
    status
}
