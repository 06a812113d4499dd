//! Memory that knows which bytes software has given to the device, and for what: an access to others
//! is a failure of the test, even where there is memory.
//!
//! Knows the size of a send queue entry and where its buffer's address is, nothing else of the device.

use std::cell::RefCell;

use softrnic_device::{DmaFault, Memory, Ram};

/// What the device may do with bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// It reads them.
    Read,
    /// It writes them.
    Write,
    /// It reads send queue entries there, which give buffers in turn.
    SendQueue,
}

/// RAM with a note on every byte.
#[derive(Debug)]
pub(crate) struct Watched {
    ram: Ram,
    notes: RefCell<Vec<u8>>,
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const SEND_QUEUE: u8 = 4;
const WQE_LEN: usize = 64;
const OPCODE_READ: u8 = 4;
/// A READ answer, or a receive, may touch a buffer up to this length, whatever the entry says.
const MESSAGE_LEN_MAX: u64 = 8 << 20;

impl Watched {
    pub(crate) fn new(base: u64, len: usize) -> Self {
        Self { ram: Ram::new(base, len), notes: RefCell::new(vec![0; len]) }
    }

    /// Software has told the device of these bytes. What was given once stays given: the device may
    /// be in the middle of using it.
    pub(crate) fn give(&self, base: u64, len: u64, what: Given) {
        let note = match what {
            Given::Read => READ,
            Given::Write => WRITE,
            Given::SendQueue => READ | SEND_QUEUE,
        };
        let notes = &mut self.notes.borrow_mut()[..];
        let from = base.saturating_sub(self.ram.base());
        let to = base.saturating_add(len).saturating_sub(self.ram.base());
        let limit = notes.len() as u64;
        for byte in &mut notes[from.min(limit) as usize..to.min(limit) as usize] {
            *byte |= note;
        }
    }

    /// Forgets what was given: the device was reset.
    pub(crate) fn take_back(&self) {
        self.notes.borrow_mut().fill(0);
    }

    /// Software's own accesses are not watched.
    pub(crate) fn ram(&mut self) -> &mut Ram {
        &mut self.ram
    }

    fn check(&self, address: u64, len: usize, note: u8) {
        let from = (address - self.ram.base()) as usize;
        let notes = self.notes.borrow();
        let bad = notes[from..from + len].iter().position(|byte| byte & note == 0);
        assert!(bad.is_none(), "{len} bytes at {address:#x} were not given for {note:#x}: {bad:?}");
    }

    /// An entry of a send queue gives its buffer.
    fn learn(&self, address: u64, bytes: &[u8]) {
        let from = (address - self.ram.base()) as usize;
        if bytes.len() != WQE_LEN || self.notes.borrow()[from] & SEND_QUEUE == 0 {
            return;
        }
        let number = |range: core::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        let (base, length) = (number(4..12), number(12..16).min(MESSAGE_LEN_MAX));
        self.give(base, length, if bytes[16] == OPCODE_READ { Given::Write } else { Given::Read });
    }
}

impl Memory for Watched {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.ram.read(address, out)?;
        self.check(address, out.len(), READ);
        self.learn(address, out);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.ram.write(address, bytes)?;
        self.check(address, bytes.len(), WRITE);
        Ok(())
    }
}
