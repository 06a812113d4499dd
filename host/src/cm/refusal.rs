//! Why a datagram is not followed, and what a REJ says: two tables.

use core::fmt;

macro_rules! refusals {
    ($($(#[$doc:meta])* $refusal:ident = $name:literal;)*) => {
        /// Why a management datagram was not followed. Each is counted.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Refusal {
            $($(#[$doc])* $refusal,)*
        }

        impl Refusal {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$refusal,)*];

            /// Name of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$refusal => $name,)* }
            }
        }
    };
}

refusals! {
    /// It is not 256 bytes long.
    Length = "cm_length";
    /// Its base version is not 1, or it belongs to another management class.
    NotCm = "cm_not_cm";
    /// Class version other than 2.
    ClassVersion = "cm_class_version";
    /// A method other than Send.
    Method = "cm_method";
    /// A message that is not handled: service resolution, alternate paths.
    Attribute = "cm_attribute";
    /// RDMA CM's header in the private data is of another version.
    IpHeader = "cm_ip_header";
    /// It names a connection that does not exist, or both ends' numbers do not belong together.
    UnknownConnection = "cm_unknown_connection";
    /// It comes from an address that is not the connection's peer.
    WrongPeer = "cm_wrong_peer";
    /// The state of its connection does not expect this message.
    UnexpectedMessage = "cm_unexpected_message";
    /// A DREQ that names another queue pair than the connection's.
    QpNumber = "cm_qp_number";
    /// Nobody listens to the service.
    NoListener = "cm_no_listener";
    /// The peer's queue pair is still part of an older connection.
    StaleConnection = "cm_stale_connection";
    /// A transport other than RC.
    Transport = "cm_transport";
    /// The path MTU is reserved, or larger than this port's.
    PathMtu = "cm_path_mtu";
    /// The path does not end at an address of this port.
    Gid = "cm_gid";
    /// As many connections as may be exist already, or wait for the listener.
    NoResources = "cm_no_resources";
    /// More messages wait to be sent than may.
    TransmitQueueFull = "cm_transmit_queue_full";
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a REJ was sent (IBTA vol 1, 12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject(pub u16);

impl Reject {
    /// There is no queue pair for it.
    pub const NO_QP: Self = Self(1);
    /// There is no room for one more.
    pub const NO_RESOURCES: Self = Self(3);
    /// The answer did not come in time.
    pub const TIMEOUT: Self = Self(4);
    /// The connection that is named does not exist.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// Not this transport.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The queue pair belongs to an older connection.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The path does not end here.
    pub const INVALID_GID: Self = Self(12);
    /// The path MTU cannot be.
    pub const INVALID_MTU: Self = Self(26);
    /// The program does not want to.
    pub const CONSUMER: Self = Self(28);

    const NAMES: [(u16, &'static str); 33] = [
        (1, "no queue pair available"),
        (2, "no end-to-end context available"),
        (3, "no resources available"),
        (4, "timeout"),
        (5, "unsupported request"),
        (6, "invalid communication ID"),
        (7, "invalid communication instance"),
        (8, "invalid service ID: nobody listens"),
        (9, "invalid transport service type"),
        (10, "stale connection"),
        (11, "RDC does not exist"),
        (12, "primary remote port GID rejected"),
        (13, "primary remote port LID rejected"),
        (14, "invalid primary SL"),
        (15, "invalid primary traffic class"),
        (16, "invalid primary hop limit"),
        (17, "invalid primary packet rate"),
        (18, "alternate remote port GID rejected"),
        (19, "alternate remote port LID rejected"),
        (20, "invalid alternate SL"),
        (21, "invalid alternate traffic class"),
        (22, "invalid alternate hop limit"),
        (23, "invalid alternate packet rate"),
        (24, "CM port redirection"),
        (25, "port redirection"),
        (26, "invalid path MTU"),
        (27, "insufficient responder resources"),
        (28, "consumer reject"),
        (29, "RNR retry count rejected"),
        (30, "duplicate local communication ID"),
        (31, "unsupported class version"),
        (32, "invalid primary flow label"),
        (33, "invalid alternate flow label"),
    ];
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(code, _)| *code == self.0);
        f.write_str(name.map_or("unknown reason", |(_, name)| name))
    }
}
