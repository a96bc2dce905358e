//! Answers of a real cuBLASLt (`VGPU_LT_RECORD`, a table that `tests/gpu.sh` writes): the virtual library refuses the same
//! problems.
use super::Status;
use super::problem::Problem;
use super::types::{Compute, Type};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Format and epilogue by their names in the record.
type Kind = (String, String);
/// Number of matrices, `m`, `n`, `k`, and which operands are transposed, row-major.
type Shape = ([usize; 4], String);

/// Answers by kind and shape: the status, 0 if a search finds an algorithm.
#[derive(Default)]
struct Record {
    answers: HashMap<Kind, HashMap<Shape, Status>>,
}

static RECORD: LazyLock<Option<Record>> = LazyLock::new(|| {
    let path = std::env::var("VGPU_LT_RECORD").ok().filter(|path| !path.is_empty())?;
    let text = std::fs::read_to_string(&path);
    text.map_err(|error| crate::report::note(&format!("VGPU_LT_RECORD={path}: {error}")))
        .ok()
        .map(|text| Record::parse(&text))
});

/// Entry of the record for this problem; `None` without a record or an entry.
pub(crate) fn answer(problem: &Problem) -> Option<Status> {
    let letter = |is_transposed: bool| if is_transposed { 'T' } else { 'N' };
    // The record is row-major, so the operands are swapped.
    let transposed = [problem.trans_b, problem.trans_a].map(letter).iter().collect();
    let shape = ([problem.d.batch, problem.n(), problem.m(), problem.k], transposed);
    let kind = (format_name(problem)?.to_owned(), epilogue_name(problem.epilogue.name())?.to_owned());
    RECORD.as_ref()?.answer(&kind, &shape)
}

fn format_name(problem: &Problem) -> Option<&'static str> {
    Some(match (problem.compute, problem.a.dtype, problem.d.dtype) {
        (Compute::Tf32, ..) => "tf32",
        (_, Type::F32, Type::F32) => "f32",
        (_, Type::F64, Type::F64) => "f64",
        (_, Type::Bf16, Type::Bf16) => "bf16",
        (_, Type::Bf16, Type::F32) => "bf16>f32",
        (_, Type::F16, Type::F16) => "f16",
        (_, Type::F16, Type::F32) => "f16>f32",
        _ => return None,
    })
}

/// Name of an epilogue of cublasLt.h in the record.
fn epilogue_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "DEFAULT" => "None",
        "BIAS" => "Bias",
        "RELU_BIAS" => "ReluBias",
        "RELU_AUX_BIAS" => "ReluAuxBias",
        "RELU_AUX" => "ReluAux",
        "GELU_BIAS" => "GeluBias",
        "GELU_AUX_BIAS" => "GeluAuxBias",
        "DRELU" => "DRelu",
        "DGELU" => "DGelu",
        "DRELU_BGRAD" => "DReluBiasGradient",
        "DGELU_BGRAD" => "DGeluBiasGradient",
        "BGRADB" => "BiasGradient",
        _ => return None,
    })
}

impl Record {
    /// Reads the rows whose operands are aligned to 256 bytes and whose sums may be split in any way.
    fn parse(text: &str) -> Record {
        let mut record = Record::default();
        for line in text.lines() {
            let row: Vec<&str> = line.split('\t').collect();
            let [format, epilogue, m, n, k, transposed, "256", "0", status, ..] = row[..] else { continue };
            let (batch, m) = m.split_once('*').unwrap_or(("1", m));
            let (Ok(batch), Ok(m), Ok(n), Ok(k), Ok(status)) =
                (batch.parse(), m.parse(), n.parse(), k.parse(), status.parse())
            else {
                continue;
            };
            let of_kind = record.answers.entry((format.to_owned(), epilogue.to_owned())).or_default();
            of_kind.insert(([batch, m, n, k], transposed.to_owned()), status);
        }
        record
    }

    /// The answer for this shape; for a shape that is not in the record, a refusal if all shapes of the kind were refused.
    fn answer(&self, kind: &Kind, shape: &Shape) -> Option<Status> {
        let of_kind = self.answers.get(kind)?;
        if let Some(status) = of_kind.get(shape) {
            return Some(*status);
        }
        let first = of_kind.values().next().copied()?;
        of_kind.values().all(|status| *status != 0).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_was_not_asked_is_refused_where_all_were() {
        let text = "# GPU\nformat\tepilogue\n\
                    f32\tBias\t32\t128\t64\tNT\t256\t0\t0\t8\t0\t0\t3.1\n\
                    f32\tBias\t33\t10\t7\tNT\t256\t0\t15\t0\t\t\t\n\
                    f32\tBias\t33\t10\t7\tNT\t16\t0\t0\t8\t0\t0\t3.1\n\
                    f32\tNone\t8*16\t16\t8\tNT\t256\t0\t15\t0\t\t\t\n\
                    f32\tNone\t16\t16\t8\tNT\t256\t0\t0\t8\t0\t0\t3.1\n\
                    f32\tDRelu\t32\t64\t128\tNN\t256\t0\t15\t0\t\t\t\n";
        let record = Record::parse(text);
        let kind = |epilogue: &str| ("f32".to_owned(), epilogue.to_owned());
        let shape = |dims, transposed: &str| (dims, transposed.to_owned());
        assert_eq!(record.answer(&kind("Bias"), &shape([1, 32, 128, 64], "NT")), Some(0));
        assert_eq!(record.answer(&kind("Bias"), &shape([1, 33, 10, 7], "NT")), Some(15));
        assert_eq!(record.answer(&kind("Bias"), &shape([1, 5, 5, 5], "NT")), None);
        assert_eq!(record.answer(&kind("DRelu"), &shape([1, 5, 5, 5], "NN")), Some(15));
        assert_eq!(record.answer(&kind("None"), &shape([8, 16, 16, 8], "NT")), Some(15));
        assert_eq!(record.answer(&kind("None"), &shape([1, 16, 16, 8], "NT")), Some(0));
        assert_eq!(record.answer(&kind("DGelu"), &shape([1, 5, 5, 5], "NN")), None);
    }
}
