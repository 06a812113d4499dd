//! Deterministic worlds of SoftRNIC devices: nodes, links, faults, workloads and their checks, on a
//! virtual clock, from one seed.
//!
//! Knows no operating system and no wall clock: files, screens and real time are the caller's.
#![forbid(unsafe_code)]

pub mod campaign;
mod check;
mod ernic_node;
pub mod fault;
pub mod ladder;
mod link;
mod model;
mod native_node;
mod node;
mod pair;
mod payload;
mod random;
mod report;
mod scenario;
mod series;
mod simulation;
mod source;
mod state;
mod words;
mod world;

pub use ladder::{Ladder, describe_frame};
pub use link::{ETHERNET_OVERHEAD_LEN, LinkConfig, Loss, Traffic};
pub use model::Model;
pub use node::NodeError;
pub use pair::ErnicPair;
pub use random::Random;
pub use report::{
    FaultReport, FileReport, FiringReport, Latency, NodeReport, PhaseReport, RefusedPacket, Report,
};
pub use scenario::{
    DEFAULT_SCENARIO, Expect, FaceKind, LinkSpec, NodeSpec, OperationKind, Operations, PhaseSpec,
    ProfileKind, Scenario, ScenarioError,
};
pub use series::{BUCKETS, Bucket, Series};
pub use simulation::{SetupError, Simulation};
pub use state::{DeviceState, QpState, RegionState, Rings, WorldState};
pub use world::{Activity, AtWork, Fate, Observer, PacketId, Sighting, Station, World};
