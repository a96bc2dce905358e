//! Tables of a library's functions, looked up by name in the library that was opened.

/// Defines a table of function pointers and `find`, which looks each up by its name in an
/// [`Open`](crate::cuda::library::Open) library; its error is the name of a missing function.
///
/// Types must match the library's header; use an integer for a status, since newer libraries may return other values.
#[macro_export]
macro_rules! library_functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident {
            $($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $table {
            $($visibility $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            fn find(library: &$crate::cuda::library::Open) -> ::std::result::Result<Self, &'static str> {
                Ok($table {
                    // SAFETY: for each function: the type matches the library's header.
                    $($field: unsafe { library.symbol($name) }.ok_or($name)?,)*
                })
            }
        }
    };
}
