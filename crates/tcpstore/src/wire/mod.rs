//! The protocol: what the bytes mean, in both directions. Left out: sockets, clocks, and what an operation does to the data.
//!
//! A connection opens with VALIDATE and the magic number, to which nothing is answered; clients then send PING and read their
//! nonce back. From then on a request is one byte of operation and its fields, and a reply is bare fields: what a reply means
//! follows from the request ([`Expect`]). Integers are little-endian, strings carry a length of 64 bits.
//!
//! Source: `TCPStoreBackend.hpp` (operations, magic), `TCPStore.cpp` (client) and `TCPStoreLibUvBackend.cpp` (server) of
//! PyTorch 2.11; `golden/tcpstore.json` holds what they really sent.

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

/// A key as it travels: any bytes. libtorch's clients put [`KEY_PREFIX`] before every key that a user names.
pub type Key = Vec<u8>;
/// A value: any bytes.
pub type Value = Vec<u8>;

/// The number that VALIDATE carries (`validationMagicNumber` in `TCPStoreBackend.hpp`).
pub const MAGIC: u32 = 0x3C85_F7CE;

/// What libtorch's clients put before every key (`keyPrefix_` in `TCPStore.hpp`). One key lacks it: `init/`, which counts the
/// clients of `wait_for_workers`.
pub const KEY_PREFIX: &[u8] = b"/";

/// The key on the wire of the key that a user names.
pub fn wire_key(key: &str) -> Key {
    [KEY_PREFIX, key.as_bytes()].concat()
}

/// The key that a user named, from the key on the wire; for messages, so odd bytes are replaced.
pub fn user_key(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(KEY_PREFIX).unwrap_or(key)).into_owned()
}
