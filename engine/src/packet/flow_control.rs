//! Ethernet flow control frames: global PAUSE (802.3 annex 31B) and PFC (802.1Qbb).
//!
//! Bytes only; who stops sending, and for how long, is the link's business. Rules F-60 to F-62.

use super::ETHERTYPE_MAC_CONTROL;
use super::parse::be16;
use crate::reason::Reason;

/// The reserved address that bridges never forward.
pub const DEST_MAC: [u8; 6] = [0x01, 0x80, 0xC2, 0x00, 0x00, 0x01];
/// MAC control opcode of PAUSE.
pub const OPCODE_PAUSE: u16 = 0x0001;
/// MAC control opcode of PFC.
pub const OPCODE_PFC: u16 = 0x0101;
/// Bytes of a frame without FCS: the Ethernet minimum.
pub const FRAME_LEN: usize = 60;

/// Who may send again after how many quanta; 0 means at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowControl {
    /// The whole port.
    Pause {
        /// Pause time in quanta.
        quanta: u16,
    },
    /// The priorities whose bit is set; the others go on as before.
    Pfc {
        /// Bit n is priority n.
        enabled: u8,
        /// Pause time of each priority in quanta.
        quanta: [u16; 8],
    },
}

/// A flow control frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowControlFrame {
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// What it asks.
    pub what: FlowControl,
}

/// Reads a flow control frame. Fill bytes and the reserved upper half of PFC's vector are ignored.
///
/// # Errors
/// `FrameTooShort`; `MacControlUnknown` for every other kind of frame; `DestinationMac` where it is not
/// sent to [`DEST_MAC`] (chosen: 802.3 also allows a station's own address for PAUSE; nobody uses it).
pub fn parse(frame: &[u8]) -> Result<FlowControlFrame, Reason> {
    let word = |at| be16(frame, at).ok_or(Reason::FrameTooShort);
    if word(12)? != ETHERTYPE_MAC_CONTROL {
        return Err(Reason::MacControlUnknown);
    }
    if frame[..6] != DEST_MAC {
        return Err(Reason::DestinationMac);
    }
    let what = match word(14)? {
        OPCODE_PAUSE => FlowControl::Pause { quanta: word(16)? },
        OPCODE_PFC => {
            let mut quanta = [0; 8];
            for (priority, quanta) in quanta.iter_mut().enumerate() {
                *quanta = word(18 + 2 * priority)?;
            }
            FlowControl::Pfc { enabled: word(16)? as u8, quanta }
        }
        _ => return Err(Reason::MacControlUnknown),
    };
    let mut source_mac = [0; 6];
    source_mac.copy_from_slice(&frame[6..12]);
    Ok(FlowControlFrame { source_mac, what })
}

/// Writes a flow control frame of the minimum length.
#[must_use]
pub fn build(what: &FlowControlFrame) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&DEST_MAC);
    frame[6..12].copy_from_slice(&what.source_mac);
    let mut put = |at: usize, value: u16| frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    put(12, ETHERTYPE_MAC_CONTROL);
    match what.what {
        FlowControl::Pause { quanta } => {
            put(14, OPCODE_PAUSE);
            put(16, quanta);
        }
        FlowControl::Pfc { enabled, quanta } => {
            put(14, OPCODE_PFC);
            put(16, u16::from(enabled));
            for (priority, quanta) in quanta.into_iter().enumerate() {
                put(18 + 2 * priority, quanta);
            }
        }
    }
    frame
}

/// How long a pause lasts, in nanoseconds rounded down: a quantum is the time of 512 bits at
/// `bits_per_second` (rule F-61). Without a rate no pause ends.
#[must_use]
pub const fn pause_ns(quanta: u16, bits_per_second: u64) -> u64 {
    match (quanta as u128 * 512 * 1_000_000_000).checked_div(bits_per_second as u128) {
        // At most 3.4e16, even at one bit per second.
        Some(ns) => ns as u64,
        None => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn f_60_pfc_pauses_one_priority() {
        let mut quanta = [0; 8];
        quanta[3] = 0xFFFF;
        let what = FlowControlFrame {
            source_mac: SOURCE,
            what: FlowControl::Pfc { enabled: 1 << 3, quanta },
        };
        let frame = build(&what);
        let expected = [
            0x01, 0x80, 0xC2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01, 0x00, 0x08, 0, 0,
            0, 0, 0, 0, 0xFF, 0xFF,
        ];
        assert_eq!(frame[..26], expected);
        assert!(frame[26..].iter().all(|&byte| byte == 0));
        assert_eq!(parse(&frame), Ok(what));
        assert_eq!(super::super::parse(&frame).err(), Some(Reason::FlowControl));
    }

    #[test]
    fn f_60_reserved_vector_bits_are_ignored_and_a_short_frame_is_refused() {
        let what = FlowControlFrame {
            source_mac: SOURCE,
            what: FlowControl::Pfc { enabled: 0x81, quanta: [7; 8] },
        };
        let mut frame = build(&what);
        frame[16] = 0xA5;
        assert_eq!(parse(&frame), Ok(what));
        for len in 0..34 {
            assert_eq!(parse(&frame[..len]), Err(Reason::FrameTooShort), "{len}");
        }
        assert_eq!(parse(&frame[..34]), Ok(what));
    }

    #[test]
    fn f_61_a_pause_lasts_512_bit_times_a_quantum() {
        assert_eq!(pause_ns(65535, 100_000_000_000), 335_539);
        assert_eq!(pause_ns(1, 10_000_000_000), 51);
        assert_eq!(pause_ns(0, 1), 0);
        assert_eq!(pause_ns(1, 0), u64::MAX);
    }

    #[test]
    fn f_62_pause_is_another_frame() {
        let what =
            FlowControlFrame { source_mac: SOURCE, what: FlowControl::Pause { quanta: 0x1234 } };
        let mut frame = build(&what);
        assert_eq!(frame[14..18], [0, 1, 0x12, 0x34]);
        assert_eq!(parse(&frame), Ok(what));
        frame[15] = 2;
        assert_eq!(parse(&frame), Err(Reason::MacControlUnknown));
        frame[0] = 3;
        assert_eq!(parse(&frame), Err(Reason::DestinationMac));
    }
}
