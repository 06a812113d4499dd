//! What must hold for any bytes whatever: the body of the fuzz target `frame`, of the property tests
//! and of the corpus replay. A plain function, so that all three run the same lines.

use softrnic_engine::Reason;
use softrnic_engine::packet::tree::{self, Node};
use softrnic_engine::packet::{build, describe, flow_control, parse};

/// Parses, decodes, describes and rebuilds `frame`; panics where the results contradict each other.
pub(crate) fn check(frame: &[u8]) {
    let tree = tree::decode(frame);
    assert!(!tree.to_string().is_empty() || frame.is_empty());
    nested(&tree.nodes, 0, frame.len());
    match parse(frame) {
        Ok(packet) => {
            let icrc = tree.icrc.unwrap_or_else(|| panic!("a parsed packet's ICRC is decoded"));
            assert_eq!(icrc.carried.swap_bytes(), packet.icrc_carried());
            assert_eq!(icrc.computed.swap_bytes(), packet.icrc_computed());
            assert_eq!(tree.refused, (!packet.icrc_valid()).then_some(Reason::Icrc));
            assert_eq!(build(&describe(&packet)).as_deref(), Ok(frame));
            // The nodes tile the frame.
            let end = tree.nodes.iter().fold(0, |at, node| {
                assert_eq!(node.offset, at, "{}", node.name);
                at + node.len
            });
            assert_eq!(end, frame.len());
        }
        Err(reason) => assert_eq!(tree.refused, Some(reason)),
    }
    if let Ok(what) = flow_control::parse(frame) {
        assert_eq!(flow_control::parse(&flow_control::build(&what)), Ok(what));
        assert_eq!(tree.refused, Some(Reason::FlowControl));
    }
}

/// Nodes lie inside their parent, in order; bit fields of one byte may share it.
fn nested(nodes: &[Node], start: usize, end: usize) {
    let mut at = start;
    for node in nodes {
        assert!(node.offset >= at && node.offset + node.len <= end, "{}", node.name);
        nested(&node.children, node.offset, node.offset + node.len);
        at = node.offset;
    }
}
