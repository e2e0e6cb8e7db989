//! Hangs: what ranks say when a collective's deadline has passed. The rank that says so is rarely the one at fault.

use super::super::case::{Case, Found};
use super::Class::{Cause, Waiting};
use super::{Rule, between, number_after};

/// What a rank has noticed whose wait for another has ended at a deadline.
pub(in super::super) const NOT_IN_TIME: &str = "a rank did not take part in a collective in time";

const BEHIND: &str = "see what the named rank does: `py-spy dump --pid PID` or `gdb -p PID`; all ranks must make the same calls in the same order";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "calls-differ",
        class: Waiting,
        evidence: "PyTorch's check of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL), or this project's desync report: the ranks' calls",
        advice: "all ranks must make the same calls in the same order, with the same shapes: compare the code paths of the two ranks",
        example: (
            1,
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST).",
        ),
        find: |case| {
            let line = case.line(&["detected mismatch between collectives"])?;
            let other = line.rsplit_once("but Rank ").and_then(|(_, rest)| number_after(rest, ""));
            let call =
                between(line, "but Rank ", ")").and_then(|rest| rest.split("OpType=").nth(1)).unwrap_or("another call");
            let names = other.map(|rank| rank as usize);
            let text = names.map_or_else(String::new, |rank| format!(": rank {rank} is in {call}"));
            Some(Found { names, ..case.found(format!("ranks are in different collectives{text}"), line) })
        },
    },
    Rule {
        name: "rank-not-in-barrier",
        class: Waiting,
        evidence: "monitored_barrier's message, which names the rank",
        advice: BEHIND,
        example: (1, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"),
        find: |case| {
            let line = case.line(&["failed to pass monitoredbarrier"])?;
            let before = line.split(" failed to pass").next().unwrap_or_default();
            let named = before.rsplit("Rank").next().and_then(|text| number_after(text, " "));
            let millis = number_after(line, "monitoredBarrier in ")
                .map(|millis| format!(" for {millis} ms"))
                .unwrap_or_default();
            let rank = named? as usize;
            Some(Found {
                names: Some(rank),
                ..case.found(format!("rank {rank} did not come to a barrier{millis}"), line)
            })
        },
    },
    Rule {
        name: "rank-not-in-collective",
        class: Waiting,
        evidence: "this project's desync report: where each rank was when the deadline passed",
        advice: BEHIND,
        example: (
            1,
            "error: training failed\n  caused by: all_reduce [4] on rank 0 timed out after 1.00 s: rank 2 was outside any collective, after 3 finished calls; this rank was in call 4, all_reduce of [4]",
        ),
        find: desync,
    },
    Rule {
        name: "collective-timed-out",
        class: Waiting,
        evidence: "the NCCL watchdog's lines, Gloo's, or the store's: which call, of which size, for how long",
        advice: "compare what the ranks' last lines say about who waits for whom: ranks that wait in a circle never go on, and a chain \
                 ends at the rank that is slow, dead or in another call; under NCCL, TORCH_FR_BUFFER_SIZE=2000 and \
                 TORCH_NCCL_DUMP_ON_TIMEOUT=1 show the last calls of each rank",
        example: (
            -6,
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600070 milliseconds before timing out.",
        ),
        find: |case| {
            let marks = [
                "watchdog caught collective operation timeout",
                "this rank was in ",
                "for recv operation to complete",
                "for send operation to complete",
                "application timeout caused pair closure",
                "timed out waiting for clients",
                "waiting for clients.",
                "wait timeout after",
                "did not answer a request for a desync report",
                "the client socket has timed out",
            ];
            let line = case.line(&marks)?;
            Some(case.found(format!("{NOT_IN_TIME}{}", call(line)), line))
        },
    },
    Rule {
        name: "rank-astray",
        class: Cause,
        evidence: "PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE; files at TORCH_FR_DUMP_TEMP_FILE): the last calls of each rank. NCCL's \
                   watchdog writes the files",
        advice: BEHIND,
        example: (1, ""),
        find: |_| None,
    },
    Rule {
        name: "rank-cannot-be-killed",
        class: Cause,
        evidence: "`/proc/PID/stat` has state D after SIGKILL; its wait channel and the file of its system call",
        advice: "the device or file server that it waits for does not answer: `cat /proc/PID/stack` as root, `dmesg`; the node may need a restart",
        example: (-9, ""),
        find: |_| None,
    },
    Rule {
        name: "rank-stopped",
        class: Cause,
        evidence: "`/proc/PID/stat` has state T or t at the first failure; `/proc/PID/status` names the tracer",
        advice: "`kill -CONT PID`, or detach the debugger",
        example: (1, ""),
        find: |_| None,
    },
    Rule {
        name: "rank-returned-early",
        class: Cause,
        evidence: "exit code 0, before another rank lost its connection or its patience",
        advice: "all ranks must make the same number of steps: uneven data needs padding, drop_last, or DDP's join",
        example: (0, ""),
        find: |_| None,
    },
];

/// `OpType=ALLREDUCE`, its size, and for how long it ran.
fn call(line: &str) -> String {
    let operation = between(line, "OpType=", ",").map(|name| format!(": {name}"));
    let size = number_after(line, "NumelIn=").map(|numel| format!(" of {numel} elements"));
    let millis = number_after(line, "ran for ").or_else(|| number_after(line, "Timed out waiting "));
    let millis = millis.or_else(|| number_after(line, "wait timeout after ")).map(|millis| format!(" ({millis} ms)"));
    [operation, size, millis].into_iter().flatten().collect()
}

/// `… timed out after 1.00 s: rank 2 was outside any collective, after 3 finished calls; rank 1 did not answer …; this rank
/// was in call 4, all_reduce of [4]`. The first other rank that was not in the same call is the one at fault; one that
/// waited, too, is not.
fn desync(case: &Case<'_>) -> Option<Found> {
    let line = case.line(&["this rank was in "])?;
    let (before, own) = line.split_once("this rank was in ")?;
    let marks = [
        "was outside any collective",
        "was joining ",
        "has left the group",
        "panicked after",
        "did not answer within",
        "was in call ",
    ];
    let parts = before.split("; ").filter_map(|part| {
        let part = &part[part.rfind("rank ")?..];
        let rank = number_after(part, "rank ")?;
        marks.iter().any(|mark| part.contains(mark)).then_some((rank as usize, part))
    });
    let (rank, state) = parts.min_by_key(|(_, part)| marks.iter().position(|mark| part.contains(mark)))?;
    let own = own.split(": [").next().unwrap_or_default();
    let cause = format!("{} while others were in {}", state.trim_end(), own.trim());
    Some(Found { names: Some(rank), ..case.found(cause, line) })
}
