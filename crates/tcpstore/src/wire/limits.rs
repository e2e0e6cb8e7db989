//! Size limits of a message. Not here: the number of connections, and the size of the whole store (`server/options.rs`).

/// The largest accepted sizes. The defaults of the first three are those of libtorch's server (`MAX_STRING_LEN`,
/// `MAX_PAYLOAD_LEN` and `MAX_KEY_COUNT` in `TCPStoreLibUvBackend.cpp`).
///
/// A length beyond its limit is refused as soon as it is read. A length within its limit reserves nothing: memory grows
/// with the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key. 8 KiB.
    pub max_key: usize,
    /// Bytes of a value in a request. 8 MiB.
    pub max_value: usize,
    /// Keys in one request. 131,072.
    pub max_keys: usize,
    /// Bytes of a whole request, which also limits the sum of many long keys. 64 MiB (libtorch: no limit).
    pub max_request: usize,
    /// Bytes of a whole reply, and of a value after APPEND. 64 MiB (libtorch: no limit).
    pub max_reply: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_key: 8 << 10, max_value: 8 << 20, max_keys: 128 << 10, max_request: 64 << 20, max_reply: 64 << 20 }
    }
}
