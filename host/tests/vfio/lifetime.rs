//! Resets, clients that go and come, and what is left of them: nothing.

use softrnic_device::pci::{ERNIC_BAR, PCIE_CAPABILITY};
use softrnic_driver::{Local, Platform, Request};
use softrnic_host::vfio::wire::{CONFIG_REGION, Command};

use crate::bench::Bench;
use crate::client::Client;
use crate::exchange::{Node, pair};
use crate::guest::Guest;

const BAR: u32 = ERNIC_BAR as u32;
const MAC_LOW: u64 = 0x10_0010;
const XRNICCONF: u64 = 0x10_0000;

#[test]
fn a_device_reset_puts_registers_and_configuration_back_and_keeps_memory() {
    let bench = Bench::start(1);
    let mut guest = Guest::boot(bench.path());
    guest.write32(MAC_LOW as u32, 7);
    let fresh = guest.client.read32(BAR, XRNICCONF);
    guest.write32(XRNICCONF as u32, fresh | 1);
    guest.client.request(Command::DeviceReset, &[], &[]).unwrap();
    assert_eq!((guest.read32(MAC_LOW as u32), guest.read32(XRNICCONF as u32)), (0, fresh));
    assert_eq!(guest.client.read32(CONFIG_REGION, 4) & 0xFFFF, 0);
    drop(guest);
    // The maps are the client's: they went with it, not with the reset.
    let mut guest = Guest::boot(bench.path());
    guest.client.request(Command::DeviceReset, &[], &[]).unwrap();
    let overlap = guest.client.map(crate::guest::RAM_BASE, 0x1000, None);
    assert_eq!(overlap, Err(17), "still mapped");
}

#[test]
fn a_function_level_reset_resets_the_device_too() {
    let bench = Bench::start(1);
    let mut guest = Guest::boot(bench.path());
    guest.write32(MAC_LOW as u32, 7);
    let control = u64::from(PCIE_CAPABILITY) + 8;
    let value = guest.client.read32(CONFIG_REGION, control) as u16 | 0x8000;
    guest.client.write(CONFIG_REGION, control, &value.to_le_bytes()).unwrap();
    assert_eq!(guest.read32(MAC_LOW as u32), 0);
    assert_eq!(guest.client.read32(CONFIG_REGION, 4) & 0xFFFF, 0);
}

#[test]
fn ten_clients_one_after_the_other_find_the_device_as_after_power_on() {
    let bench = Bench::start(2);
    for round in 0..10u16 {
        let (mut a, mut b) = pair(&bench);
        let (address, sent) = a.filled(3000, round as u8);
        let (va, rkey) = (b.region.va, b.region.rkey);
        a.post(&Request::write(round, Local::Bus { address, len: 3000 }, va, rkey));
        assert!(!a.completion().failed);
        let region_bus = b.region_bus;
        assert!(b.bytes(region_bus, 3000) == sent, "round {round}");
        // Without a word of goodbye, work outstanding.
        a.post(&Request::write(round, Local::Bus { address, len: 3000 }, va, rkey));
    }
    for device in bench.stop() {
        assert_eq!(device.server.clients(), (10, 0));
    }
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_message_leaves_nothing_behind() {
    let bench = Bench::start(1);
    for cut in 1..40 {
        let mut guest = Guest::boot(bench.path());
        guest.write32(MAC_LOW as u32, 7);
        let whole = [0; 40];
        guest.client.send_raw(&whole[..0], &[]);
        let header = [1, 0, 10, 0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let message = [&header[..], &whole[..24]].concat();
        guest.client.send_raw(&message[..cut], &[]);
    }
    let mut client = Client::greet(bench.path());
    assert_eq!(client.read32(BAR, MAC_LOW), 0);
    client
        .map(crate::guest::RAM_BASE, 0x1000, Some((crate::guest::memory_file(0x1000).as_fd(), 0)))
        .unwrap();
}

#[test]
fn a_second_client_is_turned_away_and_the_first_one_does_not_notice() {
    let bench = Bench::start(1);
    let mut first = Client::greet(bench.path());
    let mut second = Client::connect(bench.path());
    assert!(second.reply().is_none());
    first.check_alive();
    drop((first, second));
    Client::greet(bench.path()).check_alive();
    assert_eq!(bench.stop()[0].server.clients(), (2, 1));
}

#[test]
fn a_client_that_takes_no_replies_is_waited_for_and_nothing_else_stops() {
    let bench = Bench::start(2);
    let mut greedy = Client::greet(&bench.paths[0]);
    // More replies than a socket holds; the server stops reading, and so the client cannot write either.
    let body = crate::client::access(CONFIG_REGION, 0, 4096);
    for _ in 0..100 {
        greedy.send(Command::RegionRead.number(), 0, zerocopy::IntoBytes::as_bytes(&body), &[]);
    }
    let mut other = Node::new(Guest::boot(&bench.paths[1]), 2);
    other.ernic.platform_mut().client.check_alive();
    for _ in 0..100 {
        assert_eq!(greedy.reply().unwrap().body.len(), 16 + 4096);
    }
    greedy.check_alive();
}

#[test]
fn a_socket_file_without_a_listener_is_taken_over_and_one_with_a_listener_is_not() {
    use softrnic_host::vfio::Server;
    let bench = Bench::start(1);
    let error = Server::listen(bench.path()).unwrap_err().to_string();
    assert!(error.contains("another process listens there"), "{error}");
    let left = std::env::temp_dir().join(format!("softrnic-left-{}", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    drop(Server::listen(&left).unwrap());
    assert!(!left.exists(), "it is removed at the end");
    let long = std::env::temp_dir().join("x".repeat(120));
    let error = Server::listen(&long).unwrap_err().to_string();
    assert!(error.contains("107 bytes"), "{error}");
}

use std::os::fd::AsFd;
