//! Rules on communication: ports, names, interfaces and NCCL; hangs, where the rank that reports one is rarely the one at fault;
//! and what ranks print when another one has ended.

use std::net::IpAddr;
use std::path::Path;

use lockstep_contract::rules::Rule;
use lockstep_process::NoProgress;

use super::flight_recorder::Recording;
use super::rules::Class::{PeerGone, Waiting};
use super::rules::{Causes, RULE, WorkerFinding, between, ended, number_after};
use super::worker_end::WorkerEnd;
use super::{Recordings, Standing};

const GLOO_ADDRESS: &str = "`getent hosts $(hostname)` on each node: Gloo listens on the address of the host name, so correct /etc/hosts, or set \
                            GLOO_SOCKET_IFNAME on each node to the interface that the other nodes reach (`ip -brief address`); a firewall must \
                            let all TCP pass between the nodes; `lockstep doctor` in the job checks them";

/// The system's errors for an address that cannot be reached, in lowercase.
const NO_WAY: [&str; 4] = ["no route to host", "network is unreachable", "host is down", "connection timed out"];

pub(super) const NETWORK: &[Rule<Causes>] = &[
    Rule {
        name: "port-in-use",
        source: "the exception, and the kernel's table of sockets: who has the port",
        fix: "the launcher hosts the store already: a worker must not host one itself. A script that spawns its own workers \
                 (mp.spawn) does so once for each rank: run it without `lockstep run`, or take the spawning out",
        wrong: ended(1, "OSError: [Errno 98] Address already in use"),
        right: ended(1, "OSError: [Errno 99] Cannot assign requested address"),
        find: |worker| {
            let line = worker.line(&["address already in use", "eaddrinuse"])?;
            let owner = worker.evidence.port_owner.as_ref();
            let cause = owner.map_or_else(|| "it tried to listen on a port that is taken".to_owned(), Clone::clone);
            Some(worker.found(cause, line))
        },
        ..RULE
    },
    Rule {
        name: "name-unknown",
        source: "the exception",
        fix: "`getent hosts NAME` on this node; use an address instead of the name if the site has no name service",
        wrong: ended(1, "socket.gaierror: [Errno -2] Name or service not known"),
        right: ended(1, "ConnectionRefusedError: [Errno 111] Connection refused"),
        find: |worker| {
            let marks = [
                "name or service not known",
                "temporary failure in name resolution",
                "nodename nor servname",
                "no address associated with hostname",
            ];
            worker.words(&marks, "a host's name has no address on this node")
        },
        ..RULE
    },
    Rule {
        name: "interface-missing",
        source: "Gloo's or NCCL's message",
        fix: "`ip -brief address` lists the interfaces; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one that this node has",
        wrong: ended(
            1,
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7",
        ),
        right: ended(1, "RuntimeError: no address for: eth7"),
        find: |worker| {
            let marks = [
                "unable to find address for",
                "no socket interface found",
                "no interface found",
                "couldn't find interface",
            ];
            worker.words(&marks, "the network interface that was named does not exist on this node")
        },
        ..RULE
    },
    Rule {
        name: "gloo-address",
        source: "Gloo's message while the ranks connect: `remote=` is the address that the other rank has given out",
        fix: GLOO_ADDRESS,
        wrong: ended(
            1,
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: No route to host, remote=[10.99.0.1]:36232$1",
        ),
        right: ended(
            1,
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112",
        ),
        find: gloo_address,
        ..RULE
    },
    Rule {
        name: "gloo-connect-timeout",
        level: Waiting,
        source: "Gloo's message while the ranks connect",
        fix: GLOO_ADDRESS,
        wrong: ended(
            1,
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout [none]",
        ),
        right: ended(
            1,
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: No route to host, remote=[10.99.0.1]:36232$1",
        ),
        find: |worker| {
            let line = worker.line(&["connectfullmesh failed"]).filter(|line| line.contains("Connect timeout"))?;
            let cause = "the ranks did not connect in time: packets are dropped on the way to the address on which Gloo of another rank \
                         listens, or that rank hangs";
            Some(worker.found(cause, line))
        },
        ..RULE
    },
    Rule {
        name: "store-unreachable",
        level: Waiting,
        source: "the store's client: the address to which it tried to connect",
        fix: "rank 0's node hosts the store: is it the one that MASTER_ADDR names, does the name resolve here (`getent hosts NAME`), does the \
              port answer (`timeout 5 bash -c '</dev/tcp/NAME/PORT'`)?",
        wrong: ended(
            1,
            "torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while trying to connect to (n1, 29500).",
        ),
        right: ended(1, "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//cpu//0/1"),
        find: |worker| {
            let line = worker.line(&["client socket has timed out"])?;
            let (host, port) = between(line, "connect to (", ")")?.rsplit_once(", ")?;
            let millis =
                number_after(line, "timed out after ").map(|millis| format!(" ({millis} ms)")).unwrap_or_default();
            Some(worker.found(format!("no store answered at {host}:{port} in time{millis}"), line))
        },
        ..RULE
    },
    Rule {
        name: "nccl-own-error",
        source: "the exception",
        fix: "run with NCCL_DEBUG=WARN: the line before says what the system refused (memory locks: `ulimit -l`; /dev/shm; drivers)",
        wrong: ended(
            1,
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        ),
        right: ended(
            1,
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ),
        find: |worker| {
            let marks = [
                "ncclsystemerror",
                "ncclunhandledcudaerror",
                "ncclinternalerror",
                "ncclinvalidusage",
                "ncclinvalidargument",
            ];
            let found = worker.words(&marks, "NCCL failed on this node")?;
            // The same error is also reported where another rank went away.
            let peer =
                ["connection closed by remote peer", "connection reset by peer", "connection refused", "broken pipe"];
            worker.line(&peer).is_none().then_some(found)
        },
        ..RULE
    },
];

/// Ranks that cannot connect, because one rank's Gloo has published an address that another rank's node cannot reach. A
/// refused connection to a real address does not count: a rank that ended earlier looks the same.
fn gloo_address(worker: &WorkerEnd<'_>) -> Option<WorkerFinding> {
    let line = worker.line(&["connectfullmesh failed", "gloo/transport/tcp/socket.cc"])?;
    let remote = between(line, "remote=[", "]");
    let address: Option<IpAddr> = remote.and_then(|remote| remote.split('%').next()?.parse().ok());
    let loopback = address.filter(|address| address.is_loopback() && worker.evidence.nodes > 1);
    let cause = match (loopback, remote) {
        (Some(address), _) => format!(
            "a rank of another node listens on loopback: Gloo gave out its address as {address}, which leads each node to itself"
        ),
        _ if !NO_WAY.iter().any(|words| line.to_lowercase().contains(words)) => return None,
        (None, Some(remote)) => {
            format!("this node cannot reach {remote}, the address on which Gloo of another rank listens")
        }
        (None, None) => "this node cannot reach the address on which Gloo of another rank listens".to_owned(),
    };
    Some(worker.found(cause, line))
}

// ---- hangs

/// What a rank has noticed if its wait for another has ended at a deadline.
pub(super) const NOT_IN_TIME: &str = "a rank did not take part in a collective in time";

const BEHIND: &str = "see what the named rank does: `py-spy dump --pid PID` or `gdb -p PID`; all ranks must make the same calls in the same order";

/// What Gloo prints when another rank has not sent in time.
const TIMED_OUT: &str =
    "RuntimeError: [x/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete";

pub(super) const HANGS: &[Rule<Causes>] = &[
    Rule {
        name: "calls-differ",
        level: Waiting,
        source: "PyTorch's check of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL), or this project's desync report: the ranks' calls",
        fix: "all ranks must make the same calls in the same order, with the same shapes: compare the code paths of the two ranks",
        wrong: ended(
            1,
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST).",
        ),
        right: ended(1, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"),
        find: |worker| {
            let line = worker.line(&["detected mismatch between collectives"])?;
            let other = line.rsplit_once("but Rank ").and_then(|(_, rest)| number_after(rest, ""));
            let call = between(line, "but Rank ", ")").and_then(|rest| rest.split("OpType=").nth(1));
            let call = call.and_then(|call| call.split(", TensorDtypes=").next()).unwrap_or("another call");
            let names = other.map(|rank| rank as usize);
            let text = names.map_or_else(String::new, |rank| format!(": rank {rank} is in {call}"));
            Some(worker.found(format!("the ranks' calls differ{text}"), line).at(names))
        },
        ..RULE
    },
    Rule {
        name: "sizes-differ",
        level: Waiting,
        source: "Gloo's message on a receipt: the bytes that came, and those for which there is room",
        fix: "all ranks must make the same calls in the same order, with the same shapes: TORCH_DISTRIBUTED_DEBUG=DETAIL names a rank that does not",
        wrong: ended(
            -6,
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 699052 vs 349528. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        ),
        right: ended(
            1,
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112",
        ),
        find: |worker| {
            let line = worker.line(&["op.preamble.length <= op.nbytes"])?;
            let (sent, room) = line.split_once("op.nbytes. ")?.1.split_once(" vs ")?;
            let room = room.split(|c: char| !c.is_ascii_digit()).next().filter(|room| !room.is_empty())?;
            let cause =
                format!("another rank sent {sent} bytes where this one had room for {room}: their calls differ");
            Some(worker.found(cause, line))
        },
        ..RULE
    },
    Rule {
        name: "rank-not-in-barrier",
        level: Waiting,
        source: "monitored_barrier's message, which names the rank",
        fix: BEHIND,
        wrong: ended(1, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"),
        right: ended(1, TIMED_OUT),
        find: |worker| {
            let line = worker.line(&["failed to pass monitoredbarrier"])?;
            let before = line.split(" failed to pass").next().unwrap_or_default();
            let named = before.rsplit("Rank").next().and_then(|text| number_after(text, " "));
            let millis = number_after(line, "monitoredBarrier in ")
                .map(|millis| format!(" for {millis} ms"))
                .unwrap_or_default();
            let rank = named? as usize;
            Some(worker.found(format!("rank {rank} did not come to a barrier{millis}"), line).at(Some(rank)))
        },
        ..RULE
    },
    Rule {
        name: "rank-not-in-collective",
        level: Waiting,
        source: "this project's desync report: where each rank was when the deadline passed",
        fix: BEHIND,
        wrong: ended(
            1,
            "error: training failed\n  caused by: all_reduce [4] on rank 0 timed out after 1.00 s: rank 2 was outside any collective, after 3 finished calls; this rank was in call 4, all_reduce of [4]",
        ),
        right: ended(
            1,
            "error: training failed\n  caused by: all_reduce [4] on rank 0 failed: the tensor is on another device",
        ),
        find: desync,
        ..RULE
    },
    Rule {
        name: "collective-timed-out",
        level: Waiting,
        source: "the NCCL watchdog's lines, Gloo's, or the store's: which call, of which size, for how long",
        fix: "compare what the ranks' last lines say about who waits for whom: ranks that wait in a circle never continue, and a chain \
                 ends at the rank that is slow, dead or in another call; under NCCL, TORCH_FR_BUFFER_SIZE=2000 and \
                 TORCH_NCCL_DUMP_ON_TIMEOUT=1 show the last calls of each rank",
        wrong: ended(
            -6,
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600070 milliseconds before timing out.",
        ),
        right: ended(1, "RuntimeError: Connection closed by peer [127.0.0.1]:40112"),
        find: |worker| {
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
            let line = worker.line(&marks)?;
            Some(worker.found(format!("{NOT_IN_TIME}{}", call(line)), line))
        },
        ..RULE
    },
    Rule {
        name: "rank-astray",
        source: "PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE; files at TORCH_FR_DUMP_TEMP_FILE): the last calls of each rank. NCCL's \
                   watchdog writes the files",
        fix: BEHIND,
        wrong: ended(1, TIMED_OUT).with(|_, evidence| evidence.recordings = behind_the_others()),
        right: ended(1, TIMED_OUT),
        find: |_| None,
        ..RULE
    },
    Rule {
        name: "rank-cannot-be-killed",
        source: "`/proc/PID/stat` has state D after SIGKILL, or for longer than TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; its wait channel and the file of its system call",
        fix: "the device or file server that it waits for does not answer: `cat /proc/PID/stack` as root, `dmesg`; the node may need a restart",
        wrong: ended(1, TIMED_OUT).with(|_, evidence| evidence.standing = vec![standing('D')]),
        right: ended(1, TIMED_OUT).with(|_, evidence| evidence.standing = vec![standing('T')]),
        find: |_| None,
        ..RULE
    },
    Rule {
        name: "rank-stopped",
        source: "`/proc/PID/stat` has state T or t at the first failure; `/proc/PID/status` names the tracer",
        fix: "`kill -CONT PID`, or detach the debugger",
        wrong: ended(1, TIMED_OUT).with(|_, evidence| evidence.standing = vec![standing('T')]),
        right: ended(1, TIMED_OUT).with(|_, evidence| evidence.standing = vec![standing('D')]),
        find: |_| None,
        ..RULE
    },
    Rule {
        name: "rank-returned-early",
        source: "exit code 0, before another rank lost its connection or timed out",
        fix: "all ranks must make the same number of steps: uneven data needs padding, drop_last, or DDP's join",
        wrong: ended(1, TIMED_OUT).with(|_, evidence| evidence.returned = vec![2]),
        right: ended(1, TIMED_OUT),
        find: |_| None,
        ..RULE
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
fn desync(worker: &WorkerEnd<'_>) -> Option<WorkerFinding> {
    let line = worker.line(&["this rank was in "])?;
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
    Some(worker.found(cause, line).at(Some(rank)))
}

// ---- consequences

pub(super) const PEERS: &[Rule<Causes>] = &[
    Rule {
        name: "peer-gone",
        level: PeerGone,
        source: "Gloo's, NCCL's or the store's message; the cause is looked for in other ranks: one that failed by itself, one that had \
                   returned with exit code 0, another node's verdict",
        fix: "look at the rank that ended first: its last lines have the cause; the others' nodes print a verdict of their own",
        wrong: ended(
            1,
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112",
        ),
        right: ended(1, "ConnectionRefusedError: [Errno 111] Connection refused"),
        find: |worker| {
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
            worker.words(&marks, "it lost a connection: the other end, usually another rank, had ended first")
        },
        ..RULE
    },
    Rule {
        name: "peer-not-there",
        level: PeerGone,
        source: "the exception",
        fix: "look at rank 0 and its node: it hosts the store at MASTER_ADDR, or another rank's listener has ended",
        wrong: ended(1, "ConnectionRefusedError: [Errno 111] Connection refused"),
        right: ended(1, "ConnectionAbortedError: [Errno 103] Software caused connection abort"),
        find: |worker| {
            worker.words(&["connection refused"], "no process listens at the address to which it tried to connect")
        },
        ..RULE
    },
];

/// For examples: rank 2 in this state of proc_pid_stat(5).
fn standing(state: char) -> Standing {
    Standing { rank: 2, pid: 7, at: NoProgress { state, wait_channel: None, file: None, tracer: None } }
}

/// For examples: recordings in which rank 2 did not come to the last call.
fn behind_the_others() -> Recordings {
    let call = |number: u32| {
        format!(
            r#"{{"collective_seq_id":{number},"process_group":["0","default_pg"],"profiling_name":"nccl:all_reduce"}}"#
        )
    };
    let recording = |calls: &[u32]| {
        let calls: Vec<String> = calls.iter().map(|number| call(*number)).collect();
        Recording::parse(format!(r#"{{"entries":[{}]}}"#, calls.join(",")).as_bytes(), Path::new("/tmp/recording"))
    };
    let ranks = [(0, &[1, 2][..]), (1, &[1, 2]), (2, &[1])];
    ranks.into_iter().filter_map(|(rank, calls)| Some((rank, recording(calls)?))).collect()
}
