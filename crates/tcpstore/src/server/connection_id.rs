//! Names of connections.

/// A connection's id within its server. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The process that hosts the server and needs no connection.
    pub const HOST: Self = Self(0);
}
