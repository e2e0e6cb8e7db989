//! What c10d's logger of a reducer has noted.

use std::collections::BTreeMap;

use super::Reducer;
use crate::error::{Error, Result};
use crate::ffi;

impl Reducer {
    /// Notes that ranks may have different numbers of batches: see [`logging_data`](Self::logging_data).
    pub fn note_join(&self) {
        // SAFETY: the handle is alive as long as self.
        unsafe { ffi::lc_reducer_note_join(self.handle.as_ptr()) };
    }

    /// What c10d's logger has noted so far: names and values as text, lists with commas. The names are those of
    /// `_get_ddp_logging_data()` in Python; what that says of the group and the model's options is not here.
    ///
    /// The times are those of the pass before the last [`prepare_for_forward`](Self::prepare_for_forward), in nanoseconds, taken in
    /// the first ten passes and then in every hundredth.
    pub fn logging_data(&self) -> Result<BTreeMap<String, String>> {
        // SAFETY: the handle is alive as long as self, and the shim writes one pointer.
        let texts = ffi::blobs(|out| unsafe { ffi::lc_reducer_logging_data(self.handle.as_ptr(), out) });
        let texts = texts.map_err(|exception| Error::new("read the logging data", exception))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(texts.chunks_exact(2).map(|fact| (text(&fact[0]), text(&fact[1]))).collect())
    }
}
