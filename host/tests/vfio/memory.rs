//! Guest memory: only what was mapped, only in the direction that was allowed, whole or not at all.

use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use softrnic_device::Memory;
use softrnic_host::vfio::{GuestMemory, MapError, MapRequest};

use crate::guest::memory_file;

const PAGE: u64 = 0x1000;

fn request(address: u64, len: u64, file: Option<(OwnedFd, u64)>) -> MapRequest {
    MapRequest { address, len, readable: true, writable: true, file }
}

fn with_file(address: u64, len: u64) -> MapRequest {
    request(address, len, Some((memory_file(len), 0)))
}

fn memory(maps: &[(u64, u64)]) -> GuestMemory {
    let mut memory = GuestMemory::new();
    memory.set_bus_master(true);
    for (address, len) in maps {
        assert!(memory.map(with_file(*address, *len)).unwrap());
    }
    memory
}

#[test]
fn an_access_that_spans_neighbouring_maps_is_one_access() {
    let mut memory = memory(&[(2 * PAGE, PAGE), (PAGE, PAGE), (4 * PAGE, PAGE)]);
    let bytes: Vec<u8> = (0..=255).cycle().take(0x1800).collect();
    memory.write(PAGE + 0x400, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    memory.read(PAGE + 0x400, &mut back).unwrap();
    assert!(back == bytes);
    assert!(memory.write(2 * PAGE, &[0; 0x1001]).is_err(), "a hole follows");
    assert!(memory.write(3 * PAGE, &[0]).is_err());
    assert!(memory.write(u64::MAX, &[0; 2]).is_err());
    assert_eq!(memory.refused().unmapped, 3);
    memory.read(PAGE + 0x400, &mut back).unwrap();
    assert!(back == bytes, "nothing was written before the hole was met");
    assert!(memory.read(0xDEAD, &mut []).is_ok(), "nothing is nowhere");
}

#[test]
fn a_map_may_end_with_the_address_space() {
    let last_page = u64::MAX - PAGE + 1;
    let mut memory = memory(&[(last_page, PAGE)]);
    memory.write(u64::MAX, &[5]).unwrap();
    let mut byte = [0];
    memory.read(u64::MAX, &mut byte).unwrap();
    assert_eq!(byte, [5]);
    assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    memory.unmap(last_page, PAGE).unwrap();
}

#[test]
fn directions_that_were_not_allowed_are_refused() {
    let mut memory = memory(&[]);
    let mut map = with_file(PAGE, PAGE);
    map.writable = false;
    memory.map(map).unwrap();
    let mut map = with_file(2 * PAGE, PAGE);
    map.readable = false;
    memory.map(map).unwrap();
    assert!(memory.read(PAGE, &mut [0; 4]).is_ok() && memory.write(PAGE, &[0; 4]).is_err());
    assert!(memory.read(2 * PAGE, &mut [0; 4]).is_err() && memory.write(2 * PAGE, &[0; 4]).is_ok());
    assert!(memory.read(PAGE + 0xFFC, &mut [0; 8]).is_err());
    assert_eq!(memory.refused().forbidden, 3);
}

#[test]
fn ram_without_a_file_is_refused_with_the_way_out_and_other_memory_is_only_out_of_reach() {
    let mut memory = memory(&[]);
    let error = memory.map(request(0, PAGE, None)).unwrap_err();
    assert!(matches!(error, MapError::NoDescriptor { address: 0 }));
    assert!(error.to_string().contains("share=on"), "{error}");
    let mut rom = request(0xF_F000, PAGE, None);
    rom.writable = false;
    assert!(!memory.map(rom).unwrap(), "ROM comes first and without a file");
    memory.map(with_file(0, PAGE)).unwrap();
    assert!(!memory.map(request(PAGE, PAGE, None)).unwrap(), "a frame buffer, say");
    assert!(memory.read(PAGE, &mut [0; 4]).is_err());
    assert!(memory.write(0xFF8, &[0; 16]).is_err(), "half of it is out of reach");
}

#[test]
fn a_file_that_can_become_shorter_or_is_shorter_is_refused() {
    let mut memory = memory(&[]);
    let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&plain, PAGE).unwrap();
    let error = memory.map(request(0, PAGE, Some((plain, 0)))).unwrap_err();
    assert!(matches!(error, MapError::CanShrink), "{error}");
    let path = std::env::temp_dir().join(format!("softrnic-no-memfd-{}", std::process::id()));
    let file =
        std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(PAGE).unwrap();
    let error = memory.map(request(0, PAGE, Some((file.into(), 0)))).unwrap_err();
    assert!(matches!(error, MapError::CanShrink), "{error}");
    for (offset, len) in [(0, 2 * PAGE), (PAGE, PAGE), (u64::MAX - PAGE + 1, PAGE)] {
        let error = memory.map(request(0, len, Some((memory_file(PAGE), offset)))).unwrap_err();
        assert!(matches!(error, MapError::BehindEnd { .. }), "{error}");
    }
    // After a map the client cannot shorten its file any more.
    let file = memory_file(PAGE);
    memory.map(request(0, PAGE, Some((file.try_clone().unwrap(), 0)))).unwrap();
    assert!(ftruncate(&file, 0).is_err());
    assert_eq!(fcntl_add_seals(&file, SealFlags::SHRINK), Ok(()));
}

#[test]
fn maps_are_whole_pages_do_not_overlap_and_are_not_cut() {
    let mut memory = memory(&[(PAGE, 2 * PAGE)]);
    for (address, len) in [(1, PAGE), (0, 1), (0, 0), (u64::MAX - PAGE + 1, 2 * PAGE)] {
        let error = memory.map(request(address, len, None)).unwrap_err();
        assert!(matches!(error, MapError::NotPages { .. }), "{address:#x} {len:#x}: {error}");
    }
    for (address, len) in [(0, 2 * PAGE), (PAGE, PAGE), (2 * PAGE, 5 * PAGE), (0, 9 * PAGE)] {
        let error = memory.map(with_file(address, len)).unwrap_err();
        assert!(matches!(error, MapError::Overlap { other: PAGE, .. }), "{error}");
    }
    for (address, len) in [(PAGE, PAGE), (2 * PAGE, PAGE), (0, 2 * PAGE)] {
        let error = memory.unmap(address, len).unwrap_err();
        assert!(matches!(error, MapError::Cut { .. }), "{error}");
    }
    memory.unmap(0, PAGE).unwrap();
    memory.unmap(4 * PAGE, 1 << 50).unwrap();
    assert_eq!(memory.len(), 1, "nothing was there to unmap");
    assert!(matches!(memory.unmap(0, 0), Err(MapError::NotPages { .. })));
    memory.unmap(0, 100 * PAGE).unwrap();
    assert!(memory.is_empty());
}

#[test]
fn there_is_a_limit_to_the_number_of_maps() {
    let mut memory = memory(&[(0, PAGE)]);
    let refused = (1..).find(|page| memory.map(request(page * 2 * PAGE, PAGE, None)).is_err());
    assert_eq!(refused, Some(softrnic_host::vfio::wire::MAPS_MAX as u64));
    assert_eq!(memory.len(), softrnic_host::vfio::wire::MAPS_MAX);
}

#[test]
fn without_bus_mastering_nothing_is_reached() {
    let mut memory = memory(&[(0, PAGE)]);
    memory.set_bus_master(false);
    assert!(memory.write(0, &[1]).is_err() && memory.read(0, &mut [0]).is_err());
    memory.set_bus_master(true);
    let mut byte = [9];
    memory.read(0, &mut byte).unwrap();
    assert_eq!((byte, memory.refused().not_bus_master), ([0], 2));
}

/// One step of a client's or a device's life.
#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64, bool),
    Unmap(u64, u64),
    Write(u64, usize, u8),
    Read(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..12u64;
    prop_oneof![
        (page.clone(), 1..4u64, any::<bool>()).prop_map(|(at, len, file)| Step::Map(at, len, file)),
        (page.clone(), 1..6u64).prop_map(|(at, len)| Step::Unmap(at, len)),
        (0..0xF000u64, 1..0x2400usize, any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        (0..0xF000u64, 1..0x2400usize).prop_map(|(at, len)| Step::Read(at, len)),
    ]
}

proptest! {
    #[test]
    fn what_is_reachable_is_what_a_model_of_pages_says(steps in prop::collection::vec(step(), 1..60)) {
        // By page: which map it is of, and its bytes, if they can be reached.
        let mut model: Vec<Option<(u64, Option<Vec<u8>>)>> = vec![None; 20];
        let mut memory = memory(&[]);
        for step in steps {
            match step {
                Step::Map(at, len, file) => {
                    let pages = at as usize..(at + len) as usize;
                    let ram = model.iter().flatten().any(|(_, bytes)| bytes.is_some());
                    let free = model[pages.clone()].iter().all(Option::is_none);
                    let map = if file { with_file(at * PAGE, len * PAGE) } else { request(at * PAGE, len * PAGE, None) };
                    let mapped = memory.map(map).is_ok();
                    prop_assert_eq!(mapped, free && (file || ram));
                    if mapped {
                        let bytes = file.then(|| vec![0; PAGE as usize]);
                        model[pages].iter_mut().for_each(|page| *page = Some((at, bytes.clone())));
                    }
                }
                Step::Unmap(at, len) => {
                    let pages = at as usize..(at + len) as usize;
                    let owners: Vec<u64> = model[pages.clone()].iter().flatten().map(|page| page.0).collect();
                    let cut = model.iter().enumerate().any(|(page, owner)| {
                        !pages.contains(&page) && owner.as_ref().is_some_and(|owner| owners.contains(&owner.0))
                    });
                    let unmapped = memory.unmap(at * PAGE, len * PAGE).is_ok();
                    prop_assert_eq!(unmapped, !cut);
                    if unmapped {
                        model[pages].fill(None);
                    }
                }
                Step::Write(at, len, byte) => {
                    let pages = (at / PAGE) as usize..=((at + len as u64 - 1) / PAGE) as usize;
                    let reached = model[pages].iter().all(|page| matches!(page, Some((_, Some(_)))));
                    prop_assert_eq!(memory.write(at, &vec![byte; len]).is_ok(), reached);
                    for at in (at..at + len as u64).filter(|_| reached) {
                        let page = model[(at / PAGE) as usize].as_mut().and_then(|page| page.1.as_mut());
                        page.unwrap()[(at % PAGE) as usize] = byte;
                    }
                }
                Step::Read(at, len) => {
                    let expected: Option<Vec<u8>> = (at..at + len as u64).map(|at| {
                        let page = model[(at / PAGE) as usize].as_ref()?.1.as_ref()?;
                        Some(page[(at % PAGE) as usize])
                    }).collect();
                    let mut read = vec![0xEE; len];
                    match memory.read(at, &mut read) {
                        Ok(()) => prop_assert!(expected == Some(read)),
                        Err(_) => prop_assert!(expected.is_none() && read == vec![0xEE; len]),
                    }
                }
            }
        }
    }
}
