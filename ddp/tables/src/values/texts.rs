//! A column of texts.

/// Texts of consecutive rows, one after the other in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Texts {
    bytes: String,
    ends: Vec<usize>,
}

impl Texts {
    /// Appends a string.
    pub fn push(&mut self, text: &str) {
        self.bytes.push_str(text);
        self.ends.push(self.bytes.len());
    }

    /// Number of texts.
    pub fn n_rows(&self) -> usize {
        self.ends.len()
    }

    /// The string of a row.
    pub fn get(&self, row: usize) -> &str {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start..self.ends[row]]
    }

    /// The texts, in order.
    #[cfg(any(test, feature = "parquet"))]
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.n_rows()).map(|row| self.get(row))
    }

    /// Removes the texts from `first` on.
    pub fn truncate(&mut self, first: usize) {
        let end = if first == 0 { 0 } else { self.ends.get(first - 1).copied().unwrap_or(self.bytes.len()) };
        self.bytes.truncate(end);
        self.ends.truncate(first);
    }
}

#[cfg(test)]
mod tests {
    use crate::values::texts::*;

    #[test]
    fn texts_are_stored_in_order_and_truncated() {
        let mut texts = Texts::default();
        ["a", "", "öß"].iter().for_each(|text| texts.push(text));
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "öß"]);
        texts.truncate(5);
        assert_eq!(texts.n_rows(), 3);
        texts.truncate(2);
        texts.push("z");
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "z"]);
        texts.truncate(0);
        assert_eq!(texts.n_rows(), 0);
    }
}
