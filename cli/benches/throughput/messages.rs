//! A whole message between two ERNIC devices on one thread: driver, doorbell, work queue entry,
//! frame, receive, acknowledgement, completion, driver. Against copying and checksumming its bytes
//! once at each end.

use std::hint::black_box;

use softrnic_sim::{ErnicPair, OperationKind};

use crate::measure::minimum_ns;

pub(crate) fn run() {
    println!("messages: two ERNIC devices, one thread, path MTU 4096");
    println!(
        "{:>9} {:>7} {:>6}  {:>12} {:>10} {:>10}  {:>12} {:>6}",
        "operation", "bytes", "batch", "ns/message", "M msg/s", "Gbit/s", "bound ns", "ratio"
    );
    for len in [64, 4096, 65536, 1 << 20] {
        for operation in [OperationKind::Send, OperationKind::Write, OperationKind::Read] {
            for batch in [1, 16] {
                measure(operation, len, batch);
            }
        }
    }
    println!();
}

/// Exchanges `count` batches of 16 SENDs of 64 bytes.
pub(crate) fn exchanges(count: u64) {
    let mut pair = pair(64);
    for _ in 0..count {
        exchange(&mut pair, OperationKind::Send, 16);
    }
}

fn measure(operation: OperationKind, len: usize, batch: usize) {
    let mut pair = pair(len);
    let packet_len = len.min(4096);
    let packets = (len / packet_len) as u64;
    let mut bytes = vec![0x5A; 5 * 4096];
    let (source, target) = bytes.split_at_mut(4096);
    // Copies between addresses that are nearly equal modulo a page take four times as long.
    let (first, second) = target[1024..].split_at_mut(4096 + 1024);
    let mut targets = [&mut first[..packet_len], &mut second[..packet_len]];
    let of_batch = minimum_ns([
        &mut |rounds| {
            for _ in 0..rounds {
                exchange(&mut pair, operation, batch);
            }
        },
        &mut |rounds| {
            for _ in 0..rounds * packets * batch as u64 {
                for end in &mut targets {
                    end.copy_from_slice(black_box(&source[..packet_len]));
                    black_box(crc32fast::hash(black_box(end)));
                }
            }
        },
    ]);
    let [ns, bound] = of_batch.map(|ns| ns / batch as f64);
    println!(
        "{:>9} {len:>7} {batch:>6}  {ns:>12.1} {:>10.2} {:>10.1}  {bound:>12.1} {:>6.2}",
        format!("{operation:?}"),
        1e3 / ns,
        len as f64 * 8.0 / ns,
        bound / ns
    );
}

fn exchange(pair: &mut ErnicPair, operation: OperationKind, batch: usize) {
    must(pair.exchange(operation, batch));
}

fn pair(len: usize) -> ErnicPair {
    must(ErnicPair::new(len as u32))
}

/// A benchmark that cannot set up its devices has nothing to say.
fn must<T>(result: Result<T, softrnic_driver::Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
