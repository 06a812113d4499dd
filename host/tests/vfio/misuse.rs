//! Every message misused: an error for the client, and a device that goes on.

use std::os::fd::{AsFd, BorrowedFd};

use softrnic_device::pci::ERNIC_BAR;
use softrnic_host::vfio::wire::{
    CONFIG_REGION, Command, DATA_MAX, HEADER_LEN, IRQ_INTX, IRQ_MSIX, MESSAGE_MAX, flags, irq_set,
};
use zerocopy::IntoBytes;

use crate::bench::Bench;
use crate::client::{CAPABILITIES, Client, access, irq_body, map_body, version_body, write_body};
use crate::guest::{Guest, RAM_BASE, RAM_LEN, interrupt_target, memory_file, wait_for};

const BAR: u32 = ERNIC_BAR as u32;
const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EPROTO: i32 = 71;
const EPROTONOSUPPORT: i32 = 93;
const EOPNOTSUPP: i32 = 95;

/// Commands with a body of fixed length, and that length.
const FIXED: [(Command, usize); 7] = [
    (Command::DmaMap, 32),
    (Command::DmaUnmap, 24),
    (Command::DeviceInfo, 16),
    (Command::RegionInfo, 32),
    (Command::IrqInfo, 16),
    (Command::SetIrqs, 20),
    (Command::RegionRead, 16),
];

#[test]
fn bodies_that_are_too_short_or_too_long() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    for (command, len) in FIXED {
        for wrong in (0..len).chain([len + 1, len + 8, 4096, DATA_MAX]) {
            let done = client.request(command, &vec![0; wrong], &[]);
            assert_eq!(done, Err(EINVAL), "{} with {wrong} bytes", command.name());
        }
    }
    client.check_alive();
}

#[test]
fn lengths_that_cannot_be_end_the_conversation_and_the_next_client_is_served() {
    let bench = Bench::start(1);
    for size in [0u32, 1, 15, MESSAGE_MAX as u32 + 1, 1 << 24, u32::MAX] {
        let mut client = Client::greet(bench.path());
        let mut header = [0u8; HEADER_LEN];
        header[2] = Command::DeviceInfo.number() as u8;
        header[4..8].copy_from_slice(&size.to_le_bytes());
        client.send_raw(&header, &[]);
        assert!(client.reply().is_none(), "{size}");
    }
    Client::greet(bench.path()).check_alive();
}

#[test]
fn commands_that_do_not_exist_or_go_the_other_way() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    for number in [0, 6, 11, 12, 14, 16, 17, 255, u16::MAX] {
        assert_eq!(client.request_number(number, &[0; 32], &[]), Err(EOPNOTSUPP), "{number}");
    }
    // A reply that nobody asked for.
    client.send(Command::RegionRead.number(), flags::REPLY, &[], &[]);
    assert_eq!(client.reply().unwrap().header.errno.get(), EINVAL as u32);
    client.check_alive();
}

#[test]
fn versions_out_of_turn_malformed_or_unknown() {
    let bench = Bench::start(1);
    let mut client = Client::connect(bench.path());
    for command in [Command::DeviceInfo, Command::DmaMap, Command::RegionRead, Command::DeviceReset]
    {
        assert_eq!(client.request(command, &[0; 32], &[]), Err(EPROTO), "before VERSION");
    }
    let version = |body: &[u8], client: &mut Client| client.request(Command::Version, body, &[]);
    assert_eq!(version(&[], &mut client), Err(EINVAL));
    assert_eq!(version(&version_body(1, CAPABILITIES), &mut client), Err(EPROTONOSUPPORT));
    let deep = "[".repeat(60_000);
    for text in ["{", "\0\0", "{\"capabilities\": }", "\u{fffd}", deep.as_str()] {
        assert_eq!(version(&version_body(0, text), &mut client), Err(EINVAL));
    }
    version(&version_body(0, CAPABILITIES), &mut client).unwrap();
    assert_eq!(version(&version_body(0, CAPABILITIES), &mut client), Err(EINVAL), "twice");
    client.check_alive();
}

#[test]
fn regions_that_do_not_exist_and_accesses_that_leave_them() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let cases = [
        (9, 0, 4),
        (u32::MAX, 0, 4),
        (1, 0, 4),
        (6, 0, 4),
        (8, 0, 1),
        (BAR, 0x20_0000, 4),
        (BAR, 0x1F_FFFE, 4),
        (BAR, u64::MAX, 4),
        (BAR, u64::MAX - 3, 4),
        (CONFIG_REGION, 4096, 1),
        (CONFIG_REGION, 4093, 4),
        (0, 0xFFF, 2),
        (BAR, 0, 0),
    ];
    for (region, offset, len) in cases {
        assert_eq!(client.read(region, offset, len), Err(EINVAL), "{region} {offset:#x} {len}");
        let written = client.write(region, offset, &vec![0; len as usize]);
        assert_eq!(written, Err(EINVAL), "{region} {offset:#x} {len}");
        client.post(region, offset, &vec![0; len as usize]);
    }
    for len in [DATA_MAX as u32 + 1, 1 << 20, u32::MAX] {
        assert_eq!(client.read(BAR, 0, len), Err(EINVAL), "{len} bytes are not allocated");
    }
    assert_eq!(client.read(BAR, 0, DATA_MAX as u32).unwrap().len(), DATA_MAX);
    client.check_alive();
    let counters = bench.stop()[0].server.counters();
    assert_eq!(counters.refused as usize, 3 * cases.len() + 3, "posted ones are counted too");
}

#[test]
fn writes_whose_data_has_another_length_than_they_tell() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    for told in [0u32, 3, 5, 8, u32::MAX] {
        let body = [access(BAR, 0x10_0010, told).as_bytes(), &[1, 2, 3, 4]].concat();
        assert_eq!(client.request(Command::RegionWrite, &body, &[]), Err(EINVAL), "{told}");
    }
    for (count, entries) in [(1u64, 0usize), (0, 1), (u64::MAX, 1), (2, 1)] {
        let body = [&count.to_le_bytes()[..], &vec![0; entries * 24]].concat();
        assert_eq!(client.request(Command::RegionWriteMulti, &body, &[]), Err(EINVAL));
    }
    let odd = [&1u64.to_le_bytes()[..], &[0; 23]].concat();
    assert_eq!(client.request(Command::RegionWriteMulti, &odd, &[]), Err(EINVAL));
    let long = [&1u64.to_le_bytes()[..], access(BAR, 0, 9).as_bytes(), &[0; 8]].concat();
    assert_eq!(client.request(Command::RegionWriteMulti, &long, &[]), Err(EINVAL));
    assert_eq!(client.read32(BAR, 0x10_0010), 0);
}

#[test]
fn maps_that_overlap_are_not_pages_or_have_no_memory_behind_them() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let file = memory_file(0x4000);
    assert_eq!(client.map(0, 0x4000, None), Err(EBADF), "RAM without a file descriptor");
    client.map(0x1000, 0x2000, Some((file.as_fd(), 0))).unwrap();
    let cases = [
        (0x1000, 0x2000, 0, EEXIST),
        (0x2000, 0x1000, 0, EEXIST),
        (0, 0x4000, 0, EEXIST),
        (0x1_0001, 0x1000, 0, EINVAL),
        (0x1_0000, 0x1001, 0, EINVAL),
        (0x1_0000, 0, 0, EINVAL),
        (0x1_0000, 0x1000, 1, EINVAL),
        (u64::MAX - 0xFFF, 0x2000, 0, EINVAL),
        (0x1_0000, 0x5000, 0, EINVAL),
        (0x1_0000, 0x1000, 0x4000, EINVAL),
        (0x1_0000, 0x1000, 0x7FFF_FFFF_FFFF_F000, EINVAL),
        (0x1_0000, u64::MAX - 0xFFF, 0, EINVAL),
    ];
    for (address, size, offset, errno) in cases {
        let mapped = client.map(address, size, Some((file.as_fd(), offset)));
        assert_eq!(mapped, Err(errno), "{address:#x} {size:#x} {offset:#x}");
    }
    for map_flags in [0, 4, 0xFFFF_FFFF] {
        let body = map_body(0x1_0000, 0x1000, 0, map_flags);
        assert_eq!(client.request(Command::DmaMap, &body, &[file.as_fd()]), Err(EINVAL));
    }
    let body = map_body(0x1_0000, 0x1000, 0, 3);
    let two = [file.as_fd(), file.as_fd()];
    assert_eq!(client.request(Command::DmaMap, &body, &two), Err(EINVAL), "two file descriptors");
    let socket = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.unwrap().0;
    assert_eq!(client.request(Command::DmaMap, &body, &[socket.as_fd()]), Err(EPERM), "a socket");
    for (address, size) in [(0x1000, 0x1000), (0, 0), (u64::MAX, 2)] {
        assert_eq!(client.unmap(address, size), Err(EINVAL), "{address:#x} {size:#x}");
    }
    // An IOMMU in the guest empties address spaces that are empty.
    client.unmap(0x9000, 0x1000).unwrap();
    client.unmap(0x1000, 0x2000).unwrap();
    client.check_alive();
}

#[test]
fn interrupts_that_do_not_exist_and_targets_that_are_none() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let target = interrupt_target();
    let file = memory_file(0x1000);
    let trigger = irq_set::DATA_EVENTFD | irq_set::TRIGGER;
    let none: &[BorrowedFd<'_>] = &[];
    let one = &[target.as_fd()];
    let two = &[target.as_fd(), target.as_fd()];
    let cases: [(u32, u32, u32, u32, &[BorrowedFd<'_>]); 14] = [
        (trigger, 5, 0, 1, one),
        (trigger, u32::MAX, 0, 1, one),
        (trigger, 1, 0, 1, one),
        (trigger, IRQ_MSIX, 1, 1, one),
        (trigger, IRQ_MSIX, u32::MAX, 1, one),
        (trigger, IRQ_MSIX, 0, u32::MAX, one),
        (trigger, IRQ_MSIX, 0, 1, two),
        (trigger, IRQ_MSIX, 0, 0, one),
        (0, IRQ_MSIX, 0, 1, none),
        (irq_set::DATA, IRQ_MSIX, 0, 1, none),
        (irq_set::DATA_NONE | irq_set::MASK | irq_set::UNMASK, IRQ_INTX, 0, 1, none),
        (irq_set::DATA_NONE | irq_set::MASK, IRQ_MSIX, 0, 1, none),
        (irq_set::DATA_EVENTFD | irq_set::UNMASK, IRQ_INTX, 0, 1, one),
        (irq_set::DATA_BOOL | irq_set::TRIGGER, IRQ_MSIX, 0, 1, none),
    ];
    for (set_flags, index, start, count, fds) in cases {
        let body = irq_body(set_flags, index, start, count);
        let done = client.request(Command::SetIrqs, &body, fds);
        assert_eq!(done, Err(EINVAL), "{set_flags:#x} {index} {start} {count} {}", fds.len());
    }
    let body = irq_body(trigger, IRQ_MSIX, 0, 1);
    let done = client.request(Command::SetIrqs, &body, &[file.as_fd()]);
    assert_eq!(done, Err(EINVAL), "a memfd is no eventfd");
    // Triggered by message: this is what it looks like when it is right.
    client.set_target(IRQ_MSIX, &target).unwrap();
    let loopback = irq_body(irq_set::DATA_NONE | irq_set::TRIGGER, IRQ_MSIX, 0, 1);
    client.request(Command::SetIrqs, &loopback, &[]).unwrap();
    assert_eq!(wait_for(&target, 0), Some(1));
}

#[test]
fn an_eventfd_that_is_full_costs_an_interrupt_and_stops_nothing() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let full = interrupt_target();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.set_target(IRQ_MSIX, &full).unwrap();
    let trigger = irq_body(irq_set::DATA_NONE | irq_set::TRIGGER, IRQ_MSIX, 0, 1);
    client.request(Command::SetIrqs, &trigger, &[]).unwrap();
    client.check_alive();
}

#[test]
fn file_descriptors_nobody_asked_for_are_closed_and_too_many_end_the_conversation() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let body = access(CONFIG_REGION, 0, 4);
    client.request(Command::RegionRead, body.as_bytes(), &[writer.as_fd()]).unwrap();
    drop(writer);
    let mut fds = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::IN)];
    let second = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&second)), Ok(1), "the last writer is gone");
    let many = vec![reader.as_fd(); 17];
    client.send(Command::RegionRead.number(), 0, body.as_bytes(), &many);
    assert!(client.reply().is_none());
    Client::greet(bench.path()).check_alive();
}

#[test]
fn descriptors_stay_with_their_message_however_the_stream_is_cut() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let file = memory_file(0x2000);
    // Posted writes in front, and the map in the same stream without a pause.
    for value in 0..200u32 {
        client.post(BAR, 0x10_0010, &value.to_le_bytes());
    }
    client.send(Command::DmaMap.number(), 0, &map_body(0, 0x1000, 0, 3), &[file.as_fd()]);
    for value in 0..200u32 {
        client.post(BAR, 0x10_0010, &value.to_le_bytes());
    }
    client.send(Command::DmaMap.number(), 0, &map_body(0x1000, 0x1000, 0x1000, 3), &[file.as_fd()]);
    assert_eq!(client.reply().unwrap().header.errno.get(), 0);
    assert_eq!(client.reply().unwrap().header.errno.get(), 0);
    // A message in single bytes.
    let body = write_body(BAR, 0x10_0010, &[9, 0, 0, 0]);
    let size = (HEADER_LEN + body.len()) as u8;
    let header =
        [7, 0, Command::RegionWrite.number() as u8, 0, size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for byte in [&header[..], &body].concat() {
        client.send_raw(&[byte], &[]);
    }
    assert_eq!(client.reply().unwrap().header.errno.get(), 0);
    assert_eq!(client.read32(BAR, 0x10_0010), 9);
}

#[test]
fn dma_to_memory_that_nobody_mapped_is_a_fault_of_the_device_and_no_more() {
    use softrnic_driver::Platform;
    let bench = Bench::start(1);
    let mut guest = Guest::boot(bench.path());
    // An error queue behind the end of memory, and work in a send queue that is nowhere.
    let registers = [
        (0x10_0010, 1),
        (0x10_0020, 0x0A00_0001),
        (0x10_0044, 7),
        (0x18_0120, 0xDEAD_0000),
        (0x18_0110, 0xDEAD_0000),
        (0x18_0118, 0xDEAD_0000),
        (0x18_013C, 0x0008_0008),
        (0x18_0100, 0x0010_0431),
        (0x10_0000, 0x00C0_0001),
        (0x18_0138, 4),
    ];
    for (offset, value) in registers {
        guest.write32(offset, value);
    }
    guest.client.check_alive();
    guest.client.unmap(RAM_BASE, RAM_LEN).unwrap();
    guest.client.check_alive();
    drop(guest);
    let refused = bench.stop()[0].nic.memory.refused();
    assert!(refused.unmapped > 0, "{refused:?}");
}
