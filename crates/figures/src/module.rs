//! What the page calls: it asks for room, writes a request there, and reads the answer at the address that comes back.
#![expect(unsafe_code, reason = "a page's side of the memory is outside Rust")]

use std::cell::RefCell;

thread_local! {
    /// The request, then the answer to it: the page is done with one before it writes the next.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The address of room for a request of `length` bytes.
// SAFETY: no other item has this name.
#[unsafe(no_mangle)]
pub extern "C" fn room(length: usize) -> *mut u8 {
    TEXT.with_borrow_mut(|text| {
        text.clear();
        text.resize(length, b' ');
        text.as_mut_ptr()
    })
}

/// Answers the request that was written there. The number of bytes of the answer, which [`address`] leads to.
// SAFETY: no other item has this name.
#[unsafe(no_mangle)]
pub extern "C" fn ask() -> usize {
    TEXT.with_borrow_mut(|text| {
        *text = crate::answer(&String::from_utf8_lossy(text)).into_bytes();
        text.len()
    })
}

// SAFETY: no other item has this name.
#[unsafe(no_mangle)]
pub extern "C" fn address() -> *const u8 {
    TEXT.with_borrow(|text| text.as_ptr())
}
