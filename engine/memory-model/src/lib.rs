//! The protocols of `c10d`'s memory transport (`engine/c10d/shim/shm`) on processors that reorder accesses to memory, such as AArch64:
//! loom runs a model of each protocol in all orders that the memory model of C++ and Rust allows, with at most [`PREEMPTIONS`]
//! preemptions, and looks for data races, lost wake-ups and wrong results.
//!
//! The models are written by hand after the C++. Their results hold for the shim as far as its accesses match the table at the top of
//! `shim/shm/segment.hpp`.
//!
//! loom supports sequentially consistent fences, but not accesses. The shim's accesses are sequentially consistent; the models use the
//! weaker release and acquire, and add a fence only where the protocol needs more.
//!
//! ```console
//! $ RUSTFLAGS='--cfg loom' cargo test -p lockstep-memory-model --target-dir target/loom
//! ```
#![cfg(all(test, loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Two preemptions find every error that three find, in a fraction of the time.
const PREEMPTIONS: usize = 2;

/// The access that a seeded error relaxes or omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Nothing,
    Posted,
    Reduced,
    Done,
    SleepersFence,
    RingersFence,
    Waits,
    Sent,
    Received,
    Finished,
    Failed,
}

impl Missing {
    /// The order with which `word` is published.
    fn order(self, word: Missing) -> Ordering {
        if self == word { Relaxed } else { Release }
    }
}

type Protocol = fn(Missing);

/// Each protocol, with the seeded errors that loom must find.
const PROTOCOLS: [(&str, Protocol, &[Missing]); 6] = [
    ("exchanges", exchange, &[Missing::Posted, Missing::Done]),
    ("sums through slots", sums, &[Missing::Posted, Missing::Reduced]),
    ("bells", bell, &[Missing::SleepersFence, Missing::RingersFence, Missing::Posted]),
    ("messages", messages, &[Missing::Waits, Missing::Sent, Missing::Received]),
    ("sums in place", tiles, &[Missing::Posted, Missing::Finished]),
    ("failures", failure, &[Missing::Failed]),
];

fn check(protocol: Protocol, missing: Missing) {
    let mut model = Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || protocol(missing));
}

#[test]
fn every_protocol_of_shared_memory_holds_where_accesses_are_reordered() {
    for (name, protocol, _) in PROTOCOLS {
        println!("{name}");
        check(protocol, Missing::Nothing);
    }
}

#[test]
fn the_model_checker_finds_each_missing_release_and_fence() {
    for (name, protocol, errors) in PROTOCOLS {
        for &error in errors {
            let found = catch_unwind(AssertUnwindSafe(|| check(protocol, error)));
            let found = found.expect_err(&format!("{name}: nothing found without {error:?}"));
            let words = found.downcast_ref::<String>().map_or("", String::as_str);
            assert!(!words.contains("exceeded maximum"), "{name} without {error:?}: the search was cut off: {words}");
        }
    }
}

// ---- parts of the models

/// Plain memory: loom fails a model in which it is written while another thread reads or writes it.
struct Plain(UnsafeCell<u64>);

// SAFETY: loom runs one thread at a time, and checks that no two threads access it at once.
unsafe impl Sync for Plain {}

impl Plain {
    fn new() -> Self {
        Plain(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom checks that no other thread accesses it meanwhile.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that no other thread writes to it meanwhile.
        self.0.with(|place| unsafe { *place })
    }
}

fn wait_until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

/// Runs a rank's part on two threads, as ranks 0 and 1.
fn two_ranks<T: Send + Sync + 'static>(shared: T, part: fn(&T, usize)) {
    let shared = Arc::new(shared);
    let theirs = Arc::clone(&shared);
    let other = thread::spawn(move || part(&theirs, 1));
    part(&shared, 0);
    other.join().expect("loom ends the model before this");
}

// ---- steps: collectives.cpp

/// A rank's control words, and a slot (the shim has four) with a part for each rank.
struct Stepper {
    posted: AtomicU64,
    reduced: AtomicU64,
    done: AtomicU64,
    slot: [Plain; 2],
}

impl Stepper {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        Stepper { posted: word(), reduced: word(), done: word(), slot: [Plain::new(), Plain::new()] }
    }
}

/// Three steps of `Exchange::exchange`: each rank writes a chunk to its slot, and reads the other's. The next chunk waits until the slot has
/// been read.
fn exchange(missing: Missing) {
    two_ranks(([Stepper::new(), Stepper::new()], missing), |(ranks, missing), me| {
        let (own, peer) = (&ranks[me], &ranks[1 - me]);
        for step in 0..3 {
            wait_until(|| peer.done.load(Acquire) + 1 > step);
            own.slot[0].write(10 * step + me as u64);
            own.posted.store(step + 1, missing.order(Missing::Posted));
            wait_until(|| peer.posted.load(Acquire) > step);
            assert_eq!(peer.slot[0].read(), 10 * step + 1 - me as u64);
            own.done.store(step + 1, missing.order(Missing::Done));
        }
    });
}

/// Two chunks of `LargeAllReduce::through_slots`: each rank writes the other's part to its slot, sums its own part of both, and reads the
/// other's sum. Here `reduced` and `posted` also imply that a slot has been read.
fn sums(missing: Missing) {
    two_ranks(([Stepper::new(), Stepper::new()], missing), |(ranks, missing), me| {
        let (own, peer) = (&ranks[me], &ranks[1 - me]);
        for step in 0..2 {
            wait_until(|| peer.done.load(Acquire) + 1 > step);
            own.slot[1 - me].write(10 * step + me as u64);
            own.posted.store(step + 1, missing.order(Missing::Posted));
            wait_until(|| peer.posted.load(Acquire) > step);
            let sum = 10 * step + me as u64 + peer.slot[me].read();
            own.slot[me].write(sum);
            own.reduced.store(step + 1, missing.order(Missing::Reduced));
            wait_until(|| peer.reduced.load(Acquire) > step);
            assert_eq!((sum, peer.slot[1 - me].read()), (20 * step + 1, 20 * step + 1));
            own.done.store(step + 1, Release);
        }
    });
}

// ---- bells: Members::sleep, Members::ring_steps

struct Bell {
    posted: AtomicU64,
    slot: Plain,
    rings: AtomicU64,
    sleeper: AtomicU64,
    /// The kernel's list of the threads that sleep on `rings`, protected by its lock.
    futex: (Mutex<()>, Condvar),
    missing: Missing,
}

impl Bell {
    /// `FUTEX_WAIT`: sleeps if the word still has this value.
    fn sleep(&self, heard: u64) {
        let (lock, sleepers) = &self.futex;
        let guard = lock.lock().expect("no thread panics");
        if self.rings.load(Relaxed) == heard {
            drop(sleepers.wait(guard).expect("no thread panics"));
        }
    }

    fn ring(&self) {
        self.rings.fetch_add(1, AcqRel);
        let (lock, sleepers) = &self.futex;
        let _guard = lock.lock().expect("no thread panics");
        sleepers.notify_all();
    }
}

/// The sleeper announces that it sleeps, then looks; the other thread writes, then looks for a sleeper. At least one of them must see
/// the other. Release and acquire do not ensure this: the loads must not move before the stores. A sleeper that nobody wakes is a
/// deadlock.
fn bell(missing: Missing) {
    let bell = Bell {
        posted: AtomicU64::new(0),
        slot: Plain::new(),
        rings: AtomicU64::new(0),
        sleeper: AtomicU64::new(0),
        futex: (Mutex::new(()), Condvar::new()),
        missing,
    };
    two_ranks(bell, |bell, me| {
        if me == 1 {
            bell.slot.write(7);
            bell.posted.store(1, bell.missing.order(Missing::Posted));
            if bell.missing != Missing::RingersFence {
                fence(Ordering::SeqCst);
            }
            if bell.sleeper.load(Acquire) != 0 {
                bell.ring();
            }
            return;
        }
        bell.sleeper.store(1, Release);
        if bell.missing != Missing::SleepersFence {
            fence(Ordering::SeqCst);
        }
        loop {
            let heard = bell.rings.load(Acquire);
            if bell.posted.load(Acquire) > 0 {
                break;
            }
            bell.sleep(heard);
        }
        bell.sleeper.store(0, Release);
        assert_eq!(bell.slot.read(), 7);
    });
}

// ---- messages: messages.cpp

struct Entry {
    waits: AtomicU64,
    number: Plain,
    text: Plain,
}

/// Rank 0 sends three messages with one tag through two entries (the shim has 32); rank 1 receives them in order.
fn messages(missing: Missing) {
    let make = || Entry { waits: AtomicU64::new(0), number: Plain::new(), text: Plain::new() };
    two_ranks((AtomicU64::new(0), [make(), make()], missing), |(sent, queue, missing), me| {
        if me == 0 {
            for number in 0..3 {
                let entry = &queue[number as usize % 2];
                wait_until(|| entry.waits.load(Acquire) == 0);
                entry.number.write(number);
                entry.text.write(100 + number);
                entry.waits.store(1, missing.order(Missing::Waits));
                sent.store(number + 1, missing.order(Missing::Sent));
            }
            return;
        }
        for expected in 0..3 {
            loop {
                let sent = sent.load(Acquire);
                let waiting = queue.iter().filter(|entry| entry.waits.load(Acquire) != 0);
                let first = waiting.map(|entry| (entry.number.read(), entry)).filter(|(number, _)| *number < sent);
                if let Some((number, entry)) = first.min_by_key(|(number, _)| *number) {
                    assert_eq!((number, entry.text.read()), (expected, 100 + expected));
                    entry.waits.store(0, missing.order(Missing::Received));
                    break;
                }
                thread::yield_now();
            }
        }
    });
}

// ---- sums in place: LargeAllReduce::in_place

struct InPlace {
    posted: [AtomicU64; 2],
    tensors: [[Plain; 2]; 2],
    claimed: AtomicU64,
    finished: AtomicU64,
    missing: Missing,
}

/// Two ranks sum their tensors of two tiles: whichever is free takes the next tile and writes its sum to both tensors. The claim itself
/// publishes nothing.
fn tiles(missing: Missing) {
    let words = || [AtomicU64::new(0), AtomicU64::new(0)];
    let tensor = || [Plain::new(), Plain::new()];
    let (claimed, finished) = (AtomicU64::new(0), AtomicU64::new(0));
    two_ranks(InPlace { posted: words(), tensors: [tensor(), tensor()], claimed, finished, missing }, |all, me| {
        for (i, tile) in all.tensors[me].iter().enumerate() {
            tile.write((10 * (i + 1) + me) as u64);
        }
        all.posted[me].store(1, all.missing.order(Missing::Posted));
        wait_until(|| all.posted[1 - me].load(Acquire) == 1);
        let mut next = all.claimed.load(Relaxed);
        while next < 2 {
            match all.claimed.compare_exchange(next, next + 1, Relaxed, Relaxed) {
                Err(now) => next = now,
                Ok(tile) => {
                    let sum = all.tensors.iter().map(|tensor| tensor[tile as usize].read()).sum();
                    all.tensors.iter().for_each(|tensor| tensor[tile as usize].write(sum));
                    all.finished.fetch_add(1, all.missing.order(Missing::Finished));
                }
            }
        }
        wait_until(|| all.finished.load(Acquire) == 2);
        let sums: Vec<_> = all.tensors[me].iter().map(Plain::read).collect();
        assert_eq!(sums, [21, 41]);
    });
}

// ---- failures: Members::check_alive

/// A rank posts its step and then fails or leaves. Its peer, which first looks for the failure and then for the step, must find the step.
fn failure(missing: Missing) {
    two_ranks((AtomicU64::new(0), Plain::new(), AtomicU64::new(0), missing), |(posted, slot, failed, missing), me| {
        if me == 0 {
            slot.write(7);
            posted.store(1, Release);
            failed.store(1, missing.order(Missing::Failed));
            return;
        }
        while posted.load(Acquire) == 0 {
            let is_lost = failed.load(Acquire) != 0;
            assert!(!is_lost || posted.load(Acquire) != 0, "a step that came counts as lost");
            thread::yield_now();
        }
        assert_eq!(slot.read(), 7);
    });
}
