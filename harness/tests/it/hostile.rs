//! A class in which almost everybody is up to something: each submission gets its finding, and a neighbour's files and grade are what they were.
//!
//! All are graded by one call, as an ordinary user, who owns all of the class's files: three seconds of a core for 48 submissions. Programs are
//! scripts, since compiling them would prove no more; what the compiler might be made to do is refused before it starts, except for what
//! [`CARGO`] stands for.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use lockstep_launch::command::quoted;
use lockstep_process::proc;
use lockstep_process::watchdog;
use rustix::process::geteuid;

use crate::learn::{Checkout, answers, copy, repository, submit_answers};
use crate::running::Ended;

/// An account without rights, where root runs the test.
const NOBODY: u32 = 65534;

/// A cargo that "builds" the program that an answer names, or crashes. It builds nothing else: a learner's own manifest, build script or `main`
/// would be another program.
const CARGO: &str = r#"
[ "$1" = build ] || exit 1
here=$PWD/class/ex-02
! [ -e "$here/build.rs" ] && ! grep -q mine "$here/Cargo.toml" "$here/src/main.rs" || exit 1
joke=$(sed -n 's|^// joke ||p' "$here/src/shard.rs")
if [ "$joke" = compiler-crashes ]; then echo 'error: rustc interrupted by SIGSEGV' >&2; kill -SEGV $$; fi
echo '{"target": {"name": "ex-02"}, "executable": "PROGRAMS/'"${joke:-right}"'"}'
"#;

/// What a rank tries, and what the report then says. `$N` is a neighbour's folder, `$F` an answer in it, `$C` the checkout, `$G` the grader's
/// process. What ends with 4 has succeeded.
const TRIED: [(&str, &str, &str); 33] = [
    ("chmod", "chmod 000 $N", REFUSED),
    ("chmod-file", "chmod 777 $F", REFUSED),
    ("chown", "chown $(id -u) $N", REFUSED),
    ("touch", "touch -d @0 $F", REFUSED),
    ("append", "echo x >>$F", REFUSED),
    ("cut-off", "perl -e 'exit !truncate $ARGV[0], 0' $F", REFUSED),
    ("open-to-cut", "perl -e 'use Fcntl; exit !sysopen H, $ARGV[0], O_RDONLY | O_TRUNC' $F", REFUSED),
    ("remove", "rm -f $F", REFUSED),
    ("rename", "mv $N $N.gone", REFUSED),
    ("replace", "echo x >x; mv -f x $F", REFUSED),
    ("hard-link", "ln $F mine", REFUSED),
    ("link-there", "ln -s /etc $N/etc", REFUSED),
    ("folder-there", "mkdir $N/new", REFUSED),
    ("pipe-there", "mkfifo $N/pipe", REFUSED),
    ("attributes", "chattr +A $F", REFUSED),
    ("through-proc", "echo x >/proc/self/root$F", REFUSED),
    ("course", "echo x >>$C/labs/02-spawn-ddp/lab.toml", REFUSED),
    ("progress", "echo x >$C/progress.toml", REFUSED),
    ("next-answer", "echo x >$C/target/class/class/ex-02/src/shard.rs", REFUSED),
    ("program", "echo x >$C/programs/right", REFUSED),
    ("shared-memory", "echo x >/dev/shm/lockstep-joke", REFUSED),
    ("grader", "kill -9 $G", REFUSED),
    ("graders-limits", "prlimit --pid $G --core=0", REFUSED),
    ("graders-priority", "renice -n 19 -p $G", REFUSED),
    ("graders-memory", "echo 1000 >/proc/$G/oom_score_adj", REFUSED),
    ("stdin", "read -r line", REFUSED),
    ("exits", "exit 0", "exit code 0"),
    ("says-machine", "echo 'x: symbol lookup error: x'; exit 3", "could not be graded"),
    ("forges", "echo '[' >$LOCKSTEP_ANSWERS/rank-$RANK.json; exit 3", "shard"),
    ("leaves", "setsid sleep 98765 >/dev/null 2>&1 & exit 3", "something in the answer ends the process"),
    ("many", "i=0; while [ $i -lt 600 ]; do sleep 98765 & i=$((i + 1)); done; wait", "threads and processes"),
    // A file's length counts, not what the disk must write for it.
    ("large", "dd if=/dev/zero of=x bs=1M count=1 seek=256; exec sleep 98765", "out of bounds"),
    ("prints", "dd if=/dev/zero bs=1M count=1 seek=256; exec sleep 98765", "to one file than is allowed"),
];
const REFUSED: &str = "exit code 3";

/// Answers that are not run, and why.
const TEXTS: [(&str, &str, &str); 6] = [
    ("path", "#[path = \"../../../neighbour/ex-02/src/line.rs\"] mod theirs;", "reads another file with `#[path]`"),
    ("path-hidden", "#[cfg_attr(all(), path = r\"/x.rs\")] mod theirs;", "reads another file with `#[path]`"),
    ("endless-pipe", "const X: &str = include_str!(\"/x/pipe\");", "reads another file with `include_str!`"),
    ("renamed", "use std::include_bytes as read;", "reads another file with `include_bytes!`"),
    ("compiler-crashes", "// joke compiler-crashes\n", "the compiler failed: error: rustc interrupted by SIGSEGV"),
    ("macro", "// joke reads-theirs\n", "neighbour/ex-02/src/line.rs, which is not a part of it"),
];

/// Everything about a folder's files that an answer might change: mode, user, group, time, links, and text.
type State = BTreeMap<PathBuf, (u32, u32, u32, i64, u64, Vec<u8>)>;

fn state(folder: &Path) -> State {
    let mut all = BTreeMap::new();
    let mut next = vec![folder.to_path_buf()];
    while let Some(path) = next.pop() {
        let data = fs::symlink_metadata(&path).unwrap();
        let text = if data.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if data.is_dir() {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path, (data.mode(), data.uid(), data.gid(), data.mtime(), data.nlink(), text));
    }
    all
}

fn give_to_nobody(folder: &Path) {
    std::os::unix::fs::lchown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    if folder.is_dir() && !folder.is_symlink() {
        fs::read_dir(folder).unwrap().for_each(|entry| give_to_nobody(&entry.unwrap().path()));
    }
}

#[test]
fn jokers_harm_neither_their_neighbours_nor_the_grader() {
    let checkout = Checkout::new();
    let (class, programs) = (checkout.path("class"), checkout.path("programs"));
    fs::create_dir(&programs).unwrap();
    let submit = |name: &str, text: &str| {
        let source = class.join(name).join("ex-02/src");
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("shard.rs"), text).unwrap();
        source
    };
    let neighbour = class.join("neighbour");
    submit_answers(&neighbour.join("ex-02/src"));
    // One of the right answers is enough; what is missing is not run.
    for task in ["average", "distributed", "epochs", "prepare", "shard"] {
        fs::remove_file(neighbour.join("ex-02/src").join(task).with_extension("rs")).unwrap();
    }
    let quoted = |path: &Path| quoted(path.to_str().unwrap());
    let theirs = neighbour.join("ex-02/src/line.rs");
    for (name, attempt, _) in TRIED {
        submit(name, &format!("// joke {name}\n"));
        checkout.script(
            &format!("programs/{name}"),
            &format!(
                "N={} F={} C={} G=$(cut -d' ' -f4 /proc/$$/stat)\nprintf 0 >\"$LOCKSTEP_ANSWERS/rank-$RANK.begun\"\n\
                 if {attempt}; then exit 4; else exit 3; fi\n",
                quoted(&neighbour),
                quoted(&theirs),
                quoted(checkout.0.path()),
            ),
        );
        fs::write(programs.join(name).with_extension("d"), "x:\n").unwrap();
    }
    for (name, text, _) in TEXTS {
        submit(name, text);
    }
    let right = answers();
    let right_or = right.as_deref().unwrap_or(Path::new("false"));
    for name in ["right", "reads-theirs"] {
        checkout.script(&format!("programs/{name}"), &format!("exec {} \"$@\"\n", quoted(right_or)));
    }
    fs::write(programs.join("right.d"), "x:\n").unwrap();
    fs::write(programs.join("reads-theirs.d"), format!("x: {}\n", theirs.display().to_string().replace(' ', "\\ ")))
        .unwrap();
    checkout.script("cargo", &CARGO.replace("PROGRAMS", programs.to_str().unwrap()));
    // Files that are none, links to a neighbour's, and a package of one's own, which nobody builds.
    let mine = submit("package", "// joke exits\n");
    for file in ["../build.rs", "../Cargo.toml", "main.rs"] {
        fs::write(mine.join(file), "mine").unwrap();
    }
    let replaced = |name: &str| {
        let file = submit(name, "").join("shard.rs");
        fs::remove_file(&file).unwrap();
        file
    };
    symlink(&theirs, replaced("link")).unwrap();
    fs::create_dir(replaced("folder")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, replaced("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::write(replaced("bytes"), [0xff, 0xfe]).unwrap();
    fs::set_permissions(submit("secret", "").join("shard.rs"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::create_dir_all(class.join("linked/ex-02")).unwrap();
    symlink(neighbour.join("ex-02/src"), class.join("linked/ex-02/src")).unwrap();
    fs::create_dir_all(class.join("ansi\u{1b}[2J")).unwrap();

    let command = checkout.path("lockstep");
    fs::copy(cargo_bin("lockstep"), &command).unwrap();
    fs::create_dir(checkout.path("tmp")).unwrap();
    let before = [state(&neighbour), state(&checkout.path("labs"))];
    let mut grading = Command::new(&command);
    grading.args(["grade", "02", "--class", "class", "--seed", "7", "--report", "report.json"]);
    grading
        .current_dir(checkout.0.path())
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO", checkout.path("cargo"))
        .env("TMPDIR", checkout.path("tmp"));
    let mut can_run = Command::new("test");
    can_run.args(["-x", right_or.to_str().unwrap()]);
    if geteuid().is_root() {
        give_to_nobody(checkout.0.path());
        let mut can_pass = Command::new("test");
        can_pass.args(["-x", checkout.path("lockstep").to_str().unwrap()]).uid(NOBODY).gid(NOBODY);
        if !can_pass.status().unwrap().success() {
            println!("not verified here: what an ordinary user's answers do, since TMPDIR is closed to others");
            return;
        }
        grading.uid(NOBODY).gid(NOBODY);
        can_run.uid(NOBODY).gid(NOBODY);
    }
    let ended = Ended::from(watchdog::output(grading));
    let ended = ended.code(1);
    if ended.out.contains("warning: answers could write") {
        println!("not verified here: what an answer does elsewhere, since this kernel has no Landlock");
        return;
    }
    let report = fs::read_to_string(checkout.path("report.json"));
    let report = report.unwrap_or_else(|error| panic!("no report: {error}\n{}\n{}", ended.out, ended.err));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let said = |name: &str| {
        let cases = report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["name"].as_str().unwrap().split('/').next() == Some(name));
        case.unwrap_or_else(|| panic!("{name}: {report:#}")).to_string()
    };
    let expected =
        TRIED.map(|(name, _, text)| (name, text)).into_iter().chain(TEXTS.map(|(name, _, text)| (name, text)));
    for (name, text) in expected.chain([
        ("package", "exit code 0"),
        ("link", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("bytes", "valid UTF-8"),
        ("secret", "Permission denied"),
        ("linked", "is a link, which is not followed"),
        ("ansi\\u{1b}[2J", "found none of"),
    ]) {
        assert!(said(name).contains(text), "{name}: {text}: {}", said(name));
    }
    assert!(!ended.out.contains('\u{1b}'), "{ended}");
    let files = |all: BTreeMap<PathBuf, _>| all.into_iter().collect::<Vec<_>>();
    let after = [state(&neighbour), state(&checkout.path("labs"))];
    let owner = |mut all: State| {
        all.values_mut().for_each(|state| (state.1, state.2) = (0, 0));
        files(all)
    };
    assert_eq!(before.map(owner), after.map(owner));
    let left = proc::pids().filter_map(proc::command_line).filter(|line| line.contains("sleep 98765")).count();
    assert_eq!(left, 0, "processes are left");
    assert!(!Path::new("/dev/shm/lockstep-joke").exists() && !checkout.path("progress.toml").exists());
    assert_eq!(fs::read_dir(checkout.path("tmp")).unwrap().count(), 0, "temporary files are left");
    if can_run.status().unwrap().success() {
        assert!(said("neighbour").contains("\"line: "), "{}", said("neighbour"));
        assert!(ended.out.lines().any(|line| line.starts_with("neighbour/02") && line.contains("✓ line")), "{ended}");
    } else {
        println!("not verified here: a right answer among hostile ones, since an ordinary user cannot run sol-02");
    }
}

/// What an answer in Python tries when it is loaded, and what the report then says. `N` is a neighbour's folder, `F` an answer in it, `C` the
/// checkout. What raises nothing has succeeded. There is one list for each learner: one process imports PyTorch for all of it.
const IN_PYTHON: [[(&str, &str); 6]; 5] = [
    [
        ("open(F).read()", DENIED),
        ("os.listdir(N)", DENIED),
        ("open(f'{C}/labs/02-spawn-ddp/tasks/shard/answer.py').read()", DENIED),
        ("exec(open(f'/proc/self/root{F}').read())", DENIED),
        ("subprocess.run(['cat', F], check=True, capture_output=True)", "CalledProcessError"),
        ("os.symlink(F, 'mine') or open('mine').read()", DENIED),
    ],
    [
        ("open(F, 'a').write('x')", DENIED),
        ("os.chmod(F, 0o777)", NOT_PERMITTED),
        ("os.utime(F, (0, 0))", NOT_PERMITTED),
        ("os.chown(F, os.getuid(), os.getgid())", NOT_PERMITTED),
        ("os.remove(F)", DENIED),
        ("os.link(F, 'mine')", "Invalid cross-device link"),
    ],
    [
        ("os.mkfifo(f'{N}/pipe')", DENIED),
        ("os.rename(N, N + '.gone')", DENIED),
        ("open(f'{C}/progress.toml', 'w')", DENIED),
        ("open(__file__, 'w')", DENIED),
        ("open('/dev/shm/lockstep-joke', 'w')", DENIED),
        ("os.kill(os.getppid(), 9)", NOT_PERMITTED),
    ],
    [
        ("sys.exit(0)", "exit code 0"),
        ("os._exit(7)", "exit code 7"),
        ("subprocess.Popen(['setsid', 'sleep', '56789']) and os._exit(3)", "exit code 3"),
        ("[os.fork() or time.sleep(98765) for _ in range(600)]", "out of bounds"),
        ("open('x', 'w').truncate(257 << 20) and time.sleep(98765)", "File too large"),
        ("resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))", NOT_PERMITTED),
    ],
    [
        ("import neighbours_answer", "No module named 'neighbours_answer'"),
        ("this is no Python", "SyntaxError"),
        ("time.sleep(98765)", "hang"),
        ("socket.socket(socket.AF_UNIX).bind(f'{C}/joke')", DENIED),
        ("os.environ.clear()", "succeeded"),
        ("open('mine', 'w').write('x')", "succeeded"),
    ],
];
const DENIED: &str = "Permission denied";
const NOT_PERMITTED: &str = "Operation not permitted";

#[test]
fn jokers_in_python_neither_read_nor_change_what_is_not_theirs() {
    let tasks = ["shard", "average", "prepare", "distributed", "line", "epochs"];
    let Some(python) = lockstep_testkit::python::python_with(&[], "hostile answers in Python") else { return };
    let checkout = Checkout::new();
    copy(&repository().join("python/lockstep_exercise"), &checkout.path("python/lockstep_exercise"));
    let class = checkout.path("class");
    let neighbour = class.join("neighbour/tasks/02_spawn_ddp");
    fs::create_dir_all(&neighbour).unwrap();
    for task in tasks {
        let answer = repository().join("labs/02-spawn-ddp/tasks").join(task).join("answer.py");
        fs::copy(answer, neighbour.join(task).with_extension("py")).unwrap();
    }
    let text = |path: &Path| format!("{:?}", path.to_str().unwrap());
    let names = format!(
        "import os, resource, socket, subprocess, sys, time\nN, F, C = {}, {}, {}\n",
        text(&neighbour),
        text(&neighbour.join("shard.py")),
        text(checkout.0.path())
    );
    for (number, jokes) in IN_PYTHON.iter().enumerate() {
        let folder = class.join(format!("joker-{number}/02_spawn_ddp"));
        fs::create_dir_all(&folder).unwrap();
        for (task, (joke, _)) in tasks.iter().zip(jokes) {
            let text = format!("{names}{joke}\nraise RuntimeError('it has succeeded')\n");
            fs::write(folder.join(task).with_extension("py"), text).unwrap();
        }
    }
    let odd = class.join("odd/python/tasks/02_spawn_ddp");
    fs::create_dir_all(odd.join("average.py")).unwrap();
    symlink(neighbour.join("shard.py"), odd.join("shard.py")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, odd.join("line.py"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::write(odd.join("epochs.py"), [0xff, 0xfe]).unwrap();
    fs::create_dir_all(class.join("linked")).unwrap();
    symlink(&neighbour, class.join("linked/02_spawn_ddp")).unwrap();

    let command = checkout.path("lockstep");
    fs::copy(cargo_bin("lockstep"), &command).unwrap();
    fs::create_dir(checkout.path("tmp")).unwrap();
    let before = state(&neighbour);
    let mut grading = Command::new(&command);
    grading.args(["grade", "02", "--class", "class", "--seed", "7", "--report", "report.json"]);
    grading.current_dir(checkout.0.path()).env("TMPDIR", checkout.path("tmp")).env("LOCKSTEP_PYTHON", &python);
    if geteuid().is_root() {
        give_to_nobody(checkout.0.path());
        let mut can_run = Command::new(&python);
        if !can_run.args(["-c", "import torch"]).uid(NOBODY).gid(NOBODY).status().is_ok_and(|ended| ended.success()) {
            println!(
                "not verified here: what an ordinary user's answers in Python do, since {python} is closed to others"
            );
            return;
        }
        grading.uid(NOBODY).gid(NOBODY);
    }
    let ended = Ended::from(watchdog::output(grading)).code(1);
    if ended.out.contains("warning: answers could write") {
        println!("not verified here: what an answer in Python does elsewhere, since this kernel has no Landlock");
        return;
    }
    let report = fs::read_to_string(checkout.path("report.json")).unwrap_or_else(|error| panic!("{error}: {ended}"));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let case = |name: &str| {
        let mut cases = report["cases"].as_array().unwrap().iter();
        cases
            .find(|case| case["name"].as_str().unwrap().split('/').next() == Some(name))
            .unwrap_or_else(|| panic!("{name}: {report:#}"))
    };
    let said = |name: &str, task: &str| {
        let findings = case(name)["findings"].as_array().unwrap();
        let of_task =
            findings.iter().find(|finding| finding["claim"].as_str().unwrap().starts_with(&format!("{task}: ")));
        of_task.unwrap_or_else(|| panic!("{name} {task}: {report:#}"))["evidence"].as_str().unwrap().to_owned()
    };
    for (number, jokes) in IN_PYTHON.iter().enumerate() {
        for (task, (joke, text)) in tasks.iter().zip(jokes) {
            let said = said(&format!("joker-{number}"), task);
            assert!(said.contains(text), "{joke}: {text}: {said}");
        }
    }
    for (task, text) in [
        ("shard", "02_spawn_ddp/shard.py is not a regular file"),
        ("average", "is not a regular file"),
        ("line", "is not a regular file"),
        ("epochs", "valid UTF-8"),
        ("prepare", "not handed in"),
    ] {
        assert!(said("odd", task).contains(text), "{task}: {}", said("odd", task));
    }
    assert!(case("linked").to_string().contains("is a link, which is not followed"), "{report:#}");
    let right = case("neighbour");
    assert_eq!(
        (&right["verdict"], &right["shows"]),
        (&"passed".into(), &"6 of 6 tasks of lab 02 are done, in Python".into())
    );
    let files = |all: State| {
        let plain = |(path, (mode, _, _, time, links, text))| (path, (mode, time, links, text));
        all.into_iter().map(plain).collect::<Vec<_>>()
    };
    assert_eq!(files(before), files(state(&neighbour)));
    let left = proc::pids().filter_map(proc::command_line).filter(|line| line.contains("sleep 56789")).count();
    assert_eq!(left, 0, "processes are left");
    assert!(!Path::new("/dev/shm/lockstep-joke").exists() && !checkout.path("progress.toml").exists());
    assert_eq!(fs::read_dir(checkout.path("tmp")).unwrap().count(), 0, "temporary files are left");
}
