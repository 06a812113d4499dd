//! The Mellanox Hermon / ConnectX face: what Linux drives with `mlx4` and iPXE with `hermon`.
//!
//! So far the queue pair context: its bits, the commands that apply it to queue pairs of the engine, and
//! what a query reads back. It must not know packets.

mod attributes;
pub mod codes;
pub mod context;
pub mod contexts;
pub mod field;
pub mod field_set;
pub mod refusal;
pub mod remarks;
pub mod transitions;
