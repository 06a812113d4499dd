//! A scripted peer: packets written field by field for one end, and what that end says in reply.
//!
//! It keeps no protocol state of its own; the test says every PSN.

use softrnic_engine::packet::{
    AtomicAckEth, AtomicEth, BthFields, Description, Extensions, Flow, Ieth, ImmDt, Network, Reth,
    aeth, build, icrc, opcode, parse,
};
use softrnic_engine::{Nanos, Psn, Reason, Room};

use crate::harness::{Pair, Region};

/// The key of the region that [`Pair::region`] gives.
pub const KEY: u32 = 7;

/// A packet that an end sent.
#[derive(Clone, Debug)]
pub struct Heard {
    pub frame: Vec<u8>,
    pub opcode: u8,
    pub psn: u32,
    pub payload: Vec<u8>,
    pub ack_request: bool,
    pub syndrome: Option<u8>,
    pub msn: Option<u32>,
    /// Address and length.
    pub reth: Option<(u64, u32)>,
    pub retransmission: bool,
}

/// (opcode, PSN) of packets.
pub fn brief(heard: &[Heard]) -> Vec<(u8, u32)> {
    heard.iter().map(|h| (h.opcode, h.psn)).collect()
}

/// (syndrome, PSN) of packets; 0xFF where a packet has no AETH.
pub fn answers(heard: &[Heard]) -> Vec<(u8, u32)> {
    heard.iter().map(|h| (h.syndrome.unwrap_or(0xFF), h.psn)).collect()
}

pub fn reth(va: u64, rkey: u32, length: u32) -> Extensions {
    let reth = Reth { va: va.into(), rkey: rkey.into(), dma_length: length.into() };
    Extensions { reth, ..Extensions::default() }
}

pub fn atomic(va: u64, swap_or_add: u64, compare: u64) -> Extensions {
    let atomic_eth = AtomicEth {
        va: va.into(),
        rkey: KEY.into(),
        swap_or_add: swap_or_add.into(),
        compare: compare.into(),
    };
    Extensions { atomic_eth, ..Extensions::default() }
}

pub fn imm(immediate: u32) -> Extensions {
    Extensions { immdt: ImmDt { immediate: immediate.into() }, ..Extensions::default() }
}

pub fn inv(rkey: u32) -> Extensions {
    Extensions { ieth: Ieth { rkey: rkey.into() }, ..Extensions::default() }
}

/// An AETH, and an original value for those that carry one.
pub fn reply(syndrome: u8, msn: u32) -> Extensions {
    let atomic_ack_eth = AtomicAckEth { original: 0x1122_3344_5566_7788.into() };
    Extensions { aeth: aeth(syndrome, msn), atomic_ack_eth, ..Extensions::default() }
}

/// No extension header.
pub fn plain() -> Extensions {
    Extensions::default()
}

impl Pair {
    /// The addresses of a frame from the peer of `to`.
    pub fn flow(&self, to: usize) -> Flow {
        let end = &self.ends[to];
        let port = end.engine.port();
        let path = end.engine.qp(end.qpn).expect("it exists").attributes().path;
        Flow {
            source_mac: path.dest_mac,
            dest_mac: port.mac,
            vlan_tci: None,
            source_ip: path.dest_ip,
            dest_ip: if path.dest_ip.is_ipv4() { port.ipv4.into() } else { port.ipv6.into() },
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            source_port: 0xC000,
            pkey: 0xFFFF,
            dest_qpn: end.qpn,
        }
    }

    /// A packet from the peer of `to`, to be changed at will. Requests ask for an ACK.
    pub fn packet(
        &self,
        to: usize,
        opcode: u8,
        psn: u32,
        ext: Extensions,
        payload: &[u8],
    ) -> Description {
        let ack_request = !opcode::row(opcode).operation.is_response();
        let bth = BthFields { psn: Psn::new(psn), ack_request, ..BthFields::default() };
        Description::new(&self.flow(to), opcode, bth, ext, payload).expect("one family")
    }

    /// Lets `to` have a packet.
    pub fn tell(&mut self, to: usize, what: &Description) -> Option<Reason> {
        let frame = build(what).expect("the packet can be written");
        self.inject(to, &frame)
    }

    /// Lets `to` have a request packet.
    pub fn ask(
        &mut self,
        to: usize,
        opcode: u8,
        psn: u32,
        ext: Extensions,
        payload: &[u8],
    ) -> Option<Reason> {
        let what = self.packet(to, opcode, psn, ext, payload);
        self.tell(to, &what)
    }

    /// Lets `to` have an ACK, NAK or RNR NAK.
    pub fn acknowledge(&mut self, to: usize, syndrome: u8, psn: u32) -> Option<Reason> {
        self.ask(to, opcode::ACKNOWLEDGE, psn, reply(syndrome, 0), &[])
    }

    /// Everything that `from` wants to send now; none of it arrives anywhere.
    pub fn hear(&mut self, from: usize) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut bytes = vec![0; softrnic_engine::packet::FRAME_LEN_MAX];
        let end = &mut self.ends[from];
        loop {
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            let Some(train) = end.engine.poll_transmit(self.now, &mut room, &mut end.face) else {
                return heard;
            };
            assert!(heard.len() < 100_000, "it never stops");
            let packet = parse(&bytes[..train.len]).expect("what we send can be parsed");
            assert!(packet.icrc_valid(), "what we send has a right ICRC");
            heard.push(Heard {
                frame: packet.frame.to_vec(),
                opcode: packet.bth.opcode,
                psn: packet.bth.psn().get(),
                payload: packet.payload().to_vec(),
                ack_request: packet.bth.ack_requested(),
                syndrome: packet.aeth().map(|aeth| aeth.syndrome),
                msn: packet.aeth().map(|aeth| aeth.msn()),
                reth: packet.reth().map(|reth| (reth.va.get(), reth.dma_length.get())),
                retransmission: train.retransmission,
            });
        }
    }

    /// Moves the clock and runs the timers of `end`.
    pub fn pass(&mut self, end: usize, ns: u64) {
        self.now = Nanos(self.now.0 + ns);
        let end = &mut self.ends[end];
        end.engine.handle_timeout(self.now, &mut end.face);
    }

    /// What `to` expects next.
    pub fn expected(&self, to: usize) -> u32 {
        let end = &self.ends[to];
        end.engine.qp(end.qpn).expect("it exists").expected_psn().get()
    }

    /// Messages that `to` has executed.
    pub fn msn(&self, to: usize) -> u32 {
        let end = &self.ends[to];
        end.engine.qp(end.qpn).expect("it exists").responder().msn()
    }

    /// Gives `end` a region under a key of its choice.
    pub fn grant(&mut self, end: usize, key: u32, va: u64, length: u64, read: bool, write: bool) {
        self.ends[end].face.regions.insert(key, Region { va, length, read, write, valid: true });
    }
}

/// Redoes IPv4 header checksum and ICRC of a frame without tags that ends with its ICRC.
pub fn seal(frame: &mut [u8]) {
    let ipv4 = frame[12..14] == [0x08, 0x00];
    if ipv4 {
        frame[24..26].fill(0);
        let words = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    let at = frame.len() - 4;
    let network = if ipv4 { Network::Ipv4 } else { Network::Ipv6 };
    let crc = icrc::of(network, &frame[14..at]);
    frame[at..].copy_from_slice(&crc.to_le_bytes());
}
