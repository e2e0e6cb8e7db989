//! The hidden subcommand `confined-exec`: executes a program that can write only to its own folders, under resource limits.
//!
//! Landlock (landlock(7), Linux 5.13) confines writing. [`writes_are_confined`] returns false where the kernel lacks it. The
//! limits are those of setrlimit(2). Its limit on processes does not bind root, so the runner counts processes as well.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The name of the subcommand.
pub const CONFINED: &str = "confined-exec";

/// The rules of Linux 5.19, which all newer kernels support.
const RULES: ABI = ABI::V2;
/// Devices that any program may write to.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
/// The limits, in bytes (`Fsize`, `Core`), seconds (`Cpu`) or as a count.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Fsize, 256 << 20),
    (Resource::Cpu, 120),
    (Resource::Core, 0),
    (Resource::Nproc, 4096),
    (Resource::Nofile, 1024),
];

/// The arguments that precede the program.
pub(super) fn words(folders: [&Path; 2]) -> [OsString; 3] {
    let [one, other] = folders;
    [CONFINED.into(), one.into(), other.into()]
}

/// Executes the program, confined to two folders. Returns only on failure.
///
/// # Errors
/// When the confinement or the start fails.
pub(crate) fn exec(args: &[OsString]) -> anyhow::Result<()> {
    let [one, other, program, args @ ..] = args else {
        bail!("{CONFINED} is an internal command: use `lockstep grade`")
    };
    for (resource, most) in LIMITS {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // This fails only where a lower limit is already in place.
        let _ = setrlimit(resource, limit);
    }
    confine([one, other]).context("cannot confine the program")?;
    Err(Command::new(program).args(args).exec())
        .with_context(|| format!("cannot start {}", Path::new(program).display()))
}

/// Returns true if this kernel can confine where programs write.
pub fn writes_are_confined() -> bool {
    // Creates a ruleset without applying it.
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

fn confine(folders: [&OsString; 2]) -> anyhow::Result<RulesetStatus> {
    let reading = path_beneath_rules(["/"], AccessFs::from_read(RULES));
    let writing = path_beneath_rules(folders, AccessFs::from_all(RULES));
    let devices = path_beneath_rules(DEVICES, AccessFs::from_file(RULES));
    let rules = Ruleset::default().handle_access(AccessFs::from_all(RULES))?.create()?;
    let rules = rules.add_rules(reading)?.add_rules(writing)?.add_rules(devices)?;
    Ok(rules.restrict_self()?.ruleset)
}
