//! What can be worth a look in a ladder: one table. Nothing here looks.

use std::fmt;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MarkRow {
    /// The mark.
    pub mark: Mark,
    /// Its name: the first word of a packet's comment, and what `--around` takes.
    pub name: &'static str,
    /// Whether it is trouble by itself, and not only what follows from trouble.
    pub trouble: bool,
    /// One sentence.
    pub text: &'static str,
}

macro_rules! marks {
    ($($variant:ident $name:literal $trouble:literal $text:literal)*) => {
        /// What is worth a look in a packet, or between packets.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Mark { $(#[doc = $text] $variant),* }

        /// The table, in the order of the enum.
        pub const MARK_ROWS: &[MarkRow] = &[
            $(MarkRow { mark: Mark::$variant, name: $name, trouble: $trouble, text: $text }),*
        ];
    };
}

marks! {
    Lost "lost" true "The packet did not arrive."
    Refused "refused" true "The receiver did not execute the packet."
    Fault "fault" true "A fault rule changed the packet or what became of it."
    Nak "nak" true "The responder says that something is wrong."
    Rnr "rnr" true "The responder has no receive buffer: RNR NAK."
    Timeout "timeout" true "The requester waited for an answer in vain."
    Error "error" true "A work request or a receive completed in error."
    Retransmission "retransmission" false "The packet had been sent before."
    Duplicate "duplicate" false "The request had been executed before, and was answered again."
    Gap "gap" false "Packets before this one are not in the capture."
}

impl Mark {
    /// Its row.
    #[must_use]
    pub const fn row(self) -> &'static MarkRow {
        &MARK_ROWS[self as usize]
    }

    /// The mark that a packet's comment begins with.
    #[must_use]
    pub fn of_comment(comment: &str) -> Option<Self> {
        let word = comment.split([':', ' ']).next()?;
        MARK_ROWS.iter().find(|row| row.name == word).map(|row| row.mark)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

/// A set of marks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Marks(u16);

impl Marks {
    /// None.
    pub const NONE: Self = Self(0);

    /// Those that are trouble by themselves.
    #[must_use]
    pub fn trouble() -> Self {
        MARK_ROWS.iter().filter(|row| row.trouble).map(|row| row.mark).collect()
    }

    /// Adds one.
    pub fn insert(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u16;
    }

    /// Whether it is among them.
    #[must_use]
    pub const fn has(self, mark: Mark) -> bool {
        self.0 & 1 << mark as u16 != 0
    }

    /// Whether one of `others` is among them.
    #[must_use]
    pub const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// One after the other, in table order.
    pub fn iter(self) -> impl Iterator<Item = Mark> {
        MARK_ROWS.iter().map(|row| row.mark).filter(move |&mark| self.has(mark))
    }
}

impl Extend<Mark> for Marks {
    fn extend<I: IntoIterator<Item = Mark>>(&mut self, marks: I) {
        marks.into_iter().for_each(|mark| self.insert(mark));
    }
}

impl FromIterator<Mark> for Marks {
    fn from_iter<I: IntoIterator<Item = Mark>>(marks: I) -> Self {
        let mut set = Self::NONE;
        set.extend(marks);
        set
    }
}
