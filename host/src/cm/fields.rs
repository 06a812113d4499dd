//! Fields at bit positions, and the macro that makes a message of a table of them.
//!
//! A row names a field once: its type, its words for people, its place. Struct, encoder, decoder and
//! display follow from the rows. It knows no message.

use core::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use softrnic_engine::packet::tree::{Node, Value};

/// How a field is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// A decimal number.
    Decimal,
    /// A hexadecimal number.
    Hex,
    /// A GID, as the IPv6 address that it looks like.
    Gid,
    /// The first bytes, in hexadecimal.
    Bytes,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name as the standard writes it.
    pub name: &'static str,
    /// First bit, counted from the table's first byte; bit 0 is the highest of byte 0.
    pub bit: usize,
    /// Width in bits.
    pub bits: usize,
    /// How it is printed.
    pub show: Show,
    /// What a value means, in words.
    pub note: Option<fn(u64) -> String>,
}

impl Field {
    /// First byte that has bits of the field.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.bit / 8
    }

    /// Byte after the last one that has bits of the field.
    #[must_use]
    pub const fn end(&self) -> usize {
        (self.bit + self.bits).div_ceil(8)
    }

    /// The field for people; `None` where the bytes end before it does. `offset` is that of the
    /// table's first byte in whatever is shown.
    fn node(&self, table: &[u8], offset: usize) -> Option<Node> {
        const SHOWN: usize = 16;
        let bytes = table.get(self.start()..self.end())?;
        let number = || get_bits(table, self.bit, self.bits.min(64));
        let value = match self.show {
            Show::Decimal => Value::Number { value: number(), hex_digits: 0 },
            Show::Hex => Value::Number { value: number(), hex_digits: self.bits.div_ceil(4) as u8 },
            Show::Gid => Value::Text(gid_text(Ipv6Addr::get(table, self.bit, self.bits))),
            Show::Bytes => {
                let shown = bytes.iter().take(SHOWN);
                let mut text = shown.fold(String::new(), |mut text, byte| {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                if bytes.len() > SHOWN {
                    text.push_str("...");
                }
                Value::Text(text)
            }
        };
        let len = bytes.len();
        let low = 8 * self.end() - self.bit - self.bits;
        let whole = self.bits == 8 * len;
        Some(Node {
            name: self.name,
            value,
            note: self.note.map_or_else(String::new, |note| note(number())),
            offset: offset + self.start(),
            len,
            bits: (!whole).then_some(((low + self.bits - 1) as u8, low as u8)),
            children: Vec::new(),
        })
    }
}

/// A GID, or an address in its place: IPv4 in the last four bytes is written as people write it.
fn gid_text(gid: Ipv6Addr) -> String {
    match u128::from(gid) {
        number @ 0x1_0000..=0xFFFF_FFFF => format!("::{}", Ipv4Addr::from(number as u32)),
        _ => gid.to_string(),
    }
}

/// A table's fields for people, as children of one node.
pub(super) fn node(name: &'static str, table: &[Field], bytes: &[u8], offset: usize) -> Node {
    let children = table.iter().filter_map(|field| field.node(bytes, offset)).collect();
    let (value, note) = (Value::None, String::new());
    Node { name, value, note, offset, len: bytes.len(), bits: None, children }
}

/// A value with a place in a message.
pub(super) trait FieldValue: Sized {
    /// What a field is that nobody sets.
    const ZERO: Self;
    /// Reads it. Bytes beyond the end of `bytes` are zero.
    fn get(bytes: &[u8], bit: usize, bits: usize) -> Self;
    /// Writes its lowest `bits`; higher ones stay behind.
    fn put(&self, bytes: &mut [u8], bit: usize, bits: usize);
}

/// Up to 64 bits. Bytes that are not there are zero.
fn get_bits(bytes: &[u8], bit: usize, bits: usize) -> u64 {
    let (start, end) = (bit / 8, (bit + bits).div_ceil(8));
    let number = (start..end)
        .fold(0u128, |number, at| number << 8 | u128::from(bytes.get(at).copied().unwrap_or(0)));
    (number >> (8 * end - bit - bits) & mask(bits)) as u64
}

fn put_bits(bytes: &mut [u8], bit: usize, bits: usize, value: u64) {
    let (start, end) = (bit / 8, (bit + bits).div_ceil(8));
    let low = 8 * end - bit - bits;
    let (value, kept) = ((u128::from(value) & mask(bits)) << low, !(mask(bits) << low));
    for (at, byte) in bytes.iter_mut().enumerate().take(end).skip(start) {
        let shift = 8 * (end - 1 - at);
        *byte = *byte & (kept >> shift) as u8 | (value >> shift) as u8;
    }
}

const fn mask(bits: usize) -> u128 {
    (1 << bits) - 1
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl FieldValue for $type {
            const ZERO: Self = 0;

            fn get(bytes: &[u8], bit: usize, bits: usize) -> Self {
                get_bits(bytes, bit, bits) as Self
            }

            fn put(&self, bytes: &mut [u8], bit: usize, bits: usize) {
                put_bits(bytes, bit, bits, u64::from(*self));
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl FieldValue for bool {
    const ZERO: Self = false;

    fn get(bytes: &[u8], bit: usize, bits: usize) -> Self {
        get_bits(bytes, bit, bits) != 0
    }

    fn put(&self, bytes: &mut [u8], bit: usize, bits: usize) {
        put_bits(bytes, bit, bits, u64::from(*self));
    }
}

/// Whole bytes.
impl<const N: usize> FieldValue for [u8; N] {
    const ZERO: Self = [0; N];

    fn get(bytes: &[u8], bit: usize, _: usize) -> Self {
        let mut value = [0; N];
        value.iter_mut().zip(bytes.iter().skip(bit / 8)).for_each(|(to, from)| *to = *from);
        value
    }

    fn put(&self, bytes: &mut [u8], bit: usize, _: usize) {
        bytes.iter_mut().skip(bit / 8).zip(self).for_each(|(to, from)| *to = *from);
    }
}

/// A GID.
impl FieldValue for Ipv6Addr {
    const ZERO: Self = Self::UNSPECIFIED;

    fn get(bytes: &[u8], bit: usize, bits: usize) -> Self {
        <[u8; 16]>::get(bytes, bit, bits).into()
    }

    fn put(&self, bytes: &mut [u8], bit: usize, bits: usize) {
        self.octets().put(bytes, bit, bits);
    }
}

/// Makes a struct with its table. A row is
/// `field: type = "Name", first byte, first bit of that byte, bits, how to show it, (note);`.
macro_rules! table {
    (
        $(#[$about:meta])*
        $name:ident {
            $(
                $(#[$doc:meta])*
                $field:ident: $type:ty =
                    $label:literal, $byte:expr, $bit:expr, $bits:expr, $show:ident $(, $note:expr)?;
            )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: <$type as $crate::cm::fields::FieldValue>::ZERO,)* }
            }
        }

        impl $name {
            /// The rows. Bits that no row names are reserved: zero when sent, ignored when received.
            pub const FIELDS: &'static [$crate::cm::fields::Field] = &[
                $($crate::cm::fields::Field {
                    name: $label,
                    bit: 8 * $byte + $bit,
                    bits: $bits,
                    show: $crate::cm::fields::Show::$show,
                    note: $crate::cm::fields::table!(@note $($note)?),
                },)*
            ];

            /// Writes every field at its place.
            pub(super) fn put(&self, bytes: &mut [u8]) {
                use $crate::cm::fields::FieldValue as _;
                $(self.$field.put(bytes, 8 * $byte + $bit, $bits);)*
            }

            /// Reads every field. Bytes that are not there are zero.
            pub(super) fn get(bytes: &[u8]) -> Self {
                use $crate::cm::fields::FieldValue;
                Self { $($field: FieldValue::get(bytes, 8 * $byte + $bit, $bits),)* }
            }
        }
    };
    (@note) => { None };
    (@note $note:expr) => { Some($note) };
}
pub(super) use table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_they_are_read_and_leave_their_neighbours_alone() {
        for bits in 1..=64 {
            for bit in 0..16 {
                let mut bytes = [0xA5; 16];
                put_bits(&mut bytes, bit, bits, u64::MAX / 3);
                let wanted = (u128::from(u64::MAX / 3) & mask(bits)) as u64;
                assert_eq!(get_bits(&bytes, bit, bits), wanted, "{bits} bits at {bit}");
                put_bits(&mut bytes, bit, bits, get_bits(&[0xA5; 16], bit, bits));
                assert_eq!(bytes, [0xA5; 16], "{bits} bits at {bit}");
            }
        }
    }
}
