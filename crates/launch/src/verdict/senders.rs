//! Who may have sent a signal: what the audit log says, if the node keeps one and this user may read it, and programs that kill
//! others when memory gets short, before the kernel does.

use std::path::Path;

use lockstep_process::{end_of_file, proc};

/// Where auditd writes.
const AUDIT_LOG: &str = "/var/log/audit/audit.log";
/// How much of its end is read, in bytes.
const END: u64 = 1 << 20;
/// The system calls of x86-64 and AArch64 that send signals: kill, tkill, tgkill, whose arguments end with the signal.
const CALLS: [(&str, usize); 6] = [("62", 1), ("200", 1), ("234", 2), ("129", 1), ("130", 1), ("131", 2)];
/// Programs that end others when memory gets short.
const MEMORY_KILLERS: [&str; 5] = ["systemd-oomd", "earlyoom", "nohang", "oomd", "bustd"];

/// The sender of this signal to a process, as the end of the audit log names it.
pub(super) fn in_audit_log(pid: u32, signal: i32) -> Option<String> {
    let end = end_of_file(Path::new(AUDIT_LOG), END).ok()?;
    String::from_utf8_lossy(&end).lines().rev().find_map(|line| sender(line, pid, signal))
}

/// The programs that run here and end others when memory gets short.
pub(super) fn memory_killers() -> Vec<String> {
    let stats = proc::pids().filter_map(proc::Stat::of);
    let killers = stats.filter(|stat| MEMORY_KILLERS.contains(&stat.name.as_str()));
    killers.map(|stat| format!("{} (pid {})", stat.name, stat.pid)).collect()
}

/// `type=SYSCALL … syscall=62 success=yes … a0=4d2 a1=9 … pid=77 auid=1000 uid=1000 … comm="bash" …`, where `a0` is the receiver, in
/// hexadecimal digits, or minus its process group.
fn sender(line: &str, pid: u32, signal: i32) -> Option<String> {
    let field = |name: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    let (_, last) =
        CALLS.into_iter().find(|(number, _)| line.starts_with("type=SYSCALL ") && field("syscall") == Some(number))?;
    let argument = |place: usize| u64::from_str_radix(field(&format!("a{place}"))?, 16).ok();
    let to = argument(last - 1)? as u32 as i32;
    let fits = to.unsigned_abs() == pid && argument(last)? == signal as u64 && field("success") == Some("yes");
    fits.then(|| {
        let known = |name| field(name).unwrap_or("?");
        format!("{} (pid {}) of user {}", known("comm"), known("pid"), known("uid"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "type=SYSCALL msg=audit(1763635200.123:456): arch=c000003e syscall=62 success=yes exit=0 a0=4d2 a1=9 a2=0 a3=7f items=0 \
                        ppid=70 pid=77 auid=1000 uid=1000 gid=1000 tty=pts0 ses=3 comm=\"bash\" exe=\"/usr/bin/bash\" key=(null)";

    #[test]
    fn finds_the_sender_of_a_signal_in_the_audit_log() {
        let expected = Some("bash (pid 77) of user 1000".to_owned());
        assert_eq!(sender(LINE, 1234, 9), expected);
        assert_eq!(sender(&LINE.replace("a0=4d2", "a0=fffffb2e"), 1234, 9), expected, "to its group");
        let thread = LINE.replace("syscall=62", "syscall=234").replace("a1=9 a2=0", "a1=4d2 a2=9");
        assert_eq!(sender(&thread, 1234, 9), expected);
        for (pid, signal, line) in [
            (1235, 9, LINE.to_owned()),
            (1234, 15, LINE.to_owned()),
            (1234, 9, LINE.replace("success=yes", "success=no")),
            (1234, 9, LINE.replace("syscall=62", "syscall=59")),
            (1234, 9, LINE.replace("type=SYSCALL", "type=OBJ_PID")),
            (1234, 9, "type=SYSCALL syscall=62".to_owned()),
        ] {
            assert_eq!(sender(&line, pid, signal), None, "{line}");
        }
    }
}
