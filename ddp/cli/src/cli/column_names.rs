//! Names of columns in the values of a flag.

use csv::{ReaderBuilder, StringRecord};

/// The names in `values` of a flag that may be repeated. In each value they are separated by commas; a name that holds a comma is quoted,
/// as in a CSV file: `"width, mm",height`.
pub fn column_names(values: &[String]) -> Vec<String> {
    values.iter().flat_map(|value| names_in(value)).collect()
}

fn names_in(value: &str) -> Vec<String> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(value.as_bytes());
    let mut names = StringRecord::new();
    // A flag without a value names the empty column, which no table has, and is refused as such.
    match reader.read_record(&mut names) {
        Ok(true) => names.iter().map(str::to_owned).collect(),
        _ => vec![value.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_comma_is_quoted() {
        let names =
            |values: &[&str]| column_names(&values.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["a,b", "c"]), ["a", "b", "c"]);
        assert_eq!(names(&["\"width, mm\",\"5\"\"\"", "x y"]), ["width, mm", "5\"", "x y"]);
        assert_eq!(names(&["mm \"net\",b"]), ["mm \"net\"", "b"]);
        assert_eq!(names(&["", "a,"]), ["", "a", ""]);
        assert!(names(&[]).is_empty());
    }
}
