//! What a worker is started with ([`Spec`]); finds the program, and explains why it cannot be run.
//!
//! The search is that of `execvp(3)`. Conditions that only the kernel can check (security modules, a full process
//! table) are left to the start itself.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use lockstep_contract::foreign;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use crate::proc::Status;

/// A variable's name with its value, or without one to remove it.
pub(super) type Variable = (OsString, Option<OsString>);

pub(super) fn set_variables(command: &mut Command, env: &[Variable]) {
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// A program, its arguments and its environment.
#[derive(Debug)]
pub struct Spec {
    /// A path, or a name that is searched for in the worker's PATH.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Changes to the agent's own environment, in order: a value is set, a name with `None` is removed.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// The folder in which it starts; the agent's own if `None`. If it is set, `program` must not be a relative path.
    pub folder: Option<PathBuf>,
    pub stdin: Stdin,
    pub stdout: Sink,
    pub stderr: Sink,
}

impl Spec {
    /// The file that will be executed. Call it before any worker is started, so that a wrong program is one clear
    /// error.
    ///
    /// # Errors
    /// See [`find_program`].
    pub fn find_program(&self) -> Result<PathBuf, ProgramError> {
        find_program(&self.program, self.path().as_deref())
    }

    /// The value of PATH for the worker: its own if it has one, otherwise the agent's.
    pub(super) fn path(&self) -> Option<OsString> {
        let given = self.env.iter().rev().find(|(name, _)| name == "PATH");
        given.map_or_else(|| std::env::var_os("PATH"), |(_, value)| value.clone())
    }
}

/// A worker's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The agent's own, as for torchrun's workers.
    Inherit,
    /// Empty.
    Null,
}

/// The destination of one of a worker's output streams.
#[derive(Debug)]
pub enum Sink {
    /// The agent's own stream.
    Inherit,
    /// Discarded.
    Null,
    /// This open file or pipe.
    Fd(OwnedFd),
}

/// The folders that `execvp(3)` searches if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The length of a first line that the kernel reads (`BINPRM_BUF_SIZE`, linux/binfmts.h), in bytes.
const FIRST_LINE: u64 = 256;
/// The maximum number of folders and links that the search for a closed folder looks at, since links can form a cycle.
const MOST_FOLDERS: usize = 1000;
/// The folder in which the kernel lists handlers for other kinds of programs.
const OTHER_KINDS: &str = "/proc/sys/fs/binfmt_misc";

/// This user may not enter a folder on the way to a file.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reach {path}: this user may not enter the folder {folder}: its owner runs `chmod a+x {folder}`, or use a copy elsewhere",
    path = foreign::path(path),
    folder = foreign::path(folder)
)]
pub struct ClosedFolder {
    path: PathBuf,
    folder: PathBuf,
}

/// Why a program cannot be run, with advice.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No folder in PATH contains it.
    #[error("cannot find the program {} in the folders of PATH ({path}){hint}", foreign::path(program))]
    NotInPath { program: PathBuf, path: String, hint: String },
    /// The path does not exist.
    #[error("{} does not exist (the current folder is {folder}): check its path", foreign::path(path))]
    Missing { path: PathBuf, folder: String },
    /// The path is a folder.
    #[error("{} is a folder, not a program: give the path of a file in it", foreign::path(path))]
    Folder { path: PathBuf },
    #[error(transparent)]
    ClosedFolder(#[from] ClosedFolder),
    /// The permission to execute is missing.
    #[error("{} is not executable: run `chmod +x {}`", foreign::path(path), foreign::path(path))]
    NotExecutable { path: PathBuf },
    /// The file system is mounted without permission to execute.
    #[error(
        "{} is on a file system that is mounted noexec, where no program can be executed: copy it to another one (`findmnt -T` shows the mount)",
        foreign::path(path)
    )]
    NoExecMount { path: PathBuf },
    /// The interpreter in the first line does not exist.
    #[error(
        "the first line of {} names the interpreter {interpreter}, which does not exist: {advice}",
        foreign::path(path)
    )]
    NoInterpreter {
        path: PathBuf,
        /// The interpreter, as in the first line.
        interpreter: String,
        advice: String,
    },
    /// The file is neither a binary for this machine nor a script with an interpreter line.
    #[error("{} is not a program for this machine: {advice}", foreign::path(path))]
    NotAProgram { path: PathBuf, advice: String },
    #[error("cannot execute {}: {source}{}", foreign::path(path), refusal(source).map(|why| format!(": {why}")).unwrap_or_default())]
    Other { path: PathBuf, source: io::Error },
    /// The kernel does not find what loads it.
    #[error(
        "cannot execute {0}, though it is there: the loader that it names does not exist on this machine (`file {0}` shows it), as that of a \
         program for another C library, such as musl; build it here, or run it in its container",
        foreign::path(path)
    )]
    NoLoader { path: PathBuf },
    /// A process has it open for writing.
    #[error(
        "{0} is still being written (`fuser -v {0}` names the process): start again when it is complete",
        foreign::path(path)
    )]
    Busy { path: PathBuf },
}

/// The file that `execvp(3)` would execute for `program` with this PATH.
///
/// # Errors
/// The program does not exist or cannot be executed; the message has the file's name and advice.
pub fn find_program(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if program.as_bytes().contains(&b'/') {
        let file = PathBuf::from(program);
        return check(&file).map(|()| file);
    }
    let mut refused = None;
    for candidate in files(program, path).into_iter().filter(|candidate| candidate.is_file()) {
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            // A file in a later folder may work, and execvp would use it.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| not_in_path(program, path.unwrap_or(OsStr::new(DEFAULT_PATH)))))
}

/// The files that may be this program, in the order in which `execvp(3)` tries them.
pub(super) fn files(program: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    let folders = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    folders.as_bytes().split(|byte| *byte == b':').map(|folder| in_folder(folder, program)).collect()
}

/// Why executing `path` failed with `source`: the cause if a check finds it, otherwise the system's error.
pub(super) fn explain(path: &Path, source: io::Error) -> ProgramError {
    let path = path.to_owned();
    match check(&path) {
        Err(why) => why,
        // The check accepts files of unknown kinds if the kernel has handlers for other kinds.
        Ok(()) if source.raw_os_error() == Some(libc::ENOEXEC) => match head(&path).ok().and_then(|head| advice(&head))
        {
            Some(advice) => ProgramError::NotAProgram { path, advice },
            None => ProgramError::Other { path, source },
        },
        Ok(()) if source.raw_os_error() == Some(libc::ENOENT) => ProgramError::NoLoader { path },
        Ok(()) if source.raw_os_error() == Some(libc::ETXTBSY) => ProgramError::Busy { path },
        Ok(()) => ProgramError::Other { path, source },
    }
}

fn in_folder(folder: &[u8], program: &OsStr) -> PathBuf {
    // An empty part of PATH is the current folder.
    let folder = if folder.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(folder) };
    Path::new(folder).join(program)
}

fn not_in_path(program: &OsStr, folders: &OsStr) -> ProgramError {
    let here = Path::new(program).is_file() && !program.is_empty();
    let hint = if here {
        format!(": there is one in the current folder, give it as ./{}", program.display())
    } else {
        String::new()
    };
    let hint = if hint.is_empty() { ": check its name, or give its path".to_owned() } else { hint };
    ProgramError::NotInPath { program: program.into(), path: folders.to_string_lossy().into_owned(), hint }
}

fn check(path: &Path) -> Result<(), ProgramError> {
    let owned = || path.to_owned();
    let about = match fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ProgramError::Missing { path: owned(), folder: current_folder() });
        }
        Err(source) => {
            return Err(match ClosedFolder::on_the_way(path) {
                Some(closed) => closed.into(),
                None => ProgramError::Other { path: owned(), source },
            });
        }
    };
    if about.is_dir() {
        return Err(ProgramError::Folder { path: owned() });
    }
    if about.permissions().mode() & 0o111 == 0 && !is_noexec(path) {
        return Err(ProgramError::NotExecutable { path: owned() });
    }
    if let Err(error) = access(path, Access::EXEC_OK) {
        return Err(denied(path, error.into()));
    }
    check_kind(path)
}

impl ClosedFolder {
    /// The first such folder; `None` if the path can be reached or is missing.
    pub fn on_the_way(path: &Path) -> Option<Self> {
        fs::metadata(path).err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied)?;
        let start = |path: &Path| PathBuf::from(if path.is_absolute() { "/" } else { "." });
        // Each link is replaced by its target: the closed folder may be behind a link.
        let (mut at, mut rest) = (start(path), components(path));
        for _ in 0..MOST_FOLDERS {
            let name = rest.pop()?;
            if access(&at, Access::EXEC_OK).is_err() {
                return Some(ClosedFolder { path: path.to_owned(), folder: at });
            }
            let next = at.join(name);
            match fs::read_link(&next) {
                Ok(target) => {
                    rest.extend(components(&target));
                    at = if target.is_absolute() { start(&target) } else { at };
                }
                Err(_) => at = next,
            }
        }
        None
    }
}

/// The components of a path, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    names.rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// Returns true if nothing can be executed on the file system of this file, whatever its permissions.
pub fn is_noexec(path: &Path) -> bool {
    statvfs(path).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn denied(path: &Path, source: io::Error) -> ProgramError {
    match source.kind() {
        _ if is_noexec(path) => ProgramError::NoExecMount { path: path.to_owned() },
        io::ErrorKind::PermissionDenied => ProgramError::NotExecutable { path: path.to_owned() },
        _ => ProgramError::Other { path: path.to_owned(), source },
    }
}

/// Checks the first bytes. A program that may be executed but not read is left to the kernel.
fn check_kind(path: &Path) -> Result<(), ProgramError> {
    let Ok(head) = head(path) else { return Ok(()) };
    if let Some(line) = head.strip_prefix(b"#!") {
        return interpreter_exists(path, line);
    }
    match advice(&head) {
        Some(advice) if !kernel_knows_other_kinds() => Err(ProgramError::NotAProgram { path: path.to_owned(), advice }),
        _ => Ok(()),
    }
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(FIRST_LINE).read_to_end(&mut head)?;
    Ok(head)
}

/// What to do about a file that begins with these bytes, if the kernel executes only scripts and binaries of this machine; `None` for those.
fn advice(head: &[u8]) -> Option<String> {
    if head.starts_with(b"#!") || is_binary_for_this_machine(head) {
        return None;
    }
    Some(if head.starts_with(ELF) {
        let kind = processor(head).map(|name| format!(" ({name}; this machine is {})", std::env::consts::ARCH));
        let kind = kind.unwrap_or_default();
        format!("it is a binary for another processor{kind}; build it here, or use the one for this machine")
    } else {
        "it has no first line such as `#!/bin/sh`; add one, or give the interpreter as the program and this file as its \
         first argument"
            .to_owned()
    })
}

const ELF: &[u8] = b"\x7fELF";

/// Compares the field `e_machine` and the class of an ELF file with those of this program (elf(5)).
fn is_binary_for_this_machine(head: &[u8]) -> bool {
    let mut own = [0; 20];
    let known = File::open("/proc/self/exe").and_then(|mut exe| exe.read_exact(&mut own)).is_ok();
    head.starts_with(ELF) && (!known || head.get(4) == own.get(4) && head.get(18..20) == own.get(18..20))
}

/// The name of the processor in the field `e_machine` of an ELF file (linux/elf-em.h), in this machine's byte order.
fn processor(head: &[u8]) -> Option<&'static str> {
    const NAMES: [(u16, &str); 8] = [
        (3, "x86"),
        (21, "powerpc64"),
        (22, "s390x"),
        (40, "arm"),
        (62, "x86_64"),
        (183, "aarch64"),
        (243, "riscv64"),
        (258, "loongarch64"),
    ];
    let machine = u16::from_ne_bytes(head.get(18..20)?.try_into().ok()?);
    NAMES.iter().find(|(number, _)| *number == machine).map(|(_, name)| *name)
}

/// The processor for which a program or library was built, as `uname -m` writes it; `None` if the file is neither or the processor is
/// unknown.
pub fn processor_of(path: &Path) -> Option<&'static str> {
    let mut head = [0; 20];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).ok()?;
    head.starts_with(ELF).then(|| processor(&head))?
}

fn kernel_knows_other_kinds() -> bool {
    let entries = fs::read_dir(OTHER_KINDS).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name != "register" && name != "status")
}

fn interpreter_exists(path: &Path, line: &[u8]) -> Result<(), ProgramError> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty());
    let interpreter = OsStr::from_bytes(words.unwrap_or_default());
    if !interpreter.is_empty() && Path::new(interpreter).exists() {
        return Ok(());
    }
    let advice = if line.ends_with(b"\r") {
        format!("the line ends as on Windows, run `sed -i 's/\\r$//' {}`", path.display())
    } else {
        "correct the line, or install the interpreter".to_owned()
    };
    let interpreter = interpreter.to_string_lossy().trim_end().to_owned();
    Err(ProgramError::NoInterpreter { path: path.to_owned(), interpreter, advice })
}

fn current_folder() -> String {
    std::env::current_dir().map_or_else(|_| "gone".to_owned(), |folder| folder.display().to_string())
}

/// Who refuses a system call with this error, and what to do; `None` if it is another kind of error.
pub fn refusal(error: &io::Error) -> Option<String> {
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        return Some(too_large());
    }
    let is_missing = error.raw_os_error() == Some(libc::ENOSYS);
    if !is_missing && error.raw_os_error() != Some(libc::EPERM) {
        return None;
    }
    let filtered = Status::of_this_process().is_some_and(|status| status.number("Seccomp") == Some(2));
    Some(match (filtered, is_missing) {
        (true, _) => "this process runs under a seccomp filter (`grep Seccomp: /proc/self/status` says 2), as in a container or a sandbox: \
                      allow the call in its profile, update the container's runtime, or start the container with \
                      --security-opt seccomp=unconfined"
            .to_owned(),
        (false, true) => format!(
            "this kernel ({}) does not have it: Linux 5.4 or newer is needed",
            rustix::system::uname().release().to_string_lossy()
        ),
        (false, false) => "a security module (SELinux, AppArmor) or a missing capability forbids it: see `dmesg` and the audit log".to_owned(),
    })
}

/// How much this process's arguments and variables take, which its children get.
fn too_large() -> String {
    let variables = std::env::vars_os().map(|(name, value)| (name.len() + value.len() + 2, Some(name)));
    let arguments = std::env::args_os().map(|word| (word.len() + 1, None));
    let all: Vec<(usize, Option<OsString>)> = variables.chain(arguments).collect();
    let kib = |bytes: usize| bytes.div_ceil(1024);
    let sum = kib(all.iter().map(|(bytes, _)| bytes).sum());
    let largest = all.into_iter().max_by_key(|(bytes, _)| *bytes);
    let largest = largest.map_or_else(String::new, |(bytes, name)| {
        let name = name.map_or_else(|| "an argument".to_owned(), |name| foreign::path(Path::new(&name)));
        format!("{name} with {}", kib(bytes))
    });
    format!(
        "the launcher's variables and arguments, to which it adds a few, take {sum} KiB, {largest} KiB the most; the kernel allows 128 KiB \
         for one and a quarter of `ulimit -s` for all: unset what the program does not need, or put it into a file"
    )
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn searches_the_last_path_that_the_worker_is_given() {
        let path = |env: &[Option<&str>]| {
            let env = env.iter().map(|value| ("PATH".into(), value.map(OsString::from))).collect();
            let (stdin, stdout, stderr) = (Stdin::Null, Sink::Null, Sink::Null);
            Spec { program: "x".into(), args: vec![], env, folder: None, stdin, stdout, stderr }.path()
        };
        assert_eq!(path(&[Some("/a"), Some("/b")]), Some("/b".into()));
        assert_eq!(path(&[Some("/a"), None]), None);
        assert_eq!(path(&[]), std::env::var_os("PATH"));
    }

    fn file(folder: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn refusal(program: &Path) -> String {
        let error = find_program(program.as_os_str(), Some(OsStr::new("/nowhere"))).unwrap_err().to_string();
        error.replace(&format!("{}", program.display()), "THIS")
    }

    #[test]
    fn finds_what_execvp_finds() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        file(&first, "tool", b"#!/bin/sh\n", 0o644);
        let good = file(&second, "tool", b"#!/bin/sh\n", 0o755);
        let path = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(find_program(OsStr::new("tool"), Some(&path)).unwrap(), good);
        assert_eq!(find_program(good.as_os_str(), None).unwrap(), good);
        assert!(find_program(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn explains_why_a_file_is_not_a_program_and_gives_advice() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(refusal(&folder.join("gone")).starts_with("THIS does not exist (the current folder is /"));
        assert_eq!(refusal(folder), "THIS is a folder, not a program: give the path of a file in it");
        let plain = file(folder, "plain", b"#!/bin/sh\n", 0o644);
        assert_eq!(refusal(&plain), "THIS is not executable: run `chmod +x THIS`");
        let lost = file(folder, "lost", b"#! /no/such/python3 -u\nprint()\n", 0o755);
        assert_eq!(
            refusal(&lost),
            "the first line of THIS names the interpreter /no/such/python3, which does not exist: correct the line, or \
             install the interpreter"
        );
        let windows = file(folder, "windows", b"#!/bin/sh\r\necho\r\n", 0o755);
        assert!(refusal(&windows).ends_with("the line ends as on Windows, run `sed -i 's/\\r$//' THIS`"));
        let empty = file(folder, "empty", b"", 0o755);
        let refused = |errno| explain(&empty, io::Error::from_raw_os_error(errno)).to_string();
        assert!(refused(libc::ENOEXEC).contains("it has no first line such as `#!/bin/sh`"));
        if !kernel_knows_other_kinds() {
            assert!(refusal(&empty).contains("it has no first line such as `#!/bin/sh`"));
            let mut foreign = fs::read("/proc/self/exe").unwrap()[..64].to_vec();
            foreign[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
            let foreign = file(folder, "foreign", &foreign, 0o755);
            assert_eq!(processor_of(Path::new("/proc/self/exe")), Some(std::env::consts::ARCH));
            assert_eq!((processor_of(&plain), processor_of(folder)), (None, None));
            let other = if cfg!(target_arch = "aarch64") { "x86_64" } else { "aarch64" };
            assert_eq!(processor_of(&foreign), Some(other));
            let refusal = refusal(&foreign);
            assert!(
                refusal.contains(&format!("it is a binary for another processor ({other}; this machine is")),
                "{refusal}"
            );
        }
    }

    /// Runs this on a thread without capabilities: then even root needs the permissions that a folder's mode gives.
    fn without_capabilities<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        let drop_and_run = || {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
            run()
        };
        std::thread::scope(|scope| scope.spawn(drop_and_run).join().unwrap())
    }

    #[test]
    fn names_the_folder_that_the_user_may_not_enter() {
        let temporary = tempfile::tempdir().unwrap();
        // The temporary folder may be a link itself.
        let folder = temporary.path().canonicalize().unwrap();
        let closed = folder.join("closed");
        fs::create_dir_all(closed.join("inner")).unwrap();
        let program = file(&closed.join("inner"), "tool", b"#!/bin/sh\n", 0o755);
        let link = folder.join("link");
        std::os::unix::fs::symlink("closed/inner/tool", &link).unwrap();
        let circle = folder.join("circle");
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        let closed_folder = |path: &PathBuf| ClosedFolder::on_the_way(path).map(|found| found.folder);
        assert_eq!(closed_folder(&program), None);
        let set = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
        set(0o600);
        let found = without_capabilities(|| [&program, &link, &circle].map(closed_folder));
        let refused = without_capabilities(|| refusal(&program));
        set(0o700);
        assert_eq!(found, [Some(closed.clone()), Some(closed.clone()), None]);
        let closed = closed.display();
        assert_eq!(
            refused,
            format!(
                "cannot reach THIS: this user may not enter the folder {closed}: its owner runs `chmod a+x {closed}`, or \
                 use a copy elsewhere"
            )
        );
    }

    #[test]
    fn names_the_folders_that_it_searched() {
        let error = find_program(OsStr::new("no-such-tool"), Some(OsStr::new("/bin:/opt"))).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot find the program no-such-tool in the folders of PATH (/bin:/opt): check its name, or give its path"
        );
    }
}
