//! Enums whose values have names.

/// Defines an enum whose values have names: `ALL`, `NAMES`, `name()` and `Display`.
///
/// ```
/// ddp_kernels::named_enum! {
///     /// A color.
///     pub enum Color {
///         /// As fire.
///         Red = "red",
///         /// As water.
///         Blue = "blue",
///     }
/// }
/// assert_eq!(Color::ALL.map(Color::name), ["red", "blue"]);
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)? }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visibility enum $type { $($(#[$doc])* $variant),+ }

        #[allow(dead_code)] // Not all enums need all of it.
        impl $type {
            /// Every value, in the order in which help lists them.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// Their names, in the same order.
            $visibility const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in messages, configs and on the command line.
            $visibility const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
