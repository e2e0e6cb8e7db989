//! Consequences: what ranks say when another one has gone.

use super::Class::PeerGone;
use super::Rule;

pub(super) const RULES: &[Rule] = &[
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
