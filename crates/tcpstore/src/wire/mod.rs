//! The protocol: the format of messages in both directions. Not here: sockets, clocks, and the effect of operations.
//!
//! A connection opens with VALIDATE and the magic number, which has no reply; clients then send PING and read their
//! nonce back. After that a request is one byte of operation and its fields, and a reply is fields only: the request
//! determines what the reply means ([`Expect`]). Integers are little-endian, strings have a length of 64 bits.
//!
//! Source: `TCPStoreBackend.hpp` (operations, magic), `TCPStore.cpp` (client) and `TCPStoreLibUvBackend.cpp` (server)
//! of PyTorch 2.11; `golden/tcpstore.json` records bytes that they sent.

mod limits;
mod reader;
mod reply;
mod request;
mod scan;

pub use limits::Limits;
pub use reader::{Reader, WireError};
pub use reply::{Expect, Reply};
pub use request::{Frame, Operation, Request};
pub use scan::Scan;

/// A key on the wire: any bytes. libtorch's clients put [`KEY_PREFIX`] in front of every key that a user names.
pub type Key = Vec<u8>;
/// A value: any bytes.
pub type Value = Vec<u8>;

/// The number that VALIDATE carries (`validationMagicNumber` in `TCPStoreBackend.hpp`).
pub const MAGIC: u32 = 0x3C85_F7CE;

/// Sent instead of an operation, with nothing after it: the connection leaves the protocol for another one, in which the server
/// speaks first. PyTorch does not know it.
pub const SWITCH: u8 = 0xF0;

/// The prefix that libtorch's clients add to every key (`keyPrefix_` in `TCPStore.hpp`). Only `init/`, which counts the
/// clients of `wait_for_workers`, lacks it.
pub const KEY_PREFIX: &[u8] = b"/";

/// Converts a user's key to the key on the wire.
pub fn wire_key(key: &str) -> Key {
    [KEY_PREFIX, key.as_bytes()].concat()
}

/// Converts a key on the wire to the user's key, for messages: bytes that are not UTF-8 are replaced.
pub fn user_key(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(KEY_PREFIX).unwrap_or(key)).into_owned()
}
