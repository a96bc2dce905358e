//! Columns whose types have a plain equivalent: runs and views of lists, extension types that stand for truth values, integers of 128
//! bits. The rest of the program sees the plain type only.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, GenericListViewArray, Int64Array, OffsetSizeTrait,
    RecordBatch, RunArray, UInt64Array, make_array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::take::take;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Runs of equal values become values.
    Runs,
    /// Views of lists become lists.
    Views,
    /// Bytes become truth values.
    Truths,
    /// Integers of 128 bits become decimals.
    Wide,
}

impl PlainTypes {
    /// The plain types of the columns of `schema`, of which `wide` hold integers of 128 bits.
    pub(super) fn new(schema: &SchemaRef, wide: &[usize]) -> Self {
        let plain =
            schema.fields().iter().enumerate().map(|(root, field)| plain(field, wide.contains(&root)));
        let plain: Vec<Option<(Step, DataType)>> = plain.collect();
        let steps: Vec<Option<Step>> =
            plain.iter().map(|plain| plain.as_ref().map(|(step, _)| *step)).collect();
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

    /// Those of the columns with these indices, which ascend.
    pub(super) fn of(&self, columns: &[usize]) -> Self {
        let schema = self.schema.project(columns).expect("the columns are those of the schema");
        let steps = columns.iter().map(|&column| self.steps[column]).collect();
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
