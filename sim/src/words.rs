//! Names near a word that nobody knows, for error messages. Knows no vocabulary of its own.

/// "; did you mean ...?" where a candidate is near enough to be meant, and nothing otherwise.
pub(crate) fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, candidates) {
        Some(candidate) => format!("; did you mean {candidate:?}?"),
        None => String::new(),
    }
}

/// The candidate with the fewest edits to `word`; the first of several. None where more than a third
/// of the letters would have to change.
fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let most = word.chars().count() / 3;
    let scored = candidates.into_iter().map(|c| (distance(&word, &c.to_lowercase()), c));
    let best = scored.min_by_key(|(edits, _)| *edits)?;
    (best.0 <= most).then_some(best.1)
}

/// Edits from one word to the other: insert, delete, replace, swap neighbours (Damerau 1964, in the
/// variant that edits no letter twice).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<_>, Vec<_>) = (a.chars().collect(), b.chars().collect());
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = last[j] + usize::from(a[i] != b[j]);
            let mut edits = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                edits = edits.min(before[j - 1] + 1);
            }
            row.push(edits);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_another_word_is_not() {
        let words = ["drop", "duplicate", "delay", "reorder"];
        assert_eq!(nearest("dorp", words), Some("drop"));
        assert_eq!(nearest("DUPLICATES", words), Some("duplicate"));
        assert_eq!(nearest("dealy", words), Some("delay"));
        assert_eq!(nearest("explode", words), None);
        assert_eq!(nearest("", words), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abcd", "acbd"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
