//! What people type: numbers, and names that are nearly right.

/// Names offered for a misspelt one.
const GUESSES: usize = 3;

/// A number in hexadecimal (0x), binary (0b) or decimal, with underscores anywhere.
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits = text.trim().replace('_', "").to_ascii_lowercase();
    if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = digits.strip_prefix("0b") {
        u64::from_str_radix(binary, 2).ok()
    } else {
        digits.parse().ok()
    }
}

/// A number in hexadecimal, in groups of four digits, for a word of so many bits.
pub(crate) fn hex(value: u64, width: u8) -> String {
    let digits = usize::from(width).div_ceil(4).max(1);
    let plain = format!("{value:0digits$x}");
    let mut text = String::from("0x");
    for (i, digit) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i).is_multiple_of(4) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

/// The names that need the fewest changes to become `text`.
pub(crate) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let text = text.to_ascii_uppercase();
    let mut names: Vec<_> = names
        .map(|name| {
            let upper = name.to_ascii_uppercase();
            let inside = text.len() > 1 && upper.contains(&text);
            (if inside { 1 } else { edit_distance(&text, &upper) }, name)
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().take(GUESSES).map(|(_, name)| name).collect()
}

/// Insertions, deletions and replacements between two texts.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_hexadecimal_binary_or_decimal_with_underscores() {
        assert_eq!(number("0x18_0030"), Some(0x18_0030));
        assert_eq!(number("0XFFFF_ffff_FFFF_FFFF"), Some(u64::MAX));
        assert_eq!(number("0b1010"), Some(10));
        assert_eq!(number("1_572_912"), Some(0x18_0030));
        for bad in ["", "0x", "0xG", "12a", "-1", "0x1_0000_0000_0000_0000", "99999999999999999999"]
        {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn hexadecimal_numbers_have_the_width_of_their_word() {
        assert_eq!(hex(0x601, 32), "0x0000_0601");
        assert_eq!(hex(0x62, 8), "0x62");
        assert_eq!(hex(5, 5), "0x05");
        assert_eq!(hex(1 << 46, 64), "0x0000_4000_0000_0000");
    }

    #[test]
    fn a_misspelt_name_is_answered_with_near_ones() {
        let names = ["CQHEAD", "STATQP", "SQPI"];
        assert_eq!(nearest("CQHAED", names.into_iter())[0], "CQHEAD");
        assert_eq!(nearest("statq", names.into_iter())[0], "STATQP");
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
