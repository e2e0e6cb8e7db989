//! Runs cargo, and parses its messages for programs: one line of JSON each (`--message-format json`). Builds learners' packages.
//!
//! cargo locks the folder to which it writes, for as long as it builds. So what is graded is built in a folder of its own in `target`, and an
//! editor, a test run or a package of one's own does not block grading. [`share_compiled`] keeps libraries from being compiled twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_process::{check_room, proc};
use lockstep_report::Screen;
use serde::Deserialize;

/// One message, with the fields used here.
#[derive(Deserialize)]
pub struct Message {
    /// The package that it concerns.
    pub package_id: Option<String>,
    /// The executable that was built.
    pub executable: Option<PathBuf>,
    /// The compiled target.
    pub target: Option<Target>,
    /// The compiler's diagnostic.
    pub message: Option<Diagnostic>,
}

/// The compiled target.
#[derive(Deserialize)]
pub struct Target {
    pub name: String,
}

/// The compiler's diagnostic.
#[derive(Deserialize)]
pub struct Diagnostic {
    /// `error`, `warning` and others.
    pub level: String,
    /// The text for people, in several lines.
    pub rendered: Option<String>,
    /// The places in the source.
    pub(crate) spans: Vec<Span>,
}

/// A span in rustc's JSON.
#[derive(Deserialize)]
pub(crate) struct Span {
    pub(crate) file_name: String,
    pub(crate) is_primary: bool,
}

impl Message {
    /// The program of this name, if this message reports it.
    pub fn program(&self, name: &str) -> Option<&Path> {
        self.executable.as_deref().filter(|_| self.target.as_ref().is_some_and(|target| target.name == name))
    }
}

/// Variables of the caller's shell that would change what is built: for another processor, with another libtorch. With those that have flags
/// ([`has_flags`]), they are left out, as the scripts do (`scripts/lib/cargo.sh`).
const CHANGING: [&str; 6] = [
    "CARGO_BUILD_TARGET",
    "LIBTORCH_USE_PYTORCH",
    "LIBTORCH_INCLUDE",
    "LIBTORCH_LIB",
    "LIBTORCH_STATIC",
    "LIBTORCH_CXX11_ABI",
];

/// Cargo (or the program in `CARGO`) in `folder`, in the surroundings of `.cargo/config.toml`.
pub fn plain_command(folder: &Path, words: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    CHANGING.iter().for_each(|name| _ = command.env_remove(name));
    let flags = std::env::vars_os().map(|(name, _)| name).filter(|name| has_flags(&name.to_string_lossy()));
    flags.for_each(|name| _ = command.env_remove(name));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

/// The same, with messages for programs on stdout.
pub fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = plain_command(folder, words);
    command.args(["--quiet", "--message-format", "json"]);
    command
}

/// Flags for the compilers. Some names have an architecture in them: `CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS`.
fn has_flags(variable: &str) -> bool {
    let flags = variable.strip_suffix("RUSTFLAGS").or_else(|| variable.strip_suffix("RUSTDOCFLAGS"));
    flags.is_some_and(|before| before.is_empty() || before.starts_with("CARGO_"))
}

/// The messages in cargo's stdout; other lines are ignored.
pub fn messages(stdout: &[u8]) -> Vec<Message> {
    let text = String::from_utf8_lossy(stdout);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The result of a build.
pub enum Built {
    Program(PathBuf),
    /// The package's own source does not compile.
    Broken(Vec<CompileError>),
}

/// One error of the compiler.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileError {
    /// The file, as cargo names it; `None` for errors without a place.
    pub file: Option<String>,
    /// As formatted by the compiler, in several lines.
    pub text: String,
}

/// Processes and threads of a build, at least: rustup's cargo, cargo, a compiler and a linker.
pub const TASKS: usize = 16;

/// The command that builds `package` from the workspace in `folder`.
pub fn build_command(folder: &Path, package: &str) -> Command {
    command(folder, &["build", "--package", package])
}

/// Builds a package of the checkout for grading; cargo's own output goes to stderr. Its program is then also where plain cargo puts it.
///
/// Errors: cargo cannot be started, or fails without an error in the package's source; the system has no room for its processes.
pub fn build(root: &Path, package: &str) -> anyhow::Result<Built> {
    check_room(TASKS)?; // without it, rustup's cargo panics
    let (output, own) = (output_folder(root), grading_folder(root, "grading"));
    share_compiled(root, &output, &own);
    let mut command = build_command(root, package);
    command.env("CARGO_TARGET_DIR", &own);
    let cargo = command.stdout(Stdio::piped()).spawn().context("cannot start cargo: is it on PATH?")?;
    let output = telling_what_takes_long(cargo.id() as i32, package, || cargo.wait_with_output())?;
    let built = built(&output.stdout, package, output.status.success())?;
    if let Built::Program(program) = &built {
        let usual = output_folder(root).join("debug").join(package);
        if *program != usual {
            let _ = link(program, &usual); // for those who start it by hand
        }
    }
    Ok(built)
}

/// The folder to which plain cargo writes: the variable's, else that of this program if it lies in the checkout, else the usual one.
pub fn output_folder(root: &Path) -> PathBuf {
    if let Some(folder) = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        return root.join(folder);
    }
    let of_this = std::env::current_exe().ok().and_then(|this| Some(this.ancestors().nth(2)?.to_path_buf()));
    let real = root.canonicalize().ok();
    of_this.filter(|of| real.is_some_and(|real| of.starts_with(real.join("target")))).unwrap_or(root.join("target"))
}

/// cargo's output folder for what is graded. Its programs are as many folders below the checkout as tests are, so they find libtorch.
pub fn grading_folder(root: &Path, name: &str) -> PathBuf {
    output_folder(root).join(name)
}

/// Gives the libraries that are compiled in cargo's output folder `from` to the output folder `to`, unless it has them or newer ones.
///
/// cargo knows a unit by its hash, which depends on neither folder, and takes it for fresh if its notes are there with their times. Large files
/// become hard links: rustc, the linker and `cc` replace a file, they do not write into it. cargo writes into its notes, so these are
/// copied, except for those on crates of others, whose sources never change: some file systems count files. What is just being
/// compiled, or cannot be shared, is compiled again.
pub fn share_compiled(root: &Path, from: &Path, to: &Path) {
    let (from, to) = (from.join("debug"), to.join("debug"));
    let Ok(units) = fs::read_dir(from.join(".fingerprint")) else { return };
    let new = |unit: fs::DirEntry| {
        let (folder, name) = (unit.path(), unit.file_name().into_string().ok()?);
        let note = fs::read_dir(&folder).ok()?.flatten().find_map(|file| {
            let file = file.file_name().into_string().ok()?;
            (LIBRARIES.iter().any(|kind| file.starts_with(kind)) && !file.ends_with(".json")).then_some(file)
        })?;
        let changed = |path: PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
        let (there, here) = (changed(folder.join(&note))?, changed(to.join(".fingerprint").join(&name).join(&note)));
        here.is_none_or(|here| here < there).then_some((name, note))
    };
    let new: Vec<_> = units.flatten().filter_map(new).collect();
    if new.is_empty() {
        return;
    }
    // Who builds there has shared them, and must not see units change.
    let lock = fs::create_dir_all(&to).and_then(|()| File::create(to.join(".cargo-lock")));
    if lock.as_ref().is_ok_and(|lock| lock.try_lock().is_ok()) {
        let units = Units { files: by_hash(&from.join("deps")), others: crates_of_others(root), from, to };
        new.iter().for_each(|(unit, last)| _ = units.share(unit, last));
    }
}

/// The beginnings of the names of cargo's notes on libraries and their build scripts.
const LIBRARIES: [&str; 3] = ["lib-", "build-script-", "run-build-script-"];
/// Larger files are linked, in bytes.
const LARGE: u64 = 64 << 10;

/// What cargo has built, by the hash in `libNAME-HASH.rlib`.
fn by_hash(folder: &Path) -> BTreeMap<String, Vec<OsString>> {
    let mut files: BTreeMap<String, Vec<OsString>> = BTreeMap::new();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if let Some((hash, _)) = name.rsplit_once('-').and_then(|(_, hash)| hash.split_once('.')) {
            files.entry(hash.to_owned()).or_default().push(file.file_name());
        }
    }
    files
}

/// The crates that the lock file takes from elsewhere.
fn crates_of_others(root: &Path) -> BTreeSet<String> {
    #[derive(Default, Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        source: Option<String>,
    }
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let lock: Lock = toml::from_str(&lock).unwrap_or_default();
    lock.package.into_iter().filter(|package| package.source.is_some()).map(|package| package.name).collect()
}

/// What is compiled in one output folder, to be shared with another.
struct Units {
    from: PathBuf,
    to: PathBuf,
    files: BTreeMap<String, Vec<OsString>>,
    others: BTreeSet<String>,
}

impl Units {
    /// A unit by the name of its folder, `NAME-HASH`; cargo writes the note `last` after all else.
    fn share(&self, unit: &str, last: &str) -> io::Result<()> {
        let [notes, own] = [&self.from, &self.to].map(|folder| folder.join(".fingerprint").join(unit));
        let before = fs::read(notes.join(last))?;
        if before.is_empty() {
            return Ok(()); // it is being compiled
        }
        let (name, hash) = unit.rsplit_once('-').unwrap_or_default();
        let linked = self.others.contains(name);
        let _ = fs::remove_file(own.join(last));
        for file in self.files.get(hash).into_iter().flatten() {
            share(&self.from.join("deps").join(file), &self.to.join("deps").join(file), linked)?;
        }
        let built = Path::new("build").join(unit);
        if self.from.join(&built).is_dir() {
            share(&self.from.join(&built), &self.to.join(&built), linked)?;
        }
        for file in fs::read_dir(&notes)?.flatten().map(|file| file.file_name()).filter(|file| *file != *last) {
            share(&notes.join(&file), &own.join(&file), linked)?;
        }
        let is_as_before = fs::read(notes.join(last))? == before;
        if is_as_before { share(&notes.join(last), &own.join(last), linked) } else { Ok(()) }
    }
}

/// A file or a folder with all that is in it. Seats have links to files that are another user's: they stay such links.
fn share(from: &Path, to: &Path, linked: bool) -> io::Result<()> {
    let data = fs::symlink_metadata(from)?;
    if data.is_dir() {
        fs::create_dir_all(to)?;
        return fs::read_dir(from)?
            .flatten()
            .try_for_each(|file| share(&file.path(), &to.join(file.file_name()), linked));
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    if (linked || data.is_symlink() || data.len() > LARGE) && link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    File::options().append(true).open(to)?.set_modified(data.modified()?)
}

/// A hard link in place of what may be there.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::hard_link(from, to),
    }
}

/// Waits for cargo, and says meanwhile what takes long.
pub fn telling_what_takes_long<T>(cargo: i32, package: &str, wait: impl FnOnce() -> T) -> T {
    let (ended, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || tell_what_takes_long(cargo, package, &waits));
        let result = wait();
        drop(ended);
        result
    })
}

/// After this time a build says what it does.
const LONG: Duration = Duration::from_secs(2);

/// Until the build ends: says that it compiles, or which process holds the lock of cargo's output that it waits for.
fn tell_what_takes_long(cargo: i32, package: &str, ended: &Receiver<()>) {
    let (screen, mut told) = (Screen::new(true), None);
    while ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let holder = holder(&locks, cargo);
        if told != Some(holder) {
            screen.line(match holder {
                None => format!("lockstep: compiling {package} …"),
                Some(pid) => format!("lockstep: waiting for another build to end: {}", described(pid)),
            });
            told = Some(holder);
        }
    }
}

/// The process that holds the lock that `waiter` waits for, by `/proc/locks` (proc_locks(5)): the waiter's line has the number of the
/// lock, and an arrow.
fn holder(locks: &str, waiter: i32) -> Option<i32> {
    let lines = || locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let waits = lines().find(|words| words.get(1) == Some(&"->") && words.get(5) == Some(&&*waiter.to_string()))?;
    lines().find(|words| words.first() == waits.first() && words.get(1) != Some(&"->"))?.get(4)?.parse().ok()
}

/// A process of another container or another node has no number here.
fn described(pid: i32) -> String {
    let line = proc::command_line(pid).map(|line| foreign::one_line(&line));
    line.map_or_else(|| "of a process that cannot be seen from here".into(), |line| format!("{line} (pid {pid})"))
}

/// Extracts the result for `package` from cargo's messages.
///
/// Errors: the build failed for another reason than the package's source: a full disk, a missing library or compiler, another package.
pub fn built(stdout: &[u8], package: &str, success: bool) -> anyhow::Result<Built> {
    let messages = messages(stdout);
    if success {
        let program = messages.iter().rev().find_map(|message| message.program(package));
        return Ok(Built::Program(program.with_context(|| format!("cargo built no program {package}"))?.into()));
    }
    let is_own = |message: &Message| message.target.as_ref().is_some_and(|target| target.name == package);
    let (own, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_own);
    let errors = |messages: Vec<Message>| -> Vec<CompileError> {
        let found = messages.into_iter().filter_map(|message| message.message).filter(|found| found.level == "error");
        let file = |spans: Vec<Span>| spans.into_iter().find(|span| span.is_primary).map(|span| span.file_name);
        found.map(|found| CompileError { file: file(found.spans), text: found.rendered.unwrap_or_default() }).collect()
    };
    let (own, others) = (errors(own), errors(others));
    // Such as a failed linker's, which names no file of the source.
    if own.iter().all(|error| error.file.is_none()) {
        let text = others.iter().chain(&own).map(|error| error.text.trim_end()).next();
        let text = text.map_or("see its output above", |text| text);
        anyhow::bail!("cargo cannot build {package}, and its source is not the reason: {text}");
    }
    Ok(Built::Broken(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}
{"reason":"compiler-artifact","target":{"name":"ex-02"},"executable":"/t/ex-02"}
{"reason":"build-finished","success":true}"#;
        let Ok(Built::Program(path)) = built(messages.as_bytes(), "ex-02", true) else { panic!("no program") };
        assert_eq!(path, Path::new("/t/ex-02"));
        assert!(built(b"", "ex-02", true).is_err());
    }

    #[test]
    fn shares_libraries_that_are_newer_and_not_being_compiled() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let write = |path: &str, text: &str| {
            let path = from.join("debug").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let large = "x".repeat(LARGE as usize + 1);
        write("deps/libone-1a.rlib", &large);
        write("deps/one-1a.d", "small");
        write("deps/libone-2b.rlib", &large);
        write("deps/prog-3c", "a program");
        write("build/two-4d/out/lib.a", &large);
        let note = write(".fingerprint/one-1a/lib-one", "hash");
        write(".fingerprint/one-1a/dep-lib-one", "notes");
        write(".fingerprint/one-2b/lib-one", ""); // it is being compiled
        write(".fingerprint/prog-3c/bin-prog", "hash");
        write(".fingerprint/two-4d/run-build-script-build-script-build", "hash");
        fs::write(folder.path().join("Cargo.lock"), "[[package]]\nname = \"two\"\nsource = \"registry\"\n").unwrap();
        share_compiled(folder.path(), &from, &to);
        let there = |path: &str| to.join("debug").join(path);
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let shared = there(".fingerprint/one-1a/lib-one");
        assert_eq!(modified(&note), modified(&shared));
        let build_script = ".fingerprint/two-4d/run-build-script-build-script-build";
        for (path, links) in
            [("deps/libone-1a.rlib", 2), ("deps/one-1a.d", 1), ("build/two-4d/out/lib.a", 2), (build_script, 2)]
        {
            assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(there(path)).unwrap()), links, "{path}");
        }
        assert!(![there("deps/libone-2b.rlib"), there("deps/prog-3c")].iter().any(|path| path.exists()));
        // What grading has compiled since stays; what is compiled again here comes in its place, unless somebody builds there.
        let write_at = |path: &Path, text: &str, seconds: u64| {
            fs::write(path, text).unwrap();
            let time = std::time::SystemTime::now() + Duration::from_secs(seconds);
            File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        };
        let now = || {
            share_compiled(folder.path(), &from, &to);
            fs::read_to_string(&shared).unwrap()
        };
        write_at(&shared, "own", 10);
        assert_eq!(now(), "own");
        write_at(&note, "next", 20);
        assert_eq!(now(), "next");
        let lock = File::create(there(".cargo-lock")).unwrap();
        lock.lock().unwrap();
        write_at(&note, "last", 30);
        assert_eq!(now(), "next");
    }

    #[test]
    fn finds_who_holds_the_lock_that_a_build_waits_for() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:2a:9 0 EOF\n2: FLOCK  ADVISORY  WRITE 500 fe:00:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 501 fe:00:42 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 502 fe:00:42 0 EOF\n";
        assert_eq!([holder(locks, 501), holder(locks, 502), holder(locks, 500)], [Some(500), Some(500), None]);
    }

    #[test]
    fn leaves_out_variables_that_would_change_what_is_built() {
        let command = build_command(Path::new("/checkout"), "ex-02");
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(CHANGING.iter().all(|name| removed.iter().any(|removed| removed == name)), "{removed:?}");
        for (name, flags) in [
            ("RUSTFLAGS", true),
            ("CARGO_ENCODED_RUSTFLAGS", true),
            ("CARGO_BUILD_RUSTDOCFLAGS", true),
            ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", true),
            ("CARGO_TARGET_DIR", false),
            ("MY_RUSTFLAGS", false),
        ] {
            assert_eq!(has_flags(name), flags, "{name}");
        }
    }

    #[test]
    fn reports_errors_with_their_files() {
        let messages = r#"{"reason":"compiler-message","target":{"name":"ex-02"},"message":{"level":"warning","rendered":"w","spans":[]}}
{"reason":"compiler-message","target":{"name":"ex-02"},"message":{"level":"error","rendered":"mismatched types","spans":[{"file_name":"src/other.rs","is_primary":false},{"file_name":"src/shard.rs","is_primary":true}]}}"#;
        let Ok(Built::Broken(errors)) = built(messages.as_bytes(), "ex-02", false) else { panic!("it is broken") };
        let expected = CompileError { file: Some("src/shard.rs".into()), text: "mismatched types".into() };
        assert_eq!(errors, [expected]);
        assert!(built(b"", "ex-02", false).is_err());
    }

    #[test]
    fn does_not_blame_the_source_for_a_disk_a_linker_or_another_package() {
        let message = |target: &str, text: &str, spans: &str| {
            format!(
                r#"{{"reason":"compiler-message","target":{{"name":"{target}"}},"message":{{"level":"error","rendered":"{text}","spans":[{spans}]}}}}"#
            )
        };
        let place = r#"{"file_name":"src/lib.rs","is_primary":true}"#;
        for (target, text, spans) in [
            ("ex-02", "error: linking with `cc` failed: No space left on device", ""),
            ("ex-02", "error: failed to write ex_02.rmeta: Disk quota exceeded (os error 122)", ""),
            ("lockstep", "error[E0463]: can't find crate for `std`", place),
        ] {
            let error = built(message(target, text, spans).as_bytes(), "ex-02", false).err().unwrap().to_string();
            assert_eq!(error, format!("cargo cannot build ex-02, and its source is not the reason: {text}"));
        }
        let both = [message("ex-02", "mismatched types", place), message("ex-02", "aborting", "")].join("\n");
        assert!(matches!(built(both.as_bytes(), "ex-02", false), Ok(Built::Broken(errors)) if errors.len() == 2));
    }
}
