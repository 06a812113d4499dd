//! A story for every row of the register table. A row counts only if its story touches its address,
//! passes on a whole device, and fails on one where that row has lost its behaviour and only stores what
//! is written. No row of this device is storage alone.

use softrnic_device::ernic::{Location, ROWS, Register, Section};

use crate::world::{Bench, Check, QP, REGION_ROW};
use crate::{counters, errors, global, interrupts, link, queue_pair, regions};

pub type Story = fn(&Bench) -> Check;

/// The compiler asks for an arm for each row.
fn story(register: Register) -> Story {
    use Register as R;
    match register {
        R::Pdpdnum => regions::protection_domain,
        R::Virtaddrlsb | R::Virtaddrmsb => regions::virtual_address,
        R::Bufbaseaddrlsb | R::Bufbaseaddrmsb => regions::base_address,
        R::Bufrkey => regions::key,
        R::Wrrdbuflen => regions::length,
        R::Accessdesc => regions::access_and_long_regions,

        R::Xrnicconf => global::enable_ack_mode_and_source_port,
        R::Xrnicadconf => global::software_override,
        R::XrnicBufThresholdRoce => link::roce_thresholds,
        R::XrnicBufThresholdNonRoce => link::other_thresholds,
        R::XrnicPauseConf => link::pauses,
        R::Macxaddlsb | R::Macxaddmsb => global::mac_address,
        R::Ipv6xadd1 | R::Ipv6xadd2 | R::Ipv6xadd3 | R::Ipv6xadd4 => global::ipv6_traffic,
        R::XrnicConfQpEn => global::active_queue_pairs,
        R::Errbufba | R::Errbufbamsb | R::Errbufsz | R::Errbufwptr => errors::error_buffer,
        R::Ipv4xadd => global::ipv4_address,
        R::Opkterrqba | R::Opkterrqbamsb | R::Outerrstsqsz | R::Opterrstsqqptrdb => {
            errors::outgoing_queue
        }
        R::Ipkterrqba | R::Ipkterrqbamsb | R::Ipkterrqsz | R::Ipkterrqwptr => {
            errors::incoming_queue
        }
        R::Datbufba | R::Datbufbamsb | R::Datbufsz => errors::data_buffers,
        R::ConIoConf => link::connect_io,
        R::Resperrpktba | R::Resperrpktbamsb | R::Resperrsz | R::Resperrwrptr => {
            errors::response_error_buffer
        }

        R::Insrrpktcnt
        | R::Inampktcnt
        | R::Outiopktcnt
        | R::Outampktcnt
        | R::Outrdrsppktcnt
        | R::Qpmsts => counters::of_messages,
        R::Lstinpkt | R::Lstoutpkt => counters::last_packets,
        R::Ininvdupcnt | R::Inalldrppktcnt => counters::of_refusals,
        R::Innakpktcnt | R::Outnakpktcnt | R::Retrycntsts => counters::of_recovery,
        R::Incnppktcnt | R::Outcnppktcnt => counters::of_congestion,
        R::Wqeprocsts | R::Resphndsts => counters::engines,
        R::Inten => interrupts::enabled_causes_raise_the_line,
        R::Intsts => interrupts::each_cause_is_set_and_cleared,
        R::Rqintsts => interrupts::receive_banks,
        R::Cqintsts => interrupts::completion_banks,
        R::Cnpschdsts => interrupts::congestion_banks,

        R::Qpconf => queue_pair::control,
        R::Qpadvconf => queue_pair::headers,
        R::Rqba | R::Rqbamsb => queue_pair::receive_buffers,
        R::Sqba | R::Sqbamsb => queue_pair::send_queue_base,
        R::Cqba | R::Cqbamsb => queue_pair::completion_entries,
        R::Rqwptrdbadd | R::Rqwptrdbaddmsb => queue_pair::receive_write_back,
        R::Cqdbadd | R::Cqdbaddmsb => queue_pair::completion_write_back,
        R::Cqhead => queue_pair::completed_index,
        R::Rqci | R::Statrqpidb => queue_pair::receive_indices,
        R::Sqpi => queue_pair::send_doorbell,
        R::Qdepth => queue_pair::depths,
        R::Sqpsn | R::Statrespsn => queue_pair::send_psns,
        R::Lstrqreq => queue_pair::last_request,
        R::Destqpconf | R::Macdesaddlsb | R::Macdesaddmsb | R::Ipdesaddr1 => queue_pair::peer,
        R::Ipdesaddr2 | R::Ipdesaddr3 | R::Ipdesaddr4 => global::ipv6_traffic,
        R::Timeoutconf => queue_pair::timers,
        R::Statssn | R::Statmsn | R::Statwqe => queue_pair::message_numbers,
        R::Statqp => queue_pair::status_bits,
        R::Statcursqptr => queue_pair::outstanding,
        R::Statrqbufca | R::Statrqbufcamsb => queue_pair::current_receive_buffer,
        R::Pd => regions::protection_domain,
    }
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
        let run = story(register);
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
        if run(&Bench::new(Some(register))).is_ok() {
            problems.push(format!("{}: passes without its behaviour", row.name));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
