//! Names of columns in the values of a flag.

use csv::ReaderBuilder;

/// The names in `values` of a flag that may be repeated. In each value they are separated by commas or line ends; a name that holds one is
/// quoted, as in a CSV file: `"width, mm",height`.
pub fn column_names(values: &[String]) -> Vec<String> {
    values.iter().flat_map(|value| names_in(value)).collect()
}

fn names_in(value: &str) -> Vec<String> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(value.as_bytes());
    let lines: Vec<_> = reader.records().filter_map(Result::ok).collect();
    let names: Vec<_> = lines.iter().flatten().map(str::to_owned).collect();
    // A flag without a value names the empty column, which no table has, and is refused as such.
    if names.is_empty() { vec![value.to_owned()] } else { names }
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
        assert_eq!(names(&["a\nb,c\n"]), ["a", "b", "c"]);
        assert!(names(&[]).is_empty());
    }
}
