//! RecoNIC's examples against two cards: the accesses that its library makes, and what its programs check.

use softrnic_device::reconic::Reconic;
use softrnic_engine::Reason;

use crate::bench::*;
use crate::script::{Sparse, Variables, replay};

const BRING_UP: &str = include_str!("../../../golden/bring-up/reconic.txt");
const READ: &str = include_str!("../../../golden/bring-up/reconic-read.txt");
const WRITE: &str = include_str!("../../../golden/bring-up/reconic-write.txt");
const SEND_RECV: &str = include_str!("../../../golden/bring-up/reconic-send_recv.txt");
const DUMP: &str = include_str!("../../../golden/bring-up/reconic-dump.txt");
const DESTROY: &str = include_str!("../../../golden/bring-up/reconic-destroy.txt");

type Cards = Bench<Reconic<Sparse, Sparse>>;

/// Huge pages at 9 GiB, above what 32 bits reach.
const HOST: u64 = 0x2_4000_0000;

fn brought_up(len: u64) -> (Cards, Variables<'static>) {
    let mut bench = Bench::of([(); 2].map(|()| Reconic::new(Sparse::default(), Sparse::default())));
    let mut variables = Variables::from([("host", HOST), ("len", len)]);
    for end in 0..2 {
        let (own, peer) = (end as u64 + 1, 2 - end as u64);
        variables.extend([
            ("own_mac_low", 0x3500_0A00 | own),
            ("own_mac_high", 0x0200),
            ("own_ip", u64::from(ipv4(own as u8))),
            ("peer_mac_low", 0x3500_0A00 | peer),
            ("peer_mac_high", 0x0200),
            ("peer_ip", u64::from(ipv4(peer as u8))),
        ]);
        replay(&mut bench, end, BRING_UP, &variables);
    }
    for card in &bench.ends {
        let refused = card.nic.engine.refused();
        assert_eq!(refused.iter().sum::<u64>(), 0, "the library writes nothing that is refused");
    }
    (bench, variables)
}

/// Runs an example with a payload, what its programs print in the end, and their clean-up.
fn example(script: &str, len: u64, [client_sent, server_sent]: [u64; 2]) -> Cards {
    let (mut bench, mut variables) = brought_up(len);
    replay(&mut bench, 0, script, &variables);
    replay(&mut bench, 0, DUMP, &variables);
    variables.extend([("client_sent", client_sent), ("server_sent", server_sent)]);
    replay(&mut bench, 0, DESTROY, &variables);
    for card in &bench.ends {
        let refused = card.nic.engine.refused();
        assert_eq!(refused[Reason::RegisterUnlisted as usize], 2, "two in the dump, no more");
        assert_eq!(refused.iter().sum::<u64>(), 2);
        assert!(!card.nic.engine.port().enabled);
    }
    bench
}

#[test]
fn reconics_read_example_finds_what_the_server_has() {
    for len in [4, 64, 4096, 1 << 18] {
        let mut bench = example(READ, len, [1, 0]);
        // The statistics block has seen the response packets.
        let packets = len.div_ceil(4096) as u32;
        assert_eq!(bench.ends[0].read32(0x10_200C), packets, "{len} bytes");
        assert_eq!(bench.ends[0].read32(0x10_200C), 0, "cleared by reading");
        assert_eq!(bench.ends[0].read32(0x10_2014), packets);
    }
}

#[test]
fn reconics_write_example_puts_it_into_the_servers_memory() {
    for len in [4, 64, 4096, 1 << 18] {
        example(WRITE, len, [1, 0]);
    }
}

#[test]
fn reconics_send_recv_example_fills_the_first_receive_element() {
    // With 4 bytes the library leaves the inline data 0, and so is its pattern's first word.
    for len in [4, 64, 4096, 1 << 16] {
        let mut bench = example(SEND_RECV, len, [0, 1]);
        // Doorbell words in the client's huge pages; the server's are behind the window, too.
        let mut word = [0; 4];
        bench.ends[0].memory().get(HOST + 32, &mut word);
        assert_eq!(word, [1, 0, 0, 0]);
        bench.ends[1].memory().get(HOST, &mut word);
        assert_eq!(word, [1, 0, 0, 0]);
    }
}

/// The batch examples announce up to 64 entries at once from an empty queue, and read CQHEAD until it
/// has come as far.
#[test]
fn a_whole_ring_is_announced_at_once() {
    let (mut bench, variables) = brought_up(64);
    let region = WRITE.lines().filter(|line| line.starts_with("server w"));
    region.for_each(|line| replay(&mut bench, 0, line, &variables));
    for slot in 0..64u64 {
        let wqe = HOST + 0x122_2000 + 64 * slot;
        let line =
            format!("client wqe {wqe} {slot} 0xA350000000000000 $len 0 0xA350000000000000 8");
        replay(&mut bench, 0, &line, &variables);
    }
    let batch = "client data 0xA350000000000000 $len\nclient w 0x60338 64\nclient until 0x60330 64\n\
                 server expect 0xA350000000000000 $len\nclient r 0x60388 0x600 0x6FF\n\
                 client r 0x60398 64";
    replay(&mut bench, 0, batch, &variables);
}
