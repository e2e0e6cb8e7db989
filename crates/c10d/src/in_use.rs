//! Tracks the memory that operations in progress read or write. A tensor of tch can be cloned without its memory, so
//! the owner of a [`Work`](crate::Work) is not the only one who can start another operation on the same values.
//!
//! There is one table per process because ranks may be threads. Computations of tch on a clone are not visible here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::operation::{Abandoned, Lifetime};

/// How an operation uses a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) access: Access,
}

impl Span {
    fn conflicts(&self, other: &Span) -> bool {
        let both_read = self.access == Access::Read && other.access == Access::Read;
        !both_read && self.begin < other.end && other.begin < self.end
    }

    /// Returns true if two of the ranges conflict. They must be sorted by their start.
    pub(crate) fn sorted_conflict(spans: &[Span]) -> bool {
        let (mut read, mut written) = (0, 0);
        spans.iter().any(|span| {
            let conflict = span.begin < written || (span.access == Access::Write && span.begin < read);
            match span.access {
                Access::Read => read = read.max(span.end),
                Access::Write => written = written.max(span.end),
            }
            conflict
        })
    }
}

#[derive(Debug)]
struct Entry {
    number: u64,
    operation: String,
    spans: Vec<Span>,
    /// The operation itself, once its `Work` has been dropped.
    abandoned: Option<Abandoned>,
}

#[derive(Debug)]
struct Table {
    next: u64,
    entries: Vec<Entry>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { next: 0, entries: Vec::new() });

// The table is consistent whenever the lock is free.
fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees dropped operations that have ended, without the lock: freeing the last one of a group may have to wait for
/// others.
fn forget_what_is_over() {
    let is_over = |entry: &mut Entry| entry.abandoned.as_ref().is_some_and(Abandoned::is_over);
    let over: Vec<Entry> = table().entries.extract_if(.., is_over).collect();
    drop(over);
}

/// Waits for the dropped operations of a group that is about to be freed, except on NCCL. Their memory stays in the table until they
/// end.
pub(crate) fn end_abandoned(group: &Lifetime) {
    let next = || {
        let of_group = |entry: &mut Entry| {
            let operation = entry.abandoned.take_if(|operation| operation.keeps(group))?;
            Some((InUse(entry.number), operation))
        };
        table().entries.iter_mut().find_map(of_group)
    };
    while let Some((memory, operation)) = next() {
        operation.end();
        drop(memory);
    }
}

/// Keeps the memory of one operation in the table until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse(u64);

impl InUse {
    /// Adds the memory of an operation that is about to start.
    ///
    /// # Errors
    /// The name of an operation in progress that conflicts with it.
    pub(crate) fn claim(operation: &str, spans: Vec<Span>) -> Result<InUse, String> {
        forget_what_is_over();
        let mut table = table();
        let conflicts = |entry: &&Entry| entry.spans.iter().any(|old| spans.iter().any(|new| old.conflicts(new)));
        if let Some(entry) = table.entries.iter().find(conflicts) {
            return Err(entry.operation.clone());
        }
        let number = table.next;
        table.next += 1;
        table.entries.push(Entry { number, operation: operation.to_owned(), spans, abandoned: None });
        Ok(InUse(number))
    }

    /// Keeps the memory in the table until a dropped operation has ended.
    pub(crate) fn until_over(self, operation: Abandoned) {
        let mut table = table();
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.number == self.0) {
            entry.abandoned = Some(operation);
        }
        drop(table);
        std::mem::forget(self);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        table().entries.retain(|entry| entry.number != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin: u64, end: u64, access: Access) -> Span {
        Span { begin, end, access }
    }

    #[test]
    fn writes_conflict_with_everything_that_overlaps_and_reads_do_not_conflict_with_reads() {
        use Access::{Read, Write};
        assert!(!Span::sorted_conflict(&[span(0, 8, Read), span(4, 12, Read)]));
        assert!(Span::sorted_conflict(&[span(0, 8, Read), span(4, 12, Write)]));
        assert!(Span::sorted_conflict(&[span(0, 20, Write), span(2, 4, Read), span(6, 8, Read)]));
        assert!(Span::sorted_conflict(&[span(0, 20, Read), span(2, 4, Read), span(6, 8, Write)]));
        assert!(!Span::sorted_conflict(&[span(0, 8, Write), span(8, 16, Write)]));
    }

    #[test]
    fn a_claim_is_refused_while_a_conflicting_one_is_held() {
        // No tensor of another test has these addresses.
        let (low, high) = (8, 16);
        let held = InUse::claim("first", vec![span(low, high, Access::Write)]).unwrap();
        assert_eq!(InUse::claim("second", vec![span(12, 20, Access::Read)]).unwrap_err(), "first");
        let next_to_it = InUse::claim("third", vec![span(high, 20, Access::Write)]).unwrap();
        drop(held);
        drop(InUse::claim("second", vec![span(low, high, Access::Read)]).unwrap());
        drop(next_to_it);
    }
}
