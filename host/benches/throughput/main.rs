//! `cargo bench`: what the engine does on one core, as ratios to bounds measured in the same run.
//!
//! Each figure is the minimum over many short windows of this thread's CPU time; bound and subject
//! take turns, so that a noisy neighbour disturbs both. See `docs/performance.md`.

mod codec;
mod measure;

fn main() {
    // `cargo test` builds and runs benches with `--test`; there is nothing to assert here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    if "codec".contains(&filter) {
        codec::run();
    }
}
