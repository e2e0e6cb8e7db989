//! GPUs, by the words of CUDA, NCCL and PyTorch, and by the driver's Xid in the kernel's log.

use super::rules::Class::Cause;
use super::rules::{Rule, between};
use super::worker_end::Found;

pub(super) const GPU: &[Rule] = &[
    Rule {
        name: "gpu-xid",
        class: Cause,
        evidence: "the NVIDIA driver's line in the kernel's log, together with a CUDA or NCCL error of the worker",
        advice: "look the Xid up in NVIDIA's list; 48, 63, 64, 74, 79, 94 and 95 are hardware: take the node out and tell its operator",
        example: (1, ""),
        find: |case| {
            let line = case.evidence.kernel_log.iter().rev().find(|line| line.contains("NVRM: Xid"))?;
            let said = case.line(&["cuda error", "nccl error", "cublas_status", "cudnn_status", "uncorrectable"])?;
            let number = line.split("): ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("?");
            let found = Found::new(format!("the GPU reported Xid {number}"), format!("the kernel's log, \"{line}\""));
            Some(found.and(Some(said)))
        },
    },
    Rule {
        name: "gpu-out-of-memory",
        class: Cause,
        evidence: "the exception",
        advice: "lower the batch size, and see with `nvidia-smi` whether another process or a second rank is on the same GPU \
                 (each rank must take the device of its LOCAL_RANK)",
        example: (
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        ),
        find: |case| {
            let marks = [
                "cuda out of memory",
                "outofmemoryerror",
                "cublas_status_alloc_failed",
                "cudaerrormemoryallocation",
                "hip out of memory",
                "failed to cuda calloc",
                "cuda failure 2 'out of memory'",
            ];
            let line = case.line(&marks)?;
            let wanted =
                between(line, "Tried to allocate ", ".  ").or_else(|| between(line, "Tried to allocate ", ". "));
            let wanted = wanted.map(|wanted| format!(": {wanted} more do not fit")).unwrap_or_default();
            Some(case.found(format!("the GPU's memory is used up{wanted}"), line))
        },
    },
    Rule {
        name: "gpu-not-there",
        class: Cause,
        evidence: "the exception",
        advice: "use LOCAL_RANK, not RANK, as the device's number, and no more workers than GPUs (--nproc-per-node=gpu)",
        example: (1, "RuntimeError: CUDA error: invalid device ordinal"),
        find: |case| case.words(&["invalid device ordinal"], "the worker asked for a GPU that this node does not have"),
    },
    Rule {
        name: "gpu-shared-by-ranks",
        class: Cause,
        evidence: "NCCL's message",
        advice: "call torch.cuda.set_device(LOCAL_RANK) before anything else uses the GPU",
        example: (
            1,
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
        find: |case| case.words(&["duplicate gpu detected"], "two ranks use the same GPU"),
    },
    Rule {
        name: "gpu-driver-too-old",
        class: Cause,
        evidence: "the exception",
        advice: "install a newer NVIDIA driver on this node, or a PyTorch for its CUDA version (`nvidia-smi` shows it)",
        example: (1, "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"),
        find: |case| {
            let marks = ["nvidia driver on your system is too old", "driver version is insufficient"];
            case.words(&marks, "the NVIDIA driver of this node is too old for this CUDA")
        },
    },
    Rule {
        name: "gpu-invisible",
        class: Cause,
        evidence: "the exception",
        advice: "`nvidia-smi` on this node; then CUDA_VISIBLE_DEVICES, the scheduler's request for GPUs (--gpus), the container's --nv",
        example: (1, "RuntimeError: No CUDA GPUs are available"),
        find: |case| {
            let marks = [
                "no cuda gpus are available",
                "no cuda-capable device",
                "found no nvidia driver",
                "cuda driver initialization failed",
                "libcuda.so.1: cannot",
                "torch not compiled with cuda enabled",
            ];
            case.words(&marks, "the worker sees no GPU")
        },
    },
    Rule {
        name: "gpu-too-new-or-old",
        class: Cause,
        evidence: "the exception",
        advice: "install a PyTorch, or rebuild the kernels (TORCH_CUDA_ARCH_LIST), for this GPU's compute capability",
        example: (1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        find: |case| case.words(&["no kernel image is available"], "the GPU code was not built for this kind of GPU"),
    },
    Rule {
        name: "gpu-memory-defect",
        class: Cause,
        evidence: "the exception",
        advice: "take the node out and tell its operator: `nvidia-smi -q -d ECC` shows the defect",
        example: (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        find: |case| case.words(&["uncorrectable ecc error"], "the GPU's memory is defective"),
    },
    Rule {
        name: "gpu-assertion",
        class: Cause,
        evidence: "the exception",
        advice: "mostly an index out of range (a label, a token): run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line",
        example: (1, "RuntimeError: CUDA error: device-side assert triggered"),
        find: |case| case.words(&["device-side assert triggered"], "an assertion failed in a GPU kernel"),
    },
    Rule {
        name: "gpu-wild-access",
        class: Cause,
        evidence: "the exception",
        advice: "run with CUDA_LAUNCH_BLOCKING=1 to see the call, or under compute-sanitizer; if it moves from node to node, it is the program",
        example: (1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        find: |case| {
            let marks =
                ["an illegal memory access was encountered", "unspecified launch failure", "misaligned address"];
            case.words(&marks, "a GPU kernel accessed memory that is not its own")
        },
    },
];
