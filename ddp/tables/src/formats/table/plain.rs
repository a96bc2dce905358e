//! Columns whose types have a plain equivalent: runs and views of lists, extension types that stand for truth values, integers of 128
//! bits. The rest of the program sees the plain type only.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, GenericListViewArray, Int64Array,
    OffsetSizeTrait, RecordBatch, RunArray, StringArray, UInt64Array, make_array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::take::take;

use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Key of the metadata of a field that names its extension type.
const EXTENSION: &str = "ARROW:extension:name";

/// The columns of a file with plain types.
#[derive(Debug, Clone)]
pub(super) struct PlainTypes {
    schema: SchemaRef,
    /// The conversion of each column; `None` for one that is plain in the file.
    steps: Vec<Option<Step>>,
}

/// A conversion.
#[derive(Debug, Clone)]
enum Step {
    /// Runs of equal values become values.
    Runs,
    /// Views of lists become lists.
    Views,
    /// Bytes become truth values.
    Truths,
    /// Integers of 128 bits become decimals.
    Wide,
    /// Numbers become these names.
    Names(ArrayRef),
}

impl PlainTypes {
    /// The plain types of the columns of `schema`, of which `wide` hold integers of 128 bits, and `label` class labels.
    pub(super) fn new(schema: &SchemaRef, wide: &[usize], label: Option<&str>) -> Self {
        let plain = schema.fields().iter().enumerate().map(|(root, field)| {
            let names = (label == Some(field.name())).then(|| class_names(schema, field)).flatten();
            names.or_else(|| plain(field, wide.contains(&root)))
        });
        let plain: Vec<Option<(Step, DataType)>> = plain.collect();
        let step = |plain: &Option<(Step, DataType)>| plain.as_ref().map(|(step, _)| step.clone());
        let steps: Vec<Option<Step>> = plain.iter().map(step).collect();
        if steps.iter().all(Option::is_none) {
            return PlainTypes { schema: schema.clone(), steps };
        }
        let fields = schema.fields().iter().zip(plain).map(|(field, plain)| match plain {
            None => field.clone(),
            Some((_, of)) => {
                let mut metadata = field.metadata().clone();
                metadata.retain(|key, _| !key.starts_with("ARROW:extension:"));
                Arc::new(Field::new(field.name(), of, true).with_metadata(metadata))
            }
        });
        let schema = Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
        PlainTypes { schema: Arc::new(schema), steps }
    }

    /// The columns.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The plain types of the columns with these indices, which ascend.
    pub(super) fn of(&self, columns: &[usize]) -> Self {
        let schema = self.schema.project(columns).expect("the columns are those of the schema");
        let steps = columns.iter().map(|&column| self.steps[column].clone()).collect();
        PlainTypes { schema: Arc::new(schema), steps }
    }

    /// Converts a batch with these columns.
    pub(super) fn convert(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        if self.steps.iter().all(Option::is_none) {
            return Ok(batch);
        }
        let arrays = batch.columns().iter().zip(&self.steps).map(|(array, step)| match step {
            None => Ok(array.clone()),
            Some(Step::Runs) => values_of_runs(array),
            Some(Step::Views) => match array.data_type() {
                DataType::ListView(_) => lists_of_views(array.as_list_view::<i32>()),
                _ => lists_of_views(array.as_list_view::<i64>()),
            },
            Some(Step::Truths) => {
                let bytes = array.as_primitive::<Int8Type>();
                Ok(Arc::new(BooleanArray::from_unary(bytes, |byte| byte != 0)) as ArrayRef)
            }
            Some(Step::Wide) => {
                let whole = |bytes: &[u8]| i128::from_le_bytes(bytes.try_into().expect("16 bytes"));
                let values = array.as_fixed_size_binary().iter().map(|bytes| bytes.map(whole));
                let decimals = values.collect::<Decimal128Array>().with_precision_and_scale(38, 0)?;
                Ok(Arc::new(decimals) as ArrayRef)
            }
            Some(Step::Names(names)) => {
                // A number without a name, such as -1, is no class.
                let place = |number| (0..names.len() as i64).contains(&number).then_some(number);
                let places = array.as_primitive::<Int64Type>().unary_opt::<_, Int64Type>(place);
                Ok(Arc::new(DictionaryArray::try_new(places, names.clone())?) as ArrayRef)
            }
        });
        RecordBatch::try_new(self.schema.clone(), arrays.collect::<Result<_, _>>()?)
    }
}

/// The conversion of a column and its plain type; `None` for one that is plain.
fn plain(field: &Field, is_wide: bool) -> Option<(Step, DataType)> {
    let extension = field.metadata().get(EXTENSION).map(String::as_str);
    match field.data_type() {
        DataType::RunEndEncoded(_, values) => Some((Step::Runs, values.data_type().clone())),
        DataType::ListView(of) | DataType::LargeListView(of) => {
            Some((Step::Views, DataType::LargeList(of.clone())))
        }
        DataType::Int8 if extension == Some("arrow.bool8") => Some((Step::Truths, DataType::Boolean)),
        DataType::FixedSizeBinary(_) if is_wide => Some((Step::Wide, DataType::Decimal128(38, 0))),
        _ => None,
    }
}

/// The conversion of class numbers to the names in the schema's metadata, where Hugging Face's library writes them.
fn class_names(schema: &Schema, field: &Field) -> Option<(Step, DataType)> {
    let metadata: serde_json::Value = serde_json::from_str(schema.metadata().get("huggingface")?).ok()?;
    let names = metadata["info"]["features"][field.name()]["names"].as_array()?;
    let names: Vec<&str> = names.iter().map(|name| Some(name.as_str()?.trim())).collect::<Option<_>>()?;
    let notation = Notation::new(DecimalMark::Point, &[]);
    let are_numbers = names.iter().enumerate().all(|(number, name)| *name == number.to_string());
    let are_distinct = names.iter().collect::<HashSet<_>>().len() == names.len();
    let are_names = are_distinct && !are_numbers && !names.iter().any(|name| notation.is_missing_label(name));
    let is_class = *field.data_type() == DataType::Int64 && are_names;
    let of = DataType::Dictionary(DataType::Int64.into(), DataType::Utf8.into());
    is_class.then(|| (Step::Names(Arc::new(StringArray::from(names))), of))
}

fn values_of_runs(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn values<R: RunEndIndexType>(
        runs: &RunArray<R>,
        size: impl Fn(R::Native) -> usize,
    ) -> Result<ArrayRef, ArrowError> {
        let ends = runs.run_ends();
        let mut run = ends.get_start_physical_index();
        let run_of = |row: usize| {
            while size(ends.values()[run]) <= ends.offset() + row {
                run += 1;
            }
            run as u64
        };
        take(runs.values(), &UInt64Array::from_iter_values((0..runs.len()).map(run_of)), None)
    }
    let DataType::RunEndEncoded(ends, _) = array.data_type() else { unreachable!("runs") };
    match ends.data_type() {
        DataType::Int16 => values(array.as_run::<Int16Type>(), |end| end as usize),
        DataType::Int32 => values(array.as_run::<Int32Type>(), |end| end as usize),
        _ => values(array.as_run::<Int64Type>(), |end| end as usize),
    }
}

fn lists_of_views<O: OffsetSizeTrait>(views: &GenericListViewArray<O>) -> Result<ArrayRef, ArrowError> {
    let (mut elements, mut ends) = (Vec::new(), vec![0]);
    for row in 0..views.len() {
        if views.is_valid(row) {
            let start = views.value_offset(row).as_usize() as u64;
            elements.extend(start..start + views.value_size(row).as_usize() as u64);
        }
        ends.push(elements.len() as i64);
    }
    let values = take(views.values(), &UInt64Array::from(elements), None)?;
    let (DataType::ListView(of) | DataType::LargeListView(of)) = views.data_type() else {
        unreachable!("views of lists")
    };
    let lists = views.to_data().into_builder().data_type(DataType::LargeList(of.clone())).offset(0);
    let lists = lists.buffers(Int64Array::from(ends).into_data().buffers().to_vec());
    Ok(make_array(lists.child_data(vec![values.to_data()]).build()?))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::types::Float64Type;
    use arrow_array::{Float64Array, Int8Array, Int16Array, ListViewArray};

    use super::*;

    /// The column `array` with plain types, with metadata of its field and of the schema.
    fn read(array: ArrayRef, of_field: &[(&str, &str)], of_schema: &[(&str, &str)]) -> ArrayRef {
        let texts = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let field = Field::new("y", array.data_type().clone(), true).with_metadata(texts(of_field));
        let schema = Arc::new(Schema::new_with_metadata(vec![field], texts(of_schema)));
        let plain = PlainTypes::new(&schema, &[], Some("y")).of(&[0]);
        let batch = plain.convert(RecordBatch::try_new(schema, vec![array]).unwrap()).unwrap();
        assert_eq!(batch.schema().field(0).data_type(), plain.schema().field(0).data_type());
        batch.column(0).clone()
    }

    #[test]
    fn runs_become_values() {
        let values = Float64Array::from(vec![Some(1.5), None, Some(3.5)]);
        let runs = RunArray::try_new(&Int16Array::from(vec![2, 3, 6]), &values).unwrap();
        for (start, want) in
            [(0, &[Some(1.5), Some(1.5), None, Some(3.5)][..]), (2, &[None, Some(3.5), Some(3.5)])]
        {
            let runs: ArrayRef = Arc::new(runs.slice(start, want.len()));
            assert_eq!(
                *read(runs, &[], &[]).as_primitive::<Float64Type>(),
                Float64Array::from(want.to_vec())
            );
        }
    }

    #[test]
    fn views_of_lists_become_lists() {
        let lists = [Some(vec![Some(1.0), None]), None, Some(vec![]), Some(vec![Some(4.0)])];
        let views: ArrayRef = Arc::new(ListViewArray::from_iter_primitive::<Float64Type, _, _>(lists));
        let lists = read(views.slice(1, 3), &[], &[]);
        let lists = lists.as_list::<i64>();
        assert_eq!((lists.null_count(), lists.value(1).len()), (1, 0));
        assert_eq!(lists.value(2).as_primitive::<Float64Type>().values(), &[4.0]);
        assert_eq!(read(views, &[], &[]).as_list::<i64>().value(0).null_count(), 1);
    }

    #[test]
    fn bytes_of_the_extension_are_truth_values() {
        let bytes: ArrayRef = Arc::new(Int8Array::from(vec![Some(0), Some(1), None, Some(-1)]));
        let truths = read(bytes.clone(), &[(EXTENSION, "arrow.bool8")], &[]);
        assert_eq!(*truths.as_boolean(), BooleanArray::from(vec![Some(false), Some(true), None, Some(true)]));
        assert_eq!(read(bytes, &[(EXTENSION, "arrow.other")], &[]).data_type(), &DataType::Int8);
    }

    #[test]
    fn class_numbers_become_the_names_of_hugging_face() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(0), Some(-1), None]));
        let of = |names: &str| {
            let text = format!(
                "{{\"info\":{{\"features\":{{\"y\":{{\"names\":{names},\"_type\":\"ClassLabel\"}}}}}}}}"
            );
            read(numbers.clone(), &[], &[("huggingface", &text)])
        };
        let named = of("[\"neg\", \"pos\"]");
        let names = named.as_dictionary::<Int64Type>().downcast_dict::<StringArray>().unwrap();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), [Some("pos"), Some("neg"), None, None]);
        // Names that are the numbers, or that do not tell classes apart.
        for names in ["[\"0\", \"1\"]", "[\"a\", \"a\"]", "[\"a\", \"NA\"]", "null"] {
            assert_eq!(of(names).data_type(), &DataType::Int64, "{names}");
        }
    }
}
