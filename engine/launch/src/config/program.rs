//! The command of a worker, chosen by the file: Python runs a Python script, everything else runs directly.
//!
//! torchrun runs everything as `python -u SCRIPT` unless `--no-python` is given. Here programs and scripts of other
//! languages need no flag. Files are checked first, so that no worker is started for a file that cannot run.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use lockstep_contract::foreign;
use lockstep_process::proc::is_python;
use lockstep_process::{ClosedFolder, find_program, is_noexec};
use rustix::fs::{Access, access};

/// How variables are read: `std::env::var_os`, or a test's own function.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The kernel reads this many bytes of a file's first line (`BINPRM_BUF_SIZE`, linux/binfmts.h).
const HEAD: u64 = 256;
/// `--run-path`: the code of torchrun's `run_script_path` (torch/distributed/run.py).
const RUN_PATH: &str = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// The program that a worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The user's name for it: the script, the module or the program. Shown in the final report.
    pub name: String,
    /// The file that is executed: a path, or a name to look up in PATH.
    pub file: OsString,
    templates: Vec<OsString>,
}

/// How to run the program, as given by flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    /// `-m`.
    pub(super) module: bool,
    /// `--no-python`.
    pub(super) no_python: bool,
    /// `--run-path`, which overrides `--no-python`.
    pub(super) run_path: bool,
}

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The file or program does not exist.
    #[error("cannot find {}: there is no such file (the current folder is {folder}){}", foreign::path(program), path_text(program, *in_path))]
    Missing {
        /// As given.
        program: PathBuf,
        /// The current folder, where a relative path starts.
        folder: String,
        /// True if PATH was searched, too.
        in_path: bool,
    },
    /// A folder that Python cannot run.
    #[error("{} is a folder without __main__.py: give the path of a script in it", foreign::path(path))]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// This user may not enter a folder on the way.
    #[error(transparent)]
    ClosedFolder(#[from] ClosedFolder),
    /// The file cannot be read.
    #[error("cannot read {}: {source}", foreign::path(path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is a program, but it is not executable.
    #[error("{} is {kind} but not executable: run `chmod +x {}`", foreign::path(path), foreign::path(path))]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The kind of program.
        kind: String,
    },
    /// The file is a program where none can be executed.
    #[error(
        "{path} is {kind} on a file system that is mounted noexec, where no program can be executed: copy it to another one{by}",
        path = foreign::path(path)
    )]
    NoExecMount {
        /// The file.
        path: PathBuf,
        /// The kind of program.
        kind: String,
        /// The other way, for a script.
        by: String,
    },
    /// A shell's script by its name, without a first line that says so.
    #[error(
        "{path} has no first line such as `#!/bin/bash`, so that it cannot run on its own, and Python cannot run it: add one, or start \
         `bash {path}`",
        path = foreign::path(path)
    )]
    NoFirstLine {
        /// The file.
        path: PathBuf,
    },
    /// A file in PATH that cannot be executed.
    #[error(transparent)]
    InPath(lockstep_process::ProgramError),
    /// There is no Python.
    #[error(
        "cannot run {}: neither python3 nor python is in PATH; set PYTHON_EXEC to a Python, or give --no-python for a program that needs none",
        foreign::quotation(script)
    )]
    NoPython {
        /// The script that needs it.
        script: String,
    },
    /// PYTHON_EXEC is invalid.
    #[error("PYTHON_EXEC={} is not a program: set it to the path of a Python, or unset it", foreign::path(path))]
    PythonExec {
        /// Its value.
        path: PathBuf,
    },
}

impl Program {
    /// The arguments of the worker with this local rank: `${local_rank}` is replaced, `$$` becomes `$`, other names
    /// stay.
    pub fn args(&self, local_rank: usize) -> Vec<OsString> {
        let known = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
        self.templates.iter().map(|text| OsString::from_vec(substitute(text.as_bytes(), &known))).collect()
    }

    /// The whole command line as the user gave it, for messages and for comparing jobs.
    pub fn command(&self) -> String {
        let words = std::iter::once(&self.file).chain(&self.templates);
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn resolve(given: &OsStr, args: &[OsString], how: How, env: Env<'_>) -> Result<Self, ProgramError> {
        let name = given.to_string_lossy().into_owned();
        let with = |file: OsString, first: &[&OsStr]| {
            let first = first.iter().map(|word| (*word).to_owned());
            Program { name: name.clone(), file, templates: first.chain(args.iter().cloned()).collect() }
        };
        let by_python = |flags: &[&str]| {
            let words: Vec<&OsStr> = flags.iter().map(OsStr::new).chain([given]).collect();
            Ok(with(python(&name, env)?, &words))
        };
        if how.run_path {
            is_script(given)?;
            return by_python(&["-u", "-c", RUN_PATH]);
        }
        if how.module {
            return by_python(&["-u", "-m"]);
        }
        match kind(given, how.no_python, env)? {
            Kind::Program(file) => Ok(with(file, &[])),
            Kind::Script => by_python(&["-u"]),
        }
    }
}

enum Kind {
    Program(OsString),
    Script,
}

fn kind(given: &OsStr, no_python: bool, env: Env<'_>) -> Result<Kind, ProgramError> {
    let path = Path::new(given);
    let bare = !given.as_bytes().contains(&b'/');
    // execvp(3) searches only PATH for a bare name; a script must be in the current folder.
    if bare && (no_python || !path.exists()) {
        return match in_path(given, env) {
            Some(_) => Ok(Kind::Program(given.to_owned())),
            None if no_python && path.exists() => Ok(Kind::Program(Path::new(".").join(path).into_os_string())),
            None => Err(match find_program(given, env("PATH").as_deref()) {
                Ok(_) | Err(lockstep_process::ProgramError::NotInPath { .. }) => missing(path, true),
                Err(refused) => ProgramError::InPath(refused),
            }),
        };
    }
    if no_python {
        return if path.exists() { Ok(Kind::Program(given.to_owned())) } else { Err(missing(path, false)) };
    }
    if path.extension() == Some(OsStr::new("py")) || is_script(given)?.is_none() {
        return is_script(given).map(|_| Kind::Script);
    }
    let file = if bare { Path::new(".").join(path) } else { path.to_owned() };
    Ok(Kind::Program(file.into_os_string()))
}

/// `None` if Python runs the file; otherwise the kind of program that it is.
///
/// # Errors
/// When nothing can run it.
fn is_script(given: &OsStr) -> Result<Option<String>, ProgramError> {
    let path = Path::new(given);
    let unreadable = |source| ProgramError::Unreadable { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(|source| match ClosedFolder::on_the_way(path) {
        Some(closed) => closed.into(),
        None if source.kind() == io::ErrorKind::NotFound => missing(path, false),
        None => unreadable(source),
    })?;
    if about.is_dir() {
        let runs = path.join("__main__.py").is_file();
        return if runs { Ok(None) } else { Err(ProgramError::Folder { path: path.to_owned() }) };
    }
    let executable = access(path, Access::EXEC_OK).is_ok();
    let mut head = Vec::new();
    match File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head)) {
        Err(_) if executable => return Ok(Some("a program that cannot be read".to_owned())),
        read => read.map_err(unreadable)?,
    };
    let owned = || path.to_owned();
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    match own_kind(&head) {
        Some(kind) if !executable && extension != "py" && is_noexec(path) => {
            let by = by_its_interpreter(&head, path);
            Err(ProgramError::NoExecMount { path: owned(), kind, by })
        }
        Some(kind) if !executable && extension != "py" => Err(ProgramError::NotExecutable { path: owned(), kind }),
        None if !head.starts_with(b"#!")
            && ["sh", "bash", "zsh", "ksh", "csh", "slurm", "sbatch"].contains(&extension) =>
        {
            Err(ProgramError::NoFirstLine { path: owned() })
        }
        kind => Ok(kind),
    }
}

/// How to run a script by the interpreter in its first line; empty for other programs.
fn by_its_interpreter(head: &[u8], path: &Path) -> String {
    let line = head.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let interpreter = line.map(|line| String::from_utf8_lossy(line).trim().to_owned());
    interpreter.map_or_else(String::new, |program| format!(", or start `{program} {}`", foreign::path(path)))
}

/// The kind of program by its first bytes, unless they indicate Python.
fn own_kind(head: &[u8]) -> Option<String> {
    if head.starts_with(b"\x7fELF") {
        return Some("a binary program".to_owned());
    }
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    (!line.split_whitespace().any(is_python)).then(|| format!("a script for `{}`", line.trim()))
}

/// PYTHON_EXEC, otherwise the Python of the active virtual environment, otherwise the first in PATH.
fn python(script: &str, env: Env<'_>) -> Result<OsString, ProgramError> {
    if let Some(chosen) = env("PYTHON_EXEC").filter(|chosen| !chosen.is_empty()) {
        let there = if chosen.as_bytes().contains(&b'/') {
            is_program(Path::new(&chosen))
        } else {
            in_path(&chosen, env).is_some()
        };
        if there {
            return Ok(chosen);
        }
        let path = PathBuf::from(chosen);
        return Err(ClosedFolder::on_the_way(&path).map_or_else(|| ProgramError::PythonExec { path }, Into::into));
    }
    let active = env("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin/python")).filter(|path| is_program(path));
    let found = active.or_else(|| ["python3", "python"].iter().find_map(|name| in_path(OsStr::new(name), env)));
    found.map(PathBuf::into_os_string).ok_or_else(|| ProgramError::NoPython { script: script.to_owned() })
}

fn in_path(name: &OsStr, env: Env<'_>) -> Option<PathBuf> {
    let path = env("PATH").filter(|_| !name.is_empty())?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

fn missing(program: &Path, in_path: bool) -> ProgramError {
    if let Some(closed) = ClosedFolder::on_the_way(program) {
        return closed.into();
    }
    let folder = std::env::current_dir().map_or_else(|_| "gone".to_owned(), |folder| foreign::path(&folder));
    ProgramError::Missing { program: program.to_owned(), folder, in_path }
}

fn path_text(program: &Path, in_path: bool) -> &'static str {
    match (in_path, program.to_string_lossy().starts_with("lab-")) {
        (true, true) => {
            ", and PATH has no program of that name: `cargo build` in the checkout makes the programs of the labs"
        }
        (true, false) => ", and PATH has no program of that name",
        (false, _) => "",
    }
}

/// Replaces the known names in `text`.
pub(super) fn substitute(text: &[u8], known: &dyn Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        let (piece, replacement) = place(&rest[at..], known);
        match replacement {
            Some(replacement) => out.extend_from_slice(replacement.as_bytes()),
            None => out.extend_from_slice(piece),
        }
        rest = &rest[at + piece.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// The placeholders in `text` that [`substitute`] would look up, each with its name; a `$` that begins none has an empty name.
pub(super) fn placeholders(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find('$')?..];
            let length = place(rest.as_bytes(), &|_| None).0.len();
            let (piece, after) = rest.split_at(length);
            rest = after;
            if piece != "$$" {
                return Some((piece, piece.trim_start_matches(['$', '{']).trim_end_matches('}')));
            }
        }
    })
}

/// The placeholder at the start of `text`, which begins with `$`, and its replacement, if it has one.
fn place<'a>(text: &'a [u8], known: &dyn Fn(&str) -> Option<String>) -> (&'a [u8], Option<String>) {
    let after = &text[1..];
    if after.first() == Some(&b'$') {
        return (&text[..2], Some("$".to_owned()));
    }
    let braced = after.first() == Some(&b'{');
    let name = identifier(if braced { &after[1..] } else { after });
    let length = 1 + name.len() + if braced { 2 } else { 0 };
    if name.is_empty() || braced && text.get(length - 1) != Some(&b'}') {
        return (&text[..1], None);
    }
    (&text[..length], known(name))
}

/// The longest identifier, `[_a-zA-Z][_a-zA-Z0-9]*`, at the start.
fn identifier(text: &[u8]) -> &str {
    let end = text.iter().position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_')).unwrap_or(text.len());
    let name = if text.first().is_some_and(u8::is_ascii_digit) { &[] } else { &text[..end] };
    std::str::from_utf8(name).unwrap_or_default() // ASCII, by the line above
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Folder {
        dir: tempfile::TempDir,
    }

    impl Folder {
        /// A folder with a `bin` that is the PATH and holds a `python3` and a `tool`.
        fn new() -> Self {
            let folder = Folder { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(folder.path("bin")).unwrap();
            folder.file("bin/python3", b"#!/bin/sh\n", 0o755);
            folder.file("bin/tool", b"#!/bin/sh\n", 0o755);
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> OsString {
            fs::write(self.path(name), content).unwrap();
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
            self.path(name).into_os_string()
        }

        fn resolve(&self, given: &OsStr, how: How) -> Result<Vec<OsString>, ProgramError> {
            self.resolve_with(given, how, &|name| (name == "PATH").then(|| self.path("bin").into_os_string()))
        }

        fn resolve_with(&self, given: &OsStr, how: How, env: Env<'_>) -> Result<Vec<OsString>, ProgramError> {
            let program = Program::resolve(given, &["--x".into()], how, env)?;
            Ok(std::iter::once(program.file.clone()).chain(program.args(0)).collect())
        }

        fn python(&self) -> OsString {
            self.path("bin/python3").into_os_string()
        }
    }

    fn words(words: &[&OsStr]) -> Vec<OsString> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    const PLAIN: How = How { module: false, no_python: false, run_path: false };

    #[test]
    fn chooses_the_command_by_the_file() {
        let folder = Folder::new();
        let (python, u, x) = (folder.python(), OsStr::new("-u"), OsStr::new("--x"));
        let scripts = [
            folder.file("train.py", b"print()", 0o644),
            folder.file("run me.py", b"#!/bin/sh\n", 0o755),
            folder.file("no-ending", b"print()", 0o644),
            folder.file("shebang", b"#!/usr/bin/env python3\n", 0o755),
            folder.file("shebang2", b"#!/usr/bin/env -S python3.11 -u\n", 0o644),
            folder.file("empty", b"", 0o755),
        ];
        for script in &scripts {
            assert_eq!(folder.resolve(script, PLAIN).unwrap(), words(&[&python, u, script, x]));
        }
        let programs = [
            folder.file("elf", b"\x7fELF\x02\x01\x01", 0o755),
            folder.file("shell", b"#!/bin/sh\n", 0o755),
            folder.file("perl", b"#! /usr/bin/env perl\n", 0o755),
        ];
        for program in &programs {
            assert_eq!(folder.resolve(program, PLAIN).unwrap(), words(&[program, x]));
        }
        assert_eq!(folder.resolve(OsStr::new("tool"), PLAIN).unwrap(), words(&[OsStr::new("tool"), x]));
        fs::create_dir(folder.path("package")).unwrap();
        let package = folder.path("package").into_os_string();
        assert!(matches!(folder.resolve(&package, PLAIN), Err(ProgramError::Folder { .. })));
        folder.file("package/__main__.py", b"", 0o644);
        assert_eq!(folder.resolve(&package, PLAIN).unwrap(), words(&[&python, u, &package, x]));
    }

    #[test]
    fn follows_the_flags_instead() {
        let folder = Folder::new();
        let (python, u, x) = (folder.python(), OsStr::new("-u"), OsStr::new("--x"));
        let module = How { module: true, ..PLAIN };
        let pack = OsStr::new("pack.train");
        assert_eq!(folder.resolve(pack, module).unwrap(), words(&[&python, u, OsStr::new("-m"), pack, x]));
        let script = folder.file("train.py", b"print()", 0o644);
        let no_python = How { no_python: true, ..PLAIN };
        assert_eq!(folder.resolve(&script, no_python).unwrap(), words(&[&script, x]));
        let run_path = How { run_path: true, no_python: true, module: false };
        let command = folder.resolve(&script, run_path).unwrap();
        assert_eq!(command, words(&[&python, u, OsStr::new("-c"), OsStr::new(RUN_PATH), &script, x]));
    }

    #[test]
    fn uses_the_requested_python() {
        let folder = Folder::new();
        let script = folder.file("train.py", b"", 0o644);
        let chosen = folder.file("mine", b"#!/bin/sh\n", 0o755);
        let path = folder.path("bin").into_os_string();
        let env = |name: &str| match name {
            "PATH" => Some(path.clone()),
            "PYTHON_EXEC" => Some(chosen.clone()),
            _ => None,
        };
        assert_eq!(folder.resolve_with(&script, PLAIN, &env).unwrap()[0], chosen);
        fs::create_dir_all(folder.path("venv/bin")).unwrap();
        let own = folder.file("venv/bin/python", b"#!/bin/sh\n", 0o755);
        let venv = |name: &str| match name {
            "PATH" => Some(path.clone()),
            "VIRTUAL_ENV" => Some(folder.path("venv").into_os_string()),
            _ => None,
        };
        assert_eq!(folder.resolve_with(&script, PLAIN, &venv).unwrap()[0], own);
        let wrong = |name: &str| (name == "PYTHON_EXEC").then(|| OsString::from("/no/python"));
        let error = folder.resolve_with(&script, PLAIN, &wrong).unwrap_err().to_string();
        assert!(error.starts_with("PYTHON_EXEC=/no/python is not a program: "), "{error}");
    }

    #[test]
    fn reports_before_the_start_why_it_cannot_run() {
        let folder = Folder::new();
        let refuse = |given: &OsStr, how| folder.resolve(given, how).unwrap_err().to_string();
        let gone = folder.path("gone.py").into_os_string();
        assert!(
            refuse(&gone, PLAIN).starts_with(&format!("cannot find {}: there is no such file (the ", gone.display()))
        );
        assert!(refuse(OsStr::new("no-such-tool"), PLAIN).ends_with(", and PATH has no program of that name"));
        assert!(refuse(&gone, How { no_python: true, ..PLAIN }).starts_with("cannot find "));
        assert!(refuse(&gone, How { run_path: true, ..PLAIN }).starts_with("cannot find "));
        let elf = folder.file("elf", b"\x7fELF", 0o644);
        assert!(refuse(&elf, PLAIN).contains("is a binary program but not executable: run `chmod +x /"));
        let shell = folder.file("x.sh", b"#!/bin/sh -e\n", 0o644);
        assert!(refuse(&shell, PLAIN).contains("is a script for `/bin/sh -e` but not executable"));
        let script = folder.file("train.py", b"", 0o644);
        let error = folder.resolve_with(&script, PLAIN, &|_| None).unwrap_err().to_string();
        assert!(error.contains("neither python3 nor python is in PATH; set PYTHON_EXEC"), "{error}");
    }

    #[test]
    fn replaces_the_local_rank_in_arguments_and_not_in_the_program() {
        let folder = Folder::new();
        let tool = folder.file("t$$", b"#!/bin/sh\n", 0o755);
        let args = ["--out=${local_rank}".into(), "$$HOME".into()];
        let program = Program::resolve(&tool, &args, PLAIN, &|_| None).unwrap();
        assert_eq!((program.file.clone(), program.args(3)), (tool, vec!["--out=3".into(), "$HOME".into()]));
        assert!(program.command().ends_with("t$$ --out=${local_rank} $$HOME"));
    }

    /// Each pair is the result of `string.Template(text).safe_substitute(local_rank="3")` in Python 3.11.
    const PYTHON: [(&str, &str); 20] = [
        ("${local_rank}", "3"),
        ("$local_rank", "3"),
        ("$local_ranks", "$local_ranks"),
        ("$$", "$"),
        ("$$local_rank", "$local_rank"),
        ("$$$local_rank", "$3"),
        ("a$", "a$"),
        ("${local_rank", "${local_rank"),
        ("${}", "${}"),
        ("$1", "$1"),
        ("${ local_rank}", "${ local_rank}"),
        ("$LOCAL_RANK", "$LOCAL_RANK"),
        ("--rank=${local_rank}/x", "--rank=3/x"),
        ("${other}", "${other}"),
        ("$é", "$é"),
        ("${local_rank}${local_rank}", "33"),
        ("$$$$", "$$"),
        ("$_x", "$_x"),
        ("cost: 5$", "cost: 5$"),
        ("${local_rank}_é", "3_é"),
    ];

    fn third(name: &str) -> Option<String> {
        (name == "local_rank").then(|| "3".to_owned())
    }

    #[test]
    fn replaces_what_pythons_template_replaces() {
        for (text, expected) in PYTHON {
            assert_eq!(String::from_utf8(substitute(text.as_bytes(), &third)).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn keeps_bytes_that_are_not_utf_8() {
        assert_eq!(substitute(b"\xff$\xff${local_rank}\xfe", &third), b"\xff$\xff3\xfe");
    }
}
