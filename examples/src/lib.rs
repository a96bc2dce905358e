//! Small programs on the libraries.
