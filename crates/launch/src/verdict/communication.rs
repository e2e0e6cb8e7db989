//! Rules on communication: ports, names, interfaces and NCCL; hangs, where the rank that reports one is rarely the one at fault;
//! and what ranks print when another one has ended.

use std::net::IpAddr;

use super::rules::Class::{Cause, PeerGone, Waiting};
use super::rules::{Rule, between, number_after};
use super::worker_end::{Case, Found};

const GLOO_ADDRESS: &str = "`getent hosts $(hostname)` on each node: Gloo listens on the address of the host name, so correct /etc/hosts, or set \
                            GLOO_SOCKET_IFNAME on each node to the interface that the other nodes reach (`ip -brief address`); a firewall must \
                            let all TCP pass between the nodes; `lockstep doctor` in the job checks them";

/// What the system says of an address to which no way leads, in small letters.
const NO_WAY: [&str; 4] = ["no route to host", "network is unreachable", "host is down", "connection timed out"];

pub(super) const NETWORK: &[Rule] = &[
    Rule {
        name: "port-in-use",
        class: Cause,
        evidence: "the exception, and the kernel's table of sockets: who has the port",
        advice: "the launcher hosts the store already: a worker must not host one itself. A script that spawns its own workers \
                 (mp.spawn) does so once for each rank: run it without `lockstep run`, or take the spawning out",
        example: (1, "OSError: [Errno 98] Address already in use"),
        find: |case| {
            let line = case.line(&["address already in use", "eaddrinuse"])?;
            let owner = case.evidence.port_owner.as_ref();
            let cause = owner.map_or_else(|| "it tried to listen on a port that is taken".to_owned(), Clone::clone);
            Some(case.found(cause, line))
        },
    },
    Rule {
        name: "name-unknown",
        class: Cause,
        evidence: "the exception",
        advice: "`getent hosts NAME` on this node; use an address instead of the name if the site has no name service",
        example: (1, "socket.gaierror: [Errno -2] Name or service not known"),
        find: |case| {
            let marks = [
                "name or service not known",
                "temporary failure in name resolution",
                "nodename nor servname",
                "no address associated with hostname",
            ];
            case.words(&marks, "a host's name has no address on this node")
        },
    },
    Rule {
        name: "interface-missing",
        class: Cause,
        evidence: "Gloo's or NCCL's message",
        advice: "`ip -brief address` lists the interfaces; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one that this node has",
        example: (
            1,
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7",
        ),
        find: |case| {
            let marks = [
                "unable to find address for",
                "no socket interface found",
                "no interface found",
                "couldn't find interface",
            ];
            case.words(&marks, "the network interface that was named does not exist on this node")
        },
    },
    Rule {
        name: "gloo-address",
        class: Cause,
        evidence: "Gloo's message while the ranks connect: `remote=` is the address that the other rank has given out",
        advice: GLOO_ADDRESS,
        example: (
            1,
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: No route to host, remote=[10.99.0.1]:36232$1",
        ),
        find: gloo_address,
    },
    Rule {
        name: "gloo-connect-timeout",
        class: Waiting,
        evidence: "Gloo's message while the ranks connect",
        advice: GLOO_ADDRESS,
        example: (
            1,
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout [none]",
        ),
        find: |case| {
            let line = case.line(&["connectfullmesh failed"]).filter(|line| line.contains("Connect timeout"))?;
            let cause = "the ranks did not connect in time: packets are dropped on the way to the address on which Gloo of another rank \
                         listens, or that rank hangs";
            Some(case.found(cause, line))
        },
    },
    Rule {
        name: "nccl-own-error",
        class: Cause,
        evidence: "the exception",
        advice: "run with NCCL_DEBUG=WARN: the line before says what the system refused (memory locks: `ulimit -l`; /dev/shm; drivers)",
        example: (
            1,
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        ),
        find: |case| {
            let marks = [
                "ncclsystemerror",
                "ncclunhandledcudaerror",
                "ncclinternalerror",
                "ncclinvalidusage",
                "ncclinvalidargument",
            ];
            let found = case.words(&marks, "NCCL failed on this node")?;
            // The same error is also reported where another rank went away.
            let peer =
                ["connection closed by remote peer", "connection reset by peer", "connection refused", "broken pipe"];
            case.line(&peer).is_none().then_some(found)
        },
    },
];

/// Ranks that cannot connect, because Gloo of one has given out an address to which no way leads from the node of another. A refused
/// connection to a real address is none: a rank that had gone first looks so.
fn gloo_address(case: &Case<'_>) -> Option<Found> {
    let line = case.line(&["connectfullmesh failed", "gloo/transport/tcp/socket.cc"])?;
    let remote = between(line, "remote=[", "]");
    let address: Option<IpAddr> = remote.and_then(|remote| remote.split('%').next()?.parse().ok());
    let loopback = address.filter(|address| address.is_loopback() && case.evidence.nodes > 1);
    let cause = match (loopback, remote) {
        (Some(address), _) => format!(
            "a rank of another node listens on loopback: Gloo gave out its address as {address}, which leads each node to itself"
        ),
        _ if !NO_WAY.iter().any(|words| line.to_lowercase().contains(words)) => return None,
        (None, Some(remote)) => {
            format!("no way leads from this node to {remote}, the address on which Gloo of another rank listens")
        }
        (None, None) => "no way leads from this node to the address on which Gloo of another rank listens".to_owned(),
    };
    Some(case.found(cause, line))
}

// ---- hangs

/// What a rank has noticed whose wait for another has ended at a deadline.
pub(super) const NOT_IN_TIME: &str = "a rank did not take part in a collective in time";

const BEHIND: &str = "see what the named rank does: `py-spy dump --pid PID` or `gdb -p PID`; all ranks must make the same calls in the same order";

pub(super) const HANGS: &[Rule] = &[
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

// ---- consequences

pub(super) const PEERS: &[Rule] = &[
    Rule {
        name: "peer-gone",
        class: PeerGone,
        evidence: "Gloo's, NCCL's or the store's message; the cause is looked for in other ranks: one that failed by itself, one that had \
                   returned with exit code 0, another node's verdict",
        advice: "look at the rank that ended first: its last lines have the cause; the others' nodes print a verdict of their own",
        example: (
            1,
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112",
        ),
        find: |case| {
            let marks = [
                "connection closed by peer",
                "connection reset by peer",
                "connection closed by remote peer",
                "gloo/transport/tcp/pair.cc",
                "broken pipe",
                "connectionreseterror",
                "ncclremoteerror",
                "nccl error",
                "socket timed out",
                "failed to recv, got 0 bytes",
                "failed to send",
                "connection was likely closed",
                "recvvalue failed",
                "no other rank is alive",
                "has exited, was killed, is stopped",
                "remote process has exited",
                "distnetworkerror",
            ];
            case.words(&marks, "it lost a connection: the other end, mostly another rank, had gone first")
        },
    },
    Rule {
        name: "peer-not-there",
        class: PeerGone,
        evidence: "the exception",
        advice: "look at rank 0 and its node: it hosts the store at MASTER_ADDR, or another rank's listener has gone",
        example: (1, "ConnectionRefusedError: [Errno 111] Connection refused"),
        find: |case| case.words(&["connection refused"], "nobody listens where it tried to connect"),
    },
];
