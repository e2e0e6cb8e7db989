//! The network: ports, names, interfaces, NCCL.

use super::Class::Cause;
use super::Rule;

pub(super) const RULES: &[Rule] = &[
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
