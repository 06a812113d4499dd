//! Coded values of the queue pair context: what each code means, and room for codes that nobody has named.
//!
//! A code is data: an unknown one is kept as it is. Nothing here decides what is accepted.

use core::fmt;

/// A code with its name and a few words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The number in the context.
    pub value: u8,
    /// Its short name.
    pub name: &'static str,
    /// What it means.
    pub text: &'static str,
}

macro_rules! coded {
    ($($(#[$doc:meta])* $type:ident { $($variant:ident $value:literal $name:literal $text:literal)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $type {
            $(#[doc = $text] $variant,)*
            /// A code without a name.
            Unknown(u8),
        }

        impl $type {
            /// Each code that has a name.
            pub const CODES: &'static [Code] =
                &[$(Code { value: $value, name: $name, text: $text }),*];

            /// Each code that has a name, as a value of this type.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// From the bits of the field.
            #[must_use]
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($value => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The bits of the field.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Unknown(code) => code,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($name),)*
                    Self::Unknown(code) => write!(f, "code {code}"),
                }
            }
        }
    )*};
}

coded! {
    /// State of a queue pair, numbered as the context does. Verbs number SQD and SQE the other way round.
    QpState {
        Rst 0 "RST" "reset"
        Init 1 "INIT" "initialised"
        Rtr 2 "RTR" "ready to receive"
        Rts 3 "RTS" "ready to send"
        Sqer 4 "SQER" "send queue error"
        Sqd 5 "SQD" "send queue drained"
        Err 6 "ERR" "error"
        SqDraining 7 "SQ_DRAINING" "send queue draining"
        Suspended 9 "SUSPENDED" "suspended"
    }
    /// Transport service.
    ServiceType {
        Rc 0 "RC" "reliable connection"
        Uc 1 "UC" "unreliable connection"
        Rd 2 "RD" "reliable datagram"
        Ud 3 "UD" "unreliable datagram"
        Fcmnd 4 "FCMND" "Fibre Channel command"
        Fexch 5 "FEXCH" "Fibre Channel exchange"
        Xrc 6 "XRC" "extended reliable connection (SRC in the seed)"
        Mlx 7 "MLX" "software builds the headers"
        RawEth 11 "RAW_ETH" "raw Ethernet"
    }
    /// Path migration state. Verbs number it otherwise: migrated 0, rearm 1, armed 2.
    Migration {
        Armed 0 "ARMED" "migration may happen at any time"
        Rearm 1 "REARM" "an alternate path is given, but not armed"
        Migrated 3 "MIGRATED" "one path is used"
    }
    /// Path MTU.
    MtuCode {
        M256 1 "256" "256 bytes"
        M512 2 "512" "512 bytes"
        M1024 3 "1024" "1024 bytes"
        M2048 4 "2048" "2048 bytes"
        M4096 5 "4096" "4096 bytes"
        Ethernet 7 "ETHERNET" "whatever the Ethernet port carries"
    }
    /// Link type of a path (Linux).
    LinkType {
        InfiniBand 0 "IB" "InfiniBand, or not given"
        Ethernet 1 "ETHERNET" "Ethernet"
    }
    /// RoCE flavour (Linux).
    RoceMode {
        V1 0 "ROCE_V1" "RoCE v1, or no RoCE"
        V2 2 "ROCE_V2" "RoCE v2"
    }
    /// Static rate.
    StaticRate {
        Full 0 "FULL" "the link's rate"
        Quarter 1 "25_PERCENT" "a quarter of the link's rate"
        Eighth 2 "12.5_PERCENT" "an eighth of the link's rate"
        Half 3 "50_PERCENT" "half of the link's rate"
        Gbps2_5 7 "2.5_GBPS" "2.5 Gbit/s"
        Gbps10 8 "10_GBPS" "10 Gbit/s"
        Gbps30 9 "30_GBPS" "30 Gbit/s"
        Gbps5 10 "5_GBPS" "5 Gbit/s"
        Gbps20 11 "20_GBPS" "20 Gbit/s"
        Gbps40 12 "40_GBPS" "40 Gbit/s"
        Gbps60 13 "60_GBPS" "60 Gbit/s"
        Gbps80 14 "80_GBPS" "80 Gbit/s"
        Gbps120 15 "120_GBPS" "120 Gbit/s"
    }
    /// RNR retry limit.
    RnrRetry {
        None 0 "0" "no retry"
        One 1 "1" "1 retry"
        Two 2 "2" "2 retries"
        Three 3 "3" "3 retries"
        Four 4 "4" "4 retries"
        Five 5 "5" "5 retries"
        Six 6 "6" "6 retries"
        ForEver 7 "FOR_EVER" "without limit"
    }
    /// Which frames a raw Ethernet queue pair receives (Linux).
    TunnelMode {
        Plain 0 "PLAIN" "plain frames"
        TunnelledToo 7 "TUNNELLED_TOO" "VXLAN frames as well as plain ones"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn unknown_codes_survive() {
        for code in 0..=255 {
            assert_eq!(QpState::from_code(code).code(), code);
            assert_eq!(ServiceType::from_code(code).code(), code);
            assert_eq!(Migration::from_code(code).code(), code);
            assert_eq!(MtuCode::from_code(code).code(), code);
            assert_eq!(StaticRate::from_code(code).code(), code);
        }
        assert_eq!(QpState::from_code(8).to_string(), "code 8");
        assert_eq!(ServiceType::from_code(11), ServiceType::RawEth);
    }
}
