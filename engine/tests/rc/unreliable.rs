//! Unreliable services with each single frame lost, duplicated or swapped with its successor:
//! messages may be missing, but none is wrong, mixed or half there (U-01 to U-03, U-10, P-21, P-22).

use softrnic_engine::{
    Attributes, Completion, CompletionKind, Datagram, Path, PathMtu, Place, RKey, Service, State,
    Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};

const MESSAGES: u32 = 3;

fn byte(m: u32, i: u32) -> u8 {
    (m * 85 + i * 7 + i / 256 + 1) as u8
}

fn message(m: u32, length: u32) -> Vec<u8> {
    (0..length).map(|i| byte(m, i)).collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    service: Service,
    opcode: WorkOpcode,
    mtu: PathMtu,
    length: u32,
    messages: u32,
}

/// Bytes between messages in memory; room for the GRH area too.
fn stride(length: u32) -> u64 {
    u64::from(length.next_multiple_of(64)) + 64
}

impl Case {
    fn run(self, fault: Option<Fate>, fate: impl FnMut(usize, u32) -> Fate) -> u32 {
        let attributes = Attributes {
            service: self.service,
            path_mtu: self.mtu,
            qkey: 0x1234,
            ..Attributes::default()
        };
        let stride = stride(self.length);
        // Messages of the sender, or what is written; after them, the receive buffers.
        let receives = stride * u64::from(self.messages);
        // One more than messages: a duplicate may take one.
        let memory = (receives + stride * u64::from(self.messages + 1)) as usize;
        let setup = Setup { attributes, psn: 0x00FF_FFFE, memory, ..Setup::default() };
        let mut pair = Pair::new(setup);
        pair.region();
        pair.ends[0].face.datagram = Some(Datagram {
            path: Path {
                dest_mac: [2, 0, 0, 0, 0, 2],
                dest_ip: std::net::Ipv4Addr::from([192, 0, 2, 2]).into(),
                ..Path::default()
            },
            dest_qpn: pair.ends[1].qpn,
            qkey: 0x1234,
        });
        for k in 0..=u64::from(self.messages) {
            let length = self.length + 40;
            let place = Place { token: 0, base: receives + k * stride, length };
            pair.ends[1].face.receives.push_back(place);
        }
        for m in 0..self.messages {
            let base = u64::from(m) * stride;
            let bytes = message(m, self.length);
            pair.ends[0].face.memory[base as usize..][..bytes.len()].copy_from_slice(&bytes);
            pair.ends[0].post(Work {
                opcode: self.opcode,
                length: self.length,
                local: Place { token: 0, base, length: self.length },
                remote_va: base,
                rkey: RKey(7),
                immediate: m,
                ..Work::default()
            });
        }
        pair.run_with(fate);
        self.check(&pair, fault);
        pair.frames[0]
    }

    fn check(self, pair: &Pair, fault: Option<Fate>) {
        let context = format!("{self:?} {fault:?}\n{}", pair.ladder);
        let all = vec![Status::Success; self.messages as usize];
        assert_eq!(pair.ends[0].sent(), all, "{context}");
        assert_eq!(pair.frames[1], 0, "nothing is answered: {context}");
        assert_eq!(pair.ends[1].state(), State::Rts);
        let mut seen = Vec::new();
        for completion in &pair.ends[1].face.completions {
            seen.push(self.check_receive(pair, completion, &context));
        }
        let takes = self.opcode != WorkOpcode::Write;
        match fault {
            None if takes => {
                assert!(seen.iter().copied().eq(0..self.messages), "{context}");
            }
            None => assert!(seen.is_empty()),
            Some(Fate::Drop) => assert!(seen.is_sorted_by(|a, b| a < b), "{context}"),
            // A copy is a new message (rule U-05); packets that change places cost two at most.
            _ => assert!(seen.len() <= self.messages as usize + 1, "{context}"),
        }
        if matches!(fault, Some(Fate::Drop | Fate::Duplicate)) && takes {
            assert!(seen.len() + 1 >= self.messages as usize, "one fault, one message: {context}");
        }
        if !matches!(self.opcode, WorkOpcode::Write | WorkOpcode::WriteImm) {
            return;
        }
        // A WRITE that broke may be there in part, but each byte is one that was sent for its place.
        for (m, place) in
            (0..self.messages).zip(pair.ends[1].face.memory.chunks(stride(self.length) as usize))
        {
            let (inside, outside) = place.split_at(self.length as usize);
            let sent = message(m, self.length);
            assert!(outside.iter().all(|&got| got == 0), "{context}");
            if inside != sent {
                assert!(fault.is_some(), "message {m} is missing: {context}");
                let mut pairs = inside.iter().zip(&sent);
                assert!(pairs.all(|(&got, &right)| got == 0 || got == right), "{context}");
            }
        }
    }

    /// The message that completed, which is there as a whole.
    fn check_receive(self, pair: &Pair, completion: &Completion, context: &str) -> u32 {
        let CompletionKind::Receive { place, length, by_write, immediate, .. } = completion.kind
        else {
            panic!("only receives complete: {context}")
        };
        assert_eq!(completion.status, Status::Success);
        let header = if self.service == Service::Ud { 40 } else { 0 };
        assert_eq!(length, self.length + header, "{context}");
        let from = |m: u32| {
            let base = place.expect("a receive was taken").base + u64::from(header);
            let base = if by_write { u64::from(m) * stride(self.length) } else { base };
            &pair.ends[1].face.memory[base as usize..][..self.length as usize]
        };
        let whole = |m: u32| from(m) == message(m, self.length);
        match immediate {
            Some(m) => {
                assert!(whole(m), "message {m} is wrong: {context}");
                m
            }
            // Without immediate and bytes all messages are the same; they are counted.
            None if self.length == 0 => {
                let number = |c: &Completion| c == completion;
                pair.ends[1].face.completions.iter().position(number).unwrap_or(0) as u32
            }
            None => (0..self.messages).find(|&m| whole(m)).expect("it is one of the messages"),
        }
    }

    fn every_single_fault(self) {
        let frames = self.run(None, |_, _| Fate::Deliver);
        for number in 0..frames {
            for fault in [Fate::Drop, Fate::Duplicate, Fate::Swap] {
                self.run(Some(fault), |_, n| if n == number { fault } else { Fate::Deliver });
            }
        }
    }
}

// T-32
#[test]
fn u_02_every_single_fault_of_an_unreliable_connection_costs_messages_but_spoils_none() {
    for mtu in PathMtu::ALL {
        let p = mtu.bytes();
        for opcode in
            [WorkOpcode::Send, WorkOpcode::SendImm, WorkOpcode::Write, WorkOpcode::WriteImm]
        {
            for length in [0, 1, p - 1, p, p + 1, 3 * p + 1] {
                Case { service: Service::Uc, opcode, mtu, length, messages: MESSAGES }
                    .every_single_fault();
            }
        }
    }
}

// T-33
#[test]
fn u_10_every_single_fault_of_datagrams_costs_messages_but_spoils_none() {
    for mtu in PathMtu::ALL {
        let p = mtu.bytes();
        for opcode in [WorkOpcode::Send, WorkOpcode::SendImm] {
            for length in [0, 1, p - 1, p] {
                Case { service: Service::Ud, opcode, mtu, length, messages: MESSAGES }
                    .every_single_fault();
            }
        }
    }
}

#[test]
fn u_01_one_mebibyte_arrives_whole_at_each_path_mtu() {
    for mtu in PathMtu::ALL {
        for opcode in [WorkOpcode::SendImm, WorkOpcode::WriteImm] {
            let messages = MESSAGES;
            Case { service: Service::Uc, opcode, mtu, length: 1 << 20, messages }
                .run(None, |_, _| Fate::Deliver);
        }
    }
}

/// One message of 1 MiB with each single fault at each path MTU, as `exchange.rs` has it for RC:
/// 93,000 exchanges, some minutes of `cargo test --release -p softrnic-engine --test rc one_mebibyte_with`.
#[cfg(not(debug_assertions))]
mod one_mebibyte_with_each_single_fault {
    use super::*;

    fn run(opcode: WorkOpcode) {
        for mtu in PathMtu::ALL {
            Case { service: Service::Uc, opcode, mtu, length: 1 << 20, messages: 1 }
                .every_single_fault();
        }
    }

    #[test]
    fn p_21_send() {
        run(WorkOpcode::Send);
    }

    #[test]
    fn p_21_send_with_immediate() {
        run(WorkOpcode::SendImm);
    }

    #[test]
    fn p_21_write() {
        run(WorkOpcode::Write);
    }

    #[test]
    fn p_21_write_with_immediate() {
        run(WorkOpcode::WriteImm);
    }
}
