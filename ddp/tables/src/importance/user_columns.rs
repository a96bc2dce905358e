//! The columns of files as the user knows them, for reports.

use ddp::data::RowLayout;

use crate::importance::permuted_columns::UserColumn;
use crate::values::time::{PARTS, date_of_parts};

/// The user's columns that the features of `layout` come from, in order.
///
/// - `has_parts`: whether dates were read in parts, which are one column of the user
pub fn user_columns(layout: &RowLayout, has_parts: bool) -> Vec<UserColumn> {
    let names = &layout.features;
    let mut columns = Vec::new();
    let mut start = 0;
    while start < names.len() {
        let date = date_of_parts(&names[start..]).filter(|_| has_parts);
        let n = if date.is_some() { PARTS.len() } else { 1 };
        let name = date.unwrap_or(&names[start]).to_owned();
        columns.push(UserColumn { name, columns: start..start + n });
        start += n;
    }
    columns
}

#[cfg(test)]
mod tests {
    use ddp::data::TargetLayout;

    use super::*;

    #[test]
    fn the_parts_of_a_date_are_one_column() {
        let mut names = vec!["a".to_owned()];
        names.extend(PARTS.map(|part| format!("when{part}")));
        names.push("b.year".to_owned());
        let layout = RowLayout::new(names, TargetLayout::Classes { n_classes: 2 });
        let names = |has_parts| -> Vec<_> {
            user_columns(&layout, has_parts).into_iter().map(|c| (c.name, c.columns)).collect()
        };
        assert_eq!(
            names(true),
            [("a".to_owned(), 0..1), ("when".to_owned(), 1..8), ("b.year".to_owned(), 8..9)]
        );
        assert_eq!(names(false).len(), 9);
    }
}
