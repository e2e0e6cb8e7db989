//! The network: ports, names, interfaces, NCCL.

use std::net::IpAddr;

use super::super::case::{Case, Found};
use super::Class::{Cause, Waiting};
use super::{Rule, between};

const GLOO_ADDRESS: &str = "`getent hosts $(hostname)` on each node: Gloo listens on the address of the host name, so correct /etc/hosts, or set \
                            GLOO_SOCKET_IFNAME on each node to the interface that the other nodes reach (`ip -brief address`); a firewall must \
                            let all TCP pass between the nodes; `lockstep doctor` in the job checks them";

/// What the system says of an address to which no way leads, in small letters.
const NO_WAY: [&str; 4] = ["no route to host", "network is unreachable", "host is down", "connection timed out"];

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
