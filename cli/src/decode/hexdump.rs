//! Hexadecimal text to bytes: pasted hex in the ways people write it, and hex dumps with offsets.

use anyhow::{anyhow, bail, ensure};

/// The bytes that `text` spells. Spaces, newlines, colons, commas and `0x` are skipped, as are the offset
/// column of a hex dump and the `|...|` column of `hexdump -C`.
///
/// The first line decides: its first word is an offset if it has at least four digits, and either ends
/// with a colon or is followed by at least two words, all of two digits. Then every line must begin with an offset.
///
/// # Errors
/// Names line and column of what is not hexadecimal, of a byte with one digit, or of an offset that does
/// not fit the bytes before it.
pub(crate) fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut has_offsets = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let words = words(line.split('|').next().unwrap_or_default());
        let Some((&(column, first), rest)) = words.split_first() else { continue };
        let data = if *has_offsets.get_or_insert_with(|| is_offset(first, rest)) {
            check_offset(first, bytes.len())
                .map_err(|why| anyhow!("line {number}, column {column}: {why}"))?;
            rest
        } else {
            &words
        };
        for &(column, word) in data {
            byte_word(word, number, column, &mut bytes)?;
        }
    }
    ensure!(!bytes.is_empty(), "no bytes given");
    Ok(bytes)
}

/// The words of a line, each with its column, counted from 1.
pub(super) fn words(line: &str) -> Vec<(usize, &str)> {
    let start = line.as_ptr() as usize;
    line.split_whitespace()
        .map(|word| {
            let before = &line[..word.as_ptr() as usize - start];
            (before.chars().count() + 1, word)
        })
        .collect()
}

fn is_offset(first: &str, rest: &[(usize, &str)]) -> bool {
    let digits = strip_0x(first);
    let number = digits.trim_end_matches(':');
    let pairs = rest.len() >= 2 && rest.iter().all(|(_, word)| word.len() == 2);
    number.len() >= 4
        && number.chars().all(|c| c.is_ascii_hexdigit())
        && (digits.ends_with(':') || pairs)
}

fn check_offset(first: &str, bytes_before: usize) -> Result<(), String> {
    let digits = strip_0x(first).trim_end_matches(':');
    match usize::from_str_radix(digits, 16) {
        Ok(offset) if offset == bytes_before => Ok(()),
        Ok(offset) => Err(format!(
            "the offset {offset:#x} does not follow the {bytes_before:#x} bytes before it; give one \
             whole frame"
        )),
        Err(_) => Err(format!("{first:?} is not an offset, but the first line has one")),
    }
}

/// Appends the bytes of a word such as `4500`, `0x45` or `02:00:5e`.
pub(super) fn byte_word(
    word: &str,
    line: usize,
    column: usize,
    bytes: &mut Vec<u8>,
) -> anyhow::Result<()> {
    let mut column = column;
    for part in word.split_inclusive([':', ',']) {
        let digits = strip_0x(part);
        let start = column + part.len() - digits.len();
        let digits = digits.trim_end_matches([':', ',']);
        if digits.is_empty() && start > column {
            bail!("line {line}, column {column}: 0x without digits");
        }
        let mut high = None;
        for (index, digit) in digits.chars().enumerate() {
            let Some(value) = digit.to_digit(16) else {
                bail!(
                    "line {line}, column {}: {digit:?} is not a hexadecimal digit",
                    start + index
                );
            };
            if let Some(high) = high.take() {
                bytes.push((high << 4 | value) as u8);
            } else {
                high = Some(value);
            }
        }
        if high.is_some() {
            bail!("line {line}, column {start}: {digits:?} has an odd number of digits");
        }
        column += part.chars().count();
    }
    Ok(())
}

fn strip_0x(word: &str) -> &str {
    word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_the_ways_people_write_them() {
        for text in [
            "0200000000020800",
            "0x0200000000020800",
            "02 00 00 00 00 02 08 00",
            "02:00:00:00:00:02 0800\n",
            "0x02, 0x00, 0x00, 0x00, 0x00, 0x02, 0x08, 0x00",
            "0200 0000\n\n0002 0800",
            "0000 02 00 00 00\n0004 00 02 08 00\n",
            "0000  02 00 00 00 00 02 08 00",
            "\t0x0000:  0200 0000\n\t0x0004:  0002 0800\n",
            "00000000: 0200 0000 0002 0800",
            "00000000  02 00 00 00 00 02 08 00  |........|\n00000008\n",
            "0000000 02 00 00 00\n0000004 00 02 08 00\n0000008\n",
        ] {
            assert_eq!(bytes(text).unwrap(), [2, 0, 0, 0, 0, 2, 8, 0], "{text}");
        }
    }

    #[test]
    fn what_could_be_bytes_is_bytes() {
        assert_eq!(bytes("0000 0200").unwrap(), [0, 0, 2, 0]);
        assert_eq!(bytes("0000").unwrap(), [0, 0]);
        assert_eq!(bytes("0000\n0002\n").unwrap(), [0, 0, 0, 2]);
    }

    #[test]
    fn errors_name_line_and_column() {
        let message = |text: &str| bytes(text).unwrap_err().to_string();
        assert_eq!(message(""), "no bytes given");
        assert_eq!(message(" \n"), "no bytes given");
        assert_eq!(message("0200 0g"), "line 1, column 7: 'g' is not a hexadecimal digit");
        assert_eq!(message("02\n 0x0z"), "line 2, column 5: 'z' is not a hexadecimal digit");
        assert_eq!(message("02 003"), "line 1, column 4: \"003\" has an odd number of digits");
        assert_eq!(message("02:0:00"), "line 1, column 4: \"0\" has an odd number of digits");
        assert_eq!(message("\u{20ac}2"), "line 1, column 1: '\u{20ac}' is not a hexadecimal digit");
        assert_eq!(message("02 0x 03"), "line 1, column 4: 0x without digits");
        let gap = message("0000: 02 00\n0004: 00");
        assert!(
            gap.starts_with("line 2, column 1: the offset 0x4 does not follow the 0x2"),
            "{gap}"
        );
    }
}
