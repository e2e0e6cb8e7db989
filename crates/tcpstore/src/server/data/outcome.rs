//! The result of a request, and why one is refused.

use crate::wire::Reply;

use super::ConnectionId;

/// The result of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The reply, if the operation has one.
    pub reply: Option<Reply>,
    /// Other connections whose wait has ended.
    pub woken: Vec<ConnectionId>,
}

/// Why a request is refused. Its connection is closed, because the protocol has no error reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The store would grow beyond its limit.
    #[error("the store would hold more than {max} bytes")]
    Full {
        /// The limit.
        max: usize,
    },
    /// The last quarter of the store is reserved for other connections.
    #[error(
        "keys and values that this connection wrote would take {got} bytes, and the last quarter of {max} is reserved for other connections"
    )]
    Share {
        /// The bytes that it would have written, of those that are in the store.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The reply, or a value after APPEND, would exceed its limit.
    #[error("the answer or the grown value would have {got} bytes, more than {max}")]
    ReplyTooLarge {
        /// Its size in bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// ADD to a value that is not a number.
    #[error("add to a value that is not a decimal 64-bit number: {0:?}")]
    NotANumber(String),
}
