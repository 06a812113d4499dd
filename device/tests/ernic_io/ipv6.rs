//! Queue pairs over IPv6.

use softrnic_device::ernic::Register;

use crate::bench::*;

#[test]
fn ipv6_queue_pairs_move_send_write_and_read() {
    let mut bench = usual_pair();
    let address = |number: u32| [number, 0xA1A2_A3A4, 0x0001_0002, 0x2001_0DB8];
    let own = [Register::Ipv6xadd1, Register::Ipv6xadd2, Register::Ipv6xadd3, Register::Ipv6xadd4];
    let peers =
        [Register::Ipdesaddr1, Register::Ipdesaddr2, Register::Ipdesaddr3, Register::Ipdesaddr4];
    for (number, end) in (1..).zip(&mut bench.ends) {
        for (register, word) in own.into_iter().zip(address(number)) {
            end.set(register, 0, word);
        }
        for (register, word) in peers.into_iter().zip(address(3 - number)) {
            end.set(register, 2, word);
        }
        end.set(Register::Qpconf, 2, QPCONF | 1 << 7);
    }
    fill(&mut bench.ends[0].memory, LOCAL, 3000, 7);
    fill(&mut bench.ends[1].memory, REGION + 0x4000, 2500, 99);
    let write = Entry { local: LOCAL, len: 3000, remote: REGION, rkey: RKEY, ..Entry::default() };
    let read =
        Entry { opcode: 4, local: LOCAL + 0x8000, len: 2500, remote: REGION + 0x4000, ..write };
    let send = Entry { opcode: 2, ..write };
    for (sqpi, entry) in (1..).zip([send, write, read]) {
        write_entry(&mut bench.ends[0], 2, sqpi, &entry);
    }
    bench.ends[0].set(Register::Sqpi, 2, 3);
    bench.settle();

    assert_eq!(bench.ends[0].get(Register::Cqhead, 2), 3);
    assert_eq!(bench.ends[0].get(Register::Statqp, 2), 0x600);
    let (a, b) = (&bench.ends[0].memory, &bench.ends[1].memory);
    assert_eq!(bytes(b, of_qp(2, RQ), 3000), bytes(a, LOCAL, 3000));
    assert_eq!(bytes(b, REGION, 3000), bytes(a, LOCAL, 3000));
    assert_eq!(bytes(a, LOCAL + 0x8000, 2500), bytes(b, REGION + 0x4000, 2500));
    for sent in &bench.log {
        assert_eq!(sent.bytes[12..15], [0x86, 0xDD, 0x60], "{sent:x?}");
        let (from, to) = (sent.from as u8 + 1, 2 - sent.from as u8);
        assert_eq!(sent.bytes[22..26], [0x20, 0x01, 0x0D, 0xB8], "source");
        assert_eq!((sent.bytes[37], sent.bytes[53]), (from, to));
        assert_eq!(sent.refused, None);
    }
}
