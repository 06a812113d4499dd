//! The Hermon queue-pair / EE context: 248 bytes, 62 big-endian words, every bit in one table.
//!
//! A row gives place, names, owner and values of a run of bits; reading, writing, the walk over all
//! fields, the reference page, `rnic decode --qpc` and the masks of the transitions derive from it. Rows
//! that overlap, or bits without a row, do not compile. Names are the seed's
//! (`hermonprm_queue_pair_ee_context_entry_st`), Linux's (`struct mlx4_qp_context`) are beside them. What a
//! field does is not known here.

use core::fmt;

use super::codes::{
    LinkType, Migration, MtuCode, QpState, RnrRetry, RoceMode, ServiceType, StaticRate, TunnelMode,
};
use super::field::Attribute::{
    AckReqFreq, AckTimeout, DmacHigh, DmacLow, FlowLabel, HopLimit, LocalQpn, MinRnrNak, MsgMax,
    Mtu, NextRcvPsn, NextSendPsn, QKey, Rae, RemoteQpn, RetryCount, Rgid, Ric,
    RnrRetry as RnrRetryLimit, RoceEntropy, RraMax, Rre, Rwe, SraMax, State, Tclass,
};
use super::field::Live::{
    LastAckedPsn, RetriesLeft, Rmsn, RnrRetriesLeft, RqWqeCounter, SqWqeCounter, Ssn,
};
use super::field::Owner::{Engine, Face, Ignored, Query, Reserved};
use super::field::{FullName, Origin, Row, Side, Values};

/// Bytes of a context.
pub const CONTEXT_LEN: usize = 248;
/// Words of a context.
pub const WORDS: usize = CONTEXT_LEN / 4;
/// Rows of the table, both paths included.
pub const ROW_COUNT: usize = MAIN.len() + 2 * PATH.len();

/// Words of an address path (44 bytes).
const PATH_WORDS: u8 = 11;
const PRIMARY_WORD: u8 = 6;
const ALTERNATE_WORD: u8 = PRIMARY_WORD + PATH_WORDS;

macro_rules! fields {
    ($(#[$doc:meta])* $type:ident $rows:ident:
        $($variant:ident $word:literal [$high:literal : $low:literal] $name:literal $seed:literal
          $linux:literal $origin:ident $owner:expr, $values:expr, $text:literal $choice:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $type { $(#[doc = $text] $variant),* }

        const $rows: &[Row] = &[$(Row {
            side: None,
            word: $word,
            high: $high,
            low: $low,
            name: $name,
            seed: $seed,
            linux: $linux,
            origin: Origin::$origin,
            owner: $owner,
            values: { use Values::*; $values },
            text: $text,
            choice: $choice,
        }),*];
    };
}

fields! {
    /// The fields outside of the address paths.
    Field MAIN:
    State 0[31:28] "state" "state" "flags[31:28]" Both Engine(State), Codes(QpState::CODES),
        "state; the command decides it, what is written is not looked at" "SQ draining (7) is shown while SQD waits for what was started";
    Reserved4 0[27:20] "reserved4" "reserved4" "flags[27:20]" Reserved Reserved, Hex,
        "reserved" "";
    St 0[19:16] "st" "st" "flags[19:16]" Both Face, Codes(ServiceType::CODES),
        "transport service" "RC, UC, UD, XRC (the seed: SRC), MLX, raw Ethernet are taken; XRC, MLX and raw Ethernet have no name in the engine, so the face keeps the code";
    Reserved3Hi 0[15:14] "reserved3.hi" "reserved3" "flags[15:14]" Reserved Reserved, Hex,
        "reserved" "";
    Rss 0[13:13] "rss" "reserved3" "flags bit 13 (MLX4_RSS_QPC_FLAG_OFFSET)" Linux Face, Flag,
        "QP is an RSS indirection QP; the RSS context overlays byte 0x3c onward" "words 15 to 28 are then its RSS table, kept as they are";
    PmState 0[12:11] "pm_state" "pm_state" "flags[12:11]" Both Face, Codes(Migration::CODES),
        "path migration state" "kept and returned; no migration happens";
    Reserved2 0[10:9] "reserved2" "reserved2" "flags[10:9]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved1 0[8:8] "reserved1" "reserved1" "flags[8]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved0 0[7:0] "reserved0" "reserved0" "flags[7:0]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved5 1[31:24] "reserved5" "reserved5" "pd[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    Pd 1[23:0] "pd" "pd" "pd" Both Face, Hex,
        "protection domain number" "";
    Mtu 2[31:29] "mtu" "mtu" "mtu_msgmax[7:5]" Both Engine(Mtu), Codes(MtuCode::CODES),
        "path MTU; code 7 on raw Ethernet and MLX queue pairs" "codes 0 and 6 are refused; 7 only for MLX and raw Ethernet, where the face keeps it because the engine has no such MTU";
    MsgMax 2[28:24] "msg_max" "msg_max" "mtu_msgmax[4:0]" Both Engine(MsgMax), LogBytes,
        "largest message" "";
    Reserved9 2[23:23] "reserved9" "reserved9" "rq_size_stride[7]" Reserved Reserved, Hex,
        "reserved" "";
    LogRqSize 2[22:19] "log_rq_size" "log_rq_size" "rq_size_stride[6:3]" Both Face, LogCount,
        "receive WQEs" "";
    LogRqStride 2[18:16] "log_rq_stride" "log_rq_stride" "rq_size_stride[2:0]" Both Face, LogStride,
        "bytes of a receive WQE" "";
    SqNoPrefetch 2[15:15] "sq_no_prefetch" "reserved8" "sq_size_stride[7]" Linux Ignored, Flag,
        "send queue must not be prefetched past the doorbell" "nothing is prefetched";
    LogSqSize 2[14:11] "log_sq_size" "log_sq_size" "sq_size_stride[6:3]" Both Face, LogCount,
        "send WQE slots" "";
    LogSqStride 2[10:8] "log_sq_stride" "log_sq_stride" "sq_size_stride[2:0]" Both Face, LogStride,
        "bytes of a send WQE slot" "";
    RoceMode 2[7:6] "roce_mode" "reserved7" "rlkey_roce_mode[7:6]" Linux Face, Codes(RoceMode::CODES),
        "RoCE flavour" "RC, UC and XRC need RoCE v2, which is what the engine speaks";
    Reserved7Lo 2[5:5] "reserved7.lo" "reserved7" "rlkey_roce_mode[5]" Reserved Reserved, Hex,
        "reserved" "";
    Rlky 2[4:4] "rlky" "rlky" "rlkey_roce_mode[4]" Both Face, Flag,
        "QP may use the reserved L_Key" "";
    Reserved6 2[3:0] "reserved6" "reserved6" "rlkey_roce_mode[3:0]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved10 3[31:24] "reserved10" "reserved10" "usr_page[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    UsrPage 3[23:0] "usr_page" "usr_page" "usr_page" Both Face, Hex,
        "UAR page index whose doorbells serve this QP" "";
    Reserved11 4[31:24] "reserved11" "reserved11" "local_qpn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    LocalQpnEen 4[23:0] "local_qpn_een" "local_qpn_een" "local_qpn" Both Engine(LocalQpn), Hex,
        "own QP number; low bits index the QPC table" "the command's input modifier names the queue pair; where this is not 0 it must agree";
    Reserved12 5[31:24] "reserved12" "reserved12" "remote_qpn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    RemoteQpnEen 5[23:0] "remote_qpn_een" "remote_qpn_een" "remote_qpn" Both Engine(RemoteQpn), Hex,
        "queue pair of the peer" "";
    AckReqFreq 28[31:28] "ack_req_freq" "ack_req_freq" "params1[31:28]" Both Engine(AckReqFreq), LogCount,
        "an ACK is requested at least every 2^n packets" "";
    Reserved18 28[27:24] "reserved18" "reserved18" "params1[27:24]" Reserved Reserved, Hex,
        "reserved" "";
    SraMax 28[23:21] "sra_max" "sra_max" "params1[23:21]" Both Engine(SraMax), LogCount,
        "reads and atomics that it keeps outstanding as requester" "";
    Reserved17 28[20:19] "reserved17" "reserved17" "params1[20:19]" Reserved Reserved, Hex,
        "reserved" "";
    RetryCount 28[18:16] "retry_count" "retry_count" "params1[18:16]" Both Engine(RetryCount), Plain,
        "transport retry limit" "";
    RnrRetry 28[15:13] "rnr_retry" "rnr_retry" "params1[15:13]" Both Engine(RnrRetryLimit), Codes(RnrRetry::CODES),
        "RNR retry limit" "Linux also names bits 15:13 SRE, SWE, SAE and never uses them";
    Reserved16 28[12:12] "reserved16" "reserved16" "params1[12]" Reserved Reserved, Hex,
        "reserved" "";
    Fre 28[11:11] "fre" "fre" "params1 bit 11" Both Face, Flag,
        "fast registration work requests allowed" "";
    CurRnrRetry 28[10:8] "cur_rnr_retry" "cur_rnr_retry" "params1[10:8]" Both Query(RnrRetriesLeft), Plain,
        "RNR retries left, counting down from rnr_retry (query only)" "as cur_retry_cnt; 7 stays 7, which is for ever";
    CurRetryCnt 28[7:5] "cur_retry_cnt" "cur_retry_cnt" "params1[7:5]" Both Query(RetriesLeft), Plain,
        "retries left, counting down from retry_count (query only)" "sources do not say whether it counts up or down; down, as later documents of the family do";
    Reserved15 28[4:4] "reserved15" "reserved15" "params1[4]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved14 28[3:3] "reserved14" "reserved14" "params1[3]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved13 28[2:0] "reserved13" "reserved13" "params1[2:0]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved19 29[31:0] "reserved19" "reserved19" "reserved1" Reserved Reserved, Hex,
        "reserved" "";
    Reserved20 30[31:24] "reserved20" "reserved20" "next_send_psn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    NextSendPsn 30[23:0] "next_send_psn" "next_send_psn" "next_send_psn" Both Engine(NextSendPsn), Hex,
        "next PSN to send" "";
    Reserved21 31[31:24] "reserved21" "reserved21" "cqn_send[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    CqnSnd 31[23:0] "cqn_snd" "cqn_snd" "cqn_send" Both Face, Hex,
        "CQ for send completions" "";
    RoceEntropy 32[31:16] "roce_entropy" "reserved22" "roce_entropy" Linux Engine(RoceEntropy), Plain,
        "UDP source port of RoCE v2" "0 leaves the source port to the engine (rule F-05)";
    Reserved22A 32[15:0] "reserved22.a" "reserved22" "reserved2[0]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved22B 33[31:0] "reserved22.b" "reserved22" "reserved2[1..2]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved23 34[31:24] "reserved23" "reserved23" "last_acked_psn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    LastAckedPsn 34[23:0] "last_acked_psn" "last_acked_psn" "last_acked_psn" Both Query(LastAckedPsn), Hex,
        "last PSN that the peer acknowledged (query only)" "";
    Reserved24 35[31:24] "reserved24" "reserved24" "ssn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    Ssn 35[23:0] "ssn" "ssn" "ssn" Both Query(Ssn), Plain,
        "requester's send sequence number (query only)" "";
    PhysicalFunction 36[31:24] "physical_function" "reserved29" "params2[31:24] (unnamed)" Prm Ignored, Hex,
        "physical function number" "named by the PRM header since 2011; reserved29 in the seed";
    RraMax 36[23:21] "rra_max" "rra_max" "params2[23:21]" Both Engine(RraMax), LogCount,
        "reads and atomics that it takes as responder" "";
    Reserved28 36[20:16] "reserved28" "reserved28" "params2[20:16]" Reserved Reserved, Hex,
        "reserved" "";
    Rre 36[15:15] "rre" "rre" "params2 bit 15 (RRE)" Both Engine(Rre), Flag,
        "remote read allowed" "";
    Rwe 36[14:14] "rwe" "rwe" "params2 bit 14 (RWE)" Both Engine(Rwe), Flag,
        "remote write allowed" "";
    Rae 36[13:13] "rae" "rae" "params2 bit 13 (RAE)" Both Engine(Rae), Flag,
        "remote atomic allowed" "";
    Reserved27 36[12:12] "reserved27" "reserved27" "params2[12]" Reserved Reserved, Hex,
        "reserved" "";
    PageOffset 36[11:6] "page_offset" "page_offset" "params2[11:6] (unnamed, 0)" Both Face, PageOffset,
        "offset of the work queue buffer in its first page" "";
    Reserved26 36[5:5] "reserved26" "reserved26" "params2[5]" Reserved Reserved, Hex,
        "reserved" "";
    Ric 36[4:4] "ric" "ric" "params2 bit 4 (RIC)" Both Engine(Ric), Flag,
        "no end-to-end credits in its acknowledgements (set with an SRQ)" "";
    Fpp 36[3:3] "fpp" "reserved25" "params2 bit 3 (FPP)" Linux Ignored, Flag,
        "force physical port (port remap)" "one port";
    Reserved25Lo 36[2:0] "reserved25.lo" "reserved25" "params2[2:0]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved30 37[31:29] "reserved30" "reserved30" "rnr_nextrecvpsn[31:29]" Reserved Reserved, Hex,
        "reserved" "";
    MinRnrNak 37[28:24] "min_rnr_nak" "min_rnr_nak" "rnr_nextrecvpsn[28:24]" Both Engine(MinRnrNak), RnrTimer,
        "timer of the RNR NAKs that it sends" "";
    NextRcvPsn 37[23:0] "next_rcv_psn" "next_rcv_psn" "rnr_nextrecvpsn[23:0]" Both Engine(NextRcvPsn), Hex,
        "next PSN expected" "";
    XrcdHi 38[31:16] "xrcd.hi" "reserved31" "xrcd[31:16]" Linux Face, Hex,
        "XRC domain, upper half" "Linux reads 32 bits";
    Srcd 38[15:0] "srcd" "srcd" "xrcd[15:0]" Both Face, Hex,
        "XRC (SRC) domain" "";
    Reserved32 39[31:24] "reserved32" "reserved32" "cqn_recv[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    CqnRcv 39[23:0] "cqn_rcv" "cqn_rcv" "cqn_recv" Both Face, Hex,
        "CQ for receive completions" "";
    DbRecordAddrH 40[31:0] "db_record_addr_h" "db_record_addr_h" "db_rec_addr[63:32]" Both Face, Hex,
        "doorbell record bus address, bits 63:32" "";
    DbRecordAddrL 41[31:2] "db_record_addr_l" "db_record_addr_l" "db_rec_addr[31:2]" Both Face, Shifted(2),
        "doorbell record bus address, bits 31:2" "";
    Reserved33 41[1:0] "reserved33" "reserved33" "db_rec_addr[1:0]" Reserved Reserved, Hex,
        "reserved" "";
    QKey 42[31:0] "q_key" "q_key" "qkey" Both Engine(QKey), Hex,
        "queue key that arriving datagrams must have" "";
    Reserved34A 43[31:31] "reserved34.a" "reserved34" "srqn[31]" Reserved Reserved, Hex,
        "reserved" "";
    TunnelMode 43[30:28] "tunnel_mode" "reserved34" "srqn[30:28]" Linux Ignored, Codes(TunnelMode::CODES),
        "which frames it receives" "without effect";
    Reserved34B 43[27:25] "reserved34.b" "reserved34" "srqn[27:25]" Reserved Reserved, Hex,
        "reserved" "";
    Srq 43[24:24] "srq" "srq" "srqn bit 24" Both Face, Flag,
        "QP takes receive WQEs from an SRQ" "";
    Srqn 43[23:0] "srqn" "srqn" "srqn[23:0]" Both Face, Hex,
        "SRQ number" "";
    Reserved35 44[31:24] "reserved35" "reserved35" "msn[31:24]" Reserved Reserved, Hex,
        "reserved" "";
    Rmsn 44[23:0] "rmsn" "rmsn" "msn" Both Query(Rmsn), Plain,
        "responder's message sequence number (query only)" "";
    RqWqeCounter 45[31:16] "rq_wqe_counter" "rq_wqe_counter" "rq_wqe_counter" Both Query(RqWqeCounter), Plain,
        "receive WQEs posted since reset, modulo 2^16 (query only)" "";
    SqWqeCounter 45[15:0] "sq_wqe_counter" "sq_wqe_counter" "sq_wqe_counter" Both Query(SqWqeCounter), Plain,
        "send WQEs posted since reset, modulo 2^16 (query only)" "";
    Reserved36A 46[31:0] "reserved36.a" "reserved36" "reserved3" Reserved Reserved, Hex,
        "reserved" "";
    RateLimitParams 47[31:16] "rate_limit_params" "reserved36" "rate_limit_params" Linux Ignored, Hex,
        "rate limit: unit in bits 31 and 30, value in bits 29 to 16" "UPDATE_QP only, which is not offered";
    Reserved36C 47[15:8] "reserved36.c" "reserved36" "reserved4" Reserved Reserved, Hex,
        "reserved" "";
    QosVport 47[7:0] "qos_vport" "reserved36" "qos_vport" Linux Ignored, Hex,
        "QoS virtual port" "UPDATE_QP only, which is not offered";
    MkeyRmp 48[31:31] "mkey_rmp" "mkey_rmp" "param3 bit 31 (unnamed)" Prm Ignored, Flag,
        "add packet key to base_mkey for incoming RDMA write" "without effect";
    Vsd 48[30:30] "vsd" "reserved38" "param3 bit 30 (named MLX4_STRIP_VLAN)" Linux Face, Flag,
        "1: do not strip the VLAN tag on receive" "set means that the VLAN tag is NOT stripped, in spite of the name STRIP_VLAN in Linux";
    KeepFcs 48[29:29] "keep_fcs" "reserved38" "param3 bit 29" Linux Face, Flag,
        "scatter the FCS to memory" "";
    Rme 48[28:27] "rme" "rme" "param3[28:27] (unnamed)" Prm Ignored, Hex,
        "reliable multicast mode" "without effect";
    Reserved37 48[26:26] "reserved37" "reserved37" "param3[26]" Reserved Reserved, Hex,
        "reserved" "";
    Is 48[25:25] "is" "is" "param3 bit 25 (inline receive)" Both Ignored, Flag,
        "inline receive scatter" "without effect; Linux calls it inline receive";
    Hs 48[24:24] "hs" "hs" "param3 bit 24 (unnamed)" Prm Ignored, Flag,
        "header separation" "without effect";
    RmcParentQpn 48[23:0] "rmc_parent_qpn" "rmc_parent_qpn" "param3[23:0] (unnamed)" Prm Ignored, Hex,
        "reliable multicast parent QP" "without effect";
    NumRmcPeers 49[31:24] "num_rmc_peers" "num_rmc_peers" "nummmcpeers_basemkey[31:24]" Both Ignored, Hex,
        "reliable multicast peer count" "without effect";
    BaseMkey 49[23:0] "base_mkey" "base_mkey" "nummmcpeers_basemkey[23:0]" Both Ignored, Shifted(8),
        "base memory key bits 31:8" "without effect";
    Reserved40 50[31:30] "reserved40" "reserved40" "log_page_size[7:6]" Reserved Reserved, Hex,
        "reserved" "";
    Log2PageSize 50[29:24] "log2_page_size" "log2_page_size" "log_page_size[5:0]" Both Face, LogPage,
        "bytes of an MTT page" "";
    Reserved39 50[23:8] "reserved39" "reserved39" "reserved5" Reserved Reserved, Hex,
        "reserved" "";
    MttBaseAddrH 50[7:0] "mtt_base_addr_h" "mtt_base_addr_h" "mtt_base_addr_h" Both Face, Hex,
        "MTT byte offset bits 39:32, relative to the MTT table base" "";
    MttBaseAddrL 51[31:3] "mtt_base_addr_l" "mtt_base_addr_l" "mtt_base_addr_l[31:3]" Both Face, Shifted(3),
        "MTT byte offset, bits 31:3" "";
    Reserved41 51[2:0] "reserved41" "reserved41" "mtt_base_addr_l[2:0]" Reserved Reserved, Hex,
        "reserved" "";
    Ve 52[31:31] "ve" "ve" "reserved6[0]" Prm Ignored, Flag,
        "Fibre Channel: VFT header present" "without effect";
    Reserved43 52[30:25] "reserved43" "reserved43" "reserved6[0]" Reserved Reserved, Hex,
        "reserved" "";
    CsCtl 52[24:16] "cs_ctl" "cs_ctl" "reserved6[0]" Prm Ignored, Hex,
        "Fibre Channel: CS_CTL" "without effect";
    Reserved42 52[15:15] "reserved42" "reserved42" "reserved6[0]" Reserved Reserved, Hex,
        "reserved" "";
    VftPrio 52[14:12] "vft_prio" "vft_prio" "reserved6[0]" Prm Ignored, Hex,
        "Fibre Channel: VFT priority" "without effect";
    VftLan 52[11:0] "vft_lan" "vft_lan" "reserved6[0]" Prm Ignored, Hex,
        "Fibre Channel: VFT fabric id" "without effect";
    Fc 53[31:31] "fc" "fc" "reserved6[1]" Prm Ignored, Flag,
        "QP is used for Fibre Channel" "without effect";
    Reserved45 53[30:28] "reserved45" "reserved45" "reserved6[1]" Reserved Reserved, Hex,
        "reserved" "";
    ExchSize 53[27:24] "exch_size" "exch_size" "reserved6[1]" Prm Ignored, Hex,
        "Fibre Channel: log2 exchange count" "without effect";
    Reserved44 53[23:16] "reserved44" "reserved44" "reserved6[1]" Reserved Reserved, Hex,
        "reserved" "";
    ExchBase 53[15:0] "exch_base" "exch_base" "reserved6[1]" Prm Ignored, Hex,
        "Fibre Channel: first exchange" "without effect";
    Reserved46 54[31:24] "reserved46" "reserved46" "reserved6[2]" Reserved Reserved, Hex,
        "reserved" "";
    RemoteId 54[23:0] "remote_id" "remote_id" "reserved6[2]" Prm Ignored, Hex,
        "Fibre Channel: peer port id" "without effect";
    VftHopCount 55[31:24] "vft_hop_count" "vft_hop_count" "reserved6[3]" Prm Ignored, Hex,
        "Fibre Channel: VFT hop count" "without effect";
    MyIdIndx 55[23:16] "my_id_indx" "my_id_indx" "reserved6[3]" Prm Ignored, Hex,
        "Fibre Channel: own port id index" "without effect";
    Reserved47 55[15:10] "reserved47" "reserved47" "reserved6[3]" Reserved Reserved, Hex,
        "reserved" "";
    FcpMtu 55[9:0] "fcp_mtu" "fcp_mtu" "reserved6[3]" Prm Ignored, Plain,
        "Fibre Channel: MTU in dwords" "without effect";
    Reserved480 56[31:0] "reserved48.0" "reserved48" "reserved6[4]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved481 57[31:0] "reserved48.1" "reserved48" "reserved6[5]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved482 58[31:0] "reserved48.2" "reserved48" "reserved6[6]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved483 59[31:0] "reserved48.3" "reserved48" "reserved6[7]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved484 60[31:0] "reserved48.4" "reserved48" "reserved6[8]" Reserved Reserved, Hex,
        "reserved" "";
    Reserved485 61[31:0] "reserved48.5" "reserved48" "reserved6[9]" Reserved Reserved, Hex,
        "reserved" "";
}

fields! {
    /// The fields of an address path; words count from the path's first.
    PathField PATH:
    Fl 0[31:31] "fl" "fl" "fl bit 7 (0x80)" Both Face, Flag,
        "force loopback" "";
    Cv 0[30:30] "cv" "cv" "fl bit 6 (FL_CV)" Both Face, Flag,
        "customer VLAN carried by the QP" "";
    Sv 0[29:29] "sv" "sv" "fl bit 5 (FL_SV)" Both Face, Flag,
        "service VLAN carried by the QP" "";
    Reserved0A 0[28:27] "reserved0.a" "reserved0" "fl bits 4:3" Reserved Reserved, Hex,
        "reserved" "";
    EthHideCqeVlan 0[26:26] "eth_hide_cqe_vlan" "reserved0" "fl bit 2" Linux Face, Flag,
        "do not report the VLAN in the CQE" "";
    EthSrcCheckMcLb 0[25:25] "eth_src_check_mc_lb" "reserved0" "fl bit 1" Linux Face, Flag,
        "drop multicast looped back to its sender" "";
    EthSrcCheckUcLb 0[24:24] "eth_src_check_uc_lb" "reserved0" "fl bit 0" Linux Face, Flag,
        "drop unicast looped back to its sender" "";
    SrcCheckIfCounter 0[23:23] "src_check_if_counter" "reserved0" "control bit 7" Linux Ignored, Flag,
        "loopback source check keyed on the counter index" "SR-IOV policy, without effect";
    TxBlockTagged 0[22:22] "tx_block_tagged" "reserved0" "vlan_control bit 6" Linux Ignored, Flag,
        "block tagged transmit" "SR-IOV policy, without effect";
    TxBlockPrio 0[21:21] "tx_block_prio" "reserved0" "vlan_control bit 5" Linux Ignored, Flag,
        "block priority-tagged transmit" "SR-IOV policy, without effect";
    TxBlockUntagged 0[20:20] "tx_block_untagged" "reserved0" "vlan_control bit 4" Linux Ignored, Flag,
        "block untagged transmit" "SR-IOV policy, without effect";
    Reserved0B 0[19:19] "reserved0.b" "reserved0" "vlan_control bit 3" Reserved Reserved, Hex,
        "reserved" "";
    RxBlockTagged 0[18:18] "rx_block_tagged" "reserved0" "vlan_control bit 2" Linux Ignored, Flag,
        "block tagged receive" "SR-IOV policy, without effect";
    RxBlockPrio 0[17:17] "rx_block_prio" "reserved0" "vlan_control bit 1" Linux Ignored, Flag,
        "block priority-tagged receive" "SR-IOV policy, without effect";
    RxBlockUntagged 0[16:16] "rx_block_untagged" "reserved0" "vlan_control bit 0" Linux Ignored, Flag,
        "block untagged receive" "SR-IOV policy, without effect";
    Reserved0C 0[15:15] "reserved0.c" "reserved0" "disable_pkey_check bit 7" Reserved Reserved, Hex,
        "reserved" "";
    DisablePkeyCheck 0[14:14] "disable_pkey_check" "reserved0" "disable_pkey_check 0x40" Linux Ignored, Flag,
        "skip the P_Key check" "SR-IOV policy, without effect";
    Reserved0D 0[13:8] "reserved0.d" "reserved0" "disable_pkey_check bits 5:0" Reserved Reserved, Hex,
        "reserved" "";
    Reserved0E 0[7:7] "reserved0.e" "reserved0" "pkey_index bit 7" Reserved Reserved, Hex,
        "reserved" "";
    PkeyIndex 0[6:0] "pkey_index" "pkey_index" "pkey_index" Both Face, Plain,
        "P_Key table index" "index in the face's P_Key table; the engine holds the key. Linux declares 8 bits; the top one is reserved";
    CounterIndex 1[31:24] "counter_index" "reserved1" "counter_index" Linux Face, Hex,
        "flow counter index; 0xff none" "where Linux has it; the PRM header has it in word 9 of the path, which no driver writes";
    GrhIp 1[23:23] "grh_ip" "grh_ip" "grh_mylmc bit 7" Both Face, Flag,
        "send a GRH / IP header" "";
    MyLidSmacIdx 1[22:16] "my_lid_smac_idx" "my_lid_smac_idx" "grh_mylmc[6:0]" Both Face, Hex,
        "IB: source path bits; RoCE: index in the port MAC table" "";
    Rlid 1[15:0] "rlid" "rlid" "rlid" Both Face, Hex,
        "destination LID (IB)" "";
    AckTimeout 2[31:27] "ack_timeout" "ack_timeout" "ackto[7:3]" Both Engine(AckTimeout), AckTimeout,
        "local ACK timeout" "";
    LinkType 2[26:24] "link_type" "reserved3" "ackto[2:0]" Linux Face, Codes(LinkType::CODES),
        "link type of the path" "kept, the port decides what the link is";
    Reserved3Hi 2[23:23] "reserved3.hi" "reserved3" "mgid_index bit 7" Reserved Reserved, Hex,
        "reserved" "";
    MgidIndex 2[22:16] "mgid_index" "mgid_index" "mgid_index" Both Face, Plain,
        "source GID index" "kept; the engine takes the source address that fits rgid. Linux declares 8 bits; the top one is reserved";
    Reserved2 2[15:12] "reserved2" "reserved2" "static_rate[7:4]" Reserved Reserved, Hex,
        "reserved" "";
    MaxStatRate 2[11:8] "max_stat_rate" "max_stat_rate" "static_rate[3:0]" Both Face, Codes(StaticRate::CODES),
        "static rate" "kept; no rate is held back. Linux declares 8 bits; the upper four are reserved";
    HopLimit 2[7:0] "hop_limit" "hop_limit" "hop_limit" Both Engine(HopLimit), Plain,
        "GRH hop limit / IP TTL" "";
    Reserved4 3[31:28] "reserved4" "reserved4" "tclass_flowlabel[31:28]" Reserved Reserved, Hex,
        "reserved" "";
    Tclass 3[27:20] "tclass" "tclass" "tclass_flowlabel[27:20]" Both Engine(Tclass), Hex,
        "traffic class" "";
    FlowLabel 3[19:0] "flow_label" "flow_label" "tclass_flowlabel[19:0]" Both Engine(FlowLabel), Hex,
        "flow label" "";
    Rgid12796 4[31:0] "rgid_127_96" "rgid_127_96" "rgid[0..3]" Both Engine(Rgid(0)), Hex,
        "destination GID bits 127:96" "::ffff:a.b.c.d is an IPv4 address";
    Rgid9564 5[31:0] "rgid_95_64" "rgid_95_64" "rgid[4..7]" Both Engine(Rgid(1)), Hex,
        "destination GID bits 95:64" "";
    Rgid6332 6[31:0] "rgid_63_32" "rgid_63_32" "rgid[8..11]" Both Engine(Rgid(2)), Hex,
        "destination GID bits 63:32" "";
    Rgid310 7[31:0] "rgid_31_0" "rgid_31_0" "rgid[12..15]" Both Engine(Rgid(3)), Hex,
        "destination GID bits 31:0" "";
    SchedQueue 8[31:24] "sched_queue" "sched_queue" "sched_queue" Both Face, SchedQueue,
        "schedule queue: port, and Ethernet priority or InfiniBand service level" "port 1 is the only one; bits 5:3 are also the 802.1p priority of its frames";
    VlanIndex 8[23:16] "vlan_index" "reserved7" "vlan_index" Linux Face, Hex,
        "index in the port VLAN table" "where Linux has it, 8 bits; the PRM header has it in word 9 of the path, which no driver writes";
    NoFsm 8[15:15] "no_fsm" "reserved7" "feup bit 7" Linux Face, Flag,
        "do not force the source MAC" "";
    ForceEthUp 8[14:14] "force_eth_up" "reserved7" "feup bit 6" Linux Face, Flag,
        "force Ethernet user priority from sched_queue" "";
    Fsm 8[13:13] "fsm" "fsm" "feup bit 5" Both Face, Flag,
        "force source MAC" "";
    Fsip 8[12:12] "fsip" "fsip" "feup bit 4 (unnamed)" Prm Ignored, Flag,
        "force source IP" "without effect";
    Fvl 8[11:11] "fvl" "fvl" "feup bit 3" Both Face, Flag,
        "force VLAN" "";
    Reserved6 8[10:9] "reserved6" "reserved6" "feup bits 2:1" Reserved Reserved, Hex,
        "reserved" "";
    Sp 8[8:8] "sp" "sp" "feup bit 0 (unnamed)" Prm Ignored, Flag,
        "set priority (as named in the PRM header)" "without effect";
    Reserved5Hi 8[7:1] "reserved5.hi" "reserved5" "fvl_rx bits 7:1" Reserved Reserved, Hex,
        "reserved" "";
    FvlRx 8[0:0] "fvl_rx" "reserved5" "fvl_rx bit 0" Linux Ignored, Flag,
        "enforce VLAN on receive" "SR-IOV policy, without effect";
    CounterIndexPrm 9[31:24] "counter_index_prm" "counter_index" "reserved4[0]" Prm Ignored, Hex,
        "counter index as placed by the PRM header; unused by both drivers" "see counter_index";
    Reserved7 9[23:23] "reserved7" "reserved8" "reserved4[1] bit 7" Reserved Reserved, Hex,
        "reserved" "reserved8 in the PRM header";
    VlanIndexPrm 9[22:16] "vlan_index_prm" "vlan_index" "reserved4[1][6:0]" Prm Ignored, Hex,
        "VLAN index as placed by the PRM header; unused by both drivers" "see vlan_index";
    Dmac4732 9[15:0] "dmac_47_32" "dmac_47_32" "dmac[0..1]" Both Engine(DmacHigh), Hex,
        "destination MAC high half" "";
    Dmac310 10[31:0] "dmac_31_0" "dmac_31_0" "dmac[2..5]" Both Engine(DmacLow), Hex,
        "destination MAC low half" "";
}

/// Rows before the first path.
const HEAD_LEN: usize = {
    let mut len = 0;
    while MAIN[len].word < PRIMARY_WORD {
        len += 1;
    }
    len
};

/// Every row, in the order of the words, highest bits first.
pub const ROWS: &[Row; ROW_COUNT] = &{
    let mut rows = [MAIN[0]; ROW_COUNT];
    let (mut at, mut i) = (0, 0);
    while i < MAIN.len() {
        if i == HEAD_LEN {
            at = place_path(&mut rows, at, Side::Primary, PRIMARY_WORD);
            at = place_path(&mut rows, at, Side::Alternate, ALTERNATE_WORD);
        }
        rows[at] = MAIN[i];
        at += 1;
        i += 1;
    }
    rows
};

const fn place_path(rows: &mut [Row; ROW_COUNT], from: usize, side: Side, word: u8) -> usize {
    let mut i = 0;
    while i < PATH.len() {
        let mut row = PATH[i];
        row.side = Some(side);
        row.word += word;
        // Only the path in use is the engine's.
        if let (Side::Alternate, Engine(_)) = (side, row.owner) {
            row.owner = Face;
        }
        rows[from + i] = row;
        i += 1;
    }
    from + PATH.len()
}

// Each bit of each word belongs to exactly one row, and rows stand in order.
const _: () = {
    let mut seen = [0u32; WORDS];
    let mut i = 0;
    while i < ROW_COUNT {
        let row = &ROWS[i];
        assert!(row.low <= row.high && row.high < 32, "a row's bits are high:low inside of a word");
        let word = row.word as usize;
        assert!(seen[word] & row.mask() == 0, "two rows have a bit in common");
        assert!(
            i == 0
                || ROWS[i - 1].word < row.word
                || ROWS[i - 1].word == row.word && ROWS[i - 1].low > row.high,
            "rows stand in the order of words and bits"
        );
        seen[word] |= row.mask();
        i += 1;
    }
    let mut word = 0;
    while word < WORDS {
        assert!(seen[word] == u32::MAX, "a bit of the context has no row");
        word += 1;
    }
};

/// Any field: outside of the paths, or of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Outside of the paths.
    Main(Field),
    /// Of a path.
    Path(Side, PathField),
}

impl At {
    /// Its position in [`ROWS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Main(field) => {
                let index = field as usize;
                if index < HEAD_LEN { index } else { index + 2 * PATH.len() }
            }
            Self::Path(Side::Primary, field) => HEAD_LEN + field as usize,
            Self::Path(Side::Alternate, field) => HEAD_LEN + PATH.len() + field as usize,
        }
    }

    /// Its row.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &ROWS[self.index()]
    }
}

impl From<Field> for At {
    fn from(field: Field) -> Self {
        Self::Main(field)
    }
}

impl From<(Side, PathField)> for At {
    fn from((side, field): (Side, PathField)) -> Self {
        Self::Path(side, field)
    }
}

/// The row with this full name (`pd`, `primary_address_path.rlid`).
#[must_use]
pub fn find(full_name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.full_name() == *full_name)
}

/// A queue pair context. Reserved bits are kept, so that bytes in are bytes out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QpContext {
    words: [u32; WORDS],
}

impl Default for QpContext {
    /// All bits 0.
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl QpContext {
    /// From memory: big-endian words.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; CONTEXT_LEN]) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        Self { words }
    }

    /// As in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONTEXT_LEN] {
        let mut bytes = [0; CONTEXT_LEN];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words) {
            *bytes = word.to_be_bytes();
        }
        bytes
    }

    /// The words, as numbers.
    #[must_use]
    pub const fn words(&self) -> &[u32; WORDS] {
        &self.words
    }

    /// The words, to change.
    pub const fn words_mut(&mut self) -> &mut [u32; WORDS] {
        &mut self.words
    }

    /// A field's value.
    #[must_use]
    pub fn get(&self, at: impl Into<At>) -> u32 {
        self.read(at.into().row())
    }

    /// Sets a field to the low bits of a value.
    pub fn set(&mut self, at: impl Into<At>, value: u32) {
        self.write(at.into().row(), value);
    }

    /// The same context with a field set.
    #[must_use]
    pub fn with(mut self, at: impl Into<At>, value: u32) -> Self {
        self.set(at, value);
        self
    }

    /// The value of a row's field.
    #[must_use]
    pub const fn read(&self, row: &Row) -> u32 {
        self.words[row.word as usize] >> row.low & row.max()
    }

    /// Sets a row's field to the low bits of a value.
    pub const fn write(&mut self, row: &Row, value: u32) {
        let word = &mut self.words[row.word as usize];
        *word = *word & !row.mask() | (value & row.max()) << row.low;
    }

    /// Every field with its value, in the order of the table.
    pub fn fields(&self) -> impl Iterator<Item = (&'static Row, u32)> {
        ROWS.iter().map(|row| (row, self.read(row)))
    }

    /// The transport service.
    #[must_use]
    pub fn service(&self) -> ServiceType {
        ServiceType::from_code(self.get(Field::St) as u8)
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> QpState {
        QpState::from_code(self.get(Field::State) as u8)
    }
}

impl fmt::Debug for QpContext {
    /// The fields that are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Name(FullName);
        impl fmt::Debug for Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        let set = self.fields().filter(|(_, value)| *value != 0);
        f.debug_map().entries(set.map(|(row, value)| (Name(row.full_name()), value))).finish()
    }
}
