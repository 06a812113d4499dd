//! Faults on purpose: rules as data, and the engine that applies them.
//!
//! A [`Rule`] says what it looks for ([`Match`]) and what then happens ([`Action`]). An [`Injector`]
//! is asked about every frame and every call of a face; what it answers follows from the rules, the
//! seed and what it was asked before, and from nothing else. It knows neither worlds nor devices, so
//! the same rules serve virtual links and real ones.

mod corrupt;
mod face;
mod injector;
mod rule;
mod text;

pub use corrupt::{Change, Corruption, Field, Spot};
pub use face::{AtFace, Lent};
pub use injector::{Firing, Injector, Outcome, Tally};
pub use rule::{Action, Cut, Direction, Kind, Match, Opcodes, Queue, Rule, Rules, Transfer};
pub(crate) use text::{Names, RawFault};
