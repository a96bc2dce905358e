//! The columns of files as the user knows them, for reports.

use ddp::data::RowLayout;

use crate::importance::permuted_columns::UserColumn;
use crate::values::time::PARTS;

/// The user's columns that the features of `layout` come from, in order; the parts of a date are one column.
pub fn user_columns(layout: &RowLayout) -> Vec<UserColumn> {
    let names = &layout.features;
    let mut columns = Vec::new();
    let mut start = 0;
    while start < names.len() {
        let name = &*names[start];
        let (name, n) = if layout.dates.contains(&start) {
            (name.strip_suffix(PARTS[0]).unwrap_or(name), PARTS.len())
        } else {
            (name, 1)
        };
        columns.push(UserColumn { name: name.to_owned(), columns: start..start + n });
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
        let mut features = vec!["a".to_owned()];
        features.extend(PARTS.map(|part| format!("when{part}")));
        features.push("b.year".to_owned());
        let mut layout = RowLayout::new(features, TargetLayout::Classes { n_classes: 2 });
        // Columns of the names that parts of a date have.
        assert_eq!(user_columns(&layout).len(), 9);
        layout.dates = vec![1];
        let columns: Vec<_> = user_columns(&layout).into_iter().map(|c| (c.name, c.columns)).collect();
        assert_eq!(columns, [("a".to_owned(), 0..1), ("when".to_owned(), 1..8), ("b.year".to_owned(), 8..9)]);
    }
}
