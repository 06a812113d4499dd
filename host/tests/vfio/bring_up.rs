//! What a client asks before it uses the device, and how registers answer.

use serde_json::Value;
use softrnic_device::pci::ERNIC_BAR;
use softrnic_host::vfio::wire::{
    CONFIG_REGION, Command, DeviceInfo, IRQ_INTX, IRQ_MSIX, IRQS, IrqInfo, REGIONS, RegionInfo,
    Version, WriteEntry, WriteMulti, flags,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::bench::Bench;
use crate::client::{CAPABILITIES, Client, access, version_body};

const BAR: u32 = ERNIC_BAR as u32;
/// MACXADDLSB, 32 bits to write and read.
const MAC_LOW: u64 = 0x10_0010;

#[test]
fn versions_are_exchanged_as_qemu_does_it() {
    let bench = Bench::start(1);
    let mut client = Client::connect(bench.path());
    let body = client.request(Command::Version, &version_body(0, CAPABILITIES), &[]).unwrap();
    let (version, text) = Version::read_from_prefix(&body).unwrap();
    assert_eq!((version.major.get(), version.minor.get()), (0, 0));
    let text = text.strip_suffix(&[0]).expect("a zero byte behind the text");
    let value: Value = serde_json::from_slice(text).unwrap();
    let told = &value["capabilities"];
    assert!(told["max_msg_fds"].as_u64().unwrap() <= 16, "QEMU takes no more");
    assert_eq!(
        (&told["pgsizes"], &told["write_multiple"]),
        (&Value::from(4096), &Value::from(true))
    );
}

#[test]
fn a_client_finds_a_pci_device_with_its_regions_and_interrupts() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let body = client.request(
        Command::DeviceInfo,
        &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[],
    );
    let info = DeviceInfo::read_from_bytes(&body.unwrap()).unwrap();
    assert_eq!((info.flags.get(), info.num_regions.get(), info.num_irqs.get()), (3, 9, 5));
    let sizes = (0..REGIONS).map(|index| {
        let mut ask = RegionInfo::new_zeroed();
        (ask.argsz, ask.index) = (32.into(), index.into());
        let body = client.request(Command::RegionInfo, ask.as_bytes(), &[]).unwrap();
        let info = RegionInfo::read_from_bytes(&body).unwrap();
        // Nothing can be mapped: QEMU would wait for every write.
        assert_eq!(info.flags.get(), if info.size.get() == 0 { 0 } else { 3 });
        info.size.get()
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [0x1000, 0, 0x20_0000, 0, 0, 0, 0, 0x1000, 0]);
    let counts = (0..IRQS).map(|index| {
        let mut ask = IrqInfo::new_zeroed();
        (ask.argsz, ask.index) = (16.into(), index.into());
        let body = client.request(Command::IrqInfo, ask.as_bytes(), &[]).unwrap();
        let info = IrqInfo::read_from_bytes(&body).unwrap();
        assert_eq!(info.flags.get(), if index == IRQ_INTX { 7 } else { 1 });
        info.count.get()
    });
    let counts: Vec<_> = counts.collect();
    assert_eq!((counts[IRQ_INTX as usize], counts[IRQ_MSIX as usize]), (1, 1));
    assert_eq!(counts.iter().sum::<u32>(), 2);
}

#[test]
fn configuration_space_is_written_through_its_masks() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    client.write(CONFIG_REGION, 0x18, &[0xFF; 4]).unwrap();
    assert_eq!(client.read32(CONFIG_REGION, 0x18), 0xFFE0_0000);
    client.write(CONFIG_REGION, 0, &[0; 4]).unwrap();
    assert_eq!(client.read32(CONFIG_REGION, 0), 0x903F_10EE);
    assert_eq!(client.read(CONFIG_REGION, 0xFFF, 1).unwrap(), [0]);
}

#[test]
fn posted_writes_are_done_before_a_later_read() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    for value in 1..=5000u32 {
        client.post(BAR, MAC_LOW, &value.to_le_bytes());
    }
    assert_eq!(client.read32(BAR, MAC_LOW), 5000);
    let counters = bench.stop()[0].server.counters();
    assert_eq!((counters.posted, counters.refused), (5000, 0));
}

#[test]
fn several_writes_in_one_message_are_done_in_their_order() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    let entry = |offset, data: u32| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&data.to_le_bytes());
        WriteEntry { access: access(BAR, offset, 4), data: bytes }
    };
    let entries = [entry(MAC_LOW, 1), entry(MAC_LOW + 4, 2), entry(MAC_LOW, 3)];
    let mut body = WriteMulti { count: 3.into() }.as_bytes().to_vec();
    entries.iter().for_each(|entry| body.extend_from_slice(entry.as_bytes()));
    client.send(Command::RegionWriteMulti.number(), flags::NO_REPLY, &body, &[]);
    assert_eq!((client.read32(BAR, MAC_LOW), client.read32(BAR, MAC_LOW + 4)), (3, 2));
    // One wrong entry, and none is done.
    let wrong = WriteEntry { access: access(BAR, 0x20_0000, 4), data: [0; 8] };
    let mut body = WriteMulti { count: 2.into() }.as_bytes().to_vec();
    body.extend_from_slice(entry(MAC_LOW, 9).as_bytes());
    body.extend_from_slice(wrong.as_bytes());
    assert_eq!(client.request(Command::RegionWriteMulti, &body, &[]), Err(22));
    assert_eq!(client.read32(BAR, MAC_LOW), 3);
}

#[test]
fn wider_accesses_are_several_words_and_narrower_ones_are_refused_by_the_device() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    client.write(BAR, MAC_LOW, &[1, 2, 3, 4, 5, 6, 0, 0]).unwrap();
    assert_eq!(client.read32(BAR, MAC_LOW), 0x0403_0201);
    assert_eq!(client.read(BAR, MAC_LOW, 8).unwrap(), [1, 2, 3, 4, 5, 6, 0, 0]);
    for (offset, len) in [(MAC_LOW, 1), (MAC_LOW, 2), (MAC_LOW + 2, 4), (MAC_LOW, 7)] {
        client.write(BAR, offset, &vec![0xFF; len]).unwrap();
        assert_eq!(client.read(BAR, offset, len as u32).unwrap(), vec![0; len]);
    }
    assert_eq!(client.read32(BAR, MAC_LOW), 0x0403_0201);
    let refused =
        bench.stop()[0].nic.engine.refused()[softrnic_engine::Reason::RegisterAlignment as usize];
    assert_eq!(refused, 8);
}

#[test]
fn the_vector_table_keeps_what_is_written_for_clients_that_ask_for_it_here() {
    let bench = Bench::start(1);
    let mut client = Client::greet(bench.path());
    assert_eq!(client.read32(0, 12), 1, "masked");
    client.write(0, 0, &[0xFF; 16]).unwrap();
    let entry = client.read(0, 0, 16).unwrap();
    assert_eq!(entry, [&[0xFC], &[0xFF; 11][..], &[1, 0, 0, 0]].concat());
}
