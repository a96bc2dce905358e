//! Floats in JSON that come back bit for bit: a number where it is finite, else the text `NaN`, `inf` or `-inf`.
//!
//! JSON has no such numbers, and `null` would come back as something that was never measured.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    struct Float;
    impl Visitor<'_> for Float {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
            Ok(value)
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
            Ok(value as f64)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
            Ok(value as f64)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
            match text {
                "NaN" => Ok(f64::NAN),
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
            }
        }
    }
    deserializer.deserialize_any(Float)
}

/// One as a value of its own.
#[derive(Serialize, Deserialize)]
struct Exact(#[serde(with = "self")] f64);

/// One that may be missing: `null`.
pub(super) mod option {
    use super::{Deserialize as _, Deserializer, Exact, Serialize as _, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Exact).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Exact>::deserialize(deserializer)?.map(|exact| exact.0))
    }
}

/// The metrics of an evaluation that were measured, by name; earlier versions wrote `null` for the others. Tables are left out.
pub(super) mod eval {
    use std::collections::BTreeMap;

    use serde::de::Error as _;
    use serde::ser::SerializeMap as _;

    use super::{Deserialize, Deserializer, Exact, Serializer};
    use crate::config::EvalMetric;
    use crate::report::EvalMetrics;

    pub(in super::super) fn serialize<S: Serializer>(
        eval: &EvalMetrics,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (metric, value) in eval.iter() {
            map.serialize_entry(metric.name(), &Exact(value))?;
        }
        map.end()
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<EvalMetrics, D::Error> {
        let mut metrics = EvalMetrics::default();
        for (name, value) in BTreeMap::<String, Option<Exact>>::deserialize(deserializer)? {
            let metric = EvalMetric::ALL.iter().find(|metric| metric.name() == name);
            let metric = metric.ok_or_else(|| D::Error::custom(format!("unknown metric \"{name}\"")))?;
            metrics = metrics.with(*metric, value.map(|exact| exact.0));
        }
        Ok(metrics)
    }
}
