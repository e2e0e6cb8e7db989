//! GPUs, by the words of CUDA, NCCL and PyTorch, and by the driver's Xid in the kernel's log.

use lockstep_contract::rules::{Finding, Rule};

use super::rules::{Causes, RULE, between, ended};

/// A line of the NVIDIA driver.
const XID: &str = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7134, GPU has fallen off the bus.";

pub(super) const GPU: &[Rule<Causes>] = &[
    Rule {
        name: "gpu-xid",
        source: "the NVIDIA driver's line in the kernel's log, together with a CUDA or NCCL error of the worker",
        fix: "look the Xid up in NVIDIA's list; 48, 63, 64, 74, 79, 94 and 95 are hardware: take the node out and tell its operator",
        wrong: ended(1, "RuntimeError: CUDA error: unspecified launch failure")
            .with(|_, evidence| evidence.kernel_log = vec![XID.into()]),
        right: ended(1, "ValueError: no").with(|_, evidence| evidence.kernel_log = vec![XID.into()]),
        find: |worker| {
            let line = worker.evidence.kernel_log.iter().rev().find(|line| line.contains("NVRM: Xid"))?;
            let said = worker.line(&["cuda error", "nccl error", "cublas_status", "cudnn_status", "uncorrectable"])?;
            let number = line.split("): ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("?");
            let found = Finding::new(format!("the GPU reported Xid {number}"), format!("the kernel's log, \"{line}\""));
            Some(found.and(Some(said)))
        },
        ..RULE
    },
    Rule {
        name: "gpu-out-of-memory",
        source: "the exception",
        fix: "lower the batch size, and see with `nvidia-smi` whether another process or a second rank is on the same GPU \
                 (each rank must take the device of its LOCAL_RANK)",
        wrong: ended(
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        ),
        right: ended(1, "MemoryError"),
        find: |worker| {
            let marks = [
                "cuda out of memory",
                "outofmemoryerror",
                "cublas_status_alloc_failed",
                "cudaerrormemoryallocation",
                "hip out of memory",
                "failed to cuda calloc",
                "cuda failure 2 'out of memory'",
            ];
            let line = worker.line(&marks)?;
            let wanted =
                between(line, "Tried to allocate ", ".  ").or_else(|| between(line, "Tried to allocate ", ". "));
            let wanted = wanted.map(|wanted| format!(": {wanted} more do not fit")).unwrap_or_default();
            Some(worker.found(format!("the GPU's memory is used up{wanted}"), line))
        },
        ..RULE
    },
    Rule {
        name: "gpu-not-there",
        source: "the exception",
        fix: "use LOCAL_RANK, not RANK, as the device's number, and no more workers than GPUs (--nproc-per-node=gpu)",
        wrong: ended(1, "RuntimeError: CUDA error: invalid device ordinal"),
        right: ended(1, "RuntimeError: CUDA error: device-side assert triggered"),
        find: |worker| {
            worker.words(&["invalid device ordinal"], "the worker asked for a GPU that this node does not have")
        },
        ..RULE
    },
    Rule {
        name: "gpu-shared-by-ranks",
        source: "NCCL's message",
        fix: "call torch.cuda.set_device(LOCAL_RANK) before anything else uses the GPU",
        wrong: ended(
            1,
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
        right: ended(1, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
        find: |worker| worker.words(&["duplicate gpu detected"], "two ranks use the same GPU"),
        ..RULE
    },
    Rule {
        name: "gpu-driver-too-old",
        source: "the exception",
        fix: "install a newer NVIDIA driver on this node, or a PyTorch for its CUDA version (`nvidia-smi` shows it)",
        wrong: ended(1, "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"),
        right: ended(1, "RuntimeError: No CUDA GPUs are available"),
        find: |worker| {
            let marks = ["nvidia driver on your system is too old", "driver version is insufficient"];
            worker.words(&marks, "the NVIDIA driver of this node is too old for this CUDA")
        },
        ..RULE
    },
    Rule {
        name: "gpu-invisible",
        source: "the exception",
        fix: "`nvidia-smi` on this node; then CUDA_VISIBLE_DEVICES, the scheduler's request for GPUs (--gpus), the container's --nv",
        wrong: ended(1, "RuntimeError: No CUDA GPUs are available"),
        right: ended(1, "RuntimeError: CUDA error: invalid device ordinal"),
        find: |worker| {
            let marks = [
                "no cuda gpus are available",
                "no cuda-capable device",
                "found no nvidia driver",
                "cuda driver initialization failed",
                "libcuda.so.1: cannot",
                "torch not compiled with cuda enabled",
                "only supported with gpus, no gpus found", // ProcessGroupNCCL of PyTorch 2.11
                "requires at least one cuda device",       // the same in 2.15
            ];
            worker.words(&marks, "the worker sees no GPU")
        },
        ..RULE
    },
    Rule {
        name: "gpu-too-new-or-old",
        source: "the exception",
        fix: "install a PyTorch, or rebuild the kernels (TORCH_CUDA_ARCH_LIST), for this GPU's compute capability",
        wrong: ended(1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        right: ended(1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        find: |worker| {
            worker.words(&["no kernel image is available"], "the GPU code was not built for this kind of GPU")
        },
        ..RULE
    },
    Rule {
        name: "gpu-memory-defect",
        source: "the exception",
        fix: "take the node out and tell its operator: `nvidia-smi -q -d ECC` shows the defect",
        wrong: ended(1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        right: ended(1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        find: |worker| worker.words(&["uncorrectable ecc error"], "the GPU's memory is defective"),
        ..RULE
    },
    Rule {
        name: "gpu-assertion",
        source: "the exception",
        fix: "mostly an index out of range (a label, a token): run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line",
        wrong: ended(1, "RuntimeError: CUDA error: device-side assert triggered"),
        right: ended(1, "AssertionError: the loss is NaN"),
        find: |worker| worker.words(&["device-side assert triggered"], "an assertion failed in a GPU kernel"),
        ..RULE
    },
    Rule {
        name: "gpu-wild-access",
        source: "the exception",
        fix: "run with CUDA_LAUNCH_BLOCKING=1 to see the call, or under compute-sanitizer; if it moves from node to node, it is the program",
        wrong: ended(1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        right: ended(-11, ""),
        find: |worker| {
            let marks =
                ["an illegal memory access was encountered", "unspecified launch failure", "misaligned address"];
            worker.words(&marks, "a GPU kernel accessed memory that is not its own")
        },
        ..RULE
    },
];
