//! The ERNIC face against its chapter: a story for every row of the register table, and what the parts
//! do together.

mod counters;
mod errors;
mod global;
mod interrupts;
mod limits;
mod link;
mod many;
mod queue_pair;
mod recovery;
mod regions;
mod rows;
mod vectors;
mod world;
