//! The hidden subcommand `confined-exec`: becomes another program that can write to one folder only, and is bounded otherwise.
//!
//! Landlock (landlock(7), Linux 5.13) confines writing; where the kernel does not have it, the rest is done and
//! [`writes_are_confined`] says so. The limits are setrlimit(2)'s; that on processes does not bind root, so the stage counts, too.

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

/// The rules are those of Linux 5.19; newer kernels know them all.
const RULES: ABI = ABI::V2;
/// Files that any program may write to.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
/// Each limit, in bytes, seconds and numbers.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Fsize, 256 << 20),
    (Resource::Cpu, 120),
    (Resource::Core, 0),
    (Resource::Nproc, 4096),
    (Resource::Nofile, 1024),
];

/// What stands before the program that is to be started.
pub(super) fn words(folders: [&Path; 2]) -> [OsString; 3] {
    let [one, other] = folders;
    [CONFINED.into(), one.into(), other.into()]
}

/// Becomes the program, confined to two folders. Returns only when it cannot.
///
/// # Errors
/// When the confinement or the start fails.
pub(crate) fn exec(args: &[OsString]) -> anyhow::Result<()> {
    let [one, other, program, args @ ..] = args else { bail!("{CONFINED} is not for people: use `lockstep grade`") };
    for (resource, most) in LIMITS {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // A lower limit is already in place if this is refused.
        let _ = setrlimit(resource, limit);
    }
    confine([one, other]).context("cannot confine the program")?;
    Err(Command::new(program).args(args).exec())
        .with_context(|| format!("cannot start {}", Path::new(program).display()))
}

/// Whether this kernel can confine what programs write.
pub fn writes_are_confined() -> bool {
    // A ruleset that is only made, not entered.
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
