//! The meaning of a failed worker's last lines: known texts, each with advice.

/// The meaning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// What happened.
    pub what: &'static str,
    /// What to do.
    pub advice: &'static str,
}

/// A text is recognised by any of its marks, ignoring case.
struct Known {
    marks: &'static [&'static str],
    hint: Hint,
}

/// More specific texts first: others are often only their consequence.
const KNOWN: &[Known] = &[
    Known {
        marks: &["cannot spawn under a launcher"],
        hint: Hint {
            what: "the program starts its own workers, and was itself started by the launcher",
            advice: "start it without `lockstep run`, or remove the spawning and read RANK and LOCAL_RANK from the environment",
        },
    },
    Known {
        marks: &["cuda out of memory", "outofmemoryerror", "cublas_status_alloc_failed", "cudaerrormemoryallocation"],
        hint: Hint {
            what: "the GPU's memory is used up",
            advice: "lower the batch size, and see with `nvidia-smi` whether another process or a second rank is on the same GPU \
                     (each rank must take the device of its LOCAL_RANK)",
        },
    },
    Known {
        marks: &["invalid device ordinal"],
        hint: Hint {
            what: "the worker asked for a GPU that this node does not have",
            advice: "use LOCAL_RANK, not RANK, as the device's number, and no more workers than GPUs (--nproc-per-node=gpu)",
        },
    },
    Known {
        marks: &["modulenotfounderror", "no module named"],
        hint: Hint {
            what: "Python does not find a module",
            advice: "activate the environment that has it on every node, or name its interpreter in PYTHON_EXEC",
        },
    },
    Known {
        marks: &["error while loading shared libraries", "cannot open shared object file"],
        hint: Hint {
            what: "the program does not find a shared library",
            advice: "run the set-up on this node too, or check LD_LIBRARY_PATH there; `ldd PROGRAM` names what is missing",
        },
    },
    Known {
        marks: &["address already in use", "eaddrinuse"],
        hint: Hint {
            what: "the worker tried to listen on a port that is taken, usually MASTER_PORT",
            advice: "the launcher hosts the store already: a worker must not host one itself. A script that spawns its own workers \
                     (mp.spawn) does so once for each rank: run it without `lockstep run`, or take the spawning out",
        },
    },
    Known {
        marks: &["rendezvoustimeouterror", "rendezvousconnectionerror"],
        hint: Hint {
            what: "a launcher inside the worker waited for other nodes that never came",
            advice: "start torchrun or `lockstep run` once for each node, never one inside the other",
        },
    },
    // Before the next: when a rank gives up, the other ranks report closed connections.
    Known {
        marks: &[
            "for recv operation to complete",
            "for send operation to complete",
            "application timeout caused pair closure",
        ],
        hint: Hint {
            what: "a rank waited for a message that never came (Gloo): ranks may be waiting for each other",
            advice: "compare what all ranks' last lines say about who waits for whom: ranks that wait in a circle never go on, and a \
                     chain ends at the rank that is slow, dead or in another call",
        },
    },
    Known {
        marks: &["connection closed by peer", "connection reset by peer", "gloo/transport/tcp/pair.cc"],
        hint: Hint {
            what: "another rank went away in the middle of a collective (Gloo)",
            advice: "look at the rank that ended first: its last lines hold the cause",
        },
    },
    Known {
        marks: &["ncclremoteerror", "ncclsystemerror", "ncclunhandledcudaerror", "nccl error", "socket timed out"],
        hint: Hint {
            what: "NCCL lost, or never reached, another rank",
            advice: "look at the rank that ended first; if none did, run with NCCL_DEBUG=INFO and name the network with \
                     NCCL_SOCKET_IFNAME",
        },
    },
    Known {
        marks: &["watchdog caught collective operation timeout", "timed out waiting for clients"],
        hint: Hint {
            what: "some rank did not take part in a collective in time",
            advice: "see which rank is behind: all must make the same calls in the same order",
        },
    },
    Known {
        marks: &["no space left on device"],
        hint: Hint { what: "a disk is full", advice: "`df -h` shows which; logs and snapshots are written there" },
    },
];

/// The meaning of a failed worker's last lines, if known. If two texts match, the more specific one counts.
#[must_use]
pub fn tail_hint<L: AsRef<str>>(lines: &[L]) -> Option<Hint> {
    let lower: Vec<String> = lines.iter().map(|line| line.as_ref().to_lowercase()).collect();
    let has = |known: &&Known| known.marks.iter().any(|mark| lower.iter().any(|line| line.contains(mark)));
    KNOWN.iter().find(has).map(|known| known.hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_the_output_of_real_programs() {
        let cases = [
            ("Error: cannot spawn under a launcher (RANK, WORLD_SIZE): it has started", "starts its own workers"),
            (
                "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
                "port that is taken",
            ),
            ("OSError: [Errno 98] Address already in use", "port that is taken"),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory is used up"),
            ("ModuleNotFoundError: No module named 'torch'", "does not find a module"),
            (
                "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
                "waited for other nodes that never came",
            ),
            (
                "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
                "in the middle of a collective",
            ),
            (
                "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:40112: Broken pipe",
                "in the middle of a collective",
            ),
            (
                "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete",
                "may be waiting for each other",
            ),
            (
                "[../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send operation to complete",
                "may be waiting for each other",
            ),
            ("ncclRemoteError: A call failed possibly due to a network error", "NCCL lost"),
            ("./lab: error while loading shared libraries: libtorch.so: cannot open", "shared library"),
            ("RuntimeError: CUDA error: invalid device ordinal", "does not have"),
        ];
        for (line, what) in cases {
            let hint = tail_hint(&["epoch 3", line, ""]).unwrap_or_else(|| panic!("{line}"));
            assert!(hint.what.contains(what), "{line}: {}", hint.what);
        }
    }

    #[test]
    fn prefers_the_cause_to_its_consequence_and_ignores_unknown_texts() {
        let both = ["Connection closed by peer", "CUDA out of memory"];
        assert!(tail_hint(&both).unwrap().what.contains("memory"));
        let first_and_second = [
            "rank 0: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer",
            "rank 1: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 300ms for recv operation to complete",
        ];
        assert!(tail_hint(&first_and_second).unwrap().what.contains("waited for a message that never came"));
        assert_eq!(tail_hint(&["[../gloo/transport/tcp/device.cc:31] listening"]), None);
        assert_eq!(tail_hint(&["all is well"]), None);
        assert_eq!(tail_hint::<&str>(&[]), None);
    }
}
