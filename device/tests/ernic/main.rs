//! The ERNIC face against its chapter: a story for every row of the register table, and what the parts
//! do together.

mod counters;
mod global;
mod interrupts;
mod link;
mod queue_pair;
mod regions;
mod rows;
mod world;
