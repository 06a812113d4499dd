//! Replays the register scripts of `golden/bring-up`, whose README says what a line may be.

use std::collections::BTreeMap;

use softrnic_device::{DmaFault, Memory};
use softrnic_engine::Nanos;

use crate::bench::{Bench, End, Entry};

/// Reads of a loop at most: RecoNIC's own limit.
const READS_MAX: u32 = 1000;
const BETWEEN_READS_NS: u64 = 1000;

/// Numbers by name.
pub type Variables<'a> = BTreeMap<&'a str, u64>;

/// Replays a script. Lines that name no side are of `end`.
pub fn replay<E: End>(bench: &mut Bench<E>, end: usize, text: &str, variables: &Variables<'_>) {
    let lines: Vec<&str> =
        text.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    let mut at = 0;
    while at < lines.len() {
        let Some(head) = lines[at].strip_prefix("repeat ") else {
            operation(bench, end, lines[at], variables);
            at += 1;
            continue;
        };
        let [name, first, last] = words(head);
        let body = at + 1..at + lines[at..].iter().position(|line| *line == "end").unwrap();
        for value in number(first, variables)..=number(last, variables) {
            let mut variables = variables.clone();
            variables.insert(name, value);
            lines[body.clone()].iter().for_each(|line| operation(bench, end, line, &variables));
        }
        at = body.end + 1;
    }
}

fn words<const N: usize>(text: &str) -> [&str; N] {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.try_into().unwrap_or_else(|_| panic!("{text}: needs {N} words"))
}

fn operation<E: End>(bench: &mut Bench<E>, end: usize, line: &str, variables: &Variables<'_>) {
    let (end, line) = match line.split_once(' ') {
        Some(("client", rest)) => (0, rest),
        Some(("server", rest)) => (1, rest),
        _ => (end, line),
    };
    let mut words = line.split_whitespace();
    let Some(what) = words.next() else { return };
    let n: Vec<u64> = words.map(|word| number(word, variables)).collect();
    let word = |at: usize| n[at] as u32;
    let mask = n.get(2).map_or(u32::MAX, |mask| *mask as u32);
    match what {
        "w" => bench.ends[end].write32(word(0), word(1)),
        "r" => {
            let got = bench.ends[end].read32(word(0)) & mask;
            assert_eq!(got, word(1), "{line}: {got:#x} was read");
        }
        "read" => {
            bench.ends[end].read32(word(0));
        }
        "until" => wait(bench, end, line, word(0), |value| value & mask == word(1)),
        "while" => wait(bench, end, line, word(0), |value| value != word(1)),
        "data" => bench.ends[end].memory().put(n[0], &pattern(n[1])),
        "expect" => {
            let mut bytes = vec![0; n[1] as usize];
            bench.ends[end].memory().get(n[0], &mut bytes);
            assert!(bytes == pattern(n[1]), "{line}: {:x?}...", &bytes[..bytes.len().min(64)]);
        }
        "wqe" => {
            let entry = Entry {
                local: n[2],
                len: word(3),
                opcode: word(4) as u8,
                remote: n[5],
                rkey: word(6),
                immediate: 0,
            };
            bench.ends[end].memory().put(n[0], &entry.bytes(n[1] as u16));
        }
        _ => panic!("{line}: unknown operation"),
    }
}

/// Reads a register, with the world going on, until it says what is wanted.
fn wait<E: End>(
    bench: &mut Bench<E>,
    end: usize,
    line: &str,
    address: u32,
    done: impl Fn(u32) -> bool,
) {
    for _ in 0..READS_MAX {
        if done(bench.ends[end].read32(address)) {
            return;
        }
        bench.run_until(Nanos(bench.now.0 + BETWEEN_READS_NS));
    }
    panic!("{line}: still not after {READS_MAX} reads");
}

/// 32-bit words n % 10, as RecoNIC's examples send and check.
fn pattern(len: u64) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|n| (n % 10).to_le_bytes()).collect()
}

/// Sums of products of numbers and variables, or a half of one.
fn number(text: &str, variables: &Variables<'_>) -> u64 {
    let half = |name| text.strip_prefix(name).and_then(|text| text.strip_suffix(')'));
    if let Some(text) = half("low(") {
        return number(text, variables) & 0xFFFF_FFFF;
    }
    if let Some(text) = half("high(") {
        return number(text, variables) >> 32;
    }
    let factor = |text: &str| match (text.strip_prefix('$'), text.strip_prefix("0x")) {
        (Some(name), _) => *variables.get(name).unwrap_or_else(|| panic!("${name} is not given")),
        (_, Some(hex)) => u64::from_str_radix(hex, 16).unwrap(),
        _ => text.parse().unwrap(),
    };
    text.split('+').map(|term| term.split('*').map(factor).product::<u64>()).sum()
}

/// Memory wherever it is touched: what scripts name lies far apart.
#[derive(Clone, Default)]
pub struct Sparse(BTreeMap<u64, Box<[u8; PAGE]>>);

const PAGE: usize = 4096;

impl Sparse {
    /// Runs of bytes inside of one page each: page, offset, place in the whole.
    fn runs(
        address: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = address + done as u64;
            let offset = (at % PAGE as u64) as usize;
            let run = done..(done + PAGE - offset).min(len);
            let next = (at / PAGE as u64, offset, run.clone());
            done = run.end;
            (!run.is_empty()).then_some(next)
        })
    }
}

impl Memory for Sparse {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        for (page, offset, run) in Self::runs(address, out.len()) {
            match self.0.get(&page) {
                Some(page) => out[run.clone()].copy_from_slice(&page[offset..offset + run.len()]),
                None => out[run].fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        for (page, offset, run) in Self::runs(address, bytes.len()) {
            let page = self.0.entry(page).or_insert_with(|| Box::new([0; PAGE]));
            page[offset..offset + run.len()].copy_from_slice(&bytes[run]);
        }
        Ok(())
    }
}
