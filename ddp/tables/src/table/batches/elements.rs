//! Elements of lists as columns of their own.

use std::path::Path;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, UInt64Array, new_null_array};
use arrow_schema::DataType;
use arrow_select::take::take;

use crate::formats::error::{ColumnError, Result, RowsError};
use crate::table::batches::arrays::list;

/// An element of a list that is a column of its own.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::table) struct Element {
    /// Name of the list.
    pub(in crate::table) list: String,
    /// Its number in the list.
    pub(in crate::table) at: usize,
    /// Length of the lists.
    pub(in crate::table) len: usize,
}

impl Element {
    /// The values in `lists`, rows of the file `path` from row `row` on. Rows with lists of another length are added to `bad_rows` instead of
    /// being an error, and lack the value.
    ///
    /// # Errors
    /// [`ColumnError::ListLength`]
    pub(in crate::table) fn of_lists(
        &self,
        lists: &dyn Array,
        path: &Path,
        row: usize,
        bad_rows: Option<&mut Vec<usize>>,
    ) -> Result<ArrayRef> {
        let (array, other) = element(lists, self.at, self.len);
        match (other.first(), bad_rows) {
            (None, _) => Ok(array),
            (Some(_), Some(bad_rows)) => {
                bad_rows.extend(other);
                Ok(array)
            }
            (Some(&at), None) => {
                let got = list(lists, at).map_or(0, |list| list.len());
                Err(other_length(path, row + at, &self.list, [self.len, got]))
            }
        }
    }
}

/// The error of a list in row `row` of the file `path`, whose length is the second of `lens` instead of the first.
pub(in crate::table) fn other_length(path: &Path, row: usize, list: &str, lens: [usize; 2]) -> RowsError {
    let [expected, got] = lens;
    RowsError::from(ColumnError::ListLength {
        place: format!("data file `{}`, row {row}", path.display()),
        column: format!("column \"{list}\""),
        expected,
        got,
    })
}

/// Element number `at` of each list, which has `len` elements, and the rows whose lists have another length. These elements are missing,
/// as are those of missing lists.
fn element(lists: &dyn Array, at: usize, len: usize) -> (ArrayRef, Vec<usize>) {
    let mut other = Vec::new();
    // The place among all values of an element of the list in a row.
    let mut place = |row: usize, begin: usize, end: usize| {
        if lists.is_null(row) {
            return None;
        }
        if end - begin != len {
            other.push(row);
            return None;
        }
        Some((begin + at) as u64)
    };
    macro_rules! places {
        ($lists:expr) => {{
            let lists = $lists;
            let ends = lists.value_offsets().windows(2).enumerate();
            let places = ends.map(|(row, ends)| place(row, ends[0] as usize, ends[1] as usize));
            (lists.values(), places.collect::<UInt64Array>())
        }};
    }
    let (values, places) = match lists.data_type() {
        DataType::List(_) => places!(lists.as_list::<i32>()),
        DataType::LargeList(_) => places!(lists.as_list::<i64>()),
        _ => {
            let lists = lists.as_fixed_size_list();
            let width = lists.value_length() as usize;
            let places = (0..lists.len()).map(|row| {
                let begin = lists.value_offset_at(row);
                place(row, begin, begin + width)
            });
            (lists.values(), places.collect())
        }
    };
    if values.is_empty() {
        return (new_null_array(values.data_type(), lists.len()), other);
    }
    (take(&**values, &places, None).expect("the places are those of values"), other)
}

/// The type of the elements of a list, or the type itself of other values.
pub(in crate::table) fn element_type(of: &DataType) -> &DataType {
    match of {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => of.data_type(),
        other => other,
    }
}

/// The list and the number of the element that `name` is the name of, such as `emb[3]`.
pub(in crate::table) fn element_of(name: &str) -> Option<(&str, usize)> {
    let (list, number) = name.strip_suffix(']')?.rsplit_once('[')?;
    let at = number.parse().ok().filter(|at: &usize| at.to_string() == number)?;
    Some((list, at))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::{Int64Type, UInt8Type};
    use arrow_array::{FixedSizeListArray, LargeListArray, ListArray};

    use super::*;

    #[test]
    fn elements_of_lists_of_each_type() {
        let rows = || {
            [Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3), None]), Some(vec![Some(5), Some(6)])]
                .into_iter()
        };
        let lists: [ArrayRef; 3] = [
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows())),
            Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows())),
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(rows(), 2)),
        ];
        for lists in lists {
            for (at, want) in
                [[Some(1), None, Some(3), Some(5)], [Some(2), None, None, Some(6)]].iter().enumerate()
            {
                let (got, other) = element(&lists, at, 2);
                assert_eq!(
                    (got.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), other),
                    (want.to_vec(), vec![])
                );
                let (got, _) = element(&lists.slice(2, 2), at, 2);
                assert_eq!(got.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), want[2..]);
            }
        }
    }

    #[test]
    fn lists_of_another_length_are_told() {
        let rows = [Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![Some(3)])];
        let lists = ListArray::from_iter_primitive::<UInt8Type, _, _>(rows);
        let (got, other) = element(&lists, 1, 2);
        assert_eq!(got.as_primitive::<UInt8Type>().iter().collect::<Vec<_>>(), [Some(2), None, None]);
        assert_eq!(other, [1, 2]);
        assert_eq!(element(&lists.slice(1, 1), 0, 2), (element(&lists, 1, 2).0.slice(1, 1), vec![0]));
        let none = ListArray::from_iter_primitive::<UInt8Type, _, _>([None::<Vec<Option<u8>>>]);
        assert_eq!(element(&none, 0, 2).0.null_count(), 1);
    }

    #[test]
    fn names_of_elements() {
        assert_eq!(element_of("emb[12]"), Some(("emb", 12)));
        assert_eq!(element_of("a[0][1]"), Some(("a[0]", 1)));
        for other in ["emb", "emb[]", "emb[01]", "emb[-1]", "emb[1", "speed [kmh]"] {
            assert_eq!(element_of(other), None, "{other}");
        }
    }
}
