//! Descriptors: operation, matrix layout and search preference. Each is a set of attributes with a fixed size and a
//! default, as listed in cublasLt.h. `tests/cublaslt/descriptors.rs` compares them with a real library's; attributes that are not
//! in every release since 12.4 are left out.
//! release since 12.4 knows are left out.
use super::{INVALID_VALUE, Status};
use crate::abi::{self, lock};
use crate::driver::handle::Registry;
use crate::report;
use std::sync::{Arc, Mutex};

/// An attribute: its number, its size in bytes, its default value.
type Attribute = (u32, usize, u64);

pub(crate) mod operation {
    //! Attributes of `cublasLtMatmulDescAttributes_t`.
    pub(crate) const COMPUTE_TYPE: u32 = 0;
    pub(crate) const SCALE_TYPE: u32 = 1;
    pub(crate) const POINTER_MODE: u32 = 2;
    pub(crate) const TRANS_A: u32 = 3;
    pub(crate) const TRANS_B: u32 = 4;
    pub(crate) const TRANS_C: u32 = 5;
    pub(crate) const EPILOGUE: u32 = 7;
    pub(crate) const BIAS_POINTER: u32 = 8;
    pub(crate) const AUX_POINTER: u32 = 11;
    pub(crate) const AUX_LD: u32 = 12;
    pub(crate) const SM_COUNT_TARGET: u32 = 15;
    pub(crate) const AUX_TYPE: u32 = 22;
    pub(crate) const BIAS_TYPE: u32 = 26;
    /// The value of [`AUX_TYPE`] and [`BIAS_TYPE`] that means "the type of D".
    pub(crate) const TYPE_OF_D: u32 = u32::MAX;
}

pub(crate) mod layout {
    //! Attributes of `cublasLtMatrixLayoutAttribute_t`.
    pub(crate) const TYPE: u32 = 0;
    pub(crate) const ORDER: u32 = 1;
    pub(crate) const ROWS: u32 = 2;
    pub(crate) const COLS: u32 = 3;
    pub(crate) const LD: u32 = 4;
    pub(crate) const BATCH_COUNT: u32 = 5;
    /// Stride in elements.
    pub(crate) const BATCH_STRIDE: u32 = 6;
}

pub(crate) mod preference {
    //! Attributes of `cublasLtMatmulPreferenceAttributes_t`.
    pub(crate) const MAX_WORKSPACE_BYTES: u32 = 1;
    /// Allowed orders of adding the parts of a split sum (`cublasLtReductionScheme_t`).
    pub(crate) const REDUCTION_SCHEMES: u32 = 3;
    /// The first of four, in the order A, B, C, D.
    pub(crate) const MIN_ALIGNMENT_A: u32 = 5;
}

const OPERATION: [Attribute; 25] = [
    (operation::COMPUTE_TYPE, 4, 68),
    (operation::SCALE_TYPE, 4, 0),
    (operation::POINTER_MODE, 4, 0),
    (operation::TRANS_A, 4, 0),
    (operation::TRANS_B, 4, 0),
    (operation::TRANS_C, 4, 0),
    (6, 4, 2), // fill mode: full
    (operation::EPILOGUE, 4, 1),
    (operation::BIAS_POINTER, 8, 0),
    (10, 8, 0), // bias batch stride
    (operation::AUX_POINTER, 8, 0),
    (operation::AUX_LD, 8, 0),
    (13, 8, 0), // aux batch stride
    (14, 8, 0), // alpha vector batch stride
    (operation::SM_COUNT_TARGET, 4, 0),
    (17, 8, 0), // scale pointers of A, B, C, D, the maximum of D
    (18, 8, 0),
    (19, 8, 0),
    (20, 8, 0),
    (21, 8, 0),
    (operation::AUX_TYPE, 4, operation::TYPE_OF_D as u64),
    (23, 8, 0), // aux scale and maximum
    (24, 8, 0),
    (25, 1, 0), // fast accumulation of FP8
    (operation::BIAS_TYPE, 4, operation::TYPE_OF_D as u64),
];

const LAYOUT: [Attribute; 8] = [
    (layout::TYPE, 4, 0),
    (layout::ORDER, 4, 0),
    (layout::ROWS, 8, 0),
    (layout::COLS, 8, 0),
    (layout::LD, 8, 0),
    (layout::BATCH_COUNT, 4, 1),
    (layout::BATCH_STRIDE, 8, 0),
    (7, 8, 0), // plane offset
];

const PREFERENCE: [Attribute; 9] = [
    (0, 4, 0), // search mode
    (preference::MAX_WORKSPACE_BYTES, 8, 0),
    (preference::REDUCTION_SCHEMES, 4, 0x7),
    (preference::MIN_ALIGNMENT_A, 4, 256),
    (preference::MIN_ALIGNMENT_A + 1, 4, 256),
    (preference::MIN_ALIGNMENT_A + 2, 4, 256),
    (preference::MIN_ALIGNMENT_A + 3, 4, 256),
    (9, 4, 0),         // wave count
    (12, 8, u64::MAX), // implementations
];

/// Kind of descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Operation,
    Layout,
    Preference,
}

impl Kind {
    fn attributes(self) -> &'static [Attribute] {
        match self {
            Kind::Operation => &OPERATION,
            Kind::Layout => &LAYOUT,
            Kind::Preference => &PREFERENCE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Operation => "cublasLtMatmulDesc_t",
            Kind::Layout => "cublasLtMatrixLayout_t",
            Kind::Preference => "cublasLtMatmulPreference_t",
        }
    }
}

/// A snapshot of the attributes of one descriptor.
#[derive(Clone)]
pub(crate) struct Values {
    kind: Kind,
    values: Vec<u64>,
}

impl Values {
    fn new(kind: Kind) -> Values {
        Values { kind, values: kind.attributes().iter().map(|a| a.2).collect() }
    }

    fn index(&self, attribute: u32) -> Option<usize> {
        self.kind.attributes().iter().position(|a| a.0 == attribute)
    }

    /// The value of an attribute, zero-extended to eight bytes.
    pub(crate) fn get(&self, attribute: u32) -> u64 {
        self.index(attribute).map_or(0, |i| self.values[i])
    }

    fn set(&mut self, attribute: u32, value: u64) {
        if let Some(i) = self.index(attribute) {
            self.values[i] = value;
        }
    }
}

struct Descriptor {
    values: Mutex<Values>,
}

static DESCRIPTORS: Registry<Descriptor> = Registry::new("a descriptor of cublasLt");

/// Makes a descriptor whose attributes have their defaults, except for those given.
pub(crate) fn create(kind: Kind, given: &[(u32, u64)]) -> usize {
    let mut values = Values::new(kind);
    for &(attribute, value) in given {
        values.set(attribute, value);
    }
    DESCRIPTORS.insert(Arc::new(Descriptor { values: Mutex::new(values) }))
}

/// Destroys a descriptor; null is accepted, as in the real library.
pub(crate) fn destroy(kind: Kind, handle: usize) -> Result<(), Status> {
    if handle == 0 {
        return Ok(());
    }
    values(kind, handle)?;
    DESCRIPTORS.remove(handle).map(|_| ()).map_err(|_| INVALID_VALUE)
}

fn find(kind: Kind, handle: usize) -> Result<Arc<Descriptor>, Status> {
    let descriptor = DESCRIPTORS.get(handle).map_err(|_| INVALID_VALUE)?;
    let found = lock(&descriptor.values).kind;
    if found != kind {
        report(&format!("cublasLt: a {} was expected, not a {}", kind.name(), found.name()));
        return Err(INVALID_VALUE);
    }
    Ok(descriptor)
}

/// Copies the attributes of a descriptor, which must be of this kind.
pub(crate) fn values(kind: Kind, handle: usize) -> Result<Values, Status> {
    Ok(lock(&find(kind, handle)?.values).clone())
}

/// `cublasLt...SetAttribute`: the size must be that of the attribute.
pub(crate) fn set(
    kind: Kind,
    handle: usize,
    attribute: u32,
    from: *const u8,
    size: usize,
) -> Result<(), Status> {
    let descriptor = find(kind, handle)?;
    let mut values = lock(&descriptor.values);
    let index = values.index(attribute).ok_or(INVALID_VALUE)?;
    if from.is_null() || size != kind.attributes()[index].1 {
        return Err(INVALID_VALUE);
    }
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(abi::slice(from, size).map_err(|_| INVALID_VALUE)?);
    values.values[index] = u64::from_le_bytes(bytes);
    Ok(())
}

/// `cublasLt...GetAttribute`: with a size of zero only the needed size is returned.
pub(crate) fn get(
    kind: Kind,
    handle: usize,
    attribute: u32,
    to: *mut u8,
    size: usize,
    written: *mut usize,
) -> Result<(), Status> {
    let values = values(kind, handle)?;
    let index = values.index(attribute).ok_or(INVALID_VALUE)?;
    let needed = kind.attributes()[index].1;
    if size == 0 && written.is_null() || size != 0 && (to.is_null() || size != needed) {
        return Err(INVALID_VALUE);
    }
    if size != 0 {
        let bytes = values.values[index].to_le_bytes();
        // SAFETY: not null; the C caller vouches for `size` writable bytes (see `abi`), which are at most eight.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size) };
    }
    abi::put_if_wanted(written, needed);
    Ok(())
}
