//! Hardware as the producer: logic beside an ERNIC streams WRITEs WITH IMMEDIATE over the side-band
//! ports (QPCONF\[4\] = 0), as a radio or a camera in the same FPGA does. Software sets the queues up
//! once and is out of the way; no doorbell goes through memory or registers.
//!
//!     cargo run -p softrnic-device --example hardware_producer

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, Register};
use softrnic_device::{DmaFault, Memory, Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Reason, Room, Rx};

const RAM: u64 = 0x8000_0000;
const SQ: u64 = RAM;
/// The samples' ring, at the same addresses on both sides.
const RING: u64 = RAM + 0x10_0000;
const SLOTS: u16 = 16;
const CHUNK: u32 = 0x1_0000;
const QP: u16 = 2;
const KEY: u32 = 0x12;
const CHUNKS: u32 = 1000;

/// The logic: it knows where SQPI is, and how far it has come.
struct Producer {
    sqpi: u32,
    filled: u32,
    freed: u32,
}

impl Producer {
    /// Fills free chunks with samples and rings the port for each.
    fn run(&mut self, nic: &mut Nic<Ernic, Ram>) -> Result<(), Box<dyn std::error::Error>> {
        while let Some(beat) = nic.device.take_completions() {
            self.freed += beat.count;
        }
        while self.filled < CHUNKS && self.filled - self.freed < u32::from(SLOTS) - 1 {
            let slot = self.filled % u32::from(SLOTS);
            let samples = self.filled.to_le_bytes().repeat(CHUNK as usize / 4);
            nic.memory.write(RING + u64::from(slot * CHUNK), &samples)?;
            nic.ring_side_band(self.sqpi, slot as u16 + 1).map_err(|reason| reason.row().text)?;
            self.filled += 1;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut board, mut host) = (device(1)?, device(2)?);
    let sqpi = board.device.map().offset(Location { register: Register::Sqpi, index: QP });
    let mut producer = Producer { sqpi, filled: 0, freed: 0 };
    let mut arrived = 0;
    while producer.freed < CHUNKS {
        producer.run(&mut board)?;
        while carry(&mut board, &mut host)? | carry(&mut host, &mut board)? {}
        while let Some(entry) = host.device.take_side_band() {
            let (number, slot) = (arrived, entry as u32);
            let mut first = [0; 4];
            host.memory.read(RING + u64::from(slot * CHUNK), &mut first)?;
            if u32::from_le_bytes(first) < number {
                return Err(format!("chunk {number} holds {first:?}").into());
            }
            arrived += 1;
        }
    }
    println!("{arrived} chunks of {CHUNK} bytes written, {} completed", producer.freed);
    println!("memory doorbells: {} and {}", doorbell(&board)?, doorbell(&host)?);
    Ok(())
}

/// What software does, once: addresses, the region, the queue pair, and a ring of entries for ever.
fn device(number: u8) -> Result<Nic<Ernic, Ram>, DmaFault> {
    let mut nic = Nic::ernic(
        ErnicConfig { num_qp: 8, ..ErnicConfig::default() },
        Ram::new(RAM, 0x10_0000 + usize::from(SLOTS) * CHUNK as usize),
    );
    let peer = 3 - number;
    let map = nic.device.map();
    let mut set = |register, index, value| {
        nic.write32(map.offset(Location { register, index }), value);
    };
    set(Register::Macxaddlsb, 0, number.into());
    set(Register::Macxaddmsb, 0, 0x0200);
    set(Register::Ipv4xadd, 0, 0xC0A8_6400 | u32::from(number));
    set(Register::XrnicConfQpEn, 0, 7);
    set(Register::Virtaddrlsb, 0, RING as u32);
    set(Register::Bufbaseaddrlsb, 0, RING as u32);
    set(Register::Bufrkey, 0, KEY);
    set(Register::Wrrdbuflen, 0, u32::from(SLOTS) * CHUNK);
    set(Register::Accessdesc, 0, 2);
    set(Register::Sqba, QP, SQ as u32);
    set(Register::Cqdbadd, QP, DOORBELL as u32);
    set(Register::Qdepth, QP, u32::from(SLOTS) | u32::from(SLOTS) << 16);
    set(Register::Sqpsn, QP, 1);
    set(Register::Lstrqreq, QP, 0x0400_0000);
    set(Register::Destqpconf, QP, QP.into());
    set(Register::Timeoutconf, QP, 18 | 7 << 8 | 7 << 11 | 1 << 16);
    set(Register::Qpadvconf, QP, 0xFFFF_4000);
    set(Register::Macdesaddlsb, QP, peer.into());
    set(Register::Macdesaddmsb, QP, 0x0200);
    set(Register::Ipdesaddr1, QP, 0xC0A8_6400 | u32::from(peer));
    // Enabled, path MTU 4096; bit 4 is clear.
    set(Register::Qpconf, QP, 1 | 4 << 8 | 16 << 16);
    set(Register::Xrnicconf, 0, 0x00C0_0001);
    for slot in 0..u32::from(SLOTS) {
        let chunk = RING + u64::from(slot * CHUNK);
        let mut entry = [0; 64];
        entry[..2].copy_from_slice(&(slot as u16).to_le_bytes());
        entry[4..12].copy_from_slice(&chunk.to_le_bytes());
        entry[12..16].copy_from_slice(&CHUNK.to_le_bytes());
        // RDMA WRITE WITH IMMEDIATE.
        entry[16] = 0x01;
        entry[20..28].copy_from_slice(&chunk.to_le_bytes());
        entry[28..32].copy_from_slice(&KEY.to_le_bytes());
        entry[48..52].copy_from_slice(&slot.to_le_bytes());
        nic.memory.write(SQ + 64 * u64::from(slot), &entry)?;
    }
    Ok(nic)
}

const DOORBELL: u64 = RAM + 0x8_0000;

fn doorbell(nic: &Nic<Ernic, Ram>) -> Result<u32, DmaFault> {
    nic.memory.read_u32(DOORBELL)
}

/// Hands over one frame; `false` where there is none.
fn carry(from: &mut Nic<Ernic, Ram>, to: &mut Nic<Ernic, Ram>) -> Result<bool, &'static str> {
    let mut bytes = [0; FRAME_LEN_MAX];
    let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
    let Some(train) = from.poll_transmit(Nanos(0), &mut room) else { return Ok(false) };
    let refused = to.handle_frame(Nanos(0), &bytes[..train.len], Rx::default()).refused;
    refused.map_or(Ok(true), |reason: Reason| Err(reason.row().text))
}
