//! A platform that writes down what the driver does, and answers like a device that is at rest.
//!
//! It moves no data: tests say what the device has done by changing registers and memory.

use std::collections::BTreeMap;

use softrnic_driver::{DmaBuffer, DmaError, Map, Platform, REGISTERS, Register, registers as reg};

/// First bus address of the memory.
pub(crate) const MEMORY_BASE: u64 = 0x1_0000_0000;

/// See the module.
pub(crate) struct Recorder {
    map: Map,
    /// Values by offset; what is missing reads 0.
    pub(crate) registers: BTreeMap<u32, u32>,
    pub(crate) memory: Vec<u8>,
    used: usize,
    /// Buffers allocated and not freed.
    pub(crate) live: Vec<DmaBuffer>,
    /// One line for each register write and each change of memory ownership.
    pub(crate) script: String,
    /// Reads all ones.
    pub(crate) is_dead: bool,
    /// Registers that keep their value, whatever is written.
    pub(crate) stuck: Vec<u32>,
    /// Whether a queue pair under recovery comes to rest.
    pub(crate) can_flush: bool,
    pub(crate) dma_reads: u32,
    pub(crate) dma_writes: u32,
    pub(crate) register_writes: u32,
    /// Register writes since the last register read: on a bus they may still be on their way.
    pub(crate) posted: u32,
    pub(crate) pauses: u32,
}

impl Recorder {
    pub(crate) fn new(map: Map) -> Self {
        let mut recorder = Self {
            map,
            registers: BTreeMap::new(),
            memory: vec![0; 4 << 20],
            used: 0,
            live: Vec::new(),
            script: String::new(),
            is_dead: false,
            stuck: Vec::new(),
            can_flush: true,
            dma_reads: 0,
            dma_writes: 0,
            register_writes: 0,
            posted: 0,
            pauses: 0,
        };
        recorder.registers.insert(reg::RESPHNDSTS.offset, 1 << 16);
        for qp in 1..=2048 {
            recorder.registers.insert(recorder.of_qp(qp, reg::STATQP), 0x600);
        }
        recorder
    }

    /// Offset of a per-QP register.
    pub(crate) fn of_qp(&self, qp: u16, register: Register) -> u32 {
        register.offset - 0x18_0000 + self.map.qp1_slot + u32::from(qp - 1) * 0x100
    }

    /// The value of a per-QP register.
    pub(crate) fn qp(&self, qp: u16, register: Register) -> u32 {
        self.registers.get(&self.of_qp(qp, register)).copied().unwrap_or(0)
    }

    /// Changes a per-QP register as the device would.
    pub(crate) fn set_qp(&mut self, qp: u16, register: Register, value: u32) {
        self.registers.insert(self.of_qp(qp, register), value);
    }

    /// The 64-bit address in a pair of per-QP registers.
    pub(crate) fn qp_pair(&self, qp: u16, low: Register, high: Register) -> u64 {
        u64::from(self.qp(qp, high)) << 32 | u64::from(self.qp(qp, low))
    }

    /// Memory at a bus address.
    pub(crate) fn at(&mut self, bus: u64, len: usize) -> &mut [u8] {
        let start = (bus - MEMORY_BASE) as usize;
        &mut self.memory[start..start + len]
    }

    /// Reports completion of all entries up to `head`, as the device does: the entries, then the
    /// doorbell word and CQHEAD.
    pub(crate) fn complete(&mut self, qp: u16, head: u16, entries: &[(u16, [u8; 4])]) {
        let cq = self.qp_pair(qp, reg::CQBA, reg::CQBAMSB);
        for (slot, entry) in entries {
            self.at(cq + u64::from(*slot) * 4, 4).copy_from_slice(entry);
        }
        let word = self.qp_pair(qp, reg::CQDBADD, reg::CQDBADDMSB);
        self.at(word, 4).copy_from_slice(&u32::from(head).to_le_bytes());
        self.set_qp(qp, reg::CQHEAD, u32::from(head));
    }

    /// Reports a received message in all elements up to `producer`.
    pub(crate) fn receive(&mut self, qp: u16, producer: u16) {
        let word = self.qp_pair(qp, reg::RQWPTRDBADD, reg::RQWPTRDBADDMSB);
        self.at(word, 4).copy_from_slice(&u32::from(producer).to_le_bytes());
        self.set_qp(qp, reg::STATRQPIDB, u32::from(producer));
    }

    /// The script since the last call.
    pub(crate) fn take_script(&mut self) -> String {
        std::mem::take(&mut self.script)
    }

    fn name(&self, offset: u32) -> String {
        let find = |offset| REGISTERS.iter().find(|(_, at)| *at == offset).map(|(name, _)| *name);
        let (owner, name) = if offset < 0x10_0000 {
            (format!("region {}", offset / 0x100), find(offset % 0x100))
        } else if offset < 0x18_0000 {
            (String::from("device"), find(offset))
        } else {
            let slot = offset - self.map.qp1_slot;
            (format!("QP {}", 1 + slot / 0x100), find(0x18_0000 + slot % 0x100))
        };
        format!("{owner} {}", name.map_or_else(|| format!("{offset:#x}"), str::to_owned))
    }
}

impl Platform for Recorder {
    fn read32(&mut self, offset: u32) -> u32 {
        assert_eq!(offset % 4, 0);
        self.posted = 0;
        if self.is_dead { u32::MAX } else { self.registers.get(&offset).copied().unwrap_or(0) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        assert_eq!(offset % 4, 0);
        self.register_writes += 1;
        self.posted += 1;
        let name = self.name(offset);
        self.script += &format!("{name} = {value:#010x}\n");
        if self.stuck.contains(&offset) || name.contains("STATQP") {
            return;
        }
        if offset == reg::INTSTS.offset || (0x10_0190..0x10_0390).contains(&offset) {
            *self.registers.entry(offset).or_default() &= !value;
            return;
        }
        self.registers.insert(offset, value);
        if name.ends_with("QPCONF") && value & 1 << 6 != 0 && self.can_flush {
            let slot = offset & !0xFF;
            let announced = self.read32(slot + 0x38);
            self.registers.insert(slot + 0x30, announced);
            self.registers.insert(slot + 0x88, 0x600);
        }
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let start = self.used.next_multiple_of(align);
        if start + len > self.memory.len() {
            return None;
        }
        self.used = start + len;
        let buffer = DmaBuffer { bus: MEMORY_BASE + start as u64, len };
        self.script += &format!("allocate {len} bytes at {:#x}\n", buffer.bus);
        self.live.push(buffer);
        Some(buffer)
    }

    fn dma_free(&mut self, buffer: DmaBuffer) {
        self.script += &format!("free {} bytes at {:#x}\n", buffer.len, buffer.bus);
        let at = self.live.iter().position(|live| *live == buffer);
        self.live.remove(at.expect("freed once, and what was allocated"));
    }

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.dma_reads += 1;
        let start = usize::try_from(bus.wrapping_sub(MEMORY_BASE)).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(out.len());
        let error = DmaError { bus, len: out.len() };
        out.copy_from_slice(self.memory.get(range).ok_or(error)?);
        Ok(())
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.dma_writes += 1;
        let start = usize::try_from(bus.wrapping_sub(MEMORY_BASE)).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(bytes.len());
        let error = DmaError { bus, len: bytes.len() };
        self.memory.get_mut(range).ok_or(error)?.copy_from_slice(bytes);
        Ok(())
    }

    fn pause(&mut self) {
        self.pauses += 1;
    }
}
