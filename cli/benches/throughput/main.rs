//! `cargo bench`: what the engine does on one core, as ratios to bounds measured in the same run.
//!
//! Each figure is the minimum over many short windows of this thread's CPU time; bound and subject
//! take turns, so that a noisy neighbour disturbs both. See `docs/performance.md`.

mod codec;
mod measure;
mod messages;

fn main() {
    // `cargo test` builds and runs benches with `--test`; there is nothing to assert here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    // For instruction counts under callgrind: a fixed amount of work and no clock.
    if let Some(count) = std::env::args().skip_while(|arg| arg != "--exchanges").nth(1) {
        messages::exchanges(count.parse().unwrap_or(1));
        return;
    }
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    if "codec".contains(&filter) {
        codec::run();
    }
    if "memory".contains(&filter) {
        let engine = size_of::<softrnic_engine::Qp>();
        let face = softrnic_device::ernic::QUEUE_PAIR_LEN;
        println!(
            "memory: {engine} bytes for a queue pair in the engine, {face} more in the ERNIC face\n"
        );
    }
    if "messages".contains(&filter) {
        messages::run();
    }
}
