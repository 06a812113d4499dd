//! XON, XOFF and PAUSE: how full the receive buffer of each traffic class is, and the pause frames that
//! leave because of it.
//!
//! A buffer is a level that drains at a rate, not a queue. Chosen: a frame is executed when it arrives,
//! and only its room in the buffer is held until it would have drained; the unit of the thresholds is a
//! word of the 512-bit data path, and a buffer has 512 of them (the largest threshold that a driver
//! allows). Without a drain rate nothing is ever held. Knows frames by class and length.

use softrnic_engine::packet::flow_control::{
    FRAME_LEN, FlowControl, FlowControlFrame, build, pause_ns,
};
use softrnic_engine::packet::{ETHERTYPE_MAC_CONTROL, parse};
use softrnic_engine::{Nanos, Pfc, Psn, Qpn, Reason, Room, Train};

use super::registers::{Register, bits};
use super::status::Status;

/// Bytes of a word.
const WORD_LEN: u64 = 64;
/// Words of a buffer.
const BUFFER_WORDS: u64 = 512;
/// How long a pause is asked for: the longest. It is asked for again after half of it.
const PAUSE_QUANTA: u16 = u16::MAX;
/// Priority code of a global PAUSE.
const GLOBAL_PAUSE: u8 = 8;
/// Levels are in billionths of a bit, so that a rate in bits per second times nanoseconds is exact.
const PER_BIT: u64 = 1_000_000_000;
const PER_WORD: u64 = WORD_LEN * 8 * PER_BIT;

const XON: u32 = bits(Register::XrnicBufThresholdRoce, "xon");
const XOFF: u32 = bits(Register::XrnicBufThresholdRoce, "xoff");
const PAUSE_ROCE: u32 = bits(Register::XrnicPauseConf, "pause_roce");
const PAUSE_OTHER: u32 = bits(Register::XrnicPauseConf, "pause_other");
const PRIORITY_ROCE: u32 = bits(Register::XrnicPauseConf, "priority_roce");
const PRIORITY_OTHER: u32 = bits(Register::XrnicPauseConf, "priority_other");
const ANY_PRIORITY: u32 = bits(Register::XrnicPauseConf, "any_priority");

/// A traffic class with a buffer of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Roce,
    Other,
}

/// What the registers say about a class.
#[derive(Clone, Copy, Debug)]
struct Settings {
    xon: u64,
    xoff: u64,
    enabled: bool,
    priority: u8,
}

/// The buffer of one class.
#[derive(Clone, Copy, Default, Debug)]
struct Buffer {
    /// At time `at`.
    level: u64,
    at: Nanos,
    /// The peer was asked to pause and not yet to go on.
    asked: bool,
    /// When to ask again.
    again: Nanos,
    /// A frame with this pause time has to leave.
    owed: Option<u16>,
}

/// Both buffers.
#[derive(Clone, Debug)]
pub(super) struct ReceiveBuffers {
    drain_bits_per_s: u64,
    line_rate_bits_per_s: u64,
    buffers: [Buffer; 2],
    /// A frame is owed by one of them.
    owes: bool,
}

impl Settings {
    fn of(status: &Status, class: Class) -> Self {
        let pause = status.word(Register::XrnicPauseConf);
        let (levels, enable, priority) = match class {
            Class::Roce => (Register::XrnicBufThresholdRoce, PAUSE_ROCE, PRIORITY_ROCE),
            Class::Other => (Register::XrnicBufThresholdNonRoce, PAUSE_OTHER, PRIORITY_OTHER),
        };
        let levels = status.word(levels);
        Self {
            xon: u64::from(levels & XON) * PER_WORD,
            xoff: u64::from((levels & XOFF) >> XOFF.trailing_zeros()) * PER_WORD,
            enabled: pause & enable != 0,
            priority: ((pause & priority) >> priority.trailing_zeros()) as u8,
        }
    }
}

impl Buffer {
    fn drain(&mut self, now: Nanos, rate: u64) {
        let drained = now.0.saturating_sub(self.at.0).saturating_mul(rate);
        self.level = self.level.saturating_sub(drained);
        self.at = now;
    }

    /// Asks for a pause at XOFF, and for its end at XON.
    fn judge(&mut self, now: Nanos, settings: &Settings, pause_ns: u64) {
        if !settings.enabled {
            self.asked = false;
        } else if !self.asked && self.level >= settings.xoff {
            self.asked = true;
            self.owed = Some(PAUSE_QUANTA);
            self.again = now.after(pause_ns / 2);
        } else if self.asked && self.level <= settings.xon {
            self.asked = false;
            self.owed = Some(0);
        } else if self.asked && self.again <= now {
            self.owed = Some(PAUSE_QUANTA);
            self.again = now.after(pause_ns / 2);
        }
    }

    fn deadline(&self, settings: &Settings, rate: u64) -> Option<Nanos> {
        if !self.asked {
            return None;
        }
        let until_xon = self.level.saturating_sub(settings.xon).div_ceil(rate.max(1));
        Some(self.at.after(until_xon).min(self.again))
    }
}

impl ReceiveBuffers {
    /// `drain_bits_per_s`: `None` where frames are taken as fast as they come.
    pub(super) fn new(line_rate_bits_per_s: u64, drain_bits_per_s: Option<u64>) -> Self {
        Self {
            drain_bits_per_s: drain_bits_per_s.unwrap_or(0),
            line_rate_bits_per_s,
            buffers: [Buffer::default(); 2],
            owes: false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.buffers = [Buffer::default(); 2];
        self.owes = false;
    }

    /// Whether frames take room at all.
    #[inline(always)]
    pub(super) const fn limited(&self) -> bool {
        self.drain_bits_per_s != 0
    }

    #[inline(always)]
    pub(super) const fn owes(&self) -> bool {
        self.owes
    }

    /// A frame arrives.
    ///
    /// # Errors
    /// It found no room and is lost.
    pub(super) fn arrive(
        &mut self,
        now: Nanos,
        frame: &[u8],
        status: &Status,
    ) -> Result<(), Reason> {
        let Some(class) = class_of(frame) else { return Ok(()) };
        let (rate, pause_ns) = (self.drain_bits_per_s, self.pause_ns());
        let buffer = &mut self.buffers[class as usize];
        buffer.drain(now, rate);
        let level = buffer.level + (frame.len() as u64).div_ceil(WORD_LEN) * PER_WORD;
        if level > BUFFER_WORDS * PER_WORD {
            return Err(match class {
                Class::Roce => Reason::ReceiveBufferFull,
                Class::Other => Reason::OtherBufferFull,
            });
        }
        buffer.level = level;
        buffer.judge(now, &Settings::of(status, class), pause_ns);
        self.owes |= buffer.owed.is_some();
        Ok(())
    }

    /// Time has passed: levels have fallen.
    pub(super) fn handle_timeout(&mut self, now: Nanos, status: &Status) {
        let (rate, pause_ns) = (self.drain_bits_per_s, self.pause_ns());
        for class in [Class::Roce, Class::Other] {
            let buffer = &mut self.buffers[class as usize];
            buffer.drain(now, rate);
            buffer.judge(now, &Settings::of(status, class), pause_ns);
            self.owes |= buffer.owed.is_some();
        }
    }

    /// When [`ReceiveBuffers::handle_timeout`] has something to do.
    pub(super) fn deadline(&self, status: &Status) -> Option<Nanos> {
        let classes = [Class::Roce, Class::Other].into_iter();
        let deadline = |class| {
            let settings = Settings::of(status, class);
            self.buffers[class as usize].deadline(&settings, self.drain_bits_per_s)
        };
        classes.filter_map(deadline).min()
    }

    /// Writes a pause frame that is owed. `None` where none is, or where the room is too small.
    pub(super) fn poll(
        &mut self,
        source_mac: [u8; 6],
        room: &mut Room<'_>,
        status: &Status,
    ) -> Option<Train> {
        let out = room.bytes.get_mut(..FRAME_LEN)?;
        let class = [Class::Roce, Class::Other]
            .into_iter()
            .find(|&class| self.buffers[class as usize].owed.is_some())?;
        let quanta = self.buffers[class as usize].owed.take()?;
        self.owes = self.buffers.iter().any(|buffer| buffer.owed.is_some());
        let what = asking(Settings::of(status, class).priority, quanta);
        out.copy_from_slice(&build(&FlowControlFrame { source_mac, what }));
        Some(Train {
            len: FRAME_LEN,
            header: FRAME_LEN as u16,
            segment: 0,
            segments: 0,
            qpn: Qpn::new(0),
            opcode: 0,
            psn: Psn::new(0),
            syndrome: None,
            retransmission: false,
            flow_control: true,
        })
    }

    /// Words that are taken in the RoCE buffer, rounded up, as of the last arrival or timeout.
    pub(super) const fn roce_words(&self) -> u64 {
        self.buffers[Class::Roce as usize].level.div_ceil(PER_WORD)
    }

    /// What the port obeys. Chosen: a class that does not ask for pauses does not obey any.
    pub(super) fn obeyed(&self, status: &Status) -> Option<Pfc> {
        let pause = status.word(Register::XrnicPauseConf);
        let settings = Settings::of(status, Class::Roce);
        let any = pause & ANY_PRIORITY != 0;
        settings.enabled.then_some(Pfc {
            rate_bits_per_s: self.line_rate_bits_per_s,
            priorities: match settings.priority {
                _ if any => u8::MAX,
                priority if priority < GLOBAL_PAUSE => 1 << priority,
                _ => 0,
            },
            global: any || settings.priority == GLOBAL_PAUSE,
            one_class: true,
        })
    }

    fn pause_ns(&self) -> u64 {
        pause_ns(PAUSE_QUANTA, self.line_rate_bits_per_s)
    }
}

/// The frame's class; `None` for what the MAC keeps for itself. RoCE that is broken is still RoCE.
fn class_of(frame: &[u8]) -> Option<Class> {
    if frame.get(12..14) == Some(&ETHERTYPE_MAC_CONTROL.to_be_bytes()) {
        return None;
    }
    match parse(frame) {
        Err(Reason::NotRoce | Reason::FlowControl) => Some(Class::Other),
        _ => Some(Class::Roce),
    }
}

fn asking(priority: u8, quanta: u16) -> FlowControl {
    if priority >= GLOBAL_PAUSE {
        return FlowControl::Pause { quanta };
    }
    let mut times = [0; 8];
    times[usize::from(priority)] = quanta;
    FlowControl::Pfc { enabled: 1 << priority, quanta: times }
}
