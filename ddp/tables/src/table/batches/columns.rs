//! Needed columns of a file, and checks of their types against their roles.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use arrow_array::Array as _;
use arrow_schema::{DataType, Field, Schema};
use ddp::config::Task;
use ddp::data::DataError;
use ddp::data::column_kind::{ColumnKind, SeenKinds};
use ddp::data::error::Result;
use serde_json::Value;

use crate::formats::error::{ColumnError, RowsError};
use crate::formats::table::batch_source::{BatchSource, ListColumn, Selection};
use crate::formats::table::source::{FileColumns, MAX_COLUMNS};
use crate::source::{SourceSpec, ToPredict};
use crate::table::batches::elements::{Element, element_of, element_type};
use crate::table::batches::text;
use crate::table::columns::{ColumnPlan, Role, categories};
use crate::values::notation::{Meaning, Notation};
use crate::values::number::DecimalMark;
use crate::values::time;

/// The columns of a file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::table) struct Columns {
    pub(in crate::table) plan: ColumnPlan,
    /// Needed columns in the order of the file.
    pub(in crate::table) needed: Vec<Column>,
    /// Columns that are passed through as text, one per kept column of the plan; `None` for one of the file's folders.
    pub(super) kept: Vec<Option<Kept>>,
    /// Types of those that are passed through as they are.
    pub(in crate::table) kept_types: Vec<Option<DataType>>,
    /// The marks of missing values.
    pub(super) notation: Notation,
}

/// A column that is kept as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// Index among the file's columns.
    pub(super) root: usize,
    /// Index in its list.
    pub(super) element: Option<usize>,
}

/// A column that is needed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::table) struct Column {
    pub(super) name: String,
    /// Index among the file's columns.
    pub(in crate::table) root: usize,
    pub(super) data_type: DataType,
    /// The element of its list, where elements of one list have several roles.
    pub(super) element: Option<Element>,
    /// Its roles; a list has one per element.
    pub(in crate::table) roles: Vec<Role>,
    /// Meaning of its texts where they are features.
    pub(super) texts: Option<TextMeaning>,
}

/// Meaning of the first value of a column of texts, as in a file of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextMeaning {
    Date,
    Time,
    Number,
    /// No value is there.
    Missing,
    Other,
}

/// Kind of a type.
pub(super) enum Kind {
    Number,
    Text,
    List,
    Other(&'static str),
}

impl Columns {
    /// The columns of `source`, the file `path`, with their roles.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`], [`ColumnError::Text`], and the errors of [`ColumnPlan::new`].
    pub(in crate::table) fn new(
        path: &Path,
        source: &dyn BatchSource,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let schema = source.schema();
        let of_pandas = pandas_indices(schema);
        let (mut names, mut are_dates, mut indices) = (Vec::<String>::new(), Vec::new(), Vec::new());
        // Number of names that each column stands for.
        let mut widths = Vec::new();
        check_names(path, schema)?;
        let categories = categories(spec);
        let mut whole = WholeLists::of(spec);
        let dropped: HashSet<&String> = spec.data.drop.iter().collect();
        let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
        let is_aside = |name: &String| {
            spec.data.target.contains(name)
                || dropped.contains(name)
                || spec.data.weight.as_ref() == Some(name)
                || categories.contains(name.as_str())
        };
        let may_be_feature = |name: &String| match spec.features {
            Some(known) => known.names.iter().any(|known| known.strip_prefix(name.as_str()).is_some()),
            None => !of_pandas.contains(name),
        };
        let is_read = |field: &Field| {
            matches!(kind(field.data_type()), Kind::Text)
                && !is_aside(field.name())
                && may_be_feature(field.name())
        };
        let texts_of: Vec<usize> =
            (0..schema.fields().len()).filter(|&root| is_read(schema.field(root))).collect();
        let meanings = text_meanings(source, &texts_of, &notation)?;
        for (root, field) in schema.fields().iter().enumerate() {
            let name = field.name();
            match kind(field.data_type()) {
                Kind::List if !is_aside(name) && !whole.is_only_kept(name, spec) => {
                    whole.add(name, root);
                    let len = first_list_len(source, root)?;
                    let len = checked_len(path, field, len)?;
                    names.extend((0..len).map(|i| format!("{name}[{i}]")));
                    widths.push(len);
                }
                _ => {
                    if of_pandas.contains(name) {
                        indices.push(names.len());
                    }
                    names.push(name.clone());
                    widths.push(1);
                }
            }
            let is_date = is_date(field.data_type()) || meanings.get(&root) == Some(&TextMeaning::Date);
            are_dates.resize(names.len(), is_date);
        }
        let file = FileColumns { names, are_dates, indices, ..FileColumns::default() };
        let plan = ColumnPlan::new(path, file, &whole.by_elements(spec))?;
        // Before the values decide on the task, a single target may hold labels.
        let takes_labels = spec.data.task == Task::Classification && spec.data.target.len() == 1;
        let mut needed = Vec::new();
        // Features of text, and the first fault of any column.
        let (mut texts, mut fault) = (Vec::new(), None);
        // The column of each name.
        let mut places = Vec::new();
        let mut at = 0;
        for ((root, field), width) in schema.fields().iter().enumerate().zip(widths) {
            let roles = plan.roles[at..at + width].to_vec();
            at += width;
            let is_list =
                matches!(kind(field.data_type()), Kind::List) && plan.names[at - width] != *field.name();
            places.extend((0..width).map(|element| Kept { root, element: is_list.then_some(element) }));
            for column in columns_of(root, field, roles, is_list, meanings.get(&root).copied()) {
                if let Err(error) = column.check(path, takes_labels, spec.features.is_some()) {
                    texts.extend(column.is_text_feature().then(|| column.name.clone()));
                    fault.get_or_insert(error);
                }
                needed.push(column);
            }
        }
        if texts.len() > 1 {
            return Err(DataError::from(ColumnError::Text { path: path.to_owned(), columns: texts }));
        }
        fault.map_or(Ok(()), Err)?;
        let kept = plan.kept.iter().enumerate().map(|(number, &at)| {
            let root = whole.roots.get(number).copied().flatten();
            root.map(|root| Kept { root, element: None }).or_else(|| places.get(at).copied())
        });
        let kept: Vec<Option<Kept>> = kept.collect();
        let keeps_types = spec.to_predict.is_some_and(|rows| rows.keeps_types);
        let of_roots = kept.iter().flatten().filter(|kept| kept.element.is_none() && !keeps_types);
        for field in of_roots.map(|kept| schema.field(kept.root)) {
            check_text(path, field)?;
        }
        let type_of = |kept: &Option<Kept>| {
            let whole = kept.filter(|kept| keeps_types && kept.element.is_none())?;
            Some(schema.field(whole.root).data_type().clone()).filter(is_storable)
        };
        let kept_types = kept.iter().map(type_of).collect();
        Ok(Columns { plan, needed, kept, kept_types, notation })
    }

    /// The columns to read, `batch_rows` rows at a time.
    pub(in crate::table) fn selection(&self, batch_rows: usize) -> Selection {
        Selection { roots: self.roots(), lists: self.lists(), max_len: 0, batch_rows }
    }

    /// Indices of the file's columns that are read, ascending.
    pub(in crate::table) fn roots(&self) -> Vec<usize> {
        let of_kept = self.kept.iter().flatten().map(|kept| kept.root);
        let mut roots: Vec<usize> = self.needed.iter().map(|column| column.root).chain(of_kept).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// The needed columns that are lists.
    fn lists(&self) -> Vec<ListColumn> {
        let list = |of: &Column| {
            let (name, len) = match &of.element {
                Some(element) => (&element.list, element.len),
                None if matches!(kind(&of.data_type), Kind::List) => (&of.name, of.roles.len()),
                None => return None,
            };
            Some(ListColumn { name: name.clone(), root: of.root, len })
        };
        let mut lists: Vec<ListColumn> = self.needed.iter().filter_map(list).collect();
        lists.dedup_by_key(|list| list.root);
        lists
    }

    /// Kinds of the values of the features by the types of their columns; `None` for texts whose first value is missing, and without values.
    pub(in crate::table) fn kinds(&self) -> Vec<Option<ColumnKind>> {
        let mut kinds = vec![Some(ColumnKind::Number); self.plan.features.len()];
        for column in &self.needed {
            if let Role::Feature(feature) = column.roles[0] {
                kinds[feature] = column.kind();
            }
        }
        kinds
    }

    /// Features of numbers that f32 rounds.
    pub(in crate::table) fn n_wide_features(&self) -> usize {
        self.n_wide(|role| matches!(role, Role::Feature(_)))
    }

    /// Targets of numbers that f32 rounds.
    pub(in crate::table) fn n_wide_targets(&self) -> usize {
        self.n_wide(|role| matches!(role, Role::Target(_)))
    }

    fn n_wide(&self, is_one: impl Fn(&Role) -> bool) -> usize {
        let wide = self.needed.iter().filter(|column| is_wide(&column.data_type));
        wide.flat_map(|column| &column.roles).filter(|role| is_one(role)).count()
    }
}

/// The needed columns of the file's column `field`: a list is one if all of its elements are numbers to train on, or else each element that
/// has a use.
fn columns_of(
    root: usize,
    field: &Field,
    roles: Vec<Role>,
    is_list: bool,
    texts: Option<TextMeaning>,
) -> Vec<Column> {
    let (name, data_type) = (field.name().clone(), field.data_type().clone());
    if roles.iter().all(|role| *role == Role::Dropped) {
        return Vec::new();
    }
    if !is_list || roles.iter().all(|role| matches!(role, Role::Feature(_))) {
        return vec![Column { name, root, data_type, element: None, roles, texts }];
    }
    let (len, of) = (roles.len(), element_type(&data_type));
    let column = |(at, role)| Column {
        name: format!("{name}[{at}]"),
        root,
        data_type: of.clone(),
        element: Some(Element { list: name.clone(), at, len }),
        roles: vec![role],
        texts,
    };
    roles.into_iter().enumerate().filter(|(_, role)| *role != Role::Dropped).map(column).collect()
}

/// Fails for two columns of the same name.
pub(super) fn check_names(path: &Path, schema: &Schema) -> Result<()> {
    let mut seen = HashSet::new();
    match schema.fields().iter().find(|field| !seen.insert(field.name())) {
        Some(field) => Err(DataError::from(RowsError::Malformed {
            path: path.to_owned(),
            format: "table",
            reason: format!("two of its columns are named \"{}\"", field.name()),
            hint: "rename one of them",
        })),
        None => Ok(()),
    }
}

/// Lists that are kept as a whole, while their elements may be features.
struct WholeLists {
    /// The columns to keep, with the first element in place of a list.
    names: Vec<String>,
    /// The column of the file behind each of them that is a list.
    roots: Vec<Option<usize>>,
}

impl WholeLists {
    fn of(spec: &SourceSpec<'_>) -> Self {
        let names = spec.to_predict.map_or(Vec::new(), |rows| rows.kept.to_vec());
        WholeLists { roots: vec![None; names.len()], names }
    }

    /// Whether the list `name` is kept, and its elements are not features of the model.
    fn is_only_kept(&self, name: &String, spec: &SourceSpec<'_>) -> bool {
        let is_element = |of: &String| element_of(of).is_some_and(|(list, _)| list == name);
        let is_feature = || spec.features.is_none_or(|known| known.names.iter().any(is_element));
        self.names.contains(name) && !is_feature()
    }

    /// Adds a list whose elements have names of their own.
    fn add(&mut self, name: &String, root: usize) {
        for (kept, of_file) in self.names.iter_mut().zip(&mut self.roots).filter(|(kept, _)| *kept == name) {
            *kept = first_element(name);
            *of_file = Some(root);
        }
    }

    /// `spec` with an element to keep in place of each list.
    fn by_elements<'a>(&'a self, spec: &SourceSpec<'a>) -> SourceSpec<'a> {
        let to_predict = spec.to_predict.map(|rows| ToPredict { kept: &self.names, ..rows });
        SourceSpec { to_predict, ..*spec }
    }
}

fn first_element(name: &str) -> String {
    format!("{name}[0]")
}

/// Fails unless the values of a kept column have a text.
fn check_text(path: &Path, field: &Field) -> Result<()> {
    if matches!(kind(field.data_type()), Kind::Number | Kind::Text) {
        return Ok(());
    }
    Err(DataError::from(ColumnError::WrongType {
        path: path.to_owned(),
        column: field.name().clone(),
        expected: "a value that text can hold, to keep it",
        got: field.data_type().to_string(),
        hint: "write the predictions to .parquet, which keeps its type, or keep elements of a list, such as NAME[0]",
    }))
}

impl Column {
    /// Whether it holds texts in place of numbers.
    fn is_text_feature(&self) -> bool {
        matches!((kind(&self.data_type), self.roles[0]), (Kind::Text, Role::Feature(_)))
    }

    /// Whether its texts are read as the cells of a file of text are.
    pub(super) fn is_of_cells(&self) -> bool {
        self.texts.is_some() && matches!(self.roles[0], Role::Feature(_) | Role::Date(_))
    }

    /// Fails unless its type fits its role; a target that `takes_labels` may hold text, and a feature texts that are dates, or numbers if a
    /// model `is_known` that needs them.
    fn check(&self, path: &Path, takes_labels: bool, is_known: bool) -> Result<()> {
        let (expected, hint) = match (kind(&self.data_type), self.roles[0]) {
            (Kind::Text, Role::Feature(_) | Role::Date(_)) if self.has_usable_texts(is_known) => {
                return Ok(());
            }
            (_, Role::Date(_)) if !is_date(&self.data_type) && !is_empty(&self.data_type) => {
                ("dates", "write them as text, such as 2024-05-31, or as a type of dates")
            }
            (Kind::Number, _) | (Kind::List, Role::Feature(_)) | (Kind::Text, Role::Category { .. }) => {
                return Ok(());
            }
            (Kind::Text, Role::Feature(_)) => ("numbers", "list it in `data.categorical` or `data.drop`"),
            (Kind::Text, Role::Target(_)) if takes_labels => return Ok(()),
            (Kind::Text, Role::Target(_)) => {
                ("numbers", "set `data.task` to \"classification\" for targets of text, with one target")
            }
            (_, Role::Category { .. }) => ("texts or numbers", "remove it from `data.categorical`"),
            (Kind::Text | Kind::List, _) => ("one number per row", "check the name of the column"),
            (Kind::Other(hint), _) => ("numbers", hint),
        };
        Err(DataError::from(ColumnError::WrongType {
            path: path.to_owned(),
            column: self.name.clone(),
            expected,
            got: self.data_type.to_string(),
            hint,
        }))
    }
}

impl Column {
    fn kind(&self) -> Option<ColumnKind> {
        match self.texts {
            Some(TextMeaning::Date) => Some(ColumnKind::Date),
            Some(TextMeaning::Time) => Some(ColumnKind::Time),
            Some(TextMeaning::Missing) => None,
            Some(TextMeaning::Number | TextMeaning::Other) => Some(ColumnKind::Number),
            None if is_empty(&self.data_type) => None,
            None => Some(kinds_of(&self.data_type).kind().unwrap_or(ColumnKind::Number)),
        }
    }

    fn has_usable_texts(&self, is_known: bool) -> bool {
        match self.texts {
            Some(TextMeaning::Date) => true,
            Some(TextMeaning::Time) => matches!(self.roles[0], Role::Feature(_)),
            Some(TextMeaning::Missing) => is_known,
            Some(TextMeaning::Number) => is_known && matches!(self.roles[0], Role::Feature(_)),
            Some(TextMeaning::Other) | None => false,
        }
    }
}

/// Kinds of values of a type; none for numbers, and for texts, which show theirs.
pub(super) fn kinds_of(of: &DataType) -> SeenKinds {
    let mut kinds = SeenKinds::default();
    match of {
        DataType::Dictionary(_, of) => return kinds_of(of),
        DataType::Timestamp(_, zone) => {
            kinds.add(SeenKinds::DATE);
            kinds.add(if zone.is_some() { SeenKinds::ZONED } else { SeenKinds::NAIVE });
        }
        of if is_date(of) => kinds.add(SeenKinds::DATE),
        DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) => kinds.add(SeenKinds::TIME),
        _ => {}
    }
    kinds
}

/// Whether the values are dates or times, whose labels and categories are their texts.
pub(super) fn are_moments(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, of) => are_moments(of),
        of => of.is_temporal() && !matches!(of, DataType::Interval(_)),
    }
}

/// Whether the values are decimal numbers.
pub(super) fn are_decimals(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, of) => are_decimals(of),
        of => of.is_decimal(),
    }
}

/// The meaning of the first value in each of the columns `roots`, which hold texts.
fn text_meanings(
    source: &dyn BatchSource,
    roots: &[usize],
    notation: &Notation,
) -> Result<HashMap<usize, TextMeaning>> {
    const BATCH_ROWS: usize = 64;
    let mut found: HashMap<usize, TextMeaning> = HashMap::new();
    if roots.is_empty() {
        return Ok(found);
    }
    let selection =
        Selection { roots: roots.to_vec(), lists: Vec::new(), max_len: 0, batch_rows: BATCH_ROWS };
    let mut text = Vec::new();
    for batch in source.read(&selection)? {
        for (&root, array) in roots.iter().zip(batch?.columns()) {
            for row in 0..if found.contains_key(&root) { 0 } else { array.len() } {
                text.clear();
                text::put(array, row, &mut text);
                let Ok(text) = std::str::from_utf8(&text) else { continue };
                let meaning = match notation.meaning(text.trim()) {
                    Meaning::Missing => continue,
                    _ if time::is_infinite(text.trim()) => continue,
                    Meaning::Moment(moment) if moment.has_date => TextMeaning::Date,
                    Meaning::Moment(_) => TextMeaning::Time,
                    Meaning::Number(_) | Meaning::Truth(_) => TextMeaning::Number,
                    Meaning::Unclear(_) | Meaning::Text => TextMeaning::Other,
                };
                found.insert(root, meaning);
                break;
            }
        }
        if found.len() == roots.len() {
            break;
        }
    }
    roots.iter().for_each(|root| _ = found.entry(*root).or_insert(TextMeaning::Missing));
    Ok(found)
}

/// Whether Parquet has the type.
fn is_storable(data_type: &DataType) -> bool {
    use DataType as T;
    !matches!(
        data_type,
        T::Interval(_) | T::Union(..) | T::RunEndEncoded(..) | T::ListView(_) | T::LargeListView(_)
    )
}

/// Names of the columns that pandas wrote for an index: `__index_level_0__`, and those that its metadata lists.
pub(super) fn pandas_indices(schema: &Schema) -> Vec<String> {
    let is_unnamed = |name: &&String| {
        let number = name.strip_prefix("__index_level_").and_then(|rest| rest.strip_suffix("__"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let names = schema.fields().iter().map(|field| field.name());
    let mut indices: Vec<String> = names.filter(is_unnamed).cloned().collect();
    let metadata = schema.metadata().get("pandas").and_then(|text| serde_json::from_str::<Value>(text).ok());
    // A range is not stored as a column, and is described instead of named.
    let listed = metadata.as_ref().and_then(|metadata| metadata["index_columns"].as_array());
    indices.extend(listed.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    indices
}

pub(super) fn is_date(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, of) => is_date(of),
        other => matches!(other, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)),
    }
}

/// Whether each value of the type is missing, as of a column that a program found empty.
fn is_empty(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, of) => is_empty(of),
        of => of.is_null(),
    }
}

pub(super) fn kind(data_type: &DataType) -> Kind {
    use DataType as T;
    const FLATTEN: &str = "split it into columns, or list it in `data.drop`";
    match data_type {
        T::Dictionary(_, of) => match kind(of) {
            Kind::List => Kind::Other(FLATTEN),
            other => other,
        },
        T::List(of) | T::LargeList(of) | T::FixedSizeList(of, _) => match of.data_type() {
            T::Float16 | T::Float32 | T::Float64 => Kind::List,
            of if of.is_integer() => Kind::List,
            _ => Kind::Other(FLATTEN),
        },
        T::Utf8 | T::LargeUtf8 | T::Utf8View => Kind::Text,
        T::Null | T::Boolean => Kind::Number,
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => Kind::Number,
        of if of.is_integer() || of.is_floating() => Kind::Number,
        T::Timestamp(..) | T::Date32 | T::Date64 | T::Time32(_) | T::Time64(_) | T::Duration(_) => {
            Kind::Number
        }
        T::Interval(_) => Kind::Other("convert it to a number of seconds, or list it in `data.drop`"),
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => {
            Kind::Other("write texts as strings (UTF8), or list it in `data.drop`")
        }
        _ => Kind::Other(FLATTEN),
    }
}

/// Whether f32 rounds some values of the type.
fn is_wide(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Dictionary(_, of) => is_wide(of),
        T::List(of) | T::LargeList(of) | T::FixedSizeList(of, _) => is_wide(of.data_type()),
        T::Int32 | T::Int64 | T::UInt32 | T::UInt64 | T::Float64 => true,
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => true,
        T::Timestamp(..) | T::Date32 | T::Date64 | T::Time32(_) | T::Time64(_) | T::Duration(_) => true,
        // Dates.
        T::Utf8 | T::LargeUtf8 | T::Utf8View => true,
        _ => false,
    }
}

/// The length of the first list of a column, which those of a type of fixed lengths have.
pub(super) fn first_list_len(source: &dyn BatchSource, root: usize) -> Result<Option<usize>> {
    match source.schema().field(root).data_type() {
        DataType::FixedSizeList(_, len) => Ok(usize::try_from(*len).ok()),
        DataType::List(_) | DataType::LargeList(_) => Ok(source.first_list_len(root)?),
        // To look for lists takes a reader of the whole schema: once for each column would be quadratic.
        _ => Ok(None),
    }
}

/// The length of a column's lists, if a table can have a column for each element.
pub(super) fn checked_len(path: &Path, field: &Field, len: Option<usize>) -> Result<usize> {
    let column_type = |expected, got, hint| {
        let (path, column) = (path.to_owned(), field.name().clone());
        DataError::from(ColumnError::WrongType { path, column, expected, got, hint })
    };
    match len {
        Some(len @ 1..=MAX_COLUMNS) => Ok(len),
        Some(0) | None => {
            Err(column_type("lists of one length", "empty ones".to_owned(), "list it in `data.drop`"))
        }
        Some(len) => Err(column_type(
            "lists of at most 1048576 numbers",
            format!("lists of {len} or more"),
            "write them as an array (npy), or list it in `data.drop`",
        )),
    }
}
