//! Recordings of jobs on two nodes, n1 and n2, that failed: torchrun of PyTorch 2.11 on a `lockstep cluster`, with one fault each.
//! Backtraces are left out, dates too. You do not change this file.

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A node has no launcher.
    NoLauncher,
    /// The launchers belong to different jobs.
    DifferentIds,
    /// A firewall drops what is sent to the port.
    PortBlocked,
    /// The node's name has no address.
    NameUnknown,
    /// Nobody listens on the port.
    NobodyListens,
    /// Another program has the port.
    PortTaken,
    /// The ranks look for each other on the loopback interface.
    Loopback,
}

/// Name and text of each recording: what was started, what the launchers printed, and what a further command showed.
pub const RECORDINGS: [(&str, &str); 7] = [
    (
        "a",
        "\
n1$ torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError
n2$ pgrep -c torchrun
0",
    ),
    (
        "b",
        "\
n1$ torchrun --nnodes=2 --rdzv-id=$RANDOM --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError
n2$ torchrun --nnodes=2 --rdzv-id=$RANDOM --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    (
        "c",
        "\
n1$ torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError
n2$ torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to connect to (n1, 29400).
n2$ timeout 5 bash -c '</dev/tcp/n1/29400'; echo $?
124",
    ),
    (
        "d",
        "\
n2$ torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n9:29400 train.py
The IPv6 network addresses of (n9, 29400) cannot be retrieved (gai error: -3 - Temporary failure in name resolution).
torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to connect to (n9, 29400).",
    ),
    (
        "e",
        "\
n2$ torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n3:29400 train.py
torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to connect to (n3, 29400).
n2$ timeout 5 bash -c '</dev/tcp/n3/29400'; echo $?
bash: connect: Connection refused
1",
    ),
    (
        "f",
        "\
n1$ torchrun --nnodes=2 --node-rank=0 --master-addr=n1 --master-port=29500 train.py
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, \
code: -98, name: EADDRINUSE, message: address already in use",
    ),
    (
        "g",
        "\
n1$ GLOO_SOCKET_IFNAME=lo torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
n2$ GLOO_SOCKET_IFNAME=lo torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 train.py
RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: \
SO_ERROR: Connection refused, remote=[127.0.0.1]:19337$0",
    ),
];
