//! What holds for every message and every order of events.

use proptest::collection::vec;
use proptest::prelude::*;
use softrnic_engine::{Nanos, Qpn};
use softrnic_host::cm::message::{self, Kind, MAD_LEN, Message};
use softrnic_host::cm::{Accept, Cm, CmConfig, Connect, LocalQp, Peer, Reject};

use crate::wire::config;

/// A datagram of connection management with arbitrary contents.
fn any_mad() -> impl Strategy<Value = [u8; MAD_LEN]> {
    (vec(any::<u8>(), MAD_LEN), prop::sample::select(Kind::ALL)).prop_map(|(bytes, kind)| {
        let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&kind.attribute().to_be_bytes());
        mad
    })
}

/// Bits that no row of a kind's table names.
fn reserved(kind: Kind) -> Vec<usize> {
    let fields = kind.fields();
    let named = |bit| fields.iter().any(|field| (field.bit..field.bit + field.bits).contains(&bit));
    (0..8 * (MAD_LEN - 24)).filter(|&bit| !named(bit)).collect()
}

proptest! {
    /// Every field comes back, and encoding changes reserved bits only.
    #[test]
    fn a_message_survives_its_datagram(mad in any_mad()) {
        let (transaction, message) = Message::decode(&mad).unwrap();
        let again = message.encode(transaction);
        prop_assert_eq!(Message::decode(&again).unwrap(), (transaction, message.clone()));
        let mut expected = mad;
        // Status, class specific, reserved, modifier: zero when sent.
        expected[4..8].fill(0);
        expected[18..24].fill(0);
        for bit in reserved(message.kind()) {
            expected[24 + bit / 8] &= !(0x80 >> (bit % 8));
        }
        prop_assert_eq!(&again[..], &expected[..]);
    }

    /// Any bytes are a message or a refusal, and have a tree that stays within them.
    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Message::decode(&bytes);
        for node in message::nodes(&bytes, 0) {
            for field in &node.children {
                prop_assert!(field.offset + field.len <= bytes.len());
            }
        }
    }

    /// No order of commands, messages and time makes a node panic, exceed its limits or forget a
    /// timer; and once everybody is silent, every connection ends.
    #[test]
    fn a_node_survives_any_peer(steps in vec((0..10u8, any::<u8>(), any_mad()), 1..80)) {
        let (us, them) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let limits = CmConfig { max_connections: 8, max_transmit: 16, ..config(0, us) };
        let mut cm = Cm::new(limits);
        let service = message::tcp_service(7174);
        let mut now = Nanos(0);
        let mut ids = Vec::new();
        for (step, pick, mut mad) in steps {
            now = now.after(u64::from(pick) * 100_000_000);
            let id = ids.get(usize::from(pick) % ids.len().max(1)).copied();
            match (step, id) {
                (0, _) => drop(cm.listen(service, usize::from(pick % 4))),
                (1, _) => {
                    let qp = LocalQp { qpn: Qpn::new(pick.into()), ..LocalQp::default() };
                    let connect = Connect { qp, ..Connect::tcp(us, 1, them, 7174, &[]).unwrap() };
                    ids.extend(cm.connect(now, &connect));
                }
                (2, Some(id)) => drop(cm.accept(now, id, &Accept::default())),
                (3, Some(id)) => drop(cm.reject(id, Reject::CONSUMER, &[pick])),
                (4, Some(id)) => drop(cm.ready(id)),
                (5, Some(id)) => drop(cm.disconnect(now, id)),
                (6, Some(id)) => drop(cm.delay(id, pick)),
                _ => {
                    // Aim at what exists: our number, a service that is listened to, few peers.
                    if let (Some(id), true) = (id, pick % 4 != 0) {
                        mad[28..32].copy_from_slice(&id.0.to_be_bytes());
                    }
                    if mad[17] == 0x10 {
                        mad[24..28].copy_from_slice(&u32::from(pick % 8).to_be_bytes());
                        mad[32..40].copy_from_slice(&service.to_be_bytes());
                        mad[40..48].copy_from_slice(&u64::from(pick % 2).to_be_bytes());
                        mad[67] &= 0xF9;
                        mad[74] = 0x30 | mad[74] & 7;
                        mad[96..112].copy_from_slice(&message::gid(us).octets());
                    } else {
                        mad[24..28].copy_from_slice(&u32::from(pick % 8).to_be_bytes());
                    }
                    let from = Peer { ip: them, qpn: Qpn::new(1) };
                    let _ = cm.handle_mad(now, from, &mad);
                }
            }
            cm.handle_timeout(now);
            prop_assert!(cm.connections() <= 8);
            prop_assert!(cm.next_deadline().is_none_or(|deadline| deadline > now));
            while let Some(event) = cm.poll_event() {
                ids.push(event.id());
            }
            if pick % 3 == 0 {
                while cm.poll_transmit().is_some() {}
            }
        }
        // The program ends what waits for it or stands; the rest ends by itself.
        for id in ids {
            let _ = cm.disconnect(now, id);
        }
        while let Some(deadline) = cm.next_deadline() {
            cm.handle_timeout(deadline);
        }
        prop_assert_eq!(cm.connections(), 0);
    }
}
