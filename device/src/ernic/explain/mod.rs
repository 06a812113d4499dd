//! What ERNIC's numbers say: registers by their rows, and the words that are no registers: entries of
//! queues and buffers.
//!
//! A row says what a field is; here is what its values mean where the row cannot hold it, what causes
//! them and what to do. Reads no device.

mod advice;
mod hints;
mod words;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use softrnic_engine::explain::{
    CodeMeaning, Explanation, FieldMeaning, ack_timeout, opcode_name, rnr_timer,
};

pub use hints::hint;
pub use words::{WORDS, explain as word};

use super::profile::Profile;
use super::registers::Register;
use super::row::{DeviceEffect, Effect, Field};
use advice::{ADVICE, When};

/// What a register's value says in a profile, or without a value, what its fields are. `word` counts
/// from 0 and is of importance for the bitwise banks only.
#[must_use]
pub fn register(
    profile: &Profile,
    register: Register,
    word: u16,
    value: Option<u32>,
) -> Explanation {
    let row = register.row();
    let (mark, why) = row.mark.parts();
    let source = match why {
        "" => format!("PG332 register space, {mark}"),
        why => format!("PG332 register space, {mark}: {why}"),
    };
    let places = places(profile, register);
    let known = places.iter().fold(0, |mask, place| mask | place.bits);
    Explanation {
        name: row.name_of_word(if row.words > 1 { word } else { 0 }),
        width: 32,
        value: value.map(u64::from),
        text: row.text.into(),
        source: source.into(),
        advice: "".into(),
        fields: places.iter().map(|place| explain_field(place, word, value)).collect(),
        reserved: value.map_or(0, |value| value & !known).into(),
    }
}

/// A field, the register that the table has it in, and its bits in the register that software reads.
struct FieldPlace {
    register: Register,
    field: &'static Field,
    bits: u32,
}

/// Every field that a profile has in a register, from the highest bit down.
fn places(profile: &Profile, register: Register) -> Vec<FieldPlace> {
    let last_packet = matches!(register, Register::Lstinpkt | Register::Lstoutpkt);
    let own = register.row().fields.iter().map(|field| {
        let moved = profile.moved.iter().find(|moved| {
            (moved.on, moved.register, moved.table_bits) == (register, register, field.mask())
        });
        let bits = match field.name {
            "psn" if last_packet => profile.last_packet.0,
            "qp" if last_packet => profile.last_packet.1,
            _ => moved.map_or(field.mask(), |moved| moved.bits),
        };
        FieldPlace { register, field, bits }
    });
    let carried = profile.carried(register).filter_map(|moved| {
        let field = moved.register.row().fields.iter().find(|f| f.mask() == moved.table_bits)?;
        Some(FieldPlace { register: moved.register, field, bits: moved.bits })
    });
    let mut places: Vec<_> = own.chain(carried).collect();
    places.sort_by_key(|place| core::cmp::Reverse(place.bits));
    places
}

fn explain_field(place: &FieldPlace, word: u16, register_value: Option<u32>) -> FieldMeaning {
    let FieldPlace { register, field, bits } = *place;
    let low = bits.trailing_zeros();
    let value = register_value.map(|value| (value & bits) >> low);
    let advice: Vec<_> =
        ADVICE.iter().filter(|row| row.register == register && row.field == field.name).collect();
    let codes = match value {
        Some(value) => {
            let meaning = meaning(register, word, field, value);
            let row = advice.iter().find(|row| row.when.fits(value));
            let (cause, advice) = row.map_or(("", ""), |row| (row.cause, row.advice));
            let nothing = meaning.is_empty() && cause.is_empty() && advice.is_empty();
            let told = (!nothing).then(|| CodeMeaning {
                value: value.into(),
                meaning: meaning.into(),
                cause: cause.into(),
                advice: advice.into(),
            });
            told.into_iter().collect()
        }
        None => all_codes(field, &advice),
    };
    FieldMeaning {
        name: field.name,
        high: (31 - bits.leading_zeros()) as u8,
        low: low as u8,
        text: field.text.into(),
        value: value.map(u64::from),
        codes,
    }
}

/// Every value that has a name or something to be said about.
fn all_codes(field: &'static Field, advice: &[&advice::Advice]) -> Vec<CodeMeaning> {
    let mut codes: Vec<CodeMeaning> = field
        .codes
        .iter()
        .map(|&(value, meaning)| CodeMeaning {
            value: value.into(),
            meaning: meaning.into(),
            cause: "".into(),
            advice: "".into(),
        })
        .collect();
    for row in advice {
        let value = match row.when {
            When::Is(value) => value,
            When::NotZero => 1,
        };
        match codes.iter_mut().find(|code| code.value == u64::from(value)) {
            Some(code) => (code.cause, code.advice) = (row.cause.into(), row.advice.into()),
            None => codes.push(CodeMeaning {
                value: value.into(),
                meaning: row.when.name(field).into(),
                cause: row.cause.into(),
                advice: row.advice.into(),
            }),
        }
    }
    codes.sort_by_key(|code| code.value);
    codes
}

/// What a field's value means in words; empty where the number says it.
fn meaning(register: Register, word: u16, field: &Field, value: u32) -> String {
    if let Some(name) = field.meaning(value) {
        return name.to_string();
    }
    let bank = matches!(
        register.row().effect,
        Effect::Device(
            DeviceEffect::ReceiveBank | DeviceEffect::CompletionBank | DeviceEffect::CnpBank
        )
    );
    if bank {
        return queue_pairs(word, value);
    }
    if let Some((.., note)) = NOTES.iter().find(|row| row.0 == register && row.1 == field.name) {
        return note(value);
    }
    match (field.high == field.low, value) {
        (false, _) => String::new(),
        (true, 0) => "no".to_string(),
        (true, _) => "yes".to_string(),
    }
}

/// The queue pairs whose bits are set in a word of a bank.
fn queue_pairs(word: u16, bits: u32) -> String {
    let set = (0..32u32).filter(|bit| bits >> bit & 1 != 0);
    let numbers: Vec<_> = set.map(|bit| (u32::from(word) * 32 + bit).to_string()).collect();
    match numbers.len() {
        0 => "no queue pair".to_string(),
        1 => format!("queue pair {}", numbers[0]),
        _ => format!("queue pairs {}", numbers.join(", ")),
    }
}

type Note = fn(u32) -> String;

/// Fields whose values a list cannot hold.
const NOTES: &[(Register, &str, Note)] = &[
    (Register::Lstinpkt, "opcode", |value| opcode_name(value.into())),
    (Register::Lstoutpkt, "opcode", |value| opcode_name(value.into())),
    (Register::Lstrqreq, "opcode", |value| opcode_name(value.into())),
    (Register::Timeoutconf, "timeout", timeout),
    (Register::Timeoutconf, "rnr_timer", |value| rnr_timer(value.into())),
    (Register::Statqp, "nak_syndrome", nak_syndrome),
    (Register::Qpconf, "rq_buffer", |value| format!("{} bytes", u64::from(value) * 256)),
    (Register::Ipv4xadd, "ipv4", |value| Ipv4Addr::from_bits(value).to_string()),
    (Register::Ipdesaddr1, "ip", |value| format!("{}, if it is IPv4", Ipv4Addr::from_bits(value))),
    (Register::Macxaddlsb, "mac_low", mac_low),
    (Register::Macdesaddlsb, "mac_low", mac_low),
    (Register::Macxaddmsb, "mac_high", mac_high),
    (Register::Macdesaddmsb, "mac_high", mac_high),
];

/// XRNICADCONF says how long a tick is.
fn timeout(value: u32) -> String {
    format!("{}, where a tick is 4.096 us", ack_timeout(value.into()))
}

fn mac_low(value: u32) -> String {
    let [a, b, c, d] = value.to_be_bytes();
    format!("xx:xx:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

fn mac_high(value: u32) -> String {
    let [_, _, a, b] = value.to_be_bytes();
    format!("{a:02x}:{b:02x}:xx:xx:xx:xx")
}

/// STATQP has the lower seven bits of an AETH's syndrome.
fn nak_syndrome(value: u32) -> String {
    match value >> 5 {
        0 => "none since reset".to_string(),
        1 => format!("RNR NAK, timer {}", rnr_timer(u64::from(value & 31))),
        _ => "reserved".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ernic::ROWS;

    fn told(register_: Register, value: u32, field: &str) -> FieldMeaning {
        let all = register(&Profile::V4_0, register_, 0, Some(value));
        all.fields.into_iter().find(|told| told.name == field).unwrap()
    }

    #[test]
    fn statqp_of_a_dead_queue_pair_says_why_and_what_to_do() {
        let fatal = told(Register::Statqp, 0x0062_0601, "fatal");
        assert_eq!(fatal.codes[0].meaning, "yes");
        assert!(fatal.codes[0].cause.len() > 20 && fatal.codes[0].advice.contains("QPCONF[6]"));
        let nak = told(Register::Statqp, 0x0062_0601, "nak_syndrome");
        assert_eq!((nak.value, &*nak.codes[0].meaning), (Some(0x62), "remote access error"));
        assert!(!nak.codes[0].advice.is_empty());
        assert_eq!(told(Register::Statqp, 0, "fatal").codes[0].meaning, "no");
        let rnr = told(Register::Statqp, 0x2E << 16, "nak_syndrome");
        assert_eq!(rnr.codes[0].meaning, "RNR NAK, timer 1.28 ms");
    }

    #[test]
    fn a_bank_names_its_queue_pairs() {
        let all = register(&Profile::V4_0, Register::Cqintsts, 2, Some(0x8000_0041));
        assert_eq!(all.name, "CQINTSTS3");
        assert_eq!(all.fields[0].codes[0].meaning, "queue pairs 64, 70, 95");
    }

    #[test]
    fn a_field_is_read_where_the_profile_has_it() {
        // Port 0x12B7, 30 queue pairs, error buffer, enabled.
        let all = register(&Profile::V3_1, Register::Xrnicconf, 0, Some(0x12B7_1E21));
        let told: Vec<_> =
            all.fields.iter().map(|told| (told.high, told.low, told.name, told.value)).collect();
        assert_eq!(told[0], (31, 16, "udp_source_port", Some(0x12B7)));
        assert_eq!(told[1], (15, 8, "qps", Some(30)));
        assert_eq!(all.reserved, 0);
        let last = register(&Profile::V3_1, Register::Lstinpkt, 0, Some(0x0123_020C));
        let told: Vec<_> = last.fields.iter().map(|told| (told.name, told.value)).collect();
        assert_eq!(told, [("psn", Some(0x123)), ("qp", Some(2)), ("opcode", Some(0x0C))]);
    }

    #[test]
    fn bits_that_no_field_has_are_told() {
        let reserved = |which, value| register(&Profile::V4_0, which, 0, Some(value)).reserved;
        assert_eq!(reserved(Register::Xrnicconf, 0x00E3_488B), 0x82);
        assert_eq!(reserved(Register::Ipv4xadd, u32::MAX), 0);
    }

    #[test]
    fn addresses_and_times_are_in_the_form_that_people_write() {
        let meaning =
            |register, value, field| told(register, value, field).codes[0].meaning.clone();
        assert_eq!(meaning(Register::Ipv4xadd, 0xC000_0201, "ipv4"), "192.0.2.1");
        assert_eq!(meaning(Register::Macxaddmsb, 0x0200, "mac_high"), "02:00:xx:xx:xx:xx");
        assert_eq!(
            meaning(Register::Timeoutconf, 14, "timeout"),
            "67.108 ms, where a tick is 4.096 us"
        );
        assert_eq!(meaning(Register::Lstinpkt, 0x0C, "opcode"), "RC READ_REQUEST");
        assert_eq!(meaning(Register::Qpconf, 0x0010_0000, "rq_buffer"), "4096 bytes");
    }

    /// Every value of every field has an answer, and none panics.
    #[test]
    fn every_row_can_be_explained_with_any_value() {
        for row in ROWS {
            for value in [None, Some(0), Some(1), Some(u32::MAX), Some(0x5555_5555)] {
                let all = register(&Profile::V4_0, row.register, 0, value);
                assert_eq!(all.fields.len(), row.fields.len());
            }
        }
    }
}
