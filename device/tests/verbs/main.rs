//! The native face: its methods one by one, then stories of two network interfaces.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

mod face;
mod modify;
mod refusals;
mod stories;
mod world;
