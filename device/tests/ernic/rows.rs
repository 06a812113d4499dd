//! A story for every row of the register table. A row counts only if its story touches its address,
//! passes on a whole device, and fails on one where that row has lost its behaviour: demoted to plain
//! storage or, where storing is all that it does, to reading 0.

use softrnic_device::ernic::{Demotion, Location, ROWS, Register, Section};

use crate::world::{Bench, Check, QP, REGION_ROW};
use crate::{counters, global, interrupts, link, queue_pair, regions};

pub type Story = fn(&Bench) -> Check;

enum Plan {
    /// The row does something.
    Behaves(Story),
    /// The row only stores what is written to it; the reason why nothing more is right.
    Stores(&'static str),
    /// Its story is still to be written.
    Pending,
}

/// The compiler asks for an arm for each row.
fn plan(register: Register) -> Plan {
    use Plan::{Behaves, Pending, Stores};
    use Register as R;
    const LATER: &str = "not there yet";
    match register {
        R::Pdpdnum => Behaves(regions::protection_domain),
        R::Virtaddrlsb | R::Virtaddrmsb => Behaves(regions::virtual_address),
        R::Bufbaseaddrlsb | R::Bufbaseaddrmsb => Behaves(regions::base_address),
        R::Bufrkey => Behaves(regions::key),
        R::Wrrdbuflen => Behaves(regions::length),
        R::Accessdesc => Behaves(regions::access_and_long_regions),

        R::Xrnicconf => Behaves(global::enable_ack_mode_and_source_port),
        R::Xrnicadconf => Behaves(global::software_override),
        R::XrnicBufThresholdRoce => Behaves(link::roce_thresholds),
        R::XrnicBufThresholdNonRoce => Behaves(link::other_thresholds),
        R::XrnicPauseConf => Behaves(link::pauses),
        R::Macxaddlsb | R::Macxaddmsb => Behaves(global::mac_address),
        R::Ipv6xadd1 | R::Ipv6xadd2 | R::Ipv6xadd3 | R::Ipv6xadd4 => Behaves(global::ipv6_traffic),
        R::XrnicConfQpEn => Behaves(global::active_queue_pairs),
        R::Errbufba | R::Errbufbamsb | R::Errbufsz => Stores(LATER),
        R::Errbufwptr => Pending,
        R::Ipv4xadd => Behaves(global::ipv4_address),
        R::Opkterrqba | R::Opkterrqbamsb | R::Outerrstsqsz => Stores(LATER),
        R::Opterrstsqqptrdb => Stores(LATER),
        R::Ipkterrqba | R::Ipkterrqbamsb | R::Ipkterrqsz => Stores(LATER),
        R::Ipkterrqwptr => Pending,
        R::Datbufba | R::Datbufbamsb | R::Datbufsz => Stores(LATER),
        R::ConIoConf => Behaves(link::connect_io),
        R::Resperrpktba | R::Resperrpktbamsb | R::Resperrsz => Stores(LATER),
        R::Resperrwrptr => Stores(LATER),

        R::Insrrpktcnt
        | R::Inampktcnt
        | R::Outiopktcnt
        | R::Outampktcnt
        | R::Outrdrsppktcnt
        | R::Qpmsts => Behaves(counters::of_messages),
        R::Lstinpkt | R::Lstoutpkt => Behaves(counters::last_packets),
        R::Ininvdupcnt | R::Inalldrppktcnt => Behaves(counters::of_refusals),
        R::Innakpktcnt | R::Outnakpktcnt | R::Retrycntsts => Behaves(counters::of_recovery),
        R::Incnppktcnt | R::Outcnppktcnt => Behaves(counters::of_congestion),
        R::Wqeprocsts | R::Resphndsts => Behaves(counters::engines),
        R::Inten => Behaves(interrupts::enabled_causes_raise_the_line),
        R::Intsts => Behaves(interrupts::each_cause_is_set_and_cleared),
        R::Rqintsts => Behaves(interrupts::receive_banks),
        R::Cqintsts => Behaves(interrupts::completion_banks),
        R::Cnpschdsts => Behaves(interrupts::congestion_banks),

        R::Qpconf => Behaves(queue_pair::control),
        R::Qpadvconf => Behaves(queue_pair::headers),
        R::Rqba | R::Rqbamsb => Behaves(queue_pair::receive_buffers),
        R::Sqba | R::Sqbamsb => Behaves(queue_pair::send_queue_base),
        R::Cqba | R::Cqbamsb => Behaves(queue_pair::completion_entries),
        R::Rqwptrdbadd | R::Rqwptrdbaddmsb => Behaves(queue_pair::receive_write_back),
        R::Cqdbadd | R::Cqdbaddmsb => Behaves(queue_pair::completion_write_back),
        R::Cqhead => Behaves(queue_pair::completed_index),
        R::Rqci | R::Statrqpidb => Behaves(queue_pair::receive_indices),
        R::Sqpi => Behaves(queue_pair::send_doorbell),
        R::Qdepth => Behaves(queue_pair::depths),
        R::Sqpsn | R::Statrespsn => Behaves(queue_pair::send_psns),
        R::Lstrqreq => Behaves(queue_pair::last_request),
        R::Destqpconf | R::Macdesaddlsb | R::Macdesaddmsb | R::Ipdesaddr1 => {
            Behaves(queue_pair::peer)
        }
        R::Ipdesaddr2 | R::Ipdesaddr3 | R::Ipdesaddr4 => Behaves(global::ipv6_traffic),
        R::Timeoutconf => Behaves(queue_pair::timers),
        R::Statssn | R::Statmsn | R::Statwqe => Behaves(queue_pair::message_numbers),
        R::Statqp => Behaves(queue_pair::status_bits),
        R::Statcursqptr => Behaves(queue_pair::outstanding),
        R::Statrqbufca | R::Statrqbufcamsb => Behaves(queue_pair::current_receive_buffer),
        R::Pd => Behaves(regions::protection_domain),
    }
}

/// What a row that only stores has to do: read back what was written.
fn stores(bench: &Bench, register: Register) -> Check {
    let mut world = bench.world();
    let mask = register.row().mask();
    world.a.set(register, index(register), 0xA5A5_A5A5);
    crate::world::same(
        "read back",
        world.a.get(register, index(register)) & mask,
        0xA5A5_A5A5 & mask,
    )
}

/// The element that stories touch.
fn index(register: Register) -> u16 {
    match register.row().section {
        Section::Region => REGION_ROW,
        Section::Global | Section::Status => 0,
        Section::Qp | Section::RcQp => QP,
    }
}

#[test]
fn every_row_has_a_story_that_fails_without_it() {
    let mut problems = Vec::new();
    for row in ROWS {
        let register = row.register;
        let plan = plan(register);
        let demotion = match plan {
            Plan::Behaves(_) => Demotion::Storage,
            Plan::Stores(_) => Demotion::ReadsZero,
            Plan::Pending => continue,
        };
        let run = |bench: &Bench| match plan {
            Plan::Behaves(story) => story(bench),
            Plan::Stores(_) => stores(bench, register),
            Plan::Pending => Ok(()),
        };
        let whole = Bench::new(None);
        if let Err(why) = run(&whole) {
            problems.push(format!("{}: fails on a whole device: {why}", row.name));
        }
        // The banks are touched word by word.
        let first = index(register);
        let untouched = (first..first + row.words)
            .filter(|&index| !whole.touched(Location { register, index }))
            .count();
        if untouched != 0 {
            problems.push(format!("{}: {untouched} of its addresses are not touched", row.name));
        }
        if run(&Bench::new(Some((register, demotion)))).is_ok() {
            problems.push(format!("{}: passes without its behaviour", row.name));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn rows_that_only_store_say_why() {
    for row in ROWS {
        if let Plan::Stores(why) = plan(row.register) {
            assert!(!why.is_empty(), "{}", row.name);
        }
    }
}
