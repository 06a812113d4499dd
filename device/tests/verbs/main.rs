//! The native face: its methods one by one, then stories of two network interfaces.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

mod credits;
mod events;
mod face;
mod modify;
mod refusals;
mod srq;
mod stories;
mod uc;
mod ud;
mod world;
