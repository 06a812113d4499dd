//! After each fatal cause the driver's `recover` brings the same queue pair back: two devices, each with
//! its driver, and a wire between them that can change frames.

use softrnic_device::ernic::{Ernic as Device, ErnicConfig, fatal_code};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::{
    Completion, DeviceConfig, DmaBuffer, DmaError, Ernic, Interrupts, Local, Map, PathMtu,
    Platform, QpConfig, QpNumber, RegionAccess, RegionConfig, Remote, Request, registers as reg,
};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Reason, Room, Rx};

use crate::world::{Check, at, same, seal};

const BASE: u64 = 0x4000_0000;
const MESSAGE: u32 = 5000;
const AREA: usize = 0x2_0000;
/// Not memory.
const NOWHERE: u64 = 0x1000;

/// A device as its driver's platform.
struct Model {
    nic: Nic<Device, Ram>,
    used: u64,
}

impl Platform for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        self.nic.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.nic.write32(offset, value);
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let bus = self.used.next_multiple_of(align as u64);
        self.used = bus + len as u64;
        self.nic.memory.slice(bus, len).is_ok().then_some(DmaBuffer { bus, len })
    }

    fn dma_free(&mut self, _: DmaBuffer) {}

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let len = out.len();
        self.nic.memory.read(bus, out).map_err(|_| DmaError { bus, len })
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len();
        self.nic.memory.write(bus, bytes).map_err(|_| DmaError { bus, len })
    }

    fn pause(&mut self) {}
}

fn say(error: softrnic_driver::Error) -> String {
    error.to_string()
}

struct Host {
    ernic: Ernic<Model>,
    qp: QpNumber,
    area: u64,
    rkey: u32,
    number: u8,
}

impl Host {
    fn new(number: u8) -> Check<Self> {
        let config = ErnicConfig { num_qp: 8, strict_alignment: true, ..ErnicConfig::default() };
        let nic = Nic::ernic(config, Ram::new(BASE, 4 << 20));
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [192, 0, 2, number].into(),
            interrupt_mask: 0x1FB,
            ..DeviceConfig::default()
        };
        let mut ernic =
            Ernic::bring_up(Model { nic, used: BASE }, Map::V4_0, &config).map_err(say)?;
        let area = ernic.dma_alloc("area", AREA).map_err(say)?.bus;
        let region = RegionConfig {
            pd: 1,
            va: area,
            bus: area,
            len: AREA as u64,
            access: RegionAccess::ReadWrite,
            key: 7,
        };
        let rkey = ernic.register_region(&region).map_err(say)?.rkey;
        let qp = ernic
            .create_qp(&QpConfig {
                sq_depth: 32,
                rq_depth: 4,
                rq_element_len: 8192,
                path_mtu: PathMtu::Mtu1024,
                pd: 1,
                retry_count: 2,
                rnr_retry: 2,
                ..QpConfig::default()
            })
            .map_err(say)?;
        Ok(Self { ernic, qp, area, rkey, number })
    }

    fn nic(&mut self) -> &mut Nic<Device, Ram> {
        &mut self.ernic.platform_mut().nic
    }

    fn remote(&self, psn: u32) -> Remote {
        let peer = 3 - self.number;
        Remote {
            mac: [2, 0, 0, 0, 0, peer],
            ip: std::net::Ipv4Addr::new(192, 0, 2, peer).into(),
            qpn: self.qp.get().into(),
            send_psn: psn + u32::from(self.number),
            receive_psn: psn + u32::from(peer),
        }
    }

    fn post(&mut self, request: &Request<'_>) -> Check {
        self.ernic.post(self.qp, request).map_err(say)?;
        self.ernic.ring(self.qp).map_err(say)
    }

    /// Takes all completions; tells how many failed.
    fn completions(&mut self) -> Check<(usize, usize)> {
        let mut out = [Completion::default(); 64];
        let count = self.ernic.poll_completions(self.qp, &mut out).map_err(say)?;
        Ok((count, out[..count].iter().filter(|completion| completion.failed).count()))
    }
}

/// Changes a frame; `false` loses it.
type OnWire = fn(from_a: bool, frame: &mut Vec<u8>) -> bool;

struct Two {
    a: Host,
    b: Host,
    now: Nanos,
    on_wire: OnWire,
    psn: u32,
}

impl Two {
    fn new() -> Check<Self> {
        let (a, b) = (Host::new(1)?, Host::new(2)?);
        let mut two = Self { a, b, now: Nanos(0), on_wire: |_, _| true, psn: 100 };
        for host in [&mut two.a, &mut two.b] {
            let remote = host.remote(two.psn);
            host.ernic.connect_qp(host.qp, &remote).map_err(say)?;
        }
        Ok(two)
    }

    fn step(&mut self) -> bool {
        let mut bytes = [0; FRAME_LEN_MAX];
        let mut moved = false;
        for from_a in [true, false] {
            let (from, to) =
                if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            let Some(train) = from.nic().poll_transmit(self.now, &mut room) else { continue };
            moved = true;
            let mut frame = bytes[..train.len].to_vec();
            if (self.on_wire)(from_a, &mut frame) {
                to.nic().handle_frame(self.now, &frame, Rx::default());
            }
        }
        moved
    }

    fn settle(&mut self) -> Check {
        for _ in 0..10_000 {
            if self.step() {
                continue;
            }
            let deadlines = [self.a.nic().next_deadline(), self.b.nic().next_deadline()];
            let Some(deadline) = deadlines.into_iter().flatten().min() else { return Ok(()) };
            self.now = self.now.max(deadline);
            self.a.nic().handle_timeout(self.now);
            self.b.nic().handle_timeout(self.now);
        }
        Err("never settles".into())
    }

    fn write(&self, len: u32) -> Request<'static> {
        Request::write(1, Local::Bus { address: self.a.area, len }, self.b.area, self.b.rkey)
    }

    fn read(&self, len: u32) -> Request<'static> {
        Request::read(3, Local::Bus { address: self.a.area, len }, self.b.area, self.b.rkey)
    }

    /// SEND, WRITE and READ move bytes, and all three complete well.
    fn traffic(&mut self, seed: u8) -> Check {
        let (a, b) = (self.a.area, self.b.area);
        let message = vec![seed; MESSAGE as usize];
        let answer = vec![!seed; 1024];
        let memory = &mut self.a.nic().memory;
        memory.write(a, &message).map_err(|fault| fault.to_string())?;
        let memory = &mut self.b.nic().memory;
        memory.write(b + 0x8000, &answer).map_err(|fault| fault.to_string())?;
        let local = Local::Bus { address: a, len: MESSAGE };
        // 64-byte rules are on.
        let part = Local::Bus { address: a, len: 4992 };
        let back = Local::Bus { address: a + 0x8000, len: 1024 };
        let rkey = self.b.rkey;
        self.a.post(&Request::send(1, local))?;
        self.a.post(&Request::write(2, part, b, rkey))?;
        self.a.post(&Request::read(3, back, b + 0x8000, rkey))?;
        self.settle()?;
        same("completions, failed ones", self.a.completions()?, (3, 0))?;
        let received = self.b.ernic.poll_receive(self.b.qp).map_err(say)?.ok_or("no message")?;
        let bytes = |host: &mut Host, at, len| -> Check<Vec<u8>> {
            let slice = host.nic().memory.slice(at, len).map_err(|fault| fault.to_string())?;
            Ok(slice.to_vec())
        };
        let sent = bytes(&mut self.b, received.bus, MESSAGE as usize)?;
        same("sent", sent == message, true)?;
        same("written", bytes(&mut self.b, b, 4992)? == message[..4992], true)?;
        same("read", bytes(&mut self.a, a + 0x8000, 1024)? == answer, true)?;
        self.b.ernic.release_receive(self.b.qp, 1).map_err(say)
    }
}

/// A way to go fatal: on which side, for which reason, how, and what software repairs first.
struct Cause {
    reason: Reason,
    of_b: bool,
    provoke: fn(&mut Two) -> Check,
    repair: fn(&mut Two),
}

const fn cause(reason: Reason, of_b: bool, provoke: fn(&mut Two) -> Check) -> Cause {
    Cause { reason, of_b, provoke, repair: |_| {} }
}

fn tampered(two: &mut Two, request: &Request<'_>, on_wire: OnWire) -> Check {
    two.on_wire = on_wire;
    two.a.post(request)?;
    two.settle()
}

/// Changes the opcode of a's requests.
macro_rules! with_opcode {
    ($len:literal, $opcode:literal) => {
        |two| {
            let request = two.write($len);
            tampered(two, &request, |from_a, frame| {
                if from_a {
                    frame[at::OPCODE] = $opcode;
                    seal(frame);
                }
                true
            })
        }
    };
}

/// b answers with this AETH syndrome instead.
macro_rules! answered {
    ($syndrome:literal) => {
        |two| {
            let request = two.write(64);
            tampered(two, &request, |from_a, frame| {
                if !from_a {
                    frame[at::AETH] = $syndrome;
                    seal(frame);
                }
                true
            })
        }
    };
}

fn causes() -> Vec<Cause> {
    let (a, b) = (false, true);
    vec![
        // The peer's requests.
        cause(Reason::OpcodeSequence, b, with_opcode!(64, 0x07)),
        cause(Reason::OpcodeUnknown, b, with_opcode!(64, 0x1F)),
        cause(Reason::OperationDisabled, b, with_opcode!(12, 0x13)),
        Cause {
            reason: Reason::LastOpcodeUnset,
            of_b: b,
            provoke: |two| {
                let offset = Map::V4_0.of_qp(two.b.qp, reg::LSTRQREQ).offset;
                let last = two.b.nic().read32(offset);
                two.b.nic().write32(offset, last & 0x00FF_FFFF);
                let request = two.write(64);
                tampered(two, &request, |_, _| true)
            },
            repair: |_| {},
        },
        cause(Reason::PayloadLength, b, |two| {
            let request = two.write(64);
            tampered(two, &request, |from_a, frame| {
                if from_a {
                    frame[69] += 4;
                    seal(frame);
                }
                true
            })
        }),
        cause(Reason::MessageTooLong, b, |two| {
            let request = two.write(4096);
            tampered(two, &request, |from_a, frame| {
                if from_a && frame[at::OPCODE] == 0x06 {
                    frame[66] = 0x10;
                    seal(frame);
                }
                true
            })
        }),
        cause(Reason::ReceiveTooSmall, b, |two| {
            let local = Local::Bus { address: two.a.area, len: 9000 };
            tampered(two, &Request::send(1, local), |_, _| true)
        }),
        cause(Reason::MessageEmpty, b, |two| {
            tampered(two, &Request::send(1, Local::Inline(b"12345678")), |from_a, frame| {
                if from_a {
                    frame.truncate(frame.len() - 8);
                    frame[17] -= 8;
                    frame[39] -= 8;
                    seal(frame);
                }
                true
            })
        }),
        cause(Reason::TooManyReads, b, |two| {
            let request = two.read(64);
            let mut bytes = [0; FRAME_LEN_MAX];
            two.a.post(&request)?;
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            let now = two.now;
            let train = two.a.nic().poll_transmit(now, &mut room).ok_or("no frame")?;
            let mut frame = bytes[..train.len].to_vec();
            for _ in 0..17 {
                two.b.nic().handle_frame(now, &frame, Rx::default());
                frame[at::PSN + 2] += 1;
                seal(&mut frame);
            }
            two.settle()
        }),
        cause(Reason::KeyUnknown, b, |two| {
            let request = Request { rkey: two.b.rkey ^ 1, ..two.write(64) };
            tampered(two, &request, |_, _| true)
        }),
        cause(Reason::AddressRange, b, |two| {
            let request = Request { remote_va: two.b.area + AREA as u64, ..two.write(64) };
            tampered(two, &request, |_, _| true)
        }),
        cause(Reason::AddressAlignment, b, |two| {
            let request = two.write(63);
            tampered(two, &request, |_, _| true)
        }),
        Cause {
            reason: Reason::ProtectionDomain,
            of_b: b,
            provoke: |two| {
                two.b.nic().write32(reg::PDPDNUM.offset, 2);
                let request = two.write(64);
                tampered(two, &request, |_, _| true)
            },
            repair: |two| two.b.nic().write32(reg::PDPDNUM.offset, 1),
        },
        Cause {
            reason: Reason::AccessRights,
            of_b: b,
            provoke: |two| {
                two.b.nic().write32(reg::ACCESSDESC.offset, 0);
                let request = two.write(64);
                tampered(two, &request, |_, _| true)
            },
            repair: |two| two.b.nic().write32(reg::ACCESSDESC.offset, 2),
        },
        cause(Reason::DmaAddress, b, |two| {
            let offset = Map::V4_0.of_qp(two.b.qp, reg::RQBA).offset;
            two.b.nic().write32(offset, NOWHERE as u32);
            tampered(two, &Request::send(1, Local::Inline(b"hello")), |_, _| true)
        }),
        // Our own work, and the answers to it.
        cause(Reason::WorkOpcodeIllegal, a, |two| raw_entry(two, 0x05, None, 64)),
        cause(Reason::MessageEmpty, a, |two| raw_entry(two, 0x02, None, 0)),
        cause(Reason::WorkLength, a, |two| raw_entry(two, 0x00, None, (8 << 20) + 1)),
        cause(Reason::DmaAddress, a, |two| raw_entry(two, 0x00, Some(NOWHERE), 64)),
        cause(Reason::DmaAddress, a, |two| {
            let offset = Map::V4_0.of_qp(two.a.qp, reg::SQBA).offset;
            two.a.nic().write32(offset, NOWHERE as u32);
            let request = two.write(64);
            tampered(two, &request, |_, _| true)
        }),
        cause(Reason::DmaAddress, a, |two| {
            let offset = Map::V4_0.of_qp(two.a.qp, reg::CQBA).offset;
            two.a.nic().write32(offset, NOWHERE as u32);
            let request = two.write(64);
            tampered(two, &request, |_, _| true)
        }),
        cause(Reason::DmaAddress, a, |two| {
            let offset = Map::V4_0.of_qp(two.a.qp, reg::CQDBADD).offset;
            two.a.nic().write32(offset, NOWHERE as u32);
            let request = two.write(64);
            tampered(two, &request, |_, _| true)
        }),
        Cause {
            reason: Reason::RetryBuffersTooSmall,
            of_b: a,
            provoke: |two| {
                two.a.nic().write32(reg::DATBUFSZ.offset, 1 | 64 << 16);
                let request = two.write(1024);
                tampered(two, &request, |_, _| true)
            },
            repair: |two| two.a.nic().write32(reg::DATBUFSZ.offset, 128 | 4096 << 16),
        },
        cause(Reason::RetryExceeded, a, |two| {
            let request = two.write(64);
            tampered(two, &request, |_, _| false)
        }),
        cause(Reason::RnrRetryExceeded, a, |two| {
            for _ in 0..4 {
                two.a.post(&Request::send(1, Local::Inline(b"one too many")))?;
            }
            two.settle()
        }),
        cause(Reason::RemoteInvalidRequest, a, answered!(0x61)),
        cause(Reason::RemoteAccess, a, answered!(0x62)),
        cause(Reason::RemoteOperational, a, answered!(0x63)),
        cause(Reason::ResponseMalformed, a, |two| {
            let request = two.read(64);
            tampered(two, &request, |from_a, frame| {
                if !from_a && frame[at::OPCODE] == 0x10 {
                    frame[at::OPCODE] = 0x0D;
                    seal(frame);
                }
                true
            })
        }),
    ]
}

/// A send queue entry that the driver would not post.
fn raw_entry(two: &mut Two, opcode: u8, address: Option<u64>, len: u32) -> Check {
    let address = address.unwrap_or(two.a.area);
    let request = two.write(64);
    two.a.ernic.post(two.a.qp, &request).map_err(say)?;
    let qp = two.a.qp;
    let base = two.a.ernic.read_qp(qp, reg::SQBA);
    let slot = two.a.ernic.read_qp(qp, reg::SQPI) % 32;
    let at = u64::from(base) + 64 * u64::from(slot);
    let memory = &mut two.a.nic().memory;
    let mut write = |offset: u64, bytes: &[u8]| memory.write(at + offset, bytes);
    write(4, &address.to_le_bytes())
        .and_then(|()| write(12, &len.to_le_bytes()))
        .and_then(|()| write(16, &[opcode]))
        .map_err(|fault| fault.to_string())?;
    two.a.ernic.ring(qp).map_err(say)?;
    two.settle()
}

fn fatal_and_back(cause: &Cause, rounds: u8) -> Check {
    let mut two = Two::new()?;
    two.traffic(1)?;
    for round in 0..rounds {
        (cause.provoke)(&mut two)?;
        two.on_wire = |_, _| true;
        let host = if cause.of_b { &mut two.b } else { &mut two.a };
        let status = host.ernic.status(host.qp).map_err(say)?;
        same("fatal", status.is_fatal(), true)?;
        let interrupts = host.ernic.take_interrupts().map_err(say)?;
        same("interrupt", interrupts.status & Interrupts::FATAL, Interrupts::FATAL)?;
        let entry = host.ernic.take_fatal().map_err(say)?.ok_or("no entry in the error queue")?;
        let code = fatal_code(cause.reason, cause.of_b);
        same("queue pair and code", (entry.qp, entry.code), (host.qp, code.into()))?;
        (cause.repair)(&mut two);
        // Both ends agree on new PSNs, as their connection managers would.
        two.psn += 0x1_0000;
        for host in [&mut two.a, &mut two.b] {
            let remote = host.remote(two.psn);
            host.ernic.recover(host.qp, &remote).map_err(say)?;
            let status = host.ernic.status(host.qp).map_err(say)?;
            same("fatal no more", (status.is_fatal(), status.is_idle()), (false, true))?;
            while host.ernic.take_fatal().map_err(say)?.is_some() {}
            host.ernic.take_interrupts().map_err(say)?;
        }
        two.traffic(2 + round)?;
        two.traffic(0x40 + round)?;
    }
    Ok(())
}

#[test]
fn the_same_queue_pair_works_again_after_each_fatal_cause() {
    let mut problems = Vec::new();
    for (number, cause) in causes().iter().enumerate() {
        if let Err(why) = fatal_and_back(cause, 2) {
            let side = if cause.of_b { "b" } else { "a" };
            problems.push(format!("{number}: {} on {side}: {why}", cause.reason));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Each code of the table is met by one of the causes above.
#[test]
fn each_fatal_code_has_a_cause() {
    let causes = causes();
    for code in softrnic_device::ernic::FATAL_CODES {
        let met = causes.iter().any(|cause| fatal_code(cause.reason, cause.of_b) == code.code);
        assert!(met, "{:#x}", code.code);
    }
}
