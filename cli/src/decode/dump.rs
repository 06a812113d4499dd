//! Memory dumps as drivers print them: hexadecimal bytes or 32-bit words behind an offset column, with
//! whatever a log puts before and behind it.
//!
//! Knows text, not what the bytes mean.

use anyhow::{anyhow, ensure};

use super::hexdump;

/// What a dump holds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Dump {
    /// The bytes behind the offsets.
    pub(crate) bytes: Vec<u8>,
    /// A 32-bit word on a line of its own before the first offset: drivers of this family print
    /// `opt_param_mask` there.
    pub(crate) before: Option<u32>,
}

/// Reads a dump: `0000: 30 03 ...`, `[00] 30031f00 ...`, `00000000 : 30 03-1f 00 ... : 0...`, or plain
/// hexadecimal text without offsets. Log prefixes before an offset and lines without any are skipped.
///
/// # Errors
/// Names line and column of what is not hexadecimal, and offsets that do not follow each other.
pub(crate) fn read(text: &str) -> anyhow::Result<Dump> {
    let lines: Vec<Line<'_>> = text.lines().map(Line::new).collect();
    if !lines.iter().any(|line| line.offset.is_some()) {
        return Ok(Dump { bytes: hexdump::bytes(text)?, before: None });
    }
    let (mut bytes, mut before, mut base) = (Vec::new(), None, None);
    for (index, line) in lines.iter().enumerate() {
        let number = index + 1;
        let Some(offset) = line.offset else {
            match line.words[..] {
                // hexdump -C ends with the length alone.
                [(_, word)] if base.is_none() && word.len() == 8 => {
                    before = u32::from_str_radix(word, 16).ok().or(before);
                }
                _ => {}
            }
            continue;
        };
        let base = *base.get_or_insert(offset);
        ensure!(
            offset.checked_sub(base) == Some(bytes.len() as u64),
            "line {number}: offset {offset:#x} does not follow the {:#x} bytes before it",
            bytes.len()
        );
        for &(column, word) in &line.words {
            for part in word.split('-').filter(|part| !part.is_empty()) {
                hexdump::byte_word(part, number, column, &mut bytes)?;
            }
        }
    }
    if bytes.is_empty() {
        return Err(anyhow!("no bytes given"));
    }
    Ok(Dump { bytes, before })
}

/// A line: its offset, if it has one, and the words of data.
struct Line<'a> {
    offset: Option<u64>,
    words: Vec<(usize, &'a str)>,
}

impl<'a> Line<'a> {
    fn new(line: &'a str) -> Self {
        let words = hexdump::words(line.split('|').next().unwrap_or_default());
        for (i, &(_, word)) in words.iter().enumerate() {
            let spaced = words.get(i + 1).is_some_and(|&(_, next)| next == ":");
            let Some(offset) = offset(word, spaced) else { continue };
            let data = &words[i + 1 + usize::from(spaced)..];
            // iPXE prints the characters behind another colon.
            let end = data.iter().position(|&(_, word)| word == ":").unwrap_or(data.len());
            return Self { offset: Some(offset), words: data[..end].to_vec() };
        }
        // An offset without colon before 32-bit words is shorter than they are.
        if let [(_, first), rest @ ..] = &words[..]
            && !rest.is_empty()
            && first.len() < 8
            && rest.iter().all(|(_, word)| word.len() == 8)
            && let Ok(offset) = u64::from_str_radix(first, 16)
        {
            return Self { offset: Some(offset), words: rest.to_vec() };
        }
        Self { offset: None, words }
    }
}

/// `[00]`, `0000:`, or a number that a colon follows.
fn offset(word: &str, spaced: bool) -> Option<u64> {
    let bracketed = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let digits = match bracketed.or_else(|| word.strip_suffix(':')) {
        Some(digits) => digits,
        None if spaced => word,
        None => return None,
    };
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    if digits.len() < 2 {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 16] =
        [0x30, 0, 0x18, 0, 0, 0, 0, 0x12, 0x7f, 0x38, 0x38, 0x80, 0, 0, 0, 0x81];

    #[test]
    fn dumps_of_drivers_and_tools_are_read() {
        for text in [
            "300018000000001 27f383880000000 81".replace(' ', "").as_str(),
            "00000000: 30001800 00000012 7f383880 00000081",
            "  [00]  30001800 00000012\n  [08]  7f383880 00000081\n",
            "00 30001800 00000012\n08 7f383880 00000081",
            "[   12.345678] mlx4_core 0000:00:03.0: 00000000: 30 00 18 00 00 00 00 12\n\
             [   12.345679] mlx4_core 0000:00:03.0: 00000008: 7f 38 38 80 00 00 00 81\n",
            "1ff0e000 : 30 00 18 00 00 00 00 12-7f 38 38 80 00 00 00 81 : 0........88.....\n",
            "00000000  30 00 18 00 00 00 00 12  7f 38 38 80 00 00 00 81  |0........88.....|\n00000010\n",
            "0x0000: 30001800 00000012\n0x0008: 7f383880 00000081",
        ] {
            let dump = read(text).unwrap();
            assert_eq!((&dump.bytes[..], dump.before), (&BYTES[..], None), "{text}");
        }
    }

    #[test]
    fn a_word_before_the_first_offset_is_the_mask() {
        let text = "Dumping QP context:\n  00007040\n  [00]  30001800 00000012 7f383880 00000081\n";
        assert_eq!(read(text).unwrap(), Dump { bytes: BYTES.to_vec(), before: Some(0x7040) });
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(
            message("[00] 30001800\n[08] 00000012"),
            "line 2: offset 0x8 does not follow the 0x4 bytes before it"
        );
        assert_eq!(message("0000: 3g"), "line 1, column 8: 'g' is not a hexadecimal digit");
        assert_eq!(message("[00]"), "no bytes given");
        assert_eq!(message("zz"), "line 1, column 1: 'z' is not a hexadecimal digit");
    }
}
