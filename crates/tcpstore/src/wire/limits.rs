//! How much one message may ask for. Left out: how many connections there may be, and how much the whole store may hold.

/// Largest sizes that are accepted. The defaults of the first three are those of libtorch's server (`MAX_STRING_LEN`,
/// `MAX_PAYLOAD_LEN` and `MAX_KEY_COUNT` in `TCPStoreLibUvBackend.cpp`).
///
/// A length beyond its limit is refused when it is read. A length within it reserves nothing: memory grows with the bytes that
/// arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key. 8 KiB.
    pub max_key: usize,
    /// Bytes of a value in a request. 8 MiB.
    pub max_value: usize,
    /// Keys in one request. 131,072.
    pub max_keys: usize,
    /// Bytes of a whole request, so that many long keys do not add up to more. 64 MiB (libtorch: no limit).
    pub max_request: usize,
    /// Bytes of a whole reply, and of a value that APPEND makes. 64 MiB (libtorch: no limit).
    pub max_reply: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_key: 8 << 10, max_value: 8 << 20, max_keys: 128 << 10, max_request: 64 << 20, max_reply: 64 << 20 }
    }
}
