//! Deterministic kernels for runs that are compared bit by bit: `LOCKSTEP_DETERMINISTIC=1`.
//!
//! On the CPU libtorch's kernels for the labs are deterministic anyway. On a GPU some add in the order in which threads arrive.

use lockstep_contract::{CUBLAS_WORKSPACE, DETERMINISTIC};
use tch::Device;

use crate::exit::UsageError;

/// Does what the variable says, for the whole process. Call it before the first kernel.
///
/// # Errors
/// [`UsageError`] for a variable that cannot be understood, and on a GPU without the variable that cuBLAS needs. libtorch's errors.
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
