//! The inputs of a graph and the preprocessing of their values, the same as in [`crate::fit::preprocess::Preprocessor`].
//!
//! Numbers: an offset is subtracted from columns that need more digits than f32 has, missing values are filled, then `(x - shift)
//! · scale` is computed in f64 and rounded once, as in training. Category strings become codes, 0 for unknown strings; codes
//! become one-hot columns or rows of tables.

use std::collections::HashMap;

use ddp::data::Normalizer;
use ddp::data::vocabulary::Vocabulary;

use crate::export::error::{ExportError, Result};
use crate::export::graph::{Attribute, Graph, Value};
use crate::export::proto::ElementType;
use crate::fit::preprocess::{Column, Preprocessor};

/// Name of the input of models with one input for all columns.
const X: &str = "x";
/// Missing value of an integer input, the same as NaT in numpy and pandas.
const MISSING_INTEGER: i64 = i64::MIN;
/// Largest magnitude up to which f64 represents all integers exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// The first integers that i64 and u64 lack.
const END_OF_I64: f64 = i64::MAX as f64;
const END_OF_U64: f64 = u64::MAX as f64;

/// Features of the model, computed from the inputs.
pub(super) struct Features {
    /// `[N, n_values]`: numbers, indicators and one-hot columns; `None` if there are none.
    pub(super) values: Option<Value>,
    /// Number of columns of `values`.
    pub(super) n_values: usize,
    /// Codes of the categories that have embeddings, each `[N]` i64.
    pub(super) codes: Vec<Value>,
    /// The inputs.
    pub(super) inputs: Vec<Input>,
}

/// An input of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Input {
    /// Name of the input.
    pub(super) name: String,
    /// Columns of the data that the input holds, in order.
    pub(super) columns: Vec<String>,
}

/// Adds inputs and preprocessing to the graph.
///
/// - `marks`: numbers in the data that are missing values
///
/// # Errors
/// See [`element`].
pub(super) fn add(graph: &mut Graph, preprocessor: &Preprocessor, marks: &[f64]) -> Result<Features> {
    let plan = &preprocessor.plan;
    let encoded = plan.compiled();
    let vocabularies: HashMap<usize, &Vocabulary> = plan.categories().collect();
    let (inputs, columns) = declare(graph, preprocessor, &vocabularies, marks)?;

    let fill = |encoded: &Column| match *encoded {
        Column::Number { column, fill } => Some((column, fill)),
        _ => None,
    };
    let fills: Vec<(usize, f32)> = encoded.iter().filter_map(fill).collect();
    let mut values = Vec::new();
    if !fills.is_empty() {
        let numbers = match &columns {
            Columns::Matrix(x) => x.clone(),
            Columns::Each(columns) => {
                let numbers = fills.iter().map(|&(column, _)| columns[column].clone());
                graph.side_by_side(&numbers.collect::<Vec<_>>(), "numbers")
            }
        };
        values = add_numbers(graph, numbers, preprocessor, &fills, &encoded);
    }
    let (mut codes, mut axis) = (Vec::new(), None);
    for encoded in &encoded {
        let (Column::OneHot { column, .. } | Column::Code { column, .. }) = *encoded else {
            continue;
        };
        let Columns::Each(columns) = &columns else { unreachable!("categories have inputs of their own") };
        let code = add_code(graph, vocabularies[&column], &columns[column]);
        if let Column::OneHot { .. } = encoded {
            values.push(add_one_hot(graph, vocabularies[&column], &code));
        } else {
            let axis = axis.get_or_insert_with(|| graph.integers("codes.axis", vec![1]));
            codes.push(graph.op("Squeeze", &[&code, axis], &format!("{}.code", plan.columns[column])));
        }
    }
    let n_values = plan.n_features() - codes.len();
    let values = (!values.is_empty()).then(|| graph.side_by_side(&values, "features"));
    Ok(Features { values, n_values, codes, inputs })
}

/// The columns of the data as values of the graph.
enum Columns {
    /// `[N, columns]` f32.
    Matrix(Value),
    /// Each column as `[N, 1]`: f32 numbers minus the column's offset, or strings.
    Each(Vec<Value>),
}

/// Declares one input for all columns if f32 can hold all of them, else one input per column.
fn declare(
    graph: &mut Graph,
    preprocessor: &Preprocessor,
    vocabularies: &HashMap<usize, &Vocabulary>,
    marks: &[f64],
) -> Result<(Vec<Input>, Columns)> {
    let plan = &preprocessor.plan;
    let marks = if plan.fills_missing() { marks } else { &[] };
    let offsets = preprocessor.column_offsets();
    let declare = |graph: &mut Graph, name: &str, columns: &[String], element| {
        let about = match element {
            ElementType::String => "text of a category; unknown texts and \"\" are one more category",
            ElementType::Int64 => {
                "integers as in the data; the smallest int64 is a missing value, where training allowed it"
            }
            _ => "numbers as in the data; NaN is a missing value, where training allowed it",
        };
        let value = graph.input(name, element, columns.len(), about);
        (Input { name: value.0.clone(), columns: columns.to_vec() }, value)
    };
    if plan.vocabularies.is_empty() && offsets.iter().all(|offset| *offset == 0.0) {
        let (input, x) = declare(graph, X, &plan.columns, ElementType::Float);
        return Ok((vec![input], Columns::Matrix(without_marks(graph, X, x, ElementType::Float, marks))));
    }
    let (mut inputs, mut values) = (Vec::new(), Vec::new());
    for (index, (column, &offset)) in plan.columns.iter().zip(&offsets).enumerate() {
        let is_category = vocabularies.contains_key(&index);
        let element = if is_category { ElementType::String } else { element(column, offset)? };
        let (input, value) = declare(graph, column, std::slice::from_ref(column), element);
        inputs.push(input);
        let value = without_marks(graph, column, value, element, marks);
        let value = match element {
            ElementType::Double => add_offset(graph, column, value, offset),
            ElementType::Int64 => add_integer_offset(graph, column, value, offset, plan.fills_missing()),
            _ => value,
        };
        values.push(value);
    }
    Ok((inputs, Columns::Each(values)))
}

/// The type that holds the numbers of a column as exactly as `predict` reads them: f64 beyond u64, where it has no integers either.
///
/// # Errors
/// [`ExportError::Unsigned`] between the ends of i64 and u64.
fn element(column: &str, offset: f64) -> Result<ElementType> {
    Ok(match offset {
        0.0 => ElementType::Float,
        END_OF_I64..END_OF_U64 => return Err(ExportError::Unsigned(column.to_owned())),
        _ if (MAX_EXACT..=END_OF_I64).contains(&offset.abs()) => ElementType::Int64,
        _ => ElementType::Double,
    })
}

/// Replaces numbers that mark a missing value by the missing value of the input's type.
fn without_marks(
    graph: &mut Graph,
    name: &str,
    mut value: Value,
    element: ElementType,
    marks: &[f64],
) -> Value {
    let constant = format!("{name}.mark");
    for &mark in marks {
        let [mark, missing] = match element {
            ElementType::Float => {
                [mark as f32, f32::NAN].map(|value| graph.floats(&constant, &[1], vec![value]))
            }
            ElementType::Double => [mark, f64::NAN].map(|value| graph.doubles(&constant, vec![value])),
            ElementType::Int64 if mark as i64 as f64 == mark => {
                [mark as i64, MISSING_INTEGER].map(|value| graph.integers(&constant, vec![value]))
            }
            _ => continue,
        };
        let is_marked = graph.op("Equal", &[&value, &mark], &format!("{name}.is_marked"));
        value = graph.op("Where", &[&is_marked, &missing, &value], &format!("{name}.without_mark"));
    }
    value
}

/// Subtracts the offset from the values and converts them to f32.
fn add_offset(graph: &mut Graph, column: &str, value: Value, offset: f64) -> Value {
    let offset = graph.doubles(&format!("{column}.offset"), vec![offset]);
    let less = graph.op("Sub", &[&value, &offset], &format!("{column}.less_offset"));
    graph.cast(&less, ElementType::Float, &format!("{column}.f32"))
}

/// Same as [`add_offset`] for integers; [`MISSING_INTEGER`] becomes NaN if missing values are filled.
fn add_integer_offset(graph: &mut Graph, column: &str, value: Value, offset: f64, may_miss: bool) -> Value {
    let offset = graph.integers(&format!("{column}.offset"), vec![offset as i64]);
    let less = graph.op("Sub", &[&value, &offset], &format!("{column}.less_offset"));
    let number = graph.cast(&less, ElementType::Float, &format!("{column}.f32"));
    if !may_miss {
        return number;
    }
    let missing = graph.integers(&format!("{column}.missing"), vec![MISSING_INTEGER]);
    let is_missing = graph.op("Equal", &[&value, &missing], &format!("{column}.is_missing"));
    let nan = graph.floats(&format!("{column}.nan"), &[1], vec![f32::NAN]);
    graph.op("Where", &[&is_missing, &nan, &number], &format!("{column}.or_nan"))
}

/// Fills and normalizes the numeric columns, `[N, n]`; returns them and the indicators of missing values.
fn add_numbers(
    graph: &mut Graph,
    mut numbers: Value,
    preprocessor: &Preprocessor,
    fills: &[(usize, f32)],
    encoded: &[Column],
) -> Vec<Value> {
    let mut indicators = None;
    if preprocessor.plan.fills_missing() {
        let is_missing = graph.op("IsNaN", &[&numbers], "numbers.is_missing");
        let fill = fills.iter().map(|&(_, fill)| fill).collect();
        let fill = graph.floats("numbers.fill", &[fills.len()], fill);
        numbers = graph.op("Where", &[&is_missing, &fill, &numbers], "numbers.filled");
        let place = |encoded: &Column| match encoded {
            Column::Indicator { column } => fills.binary_search_by_key(column, |fill| fill.0).ok(),
            _ => None,
        };
        let places: Vec<i64> = encoded.iter().filter_map(place).map(|place| place as i64).collect();
        if !places.is_empty() {
            let places = graph.integers("indicators.columns", places);
            let axis = [("axis", Attribute::Int(1))];
            let of_columns = graph.op_with("Gather", &[&is_missing, &places], &axis, "indicators.is_missing");
            indicators = Some(graph.cast(&of_columns, ElementType::Float, "indicators"));
        }
    }
    if let Some(normalizer) = &preprocessor.normalizer {
        numbers = add_normalizer(graph, &numbers, normalizer, fills.len());
    }
    std::iter::once(numbers).chain(indicators).collect()
}

/// Computes `(x - shift) · scale` in f64 and rounds to f32. The features after the first `n_numbers` keep their values: their
/// shift is 0 and their scale 1.
fn add_normalizer(graph: &mut Graph, x: &Value, normalizer: &Normalizer, n_numbers: usize) -> Value {
    let shift = graph.doubles("normalize.shift", normalizer.shift[..n_numbers].to_vec());
    let scale = graph.doubles("normalize.scale", normalizer.scale[..n_numbers].to_vec());
    let x = graph.cast(x, ElementType::Double, "numbers.f64");
    let x = graph.op("Sub", &[&x, &shift], "numbers.shifted");
    let x = graph.op("Mul", &[&x, &scale], "numbers.scaled");
    graph.cast(&x, ElementType::Float, "numbers.normalized")
}

/// The code of each string, `[N, 1]` i64.
fn add_code(graph: &mut Graph, vocabulary: &Vocabulary, texts: &Value) -> Value {
    let values = vocabulary.values();
    let name = format!("{}.codes", vocabulary.name());
    if values.is_empty() {
        // The encoder needs at least one string; here every string is unknown, including the empty one.
        let encoder = encoder(vec![String::new()], vec![0]);
        return graph.ml_op("LabelEncoder", &[texts], &encoder, &name);
    }
    let numbered = values.iter().cloned().zip(1..).chain(vocabulary.other_spellings());
    let (values, codes) = numbered.unzip();
    let encoder = encoder(values, codes);
    graph.ml_op("LabelEncoder", &[texts], &encoder, &name)
}

/// Attributes of an encoder of strings; all other strings become 0.
fn encoder(texts: Vec<String>, codes: Vec<i64>) -> [(&'static str, Attribute<'static>); 3] {
    [
        ("keys_strings", Attribute::Texts(texts)),
        ("values_int64s", Attribute::Ints(codes)),
        ("default_int64", Attribute::Int(0)),
    ]
}

/// One column per code, `[N, n_codes]`: 1 in the column of the row's code, else 0.
fn add_one_hot(graph: &mut Graph, vocabulary: &Vocabulary, code: &Value) -> Value {
    let (name, n_codes) = (vocabulary.name(), vocabulary.n_codes() as i64);
    let all = graph.integers(&format!("{name}.all_codes"), (0..n_codes).collect());
    let is_code = graph.op("Equal", &[code, &all], &format!("{name}.is_code"));
    graph.cast(&is_code, ElementType::Float, &format!("{name}.one_hot"))
}
