//! Capture files: reads pcap and pcapng, writes pcapng. What is read comes out as Ethernet, whatever the
//! link layer was. It must not know what is in a frame.
//!
//! Writing stands on `pcap-file`. Reading is by hand, because version 2.0 of that crate refuses files
//! that are fine (a packet longer than the snap length, options without an end mark, a time zone
//! option), takes every pcapng time stamp for nanoseconds, and cannot say at which byte a file is
//! damaged.

use std::io::{self, Read, Write};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};
use softrnic_engine::Nanos;
use thiserror::Error;

use crate::link_layer::LinkLayer;

/// Why a capture cannot be read on.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The operating system says so.
    #[error("reading the capture: {0}")]
    Io(#[from] io::Error),
    /// The first bytes are those of another kind of file.
    #[error(
        "not a capture: the file begins with {0:#010x}, which is neither pcap nor pcapng \
         (a hex dump? use --hex)"
    )]
    NotACapture(u32),
    /// A link layer that cannot be shown as Ethernet.
    #[error(
        "link type {0} is not one that can be read: Ethernet (1), raw IP (101, 228, 229) and Linux \
         cooked (113, 276) can"
    )]
    LinkType(u16),
    /// The file ends too early.
    #[error(
        "the capture is cut off: the record at byte {offset} needs {needs} bytes, but the file ends \
         after {there} of them"
    )]
    CutOff {
        /// Where the record that is not whole begins.
        offset: u64,
        /// Bytes of the record, as far as they are known.
        needs: u64,
        /// Bytes of it that are there.
        there: u64,
    },
    /// The file contradicts its format.
    #[error("the capture is damaged in the record at byte {offset}: {what}")]
    Damaged {
        /// Where the record begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// An interface as a pcapng names it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Short name, as an operating system gives it.
    pub name: String,
    /// A sentence about it; may be empty.
    pub description: String,
}

/// A packet out of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedPacket {
    /// Number of the interface, in the order of the file.
    pub interface: u32,
    /// Nanoseconds since 1970 (or since the start of a simulation), where the record has a time.
    pub time: Option<Nanos>,
    /// Bytes that the frame had on the wire.
    pub original_len: u32,
    /// The frame from its destination MAC address on, as far as it was recorded. Where the capture has
    /// no Ethernet header, one of zeroes stands there.
    pub frame: Vec<u8>,
    /// Comments on the packet.
    pub comments: Vec<String>,
}

/// Reads a pcap or pcapng: an iterator over every whole packet, then an error if the file is damaged.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    format: Format,
    done: bool,
}

#[derive(Debug)]
enum Format {
    Pcap { order: Order, nanoseconds: bool, link: LinkLayer },
    Pcapng { order: Order, interfaces: Vec<Description> },
}

/// What a pcapng says about an interface.
#[derive(Debug)]
struct Description {
    interface: Interface,
    link: Result<LinkLayer, u16>,
    snap_len: u32,
    ticks_per_second: u128,
    offset_s: i64,
}

impl<R: Read> Reader<R> {
    /// Looks at the head of a file.
    ///
    /// # Errors
    /// `NotACapture`, `LinkType`, `CutOff` in the header, or the operating system's.
    pub fn new(reader: R) -> Result<Self, CaptureError> {
        let mut input = Input { reader, buffer: Vec::new(), start: 0, end: 0, offset: 0 };
        input.fill(4)?;
        let Some(magic) = input.bytes().first_chunk().map(|b| u32::from_be_bytes(*b)) else {
            let there = input.bytes().len() as u64;
            return Err(CaptureError::CutOff { offset: 0, needs: 24, there });
        };
        let (order, nanoseconds) = match magic {
            0xA1B2_C3D4 => (Order::Big, false),
            0xA1B2_3C4D => (Order::Big, true),
            0xD4C3_B2A1 => (Order::Little, false),
            0x4D3C_B2A1 => (Order::Little, true),
            SECTION_HEADER => {
                let format = Format::Pcapng { order: Order::Little, interfaces: Vec::new() };
                return Ok(Self { input, format, done: false });
            }
            _ => return Err(CaptureError::NotACapture(magic)),
        };
        // The upper half may say how long an FCS is; trailing bytes do no harm.
        let link_type = order.u32(input.peek(24)?, 20) as u16;
        input.consume(24);
        let link = LinkLayer::from_number(link_type).ok_or(CaptureError::LinkType(link_type))?;
        Ok(Self { input, format: Format::Pcap { order, nanoseconds, link }, done: false })
    }

    /// The interfaces that the file has named so far; a pcap names none.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        let interfaces: &[Description] = match &self.format {
            Format::Pcap { .. } => &[],
            Format::Pcapng { interfaces, .. } => interfaces,
        };
        interfaces.iter().map(|description| &description.interface)
    }

    fn next_packet(&mut self) -> Result<Option<CapturedPacket>, CaptureError> {
        loop {
            self.input.fill(1)?;
            if self.input.bytes().is_empty() {
                return Ok(None);
            }
            match &mut self.format {
                Format::Pcap { order, nanoseconds, link } => {
                    return pcap_record(&mut self.input, *order, *nanoseconds, *link).map(Some);
                }
                Format::Pcapng { order, interfaces } => {
                    if let Some(packet) = pcapng_block(&mut self.input, order, interfaces)? {
                        return Ok(Some(packet));
                    }
                }
            }
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<CapturedPacket, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.next_packet().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Writes a pcapng with nanosecond time stamps. The bytes depend on the arguments alone.
pub struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("interfaces", &self.inner.interfaces().len()).finish()
    }
}

impl<W: Write> Writer<W> {
    /// Writes the head of the file and names its interfaces, numbered from 0. Every record is many
    /// small writes: give it a `BufWriter`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(writer: W, interfaces: &[Interface]) -> io::Result<Self> {
        let mut inner =
            PcapNgWriter::with_endianness(writer, Endianness::Little).map_err(into_io)?;
        for interface in interfaces {
            let mut options = vec![
                InterfaceDescriptionOption::IfName(option_text(&interface.name).into()),
                InterfaceDescriptionOption::IfTsResol(9),
            ];
            if !interface.description.is_empty() {
                let text = option_text(&interface.description).into();
                options.push(InterfaceDescriptionOption::IfDescription(text));
            }
            let block =
                InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
            inner.write_pcapng_block(block).map_err(into_io)?;
        }
        Ok(Self { inner })
    }

    /// Appends a packet with its comments.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` where no interface has this number.
    pub fn packet(
        &mut self,
        interface: u32,
        time: Nanos,
        frame: &[u8],
        comments: &[&str],
    ) -> io::Result<()> {
        let original_len = u32::try_from(frame.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a frame of 4 GiB"))?;
        let options = comments
            .iter()
            .map(|comment| EnhancedPacketOption::Comment(option_text(comment).into()))
            .collect();
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(time.0),
            original_len,
            data: frame.into(),
            options,
        };
        self.inner.write_block(&block.into_block()).map(|_| ()).map_err(into_io)
    }

    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(self) -> io::Result<W> {
        let mut writer = self.inner.into_inner();
        writer.flush()?;
        Ok(writer)
    }
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidInput, other),
    }
}

/// As much of a text as an option's 16-bit length can hold.
fn option_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(usize::from(u16::MAX))]
}

/// One record of a pcap: seconds, fraction, recorded and original length, bytes.
fn pcap_record<R: Read>(
    input: &mut Input<R>,
    order: Order,
    nanoseconds: bool,
    link: LinkLayer,
) -> Result<CapturedPacket, CaptureError> {
    let header = input.peek(16)?;
    let word = |at| u64::from(order.u32(header, at));
    let fraction_ns = word(4) * if nanoseconds { 1 } else { 1000 };
    let time = Nanos(word(0) * 1_000_000_000 + fraction_ns);
    let original_len = order.u32(header, 12);
    let len = order.u32(header, 8);
    if len > RECORD_LEN_MAX {
        return Err(input.damaged("a packet of more than 16 MiB"));
    }
    let len = 16 + len as usize;
    let (frame, original_len) = link.ethernet(&input.peek(len)?[16..], original_len);
    input.consume(len);
    Ok(CapturedPacket { interface: 0, time: Some(time), original_len, frame, comments: Vec::new() })
}

/// One block of a pcapng; `None` where it is no packet.
fn pcapng_block<R: Read>(
    input: &mut Input<R>,
    order: &mut Order,
    interfaces: &mut Vec<Description>,
) -> Result<Option<CapturedPacket>, CaptureError> {
    let head = input.peek(12)?;
    if order.u32(head, 0) == SECTION_HEADER {
        // A section brings its own byte order, and its own interfaces.
        *order = match u32::from_be_bytes([head[8], head[9], head[10], head[11]]) {
            0x1A2B_3C4D => Order::Big,
            0x4D3C_2B1A => Order::Little,
            _ => return Err(input.damaged("a section header without byte order mark")),
        };
        interfaces.clear();
    }
    let order = *order;
    let (kind, len) = (order.u32(head, 0), order.u32(head, 4));
    if !len.is_multiple_of(4) || len < 12 {
        return Err(input.damaged("a block length that is no multiple of 4 or below 12"));
    }
    if len > RECORD_LEN_MAX {
        return Err(input.damaged("a block of more than 16 MiB"));
    }
    let len = len as usize;
    let block = input.peek(len)?;
    if order.u32(block, len - 4) as usize != len {
        return Err(input.damaged("the two lengths of a block differ"));
    }
    let block = Block { order, body: &block[8..len - 4] };
    let result = match kind {
        INTERFACE_DESCRIPTION => block.interface().map(|interface| {
            interfaces.push(interface);
            None
        }),
        ENHANCED_PACKET | OBSOLETE_PACKET => {
            block.packet(kind == OBSOLETE_PACKET, interfaces).map(Some)
        }
        SIMPLE_PACKET => block.simple_packet(interfaces).map(Some),
        _ => Ok(None),
    };
    let packet = result.map_err(|fault| match fault {
        Fault::Damaged(what) => input.damaged(what),
        Fault::LinkType(link_type) => CaptureError::LinkType(link_type),
    })?;
    input.consume(len);
    Ok(packet)
}

/// What is wrong with a block, before it is known where the block is.
enum Fault {
    Damaged(&'static str),
    LinkType(u16),
}

/// The body of a pcapng block, without type and lengths.
struct Block<'a> {
    order: Order,
    body: &'a [u8],
}

impl<'a> Block<'a> {
    fn interface(&self) -> Result<Description, Fault> {
        if self.body.len() < 8 {
            return Err(Fault::Damaged("an interface description without its fields"));
        }
        let link_type = self.order.u16(self.body, 0);
        let mut description = Description {
            interface: Interface::default(),
            link: LinkLayer::from_number(link_type).ok_or(link_type),
            snap_len: self.order.u32(self.body, 4),
            ticks_per_second: 1_000_000,
            offset_s: 0,
        };
        for (code, value) in self.options(8)? {
            match (code, value) {
                (2, name) => description.interface.name = text(name),
                (3, about) => description.interface.description = text(about),
                (9, &[exponent]) => {
                    description.ticks_per_second = ticks_per_second(exponent)
                        .ok_or(Fault::Damaged("an interface's time resolution is absurd"))?;
                }
                (14, value) => {
                    if let Some(bytes) = value.first_chunk() {
                        description.offset_s = self.order.u64(*bytes).cast_signed();
                    }
                }
                _ => {}
            }
        }
        Ok(description)
    }

    /// An Enhanced Packet Block, or its predecessor, whose interface number is 16 bits wide.
    fn packet(&self, obsolete: bool, known: &[Description]) -> Result<CapturedPacket, Fault> {
        let (order, body) = (self.order, self.body);
        if body.len() < 20 {
            return Err(Fault::Damaged("a packet block without its fields"));
        }
        let interface = if obsolete { u32::from(order.u16(body, 0)) } else { order.u32(body, 0) };
        let (description, link) = interface_of(known, interface)?;
        let len = order.u32(body, 12) as usize;
        let Some(frame) = body[20..].get(..len) else {
            return Err(Fault::Damaged("a packet reaches past the end of its block"));
        };
        let ticks = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
        let options = self.options(20 + len.next_multiple_of(4))?;
        let comments = options.into_iter().filter(|(code, _)| *code == 1);
        let (frame, original_len) = link.ethernet(frame, order.u32(body, 16));
        Ok(CapturedPacket {
            interface,
            time: Some(description.time(ticks)),
            original_len,
            frame,
            comments: comments.map(|(_, value)| text(value)).collect(),
        })
    }

    /// A Simple Packet Block: of interface 0, without time; its length follows from the others.
    fn simple_packet(&self, known: &[Description]) -> Result<CapturedPacket, Fault> {
        let (description, link) = interface_of(known, 0)?;
        let snap_len = match description.snap_len {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let Some((_, data)) = self.body.split_at_checked(4) else {
            return Err(Fault::Damaged("a simple packet block without its length"));
        };
        let original_len = self.order.u32(self.body, 0);
        let len = data.len().min(snap_len).min(original_len as usize);
        let (frame, original_len) = link.ethernet(&data[..len], original_len);
        Ok(CapturedPacket { interface: 0, time: None, original_len, frame, comments: Vec::new() })
    }

    /// Code and value of the options from byte `at` on; an end mark is not needed.
    fn options(&self, at: usize) -> Result<Vec<(u16, &'a [u8])>, Fault> {
        let mut options = Vec::new();
        let mut rest = self.body.get(at..).unwrap_or_default();
        while rest.len() >= 4 {
            let (code, len) = (self.order.u16(rest, 0), usize::from(self.order.u16(rest, 2)));
            if code == 0 {
                break;
            }
            let Some(value) = rest[4..].get(..len) else {
                return Err(Fault::Damaged("an option reaches past the end of its block"));
            };
            options.push((code, value));
            rest = rest[4..].get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(options)
    }
}

impl Description {
    fn time(&self, ticks: u64) -> Nanos {
        let ns = u128::from(ticks) * 1_000_000_000 / self.ticks_per_second;
        let ns = ns.cast_signed() + i128::from(self.offset_s) * 1_000_000_000;
        Nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }
}

/// An interface and its link layer, where that can be read.
fn interface_of(known: &[Description], number: u32) -> Result<(&Description, LinkLayer), Fault> {
    let Some(description) = known.get(number as usize) else {
        return Err(Fault::Damaged("a packet of an interface that the file does not describe"));
    };
    let link = description.link.map_err(Fault::LinkType)?;
    Ok((description, link))
}

/// if_tsresol: a negative power of 2 where the high bit is set, of 10 otherwise.
fn ticks_per_second(resolution: u8) -> Option<u128> {
    let exponent = u32::from(resolution & 0x7F);
    let ticks = if resolution & 0x80 != 0 { 2u128 } else { 10 };
    ticks.checked_pow(exponent)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug)]
enum Order {
    Big,
    Little,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = [bytes[at], bytes[at + 1]];
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(bytes),
            Self::Little => u64::from_le_bytes(bytes),
        }
    }
}

/// Bytes that were read but not used yet, and where they are in the file.
#[derive(Debug)]
struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    /// The bytes that are not used yet are `start..end` of the buffer.
    start: usize,
    end: usize,
    /// Bytes of the file before `start`.
    offset: u64,
}

impl<R: Read> Input<R> {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads on until `need` bytes are there or the file ends.
    fn fill(&mut self, need: usize) -> io::Result<()> {
        if self.bytes().len() >= need {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < need.max(READ_LEN) {
            self.buffer.resize(need.max(READ_LEN), 0);
        }
        while self.end < need {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next `need` bytes; they stay.
    fn peek(&mut self, need: usize) -> Result<&[u8], CaptureError> {
        self.fill(need)?;
        let there = self.bytes().len();
        if there < need {
            let (needs, there) = (need as u64, there as u64);
            return Err(CaptureError::CutOff { offset: self.offset, needs, there });
        }
        Ok(&self.buffer[self.start..self.start + need])
    }

    /// Uses up bytes that were looked at.
    const fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    const fn damaged(&self, what: &'static str) -> CaptureError {
        CaptureError::Damaged { offset: self.offset, what }
    }
}

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Longer records are taken for damage instead of being waited for.
const RECORD_LEN_MAX: u32 = 16 << 20;
const READ_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Vec<CapturedPacket>, Option<CaptureError>) {
        let mut packets = Vec::new();
        let reader = match Reader::new(bytes) {
            Ok(reader) => reader,
            Err(error) => return (packets, Some(error)),
        };
        for packet in reader {
            match packet {
                Ok(packet) => packets.push(packet),
                Err(error) => return (packets, Some(error)),
            }
        }
        (packets, None)
    }

    fn interface(name: &str, description: &str) -> Interface {
        Interface { name: name.into(), description: description.into() }
    }

    fn written() -> Vec<u8> {
        let interfaces = [interface("a.eth", "node a"), interface("b.eth", "")];
        let mut writer = Writer::new(Vec::new(), &interfaces).unwrap();
        writer.packet(0, Nanos(1), &[1, 2, 3, 4, 5], &[]).unwrap();
        let comments = ["refused: icrc_wrong", "dropped by rule 3 \u{2013} on purpose"];
        writer.packet(1, Nanos(5_000_000_007), &[9; 64], &comments).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let bytes = written();
        assert_eq!(bytes, written());
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let packets: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].time, Some(Nanos(1)));
        assert_eq!(packets[0].frame, [1, 2, 3, 4, 5]);
        assert_eq!(packets[0].comments, [""; 0]);
        assert_eq!((packets[1].interface, packets[1].original_len), (1, 64));
        assert_eq!(packets[1].time, Some(Nanos(5_000_000_007)));
        assert_eq!(packets[1].comments[0], "refused: icrc_wrong");
        assert_eq!(packets[1].comments[1], "dropped by rule 3 \u{2013} on purpose");
        let names: Vec<_> = reader.interfaces().cloned().collect();
        assert_eq!(names, [interface("a.eth", "node a"), interface("b.eth", "")]);
    }

    #[test]
    fn an_unknown_interface_is_not_written_and_a_long_comment_is_cut() {
        let mut writer = Writer::new(Vec::new(), &[interface("a", "")]).unwrap();
        assert!(writer.packet(1, Nanos(0), &[], &[]).is_err());
        let long = "\u{e9}".repeat(40_000);
        writer.packet(0, Nanos(0), &[7; 14], &[&long]).unwrap();
        let (packets, error) = read(&writer.finish().unwrap());
        assert!(error.is_none());
        assert_eq!(packets[0].comments, ["\u{e9}".repeat(32_767)]);
    }

    /// A pcap of two packets, the second one longer than it was recorded.
    fn pcap(big: bool, nanoseconds: bool) -> Vec<u8> {
        let magic: u32 = if nanoseconds { 0xA1B2_3C4D } else { 0xA1B2_C3D4 };
        let words: [u32; 20] =
            [magic, 0, 0, 0, 64, 1, 3, 7, 4, 4, 0xA5A5_A5A5, 4, 8, 4, 90, 0xA5A5_A5A5, 0, 0, 0, 0];
        words[..16]
            .iter()
            .flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() })
            .collect()
    }

    #[test]
    fn pcap_is_read_in_both_byte_orders_and_resolutions() {
        for big in [false, true] {
            for nanoseconds in [false, true] {
                let (packets, error) = read(&pcap(big, nanoseconds));
                assert!(error.is_none(), "{error:?}");
                let unit = if nanoseconds { 1 } else { 1000 };
                assert_eq!(packets[0].time, Some(Nanos(3_000_000_000 + 7 * unit)));
                assert_eq!(packets[1].time, Some(Nanos(4_000_000_000 + 8 * unit)));
                assert_eq!((packets[1].frame.len(), packets[1].original_len), (4, 90));
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_gives_its_whole_packets_and_names_the_byte() {
        for file in [pcap(true, true), written()] {
            let (all, _) = read(&file);
            for len in 1..file.len() {
                let (packets, error) = read(&file[..len]);
                assert_eq!(packets[..], all[..packets.len()], "{len}");
                match error {
                    Some(CaptureError::CutOff { offset, needs, there }) => {
                        assert!(offset + there == len as u64 && there < needs, "{len}");
                    }
                    None => assert!(packets.len() < all.len(), "{len}"),
                    Some(other) => panic!("{len}: {other}"),
                }
            }
        }
    }

    #[test]
    fn a_file_with_any_byte_changed_ends() {
        for file in [pcap(false, false), written()] {
            let (all, _) = read(&file);
            for at in 0..file.len() {
                for value in [0, 1, 0x7F, 0x80, 0xFF] {
                    let mut changed = file.clone();
                    changed[at] = value;
                    let (packets, error) = read(&changed);
                    assert!(error.is_some() || packets.len() <= all.len(), "{at} {value}");
                }
            }
        }
    }

    /// A little-endian block.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = 12 + body.len().next_multiple_of(4) as u32;
        let mut bytes = [kind.to_le_bytes(), len.to_le_bytes()].concat();
        bytes.extend(body);
        bytes.resize(len as usize - 4, 0);
        bytes.extend(len.to_le_bytes());
        bytes
    }

    fn section() -> Vec<u8> {
        block(
            SECTION_HEADER,
            &[0x4D, 0x3C, 0x2B, 0x1A, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255],
        )
    }

    #[test]
    fn pcapng_of_other_writers_is_read() {
        // Snap length 6, resolution 2^-10 s, no end mark; a time zone and an unknown block in between.
        let idb = [1, 0, 0, 0, 6, 0, 0, 0, 10, 0, 4, 0, 1, 2, 3, 4, 9, 0, 1, 0, 0x8A, 0, 0, 0];
        let mut file =
            [section(), block(INTERFACE_DESCRIPTION, &idb), block(0xBAD, &[1; 8])].concat();
        file.extend(block(SIMPLE_PACKET, &[9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]));
        let enhanced = [0u32, 0, 1536, 2, 2, 0xFFFF].map(u32::to_le_bytes).concat();
        file.extend(block(ENHANCED_PACKET, &enhanced));
        file.extend(block(
            OBSOLETE_PACKET,
            &[0u32, 0, 1024, 1, 1, 0x77].map(u32::to_le_bytes).concat(),
        ));
        let (packets, error) = read(&file);
        assert!(error.is_none(), "{error:?}");
        assert_eq!((packets[0].time, packets[0].original_len), (None, 9));
        assert_eq!(packets[0].frame, [1, 2, 3, 4, 5, 6]);
        assert_eq!(packets[1].time, Some(Nanos(1_500_000_000)));
        assert_eq!(packets[1].frame, [0xFF, 0xFF]);
        assert_eq!(packets[2].time, Some(Nanos(1_000_000_000)));
    }

    #[test]
    fn a_big_endian_section_follows_a_little_endian_one() {
        let mut file = written();
        let words: [u32; 20] = [
            SECTION_HEADER,
            28,
            0x1A2B_3C4D,
            0x0001_0000,
            u32::MAX,
            u32::MAX,
            28,
            1,
            20,
            0x0001_0000,
            0,
            20,
            3,
            20,
            2,
            0xABCD_0000,
            20,
            0,
            0,
            0,
        ];
        file.extend(words[..17].iter().flat_map(|word| word.to_be_bytes()));
        let (packets, error) = read(&file);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(packets[2].frame, [0xAB, 0xCD]);
    }

    #[test]
    fn raw_ip_is_read_as_ethernet() {
        let mut raw = pcap(false, false);
        raw[20] = 101;
        let (packets, error) = read(&raw);
        assert!(error.is_none());
        assert_eq!((packets[0].frame.len(), packets[0].original_len), (18, 18));
        assert_eq!(packets[0].frame[12..], [8, 0, 0xA5, 0xA5, 0xA5, 0xA5]);
        assert_eq!(packets[1].original_len, 104);

        let idb = block(INTERFACE_DESCRIPTION, &[101, 0, 0, 0, 0, 0, 0, 0]);
        let packet = block(SIMPLE_PACKET, &[4, 0, 0, 0, 0x60, 1, 2, 3]);
        let (packets, error) = read(&[section(), idb, packet].concat());
        assert!(error.is_none());
        assert_eq!(packets[0].frame[12..], [0x86, 0xDD, 0x60, 1, 2, 3]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let message =
            |bytes: &[u8]| read(bytes).1.map(|error| error.to_string()).unwrap_or_default();
        assert!(message(b"GIF89a").starts_with("not a capture: the file begins with 0x47494638"));
        assert!(message(b"").contains("cut off"), "{}", message(b""));
        let mut radio = pcap(false, false);
        radio[20] = 127;
        assert!(message(&radio).starts_with("link type 127 is not one that can be read"));

        let idb = block(INTERFACE_DESCRIPTION, &[127, 0, 0, 0, 0, 0, 0, 0]);
        let packet = block(ENHANCED_PACKET, &[0; 20]);
        let other = [section(), idb, packet.clone()].concat();
        assert!(message(&other).starts_with("link type 127 is not one that can be read"));
        let unknown = [section(), packet].concat();
        assert!(
            message(&unknown).contains("byte 28: a packet of an interface"),
            "{}",
            message(&unknown)
        );
        let mut huge = section();
        huge.extend(block(ENHANCED_PACKET, &[]));
        huge[32..36].copy_from_slice(&0xFFFF_FFF0u32.to_le_bytes());
        assert!(message(&huge).contains("byte 28: a block of more than 16 MiB"));
    }
}
