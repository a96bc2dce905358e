//! Defines a section of the config from its fields, so that each key is stated once.

/// Defines the struct of a section, its rows ([`Key`](super::key::Key)) as `KEYS`, and the functions that read and `write` it.
///
/// Each entry in the braces ends with a semicolon; entries are in the order of the rows:
/// - `/// Doc. name: Type = kind(arguments).help("...");` a field and its key of the same name; `as "other"` before `=` names the key
/// - `[expression]` before `=` reads the field in another way; `[optional]` is for a key that may have no value
/// - `key name = kind(...)...;` a key that fields below read
/// - `/// Doc. name: Type { reader, writer };` a field of several keys, or of none; `reader` is an expression, `writer` a function of
///   the field's reference and the [`Writer`](super::writer::Writer)
///
/// The first line names the functions that read and write the section; readers of fields may use the arguments of the first.
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $name:ident in $section:literal, $reader:ident($raw:ident: $raw_of:ty $(, $argument:ident: $of:ty)*), $writer:ident
        { $($body:tt)* }
    ) => {
        section!(@next { $(#[$meta])* $name $section $reader $writer ($raw: $raw_of $(, $argument: $of)*) } [] [] [] [] $($body)*);
    };
    // A key without a field.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        key $key:ident = $kind:ident($($value:tt)*) $(.$method:ident($($words:tt)*))*; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)*] [$($keys)* ((stringify!($key)), $kind, ($($value)*) $(.$method($($words)*))*)]
            [$($reads)*] [$($writes)*] $($rest)*
        );
    };
    // A field of several keys.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        $(#[$doc:meta])* $field:ident: $type:ty { $read:expr, $write:expr }; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)* ($(#[$doc])* $field: $type)] [$($keys)*]
            [$($reads)* ($field, $read)] [$($writes)* (group $field, ($write))] $($rest)*
        );
    };
    // A field whose key may have no value.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        $(#[$doc:meta])* $field:ident: $type:ty [optional] = $kind:ident($($value:tt)*) $(.$method:ident($($words:tt)*))*; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)* ($(#[$doc])* $field: $type)]
            [$($keys)* ((stringify!($field)), $kind, ($($value)*) $(.$method($($words)*))*)]
            [$($reads)* ($field, optional (stringify!($field)))] [$($writes)* (optional $field, (stringify!($field)))] $($rest)*
        );
    };
    // A field with a key of another name.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        $(#[$doc:meta])* $field:ident: $type:ty as $key:literal =
        $kind:ident($($value:tt)*) $(.$method:ident($($words:tt)*))*; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)* ($(#[$doc])* $field: $type)]
            [$($keys)* (($key), $kind, ($($value)*) $(.$method($($words)*))*)]
            [$($reads)* ($field, of ($key))] [$($writes)* (of $field, ($key))] $($rest)*
        );
    };
    // A field with a reader of its own.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        $(#[$doc:meta])* $field:ident: $type:ty [$read:expr] =
        $kind:ident($($value:tt)*) $(.$method:ident($($words:tt)*))*; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)* ($(#[$doc])* $field: $type)]
            [$($keys)* ((stringify!($field)), $kind, ($($value)*) $(.$method($($words)*))*)]
            [$($reads)* ($field, $read)] [$($writes)* (of $field, (stringify!($field)))] $($rest)*
        );
    };
    // A field and its key.
    (
        @next $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*] [$($writes:tt)*]
        $(#[$doc:meta])* $field:ident: $type:ty = $kind:ident($($value:tt)*) $(.$method:ident($($words:tt)*))*; $($rest:tt)*
    ) => {
        section!(
            @next $head [$($fields)* ($(#[$doc])* $field: $type)]
            [$($keys)* ((stringify!($field)), $kind, ($($value)*) $(.$method($($words)*))*)]
            [$($reads)* ($field, of (stringify!($field)))] [$($writes)* (of $field, (stringify!($field)))] $($rest)*
        );
    };
    // All entries.
    (
        @next { $(#[$meta:meta])* $name:ident $section:literal $reader:ident $writer:ident ($raw:ident: $raw_of:ty $(, $argument:ident: $of:ty)*) }
        [$(($(#[$doc:meta])* $field:ident: $type:ty))*]
        [$((($($key:tt)*), $kind:ident, ($($value:tt)*) $(.$method:ident($($words:tt)*))*))*]
        [$(($read_field:ident, $($read:tt)*))*]
        [$(($form:ident $write_field:ident, $write:tt))*]
    ) => {
        $(#[$meta])*
        pub struct $name { $($(#[$doc])* pub $field: $type),* }

        pub(super) const KEYS: &[super::key::Key] =
            &[$($kind(concat!($section, ".", $($key)*), $($value)*) $(.$method($($words)*))*),*];

        impl $name {
            pub(super) fn $reader($raw: $raw_of $(, $argument: $of)*) -> super::error::Result<Self> {
                Ok($name { $($read_field: section!(@read $section $raw $($read)*)),* })
            }

            pub(super) fn $writer(&self, writer: &mut super::writer::Writer) {
                $(section!(@write $form self writer $section $write_field $write);)*
            }
        }
    };
    (@read $section:literal $raw:ident of ($($key:tt)*)) => { $raw.get(concat!($section, ".", $($key)*))? };
    (@read $section:literal $raw:ident optional ($($key:tt)*)) => { $raw.optional(concat!($section, ".", $($key)*))? };
    (@read $section:literal $raw:ident $read:expr) => { $read };
    (@write of $self:ident $writer:ident $section:literal $field:ident ($($key:tt)*)) => {
        $writer.put(concat!($section, ".", $($key)*), &$self.$field)
    };
    (@write optional $self:ident $writer:ident $section:literal $field:ident ($($key:tt)*)) => {
        $writer.put_optional(concat!($section, ".", $($key)*), $self.$field.as_ref())
    };
    (@write group $self:ident $writer:ident $section:literal $field:ident ($write:expr)) => { $write(&$self.$field, $writer) };
}
pub(super) use section;
