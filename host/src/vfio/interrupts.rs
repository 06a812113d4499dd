//! Where interrupts go: eventfds that the client gave us for INTx and for MSI-X vectors.
//!
//! A device has one line with a level. MSI-X sends a message when the line rises, and when a target
//! appears while the line is up. INTx is a level: it triggers once, masks itself, and triggers again when
//! the client unmasks it with the line still up. Knows no device.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use rustix::io::Errno;
use softrnic_device::pci::VECTORS;

use super::wire::{IRQ_INTX, IRQ_MSIX, irq_set};

/// The device's line is vector 0 of MSI-X.
const LINE_VECTOR: usize = 0;

/// Interrupts that were sent and that nobody took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct InterruptCounters {
    /// INTx triggers.
    pub intx: u64,
    /// MSI-X messages.
    pub msix: u64,
    /// Eventfds that could not be written: the client has not read them for 2^64 - 2 interrupts.
    pub lost: u64,
}

/// The targets.
#[derive(Debug, Default)]
pub struct Interrupts {
    intx: Option<OwnedFd>,
    intx_masked: bool,
    vectors: [Option<OwnedFd>; VECTORS],
    /// The line rose, and no message has told of it.
    pending: bool,
    level: bool,
    counters: InterruptCounters,
}

impl Interrupts {
    /// No targets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was sent.
    #[must_use]
    pub const fn counters(&self) -> InterruptCounters {
        self.counters
    }

    /// How many interrupts an index has.
    #[must_use]
    pub const fn count(index: u32) -> u32 {
        match index {
            IRQ_INTX => 1,
            IRQ_MSIX => VECTORS as u32,
            _ => 0,
        }
    }

    /// Whether the line's vector waits for a target.
    #[must_use]
    pub const fn pending(&self) -> bool {
        self.pending
    }

    /// The line as the device has it now; sends what there is to send.
    pub fn update(&mut self, level: bool, intx_enabled: bool) {
        if level && !self.level {
            self.pending = true;
        }
        self.level = level;
        if !level {
            self.pending = false;
        }
        if self.pending
            && let Some(target) = &self.vectors[LINE_VECTOR]
        {
            self.pending = false;
            count(signal(target), &mut self.counters.msix, &mut self.counters.lost);
        }
        if level
            && intx_enabled
            && !self.intx_masked
            && let Some(target) = &self.intx
        {
            self.intx_masked = true;
            count(signal(target), &mut self.counters.intx, &mut self.counters.lost);
        }
    }

    /// Forgets targets and level: the client is gone.
    pub fn clear(&mut self) {
        *self = Self { counters: self.counters, ..Self::default() };
    }

    /// The device was reset: its line is down. Targets stay the client's.
    pub const fn reset(&mut self) {
        self.pending = false;
        self.level = false;
        self.intx_masked = false;
    }

    /// A SET_IRQS message: `chosen` are its booleans, `targets` its file descriptors.
    ///
    /// # Errors
    /// What is wrong with it; nothing has changed then.
    pub fn set(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        chosen: &[u8],
        targets: Vec<OwnedFd>,
    ) -> Result<(), &'static str> {
        let (data, action) = (flags & irq_set::DATA, flags & irq_set::ACTION);
        if data.count_ones() != 1
            || action.count_ones() != 1
            || flags & !(irq_set::DATA | irq_set::ACTION) != 0
        {
            return Err("one kind of data and one action are needed");
        }
        let end = start.checked_add(count).filter(|end| *end <= Self::count(index));
        let Some(end) = end else { return Err("there are fewer interrupts of this index") };
        if data == irq_set::DATA_BOOL && chosen.len() != count as usize {
            return Err("one byte for each interrupt is needed");
        }
        if data != irq_set::DATA_EVENTFD && !targets.is_empty() {
            return Err("file descriptors come with eventfd data only");
        }
        let range = start as usize..end as usize;
        match (action, data) {
            (irq_set::TRIGGER, irq_set::DATA_EVENTFD) => self.set_targets(index, range, targets),
            // No data and no interrupts: all of the index are off.
            (irq_set::TRIGGER, irq_set::DATA_NONE) if count == 0 => {
                self.take_targets(index, 0..Self::count(index) as usize);
                Ok(())
            }
            (irq_set::TRIGGER, _) => {
                for (target, _) in self.chosen(index, range, data, chosen) {
                    let _ = signal(target);
                }
                Ok(())
            }
            (_, irq_set::DATA_EVENTFD) => Err("masks are set by messages, not by eventfds"),
            (action, _) if index == IRQ_INTX => {
                if data == irq_set::DATA_NONE && count > 0
                    || chosen.first().is_some_and(|byte| *byte != 0)
                {
                    self.intx_masked = action == irq_set::MASK;
                }
                Ok(())
            }
            _ => Err("only INTx can be masked here; MSI-X vectors are masked in their table"),
        }
    }

    fn set_targets(
        &mut self,
        index: u32,
        range: std::ops::Range<usize>,
        targets: Vec<OwnedFd>,
    ) -> Result<(), &'static str> {
        if targets.len() > range.len() {
            return Err("there are more eventfds than interrupts");
        }
        if !targets.is_empty() && targets.len() < range.len() {
            return Err("there are fewer eventfds than interrupts");
        }
        for target in &targets {
            check_eventfd(target)?;
        }
        if targets.is_empty() {
            self.take_targets(index, range);
        } else if index == IRQ_INTX {
            self.intx_masked = false;
            self.intx = targets.into_iter().next();
        } else {
            // A vector that gets a target while the line is up has missed its rise.
            self.pending |=
                self.level && range.contains(&LINE_VECTOR) && self.vectors[LINE_VECTOR].is_none();
            self.vectors[range].iter_mut().zip(targets).for_each(|(slot, fd)| *slot = Some(fd));
        }
        Ok(())
    }

    fn take_targets(&mut self, index: u32, range: std::ops::Range<usize>) {
        if index == IRQ_INTX {
            (self.intx, self.intx_masked) = (None, false);
        } else if let Some(vectors) = self.vectors.get_mut(range) {
            vectors.iter_mut().for_each(|slot| *slot = None);
        }
    }

    /// The targets of interrupts that a message names.
    fn chosen<'a>(
        &'a self,
        index: u32,
        range: std::ops::Range<usize>,
        data: u32,
        chosen: &'a [u8],
    ) -> impl Iterator<Item = (&'a OwnedFd, usize)> {
        range.enumerate().filter_map(move |(nth, interrupt)| {
            let named =
                data != irq_set::DATA_BOOL || chosen.get(nth).is_some_and(|byte| *byte != 0);
            let target =
                if index == IRQ_INTX { &self.intx } else { self.vectors.get(interrupt)? };
            target.as_ref().filter(|_| named).map(|target| (target, interrupt))
        })
    }
}

fn count(signalled: bool, sent: &mut u64, lost: &mut u64) {
    *if signalled { sent } else { lost } += 1;
}

/// Adds one to an eventfd; never waits.
fn signal(target: &OwnedFd) -> bool {
    loop {
        match rustix::io::write(target, &1u64.to_ne_bytes()) {
            Err(Errno::INTR) => {}
            result => return result.is_ok(),
        }
    }
}

/// Refuses what is no eventfd, because writing to it could do anything, and makes it one that never
/// waits.
fn check_eventfd(target: &OwnedFd) -> Result<(), &'static str> {
    let link = format!("/proc/self/fd/{}", target.as_raw_fd());
    let kind = readlink(link, Vec::new()).unwrap_or_default();
    if kind.as_bytes() != b"anon_inode:[eventfd]" {
        return Err("an interrupt's target is no eventfd");
    }
    fcntl_getfl(target)
        .and_then(|flags| fcntl_setfl(target, flags | OFlags::NONBLOCK))
        .map_err(|_| "an interrupt's target cannot be made non-blocking")
}
