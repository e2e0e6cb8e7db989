//! Which program runs a worker, decided by the file: a Python script by Python, anything else by itself.
//!
//! torchrun runs everything as `python -u SCRIPT` unless `--no-python` is given. Here programs and scripts of other
//! languages need no flag. That nothing is started for a file that cannot run is the point of looking at it first.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::given::Env;
use super::template::substitute;

/// The kernel reads as much of a first line (`BINPRM_BUF_SIZE`, linux/binfmts.h), in bytes.
const HEAD: u64 = 256;
/// `--run-path`: what torchrun's `run_script_path` does (torch/distributed/run.py).
const RUN_PATH: &str = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// What a worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// As people know it: the script, the module or the program. Stands in the final report.
    pub name: String,
    /// What is executed: a path, or a name to be found in PATH.
    pub file: OsString,
    templates: Vec<OsString>,
}

/// How the user wants it run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    /// `-m`.
    pub(super) module: bool,
    /// `--no-python`.
    pub(super) no_python: bool,
    /// `--run-path`, which wins over `--no-python`.
    pub(super) run_path: bool,
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// No such file or program.
    #[error("cannot find {}: there is no such file (the current folder is {folder}){}", program.display(), path_told(*in_path))]
    Missing {
        /// As given.
        program: PathBuf,
        /// Where a relative path begins.
        folder: String,
        /// Whether PATH was looked through too.
        in_path: bool,
    },
    /// A folder that Python does not run either.
    #[error("{} is a folder without __main__.py: give the path of a script in it", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is a program, but must not be executed.
    #[error("{} is {kind} but not executable: run `chmod +x {}`", path.display(), path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: String,
    },
    /// No Python.
    #[error(
        "cannot run {script}: neither python3 nor python is in PATH; set PYTHON_EXEC to a Python, or give --no-python for a program that needs none"
    )]
    NoPython {
        /// What it was needed for.
        script: String,
    },
    /// PYTHON_EXEC is wrong.
    #[error("PYTHON_EXEC={} is no program: set it to the path of a Python, or unset it", path.display())]
    PythonExec {
        /// Its value.
        path: PathBuf,
    },
}

impl Program {
    /// The arguments of the worker with this local rank: `${local_rank}` replaced, `$$` made `$`, others left.
    pub fn args(&self, local_rank: usize) -> Vec<OsString> {
        let known = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
        self.templates.iter().map(|text| OsString::from_vec(substitute(text.as_bytes(), &known))).collect()
    }

    /// The whole command line as it was given, for people and for comparing jobs.
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
    // execvp(3) looks for a bare name in PATH only; a script is looked for here only.
    if bare && (no_python || !path.exists()) {
        return match in_path(given, env) {
            Some(_) => Ok(Kind::Program(given.to_owned())),
            None if no_python && path.exists() => Ok(Kind::Program(Path::new(".").join(path).into_os_string())),
            None => Err(missing(path, true)),
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

/// `None` for what Python is to run; else what other kind of program it is.
///
/// # Errors
/// When it can be run in no way.
fn is_script(given: &OsStr) -> Result<Option<String>, ProgramError> {
    let path = Path::new(given);
    let unreadable = |source| ProgramError::Unreadable { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => missing(path, false),
        _ => unreadable(source),
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
    match own_kind(&head) {
        Some(kind) if !executable && path.extension() != Some(OsStr::new("py")) => {
            Err(ProgramError::NotExecutable { path: path.to_owned(), kind })
        }
        kind => Ok(kind),
    }
}

/// What the first bytes say, where they do not say Python.
fn own_kind(head: &[u8]) -> Option<String> {
    if head.starts_with(b"\x7fELF") {
        return Some("a binary program".to_owned());
    }
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let is_python = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or_default();
        name.starts_with("python") || name.starts_with("pypy")
    };
    (!line.split_whitespace().any(is_python)).then(|| format!("a script for `{}`", line.trim()))
}

/// PYTHON_EXEC, else the active virtual environment's, else what PATH has.
fn python(script: &str, env: Env<'_>) -> Result<OsString, ProgramError> {
    if let Some(chosen) = env("PYTHON_EXEC").filter(|chosen| !chosen.is_empty()) {
        let there = if chosen.as_bytes().contains(&b'/') {
            is_program(Path::new(&chosen))
        } else {
            in_path(&chosen, env).is_some()
        };
        return if there { Ok(chosen) } else { Err(ProgramError::PythonExec { path: chosen.into() }) };
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
    let folder = std::env::current_dir().map_or_else(|_| "gone".to_owned(), |folder| folder.display().to_string());
    ProgramError::Missing { program: program.to_owned(), folder, in_path }
}

fn path_told(in_path: bool) -> &'static str {
    if in_path { ", and PATH has no program of that name" } else { "" }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Site {
        dir: tempfile::TempDir,
    }

    impl Site {
        /// A folder with a `bin` that is the PATH and holds a `python3` and a `tool`.
        fn new() -> Self {
            let site = Site { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(site.path("bin")).unwrap();
            site.file("bin/python3", b"#!/bin/sh\n", 0o755);
            site.file("bin/tool", b"#!/bin/sh\n", 0o755);
            site
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
    fn decides_by_the_file_what_runs_it() {
        let site = Site::new();
        let (python, u, x) = (site.python(), OsStr::new("-u"), OsStr::new("--x"));
        let scripts = [
            site.file("train.py", b"print()", 0o644),
            site.file("run me.py", b"#!/bin/sh\n", 0o755),
            site.file("no-ending", b"print()", 0o644),
            site.file("shebang", b"#!/usr/bin/env python3\n", 0o755),
            site.file("shebang2", b"#!/usr/bin/env -S python3.11 -u\n", 0o644),
            site.file("empty", b"", 0o755),
        ];
        for script in &scripts {
            assert_eq!(site.resolve(script, PLAIN).unwrap(), words(&[&python, u, script, x]));
        }
        let programs = [
            site.file("elf", b"\x7fELF\x02\x01\x01", 0o755),
            site.file("shell", b"#!/bin/sh\n", 0o755),
            site.file("perl", b"#! /usr/bin/env perl\n", 0o755),
        ];
        for program in &programs {
            assert_eq!(site.resolve(program, PLAIN).unwrap(), words(&[program, x]));
        }
        assert_eq!(site.resolve(OsStr::new("tool"), PLAIN).unwrap(), words(&[OsStr::new("tool"), x]));
        fs::create_dir(site.path("package")).unwrap();
        let package = site.path("package").into_os_string();
        assert!(matches!(site.resolve(&package, PLAIN), Err(ProgramError::Folder { .. })));
        site.file("package/__main__.py", b"", 0o644);
        assert_eq!(site.resolve(&package, PLAIN).unwrap(), words(&[&python, u, &package, x]));
    }

    #[test]
    fn does_what_the_flags_say_instead() {
        let site = Site::new();
        let (python, u, x) = (site.python(), OsStr::new("-u"), OsStr::new("--x"));
        let module = How { module: true, ..PLAIN };
        let pack = OsStr::new("pack.train");
        assert_eq!(site.resolve(pack, module).unwrap(), words(&[&python, u, OsStr::new("-m"), pack, x]));
        let script = site.file("train.py", b"print()", 0o644);
        let no_python = How { no_python: true, ..PLAIN };
        assert_eq!(site.resolve(&script, no_python).unwrap(), words(&[&script, x]));
        let run_path = How { run_path: true, no_python: true, module: false };
        let command = site.resolve(&script, run_path).unwrap();
        assert_eq!(command, words(&[&python, u, OsStr::new("-c"), OsStr::new(RUN_PATH), &script, x]));
    }

    #[test]
    fn takes_the_python_that_is_asked_for() {
        let site = Site::new();
        let script = site.file("train.py", b"", 0o644);
        let chosen = site.file("mine", b"#!/bin/sh\n", 0o755);
        let path = site.path("bin").into_os_string();
        let env = |name: &str| match name {
            "PATH" => Some(path.clone()),
            "PYTHON_EXEC" => Some(chosen.clone()),
            _ => None,
        };
        assert_eq!(site.resolve_with(&script, PLAIN, &env).unwrap()[0], chosen);
        fs::create_dir_all(site.path("venv/bin")).unwrap();
        let own = site.file("venv/bin/python", b"#!/bin/sh\n", 0o755);
        let venv = |name: &str| match name {
            "PATH" => Some(path.clone()),
            "VIRTUAL_ENV" => Some(site.path("venv").into_os_string()),
            _ => None,
        };
        assert_eq!(site.resolve_with(&script, PLAIN, &venv).unwrap()[0], own);
        let wrong = |name: &str| (name == "PYTHON_EXEC").then(|| OsString::from("/no/python"));
        let error = site.resolve_with(&script, PLAIN, &wrong).unwrap_err().to_string();
        assert!(error.starts_with("PYTHON_EXEC=/no/python is no program: "), "{error}");
    }

    #[test]
    fn says_before_any_start_why_it_cannot_run() {
        let site = Site::new();
        let refuse = |given: &OsStr, how| site.resolve(given, how).unwrap_err().to_string();
        let gone = site.path("gone.py").into_os_string();
        assert!(
            refuse(&gone, PLAIN).starts_with(&format!("cannot find {}: there is no such file (the ", gone.display()))
        );
        assert!(refuse(OsStr::new("no-such-tool"), PLAIN).ends_with(", and PATH has no program of that name"));
        assert!(refuse(&gone, How { no_python: true, ..PLAIN }).starts_with("cannot find "));
        assert!(refuse(&gone, How { run_path: true, ..PLAIN }).starts_with("cannot find "));
        let elf = site.file("elf", b"\x7fELF", 0o644);
        assert!(refuse(&elf, PLAIN).contains("is a binary program but not executable: run `chmod +x /"));
        let shell = site.file("x.sh", b"#!/bin/sh -e\n", 0o644);
        assert!(refuse(&shell, PLAIN).contains("is a script for `/bin/sh -e` but not executable"));
        let script = site.file("train.py", b"", 0o644);
        let error = site.resolve_with(&script, PLAIN, &|_| None).unwrap_err().to_string();
        assert!(error.contains("neither python3 nor python is in PATH; set PYTHON_EXEC"), "{error}");
    }

    #[test]
    fn replaces_the_local_rank_in_arguments_and_not_in_the_program() {
        let site = Site::new();
        let tool = site.file("t$$", b"#!/bin/sh\n", 0o755);
        let args = ["--out=${local_rank}".into(), "$$HOME".into()];
        let program = Program::resolve(&tool, &args, PLAIN, &|_| None).unwrap();
        assert_eq!((program.file.clone(), program.args(3)), (tool, vec!["--out=3".into(), "$HOME".into()]));
        assert!(program.command().ends_with("t$$ --out=${local_rank} $$HOME"));
    }
}
