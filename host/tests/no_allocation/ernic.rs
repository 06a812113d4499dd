//! The ERNIC face, with the drivers on top.

use softrnic_sim::{ErnicPair, OperationKind};

use crate::calls;

const BATCH: usize = 8;
const BATCHES: usize = 10_000 / BATCH;

#[test]
fn messages_through_registers_and_queues_allocate_nothing() {
    for operation in [OperationKind::Send, OperationKind::Write, OperationKind::Read] {
        for len in [64, 5000] {
            let mut pair = ErnicPair::new(len).unwrap();
            for _ in 0..100 {
                pair.exchange(operation, BATCH).unwrap();
            }
            let before = calls();
            for _ in 0..BATCHES {
                pair.exchange(operation, BATCH).unwrap();
            }
            assert_eq!(calls() - before, 0, "{operation:?} of {len} bytes");
        }
    }
}
