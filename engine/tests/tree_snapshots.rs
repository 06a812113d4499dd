//! Frames as people see them. A reviewer sees every change of the text in a diff.
#![allow(clippy::unwrap_used, reason = "a test whose input cannot be read should fail")]

use softrnic_engine::Reason;
use softrnic_engine::packet::tree::{Node, decode};

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn golden(id: &str) -> Vec<u8> {
    let lines = include_str!("../../golden/icrc-vectors.txt").lines();
    let line = lines.into_iter().find(|line| line.starts_with(id)).unwrap();
    hex(line.rsplit(' ').next().unwrap())
}

fn text(frame: &[u8]) -> String {
    let tree = decode(frame);
    format!("{}\n{tree}", tree.summary)
}

#[test]
fn every_golden_frame_in_one_line() {
    let lines = include_str!("../../golden/icrc-vectors.txt").lines();
    let summary = |line: &str| {
        let id = &line[..3];
        let tree = decode(&golden(id));
        let refused = tree.refused.map(|why| format!("  REFUSED {why}")).unwrap_or_default();
        format!("{id} {}{refused}\n", tree.summary)
    };
    let all: String =
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(summary).collect();
    insta::assert_snapshot!(all);
}

#[test]
fn f_20_write_with_immediate_over_ipv4() {
    insta::assert_snapshot!(text(&golden("G08")));
}

#[test]
fn f_01_roce_v1_write() {
    insta::assert_snapshot!(text(&golden("P06")));
}

#[test]
fn f_20_ud_send_over_ipv6_with_a_real_udp_checksum() {
    insta::assert_snapshot!(text(&golden("G29")));
}

#[test]
fn f_50_congestion_notification_behind_two_tags() {
    let mut frame = golden("P01");
    frame.splice(12..12, [0x88, 0xA8, 0x00, 0xC8, 0x81, 0x00, 0x60, 0x64]);
    insta::assert_snapshot!(text(&frame));
}

#[test]
fn f_40_a_wrong_icrc_is_shown_beside_the_right_one() {
    let mut frame = golden("G06");
    frame[51] ^= 0x10;
    let text = text(&frame);
    let end = text.lines().rev().take(2).collect::<Vec<_>>();
    insta::assert_snapshot!(end.join("\n"));
}

#[test]
fn f_31_a_frame_cut_inside_its_reth_is_shown_up_to_there() {
    insta::assert_snapshot!(text(&golden("G09")[..60]));
}

#[test]
fn f_31_an_ack_with_payload_is_shown_with_the_reason() {
    insta::assert_snapshot!(text(&golden("P02")));
}

#[test]
fn f_02_ipv4_options_are_shown_and_refused() {
    insta::assert_snapshot!(text(&golden("G33")));
}

#[test]
fn f_60_pfc() {
    let frame =
        [hex("0180c2000001020000000001880801010008000000000000ffff0000000000000000"), vec![0; 26]]
            .concat();
    insta::assert_snapshot!(text(&frame));
}

#[test]
fn f_63_arp_is_named_and_not_roce() {
    let frame =
        hex("ffffffffffff02000000000108060001080006040001020000000001c0000201000000000000c0000202");
    assert_eq!(decode(&frame).refused, Some(Reason::NotRoce));
    insta::assert_snapshot!(text(&frame));
}

/// The tree reads with tables of its own: here it must find what the header views find.
#[test]
fn f_20_the_tree_and_the_header_views_agree() {
    fn find<'a>(nodes: &'a [Node], header: &str, field: &str) -> &'a Node {
        let header = nodes.iter().find(|node| node.name == header).unwrap();
        header.children.iter().find(|node| node.name == field).unwrap()
    }
    let frame = golden("G31");
    let packet = softrnic_engine::packet::parse(&frame).unwrap();
    let tree = decode(&frame);
    let text = |header, field| find(&tree.nodes, header, field).value.to_string();
    let reth = packet.reth().unwrap();
    assert_eq!(text("RETH", "VA"), format!("{:#018x}", reth.va));
    assert_eq!(text("RETH", "R_Key"), format!("{:#010x}", reth.rkey));
    assert_eq!(text("RETH", "DMA length"), reth.dma_length.to_string());
    assert_eq!(text("BTH", "PSN"), format!("{:#08x}", packet.bth.psn().get()));
    assert_eq!(text("BTH", "DestQP"), format!("{:#08x}", packet.bth.dest_qpn().get()));
    assert_eq!(text("BTH", "AckReq"), u8::from(packet.bth.ack_requested()).to_string());
    assert_eq!(text("FETH", "Placement type"), "0x1");
    assert_eq!(text("IPv4", "Source"), packet.source_ip().to_string());
}
