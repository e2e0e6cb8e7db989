//! Chooses the device of a rank, before anything touches it.
//!
//! `LOCKSTEP_DETERMINISTIC=1` selects deterministic kernels, for runs that are compared bit by bit. On the CPU libtorch's kernels for
//! the labs are deterministic anyway. On a GPU some add in the order in which threads arrive.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use lockstep_contract::{CUBLAS_WORKSPACE, DETERMINISTIC};
use serde::{Deserialize, Serialize};
use tch::{Cuda, Device};

use crate::exit::UsageError;
use crate::{LocalRank, WorldSize};

/// The value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// GPUs if this machine has one for each local rank and libtorch can use them, else the CPU: never some of both.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of the local rank's number; an error where there is none.
    Cuda,
}

impl DeviceChoice {
    /// The device of one rank of a node: every local rank has its own GPU. CUDA's libraries are loaded only if a GPU is
    /// requested, or present with `auto`. With `LOCKSTEP_DETERMINISTIC=1`, kernels are deterministic from now on.
    ///
    /// Errors: with `cuda`: there is no usable GPU, or there are fewer GPUs than local ranks. On a GPU, deterministic kernels also need
    /// `CUBLAS_WORKSPACE_CONFIG`.
    pub fn pick(self, local_rank: LocalRank, local_world: WorldSize) -> anyhow::Result<Device> {
        let device = match self {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Auto if !driver_is_loaded() => Device::Cpu,
            // A machine with a GPU may still have the CPU build of libtorch.
            DeviceChoice::Auto => cuda(local_rank, local_world).unwrap_or(Device::Cpu),
            DeviceChoice::Cuda => {
                cuda(local_rank, local_world).context("cannot train on a GPU (--device cpu trains without one)")?
            }
        };
        from_env(device)?;
        Ok(device)
    }

    /// Refuses `--device cuda` when the group carries tensors of another device. Otherwise a program that measures or shows
    /// messages would do so on the CPU and call it a GPU. (A program that trains may well send a GPU's gradients through host
    /// memory.)
    ///
    /// Fails when a GPU was requested by name and the group's device is not one.
    pub fn agree_with(self, group: Device) -> Result<(), UsageError> {
        if self != DeviceChoice::Cuda || matches!(group, Device::Cuda(_)) {
            return Ok(());
        }
        Err(UsageError(
            "--device cuda: this program was built without NCCL, and Gloo's messages go through the CPU: build it \
             again after scripts/setup.sh --cuda, or leave --device out"
                .into(),
        ))
    }
}

/// Returns true if this machine has NVIDIA's kernel driver, without loading any library.
fn driver_is_loaded() -> bool {
    Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/nvidiactl").exists()
}

fn cuda(local_rank: LocalRank, local_world: WorldSize) -> anyhow::Result<Device> {
    c10d::cuda::load()?;
    anyhow::ensure!(Cuda::is_available(), "libtorch finds no CUDA device (does nvidia-smi list one?)");
    let there = usize::try_from(Cuda::device_count()).unwrap_or(0);
    anyhow::ensure!(
        local_world.get() <= there,
        "{local_world} local ranks need a GPU each, and this machine shows {there}: start {there} ranks a node"
    );
    Ok(Device::Cuda(local_rank.get()))
}

/// Does what the variable says, for the whole process. Call it before the first kernel.
///
/// Errors: [`UsageError`] for a variable that cannot be understood, and on a GPU without the variable that cuBLAS needs. libtorch's errors.
pub(crate) fn from_env(device: Device) -> anyhow::Result<()> {
    let value = |name: &str| std::env::var(name).unwrap_or_default();
    if is_asked(&value(DETERMINISTIC), &value(CUBLAS_WORKSPACE.0), device)? {
        c10d::use_deterministic_algorithms(true)?;
    }
    Ok(())
}

fn is_asked(asked: &str, workspace: &str, device: Device) -> Result<bool, UsageError> {
    let (name, good) = CUBLAS_WORKSPACE;
    match (asked, device) {
        ("" | "0", _) => Ok(false),
        // Those that cuBLAS documents as deterministic ("cuBLAS Determinism").
        ("1", Device::Cuda(_)) if ![good, ":16:8"].contains(&workspace) => Err(UsageError(format!(
            "{DETERMINISTIC}=1 on a GPU needs {name}={good} as well, which cuBLAS reads at its first use: set it in the job's environment"
        ))),
        ("1", _) => Ok(true),
        _ => Err(UsageError(format!("{DETERMINISTIC}={asked} is neither 0 nor 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_needs_nothing() {
        assert_eq!(DeviceChoice::Cpu.pick(LocalRank::new(7), WorldSize::ONE).unwrap(), Device::Cpu);
    }

    #[test]
    fn a_gpu_requested_by_name_must_be_the_groups_device() {
        let gpu = Device::Cuda(0);
        for (choice, group) in [
            (DeviceChoice::Cuda, gpu),
            (DeviceChoice::Auto, Device::Cpu),
            (DeviceChoice::Auto, gpu),
            (DeviceChoice::Cpu, Device::Cpu),
        ] {
            assert!(choice.agree_with(group).is_ok(), "{choice:?} {group:?}");
        }
        let message = DeviceChoice::Cuda.agree_with(Device::Cpu).unwrap_err().to_string();
        assert!(message.contains("scripts/setup.sh --cuda"), "{message}");
    }

    #[test]
    fn a_missing_gpu_is_an_error_and_auto_takes_the_cpu() {
        if driver_is_loaded() {
            println!("not verified here: this machine has a GPU");
            return;
        }
        assert_eq!(DeviceChoice::Auto.pick(LocalRank::new(0), WorldSize::ONE).unwrap(), Device::Cpu);
        let error = DeviceChoice::Cuda.pick(LocalRank::new(0), WorldSize::ONE).unwrap_err();
        assert!(format!("{error:#}").contains("--device cpu"), "{error:#}");
    }

    #[test]
    fn deterministic_kernels_on_a_gpu_need_cublas_to_be_so_too() {
        let (cpu, gpu) = (Device::Cpu, Device::Cuda(0));
        for (asked, workspace, device, found) in [
            ("", "", gpu, false),
            ("0", "", gpu, false),
            ("1", "", cpu, true),
            ("1", ":4096:8", gpu, true),
            ("1", ":16:8", gpu, true),
        ] {
            assert_eq!(is_asked(asked, workspace, device).unwrap(), found, "{asked} {workspace}");
        }
        for workspace in ["", ":4096:2:16:8"] {
            let error = is_asked("1", workspace, gpu).unwrap_err().to_string();
            assert!(error.contains("CUBLAS_WORKSPACE_CONFIG=:4096:8"), "{error}");
        }
        assert!(is_asked("yes", "", cpu).unwrap_err().to_string().contains("neither 0 nor 1"));
    }
}
