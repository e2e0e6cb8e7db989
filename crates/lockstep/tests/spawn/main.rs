//! Spawn's guarantees, tested from outside: the program that these tests start is this executable.

#![allow(clippy::unwrap_used)] // a test may

mod program;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, process, thread};

use anyhow::{Context, bail, ensure};
use lockstep::spawn::{Failure, Hosted, Spawn, SpawnError, Stage, Stopped, StoppedBy};
use lockstep::{LaunchEnv, Rank};
use program::{KillOnDrop, finish, program, program_after, text, until_closed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

fn main() -> ExitCode {
    program::main(
        case,
        [
            ("gives_every_worker_its_place_its_arguments_and_an_open_store", gives_places),
            ("keeps_the_programs_own_arguments_and_environment", keeps_arguments),
            ("passes_arguments_of_many_megabytes", passes_much),
            ("reports_a_workers_error_with_its_chain_and_stops_the_others", reports_error),
            ("adds_the_trace_when_backtraces_are_requested", adds_trace),
            ("reports_a_workers_panic_with_its_location_and_prints_it_once", reports_panic),
            ("reports_an_exit_code", reports_exit),
            ("counts_an_exit_with_0_before_the_end_as_a_failure", reports_exit_0),
            ("names_the_signal_that_killed_a_worker", names_signal),
            ("kills_a_worker_that_ignores_sigterm", kills_stubborn),
            ("lists_the_second_failure_as_also_failed", lists_second),
            ("blames_a_panic_although_a_peer_died_first", blames_the_panic),
            ("stops_all_workers_at_its_timeout", stops_at_timeout),
            ("leaves_no_worker_when_the_parent_is_killed", leaves_no_orphan),
            ("leaves_no_worker_when_one_cannot_be_started", leaves_none_half_started),
            ("skips_the_calls_that_the_parent_has_finished", skips_finished),
            ("returns_a_calls_failure_in_the_workers_of_the_next_call", repeats_failure),
            ("refuses_a_worker_that_reaches_another_call", refuses_elsewhere),
            ("reports_a_worker_that_never_reaches_the_call", reports_never),
            ("reports_an_error_before_the_call", reports_early_error),
            ("refuses_to_spawn_inside_a_worker", refuses_nested),
            ("refuses_to_spawn_in_a_program_that_a_worker_started", refuses_grandchild),
            ("refuses_to_spawn_while_another_spawn_runs", refuses_concurrent),
            ("refuses_to_spawn_under_a_launcher_with_exit_code_2", refuses_launcher),
            ("refuses_invalid_numbers_of_processes", refuses_absurd),
            ("reports_arguments_that_json_cannot_represent", reports_bad_args),
            ("reports_a_store_that_does_not_open", reports_store),
            ("runs_although_its_executable_was_deleted", runs_deleted),
            ("records_the_errors_and_panics_of_a_plain_program_for_its_launcher", records_for_launcher),
        ],
    )
}

// ---- the program -------------------------------------------------------------------------------------------------

fn store() -> anyhow::Result<Hosted> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    Ok(Hosted::new("127.0.0.1", port, listener))
}

fn two() -> Spawn<fn() -> anyhow::Result<Hosted>> {
    Spawn::new(2, store)
}

/// Replaces a store: relays lines between two workers.
fn relay() -> anyhow::Result<Hosted> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || -> anyhow::Result<()> {
        let (one, _) = listener.accept()?;
        let (other, _) = listener.accept()?;
        let (mut from, mut to) = (one.try_clone()?, other.try_clone()?);
        thread::spawn(move || std::io::copy(&mut from, &mut to));
        std::io::copy(&mut { other }, &mut { one })?;
        Ok(())
    });
    Ok(Hosted::new("127.0.0.1", port, ()))
}

/// Sends a worker's line to the other one, through [`relay`].
struct Line(BufReader<TcpStream>);

impl Line {
    fn to_the_other(env: &LaunchEnv) -> anyhow::Result<Self> {
        Ok(Line(BufReader::new(TcpStream::connect((env.master_addr.as_str(), env.master_port))?)))
    }

    fn send(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.0.get_mut(), "{text}")?)
    }

    fn receive(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the other worker closed the connection");
        Ok(line.trim_end().to_owned())
    }
}

/// A value whose drop wakes the other worker and then never returns.
struct SendsThenHangs(Line);

impl Drop for SendsThenHangs {
    fn drop(&mut self) {
        self.0.send("goodbye").unwrap();
        forever()
    }
}

fn watched(pid: &str) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.parse()?).context("process 0")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn await_end(process: &OwnedFd) -> anyhow::Result<()> {
    let limit = Timespec { tv_sec: program::LONG.as_secs() as i64, tv_nsec: 0 };
    ensure!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit))? == 1, "the process did not end");
    Ok(())
}

/// The body of a worker that the test stops.
fn forever() -> ! {
    loop {
        thread::park();
    }
}

/// Each case asserts what the caller gets; a failed assertion ends the program with a code other than 0.
#[rustfmt::skip]
fn case(name: &str) -> anyhow::Result<()> {
    match name {
        "places" => Ok(Spawn::new(3, store).run(&(7, "text".to_owned()), place)?),
        "arguments" => Ok(two().run(&(), |env, ()| {
            let args: Vec<_> = env::args().collect();
            ensure!(args == ["another name", "--flag", "with space", ""], "got {args:?}");
            ensure!(env::var("OWN").is_ok_and(|own| own == "kept"), "the environment is lost");
            ensure!(env.world_size.get() == 2, "no place");
            Ok(())
        })?),
        "much" => {
            let much = (0..1_000_000).map(|index| f64::from(index) / 3.0).collect::<Vec<_>>();
            Ok(two().run(&much.clone(), move |_, args: Vec<f64>| {
                ensure!(args == much, "the arguments differ");
                Ok(())
            })?)
        }
        "error" => {
            let report = failed(two().run(&(), raise));
            println!("{report}");
            let expected = "cannot read part 3: no such shard";
            assert!(matches!(&report.root, Failure::Raised { rank, message, .. } if rank.get() == 1 && message == expected));
            assert_eq!(report.stopped, [Stopped { rank: Rank::ZERO, by: StoppedBy::Sigterm }]);
            Ok(())
        }
        "panic" => {
            let report = failed(two().run(&(), |env, ()| if env.rank.get() == 1 { panic!("index {} is out", 7) } else { forever() }));
            println!("{report}");
            let Failure::Panicked { message, location: Some(at), .. } = &report.root else { panic!("{report:?}") };
            assert_eq!(message, "index 7 is out");
            assert!(at.contains("tests/spawn.rs:"), "{at}");
            Ok(())
        }
        "exit" => {
            let report = failed(two().run(&(), |env, ()| if env.rank.get() == 1 { process::exit(3) } else { forever() }));
            assert_eq!(report.root, Failure::Exited { rank: Rank::new(1), code: 3, stage: Stage::Reached });
            Ok(())
        }
        "exit 0" => {
            let report = failed(two().run(&(), |env, ()| if env.rank.get() == 1 { process::exit(0) } else { forever() }));
            assert_eq!(report.root, Failure::Exited { rank: Rank::new(1), code: 0, stage: Stage::Reached });
            Ok(())
        }
        "signal" => {
            let report = failed(two().run(&(), |env, ()| {
                if env.rank.get() == 1 { kill_process(getpid(), Signal::KILL)? }
                forever()
            }));
            println!("{report}");
            assert_eq!(report.root.signal_name().as_deref(), Some("SIGKILL"));
            Ok(())
        }
        "stubborn" => {
            let short = two().grace(Duration::from_millis(50));
            let report = failed(short.run(&(), raise));
            assert_eq!(report.stopped, [Stopped { rank: Rank::ZERO, by: StoppedBy::Sigkill }]);
            Ok(())
        }
        "second" => {
            // Rank 0 fails because rank 1 is dead, as in a collective. It ignores the SIGTERM that follows.
            let report = failed(Spawn::new(2, relay).grace(program::LONG).run(&(), |env, ()| {
                let mut line = Line::to_the_other(env)?;
                if env.rank.get() == 1 {
                    line.send(&getpid().as_raw_nonzero().to_string())?;
                    line.receive()?;
                    kill_process(getpid(), Signal::KILL)?;
                    forever()
                }
                let peer = watched(&line.receive()?)?;
                line.send("watching")?;
                await_end(&peer)?;
                bail!("peer 1 is gone")
            }));
            println!("{report}");
            assert_eq!(report.root, Failure::Signalled { rank: Rank::new(1), signal: 9 });
            assert!(matches!(&report.also_failed[..], [Failure::Raised { message, .. }] if message == "peer 1 is gone"));
            Ok(())
        }
        "slow unwinding" => {
            // Rank 0 fails because rank 1 panicked, and dies while rank 1 still unwinds.
            let report = failed(Spawn::new(2, relay).run(&(), |env, ()| {
                let line = Line::to_the_other(env)?;
                if env.rank.get() == 1 {
                    let _slow = SendsThenHangs(line);
                    panic!("the cause");
                }
                let mut line = line;
                bail!("peer 1 said {}", line.receive()?)
            }));
            println!("{report}");
            assert!(matches!(&report.root, Failure::Panicked { rank, .. } if rank.get() == 1));
            assert!(matches!(&report.also_failed[..], [Failure::Raised { rank, .. }] if rank.is_zero()));
            Ok(())
        }
        "timeout" => {
            let result = two().timeout(Duration::from_millis(200)).run(&(), |_, ()| forever());
            let Err(SpawnError::TimedOut { stopped, .. }) = result else { panic!("{result:?}") };
            assert_eq!(stopped.len(), 2);
            Ok(())
        }
        "forever" => Ok(two().run(&(), |_, ()| { println!("up"); forever() })?),
        "many" => {
            let error = Spawn::new(64, store).run(&(), |_, ()| forever()).unwrap_err();
            println!("{:#}", anyhow::Error::from(error));
            Ok(())
        }
        "two calls" => {
            two().run(&1, |env, number: i32| { println!("first {} {number}", env.rank); Ok(()) })?;
            two().run(&2, |env, number: i32| { println!("second {} {number}", env.rank); Ok(()) })?;
            Ok(())
        }
        "second after failure" => {
            let first = two().run(&(), raise);
            two().run(&(), move |_, ()| {
                ensure!(matches!(first, Err(SpawnError::Earlier { .. })), "the first call gave {first:?}");
                Ok(())
            })?;
            Ok(())
        }
        "elsewhere" if env::var_os("LOCKSTEP_SPAWN").is_some() => Ok(two().run(&(), |_, ()| Ok(()))?),
        "elsewhere" => {
            let report = failed(two().run(&(), |_, ()| Ok(())));
            println!("{report}");
            Ok(())
        }
        "never" if env::var_os("LOCKSTEP_SPAWN").is_some() => Ok(()),
        "never" => {
            let report = failed(two().run(&(), |_, ()| Ok(())));
            println!("{report}");
            assert!(matches!(report.root, Failure::Exited { code: 0, stage: Stage::Started, .. }));
            Ok(())
        }
        "early error" if env::var_os("LOCKSTEP_SPAWN").is_some() => bail!("no data here"),
        "early error" => {
            let report = failed(two().run(&(), |_, ()| Ok(())));
            assert!(matches!(&report.root, Failure::Raised { message, .. } if message == "no data here"), "{report:?}");
            Ok(())
        }
        "nested" => {
            two().run(&(), |_, ()| {
                let inner = two().run(&(), |_, ()| Ok(()));
                ensure!(matches!(inner, Err(SpawnError::Nested)), "{inner:?}");
                Ok(())
            })?;
            Ok(())
        }
        "grandparent" => Ok(Spawn::new(1, store).run(&(), |_, ()| {
            let status = program("grandchild").status()?;
            ensure!(status.code() == Some(0), "the program ended with {status}");
            Ok(())
        })?),
        "grandchild" => {
            let result = two().run(&(), |_, ()| Ok(()));
            ensure!(matches!(result, Err(SpawnError::Nested)), "{result:?}");
            Ok(())
        }
        "concurrent" => {
            Spawn::new(1, || {
                let inner = two().run(&(), |_, ()| Ok(()));
                ensure!(matches!(inner, Err(SpawnError::Concurrent)), "{inner:?}");
                store()
            }).run(&(), |_, ()| Ok(()))?;
            Ok(())
        }
        "plain" => Ok(two().run(&(), |_, ()| Ok(()))?),
        "absurd" => {
            assert!(matches!(Spawn::new(0, store).run(&(), |_, ()| Ok(())), Err(SpawnError::NoProcesses)));
            let many = Spawn::new(1025, store).run(&(), |_, ()| Ok(()));
            assert!(matches!(many, Err(SpawnError::TooManyProcesses { nprocs: 1025 })));
            Ok(())
        }
        "bad args" => {
            let keys = HashMap::from([((1, 2), 3)]);
            let result = two().run(&keys, |_, _: HashMap<(i32, i32), i32>| Ok(()));
            assert!(matches!(result, Err(SpawnError::Args(_))), "{result:?}");
            Ok(())
        }
        "not finite" => {
            let report = failed(two().run(&f64::NAN, |_, _: f64| Ok(())));
            assert!(matches!(&report.root, Failure::Raised { message, .. } if message.contains("not finite")), "{report:?}");
            Ok(())
        }
        "no store" => {
            let result = Spawn::new(2, || bail!("port 29500 is taken")).run(&(), |_, ()| Ok(()));
            println!("{}", result.unwrap_err());
            Ok(())
        }
        "deleted" => {
            if env::var_os("LOCKSTEP_SPAWN").is_none() {
                fs::remove_file(env::current_exe()?)?;
            }
            Ok(two().run(&(), |_, ()| Ok(()))?)
        }
        "fail" => Err::<(), _>(anyhow::anyhow!("disk full")).context("cannot save"),
        "crash" => panic!("a bug"),
        other => bail!("no case {other:?}"),
    }
}

fn place(env: &LaunchEnv, (number, word): (i32, String)) -> anyhow::Result<()> {
    ensure!(env.agent_store && env.restart_count == 0 && env.local_rank.get() == env.rank.get());
    TcpStream::connect((env.master_addr.as_str(), env.master_port)).context("the store is not served")?;
    let mut rest = String::new();
    std::io::stdin().read_to_string(&mut rest)?;
    let threads = env::var("OMP_NUM_THREADS")?;
    let LaunchEnv { rank, world_size, local_world_size, .. } = env;
    println!("rank {rank} of {world_size}, {local_world_size} here: {number} {word}, {threads} thread, stdin {rest:?}");
    Ok(())
}

fn raise(env: &LaunchEnv, (): ()) -> anyhow::Result<()> {
    if env.rank.get() != 1 {
        forever();
    }
    Err(anyhow::anyhow!("no such shard")).context("cannot read part 3")
}

fn failed(result: Result<(), SpawnError>) -> lockstep::spawn::Report {
    match result {
        Err(SpawnError::Workers(report)) => *report,
        other => panic!("expected a worker's failure, got {other:?}"),
    }
}

// ---- the tests ---------------------------------------------------------------------------------------------------

/// Runs a case that makes its own assertions, and returns its output.
fn passes(command: Command) -> String {
    let output = finish(command);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stderr, "", "nothing else is printed");
    stdout
}

/// Runs a case that ends with an error; returns its code and its stderr.
fn fails(command: Command) -> (Option<i32>, String) {
    let output = finish(command);
    (output.status.code(), text(&output.stderr))
}

fn gives_places() {
    let mut command = program("places");
    command.env_remove("OMP_NUM_THREADS").stdin(process::Stdio::piped());
    let out = passes(command);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let line = |rank| format!("rank {rank} of 3, 3 here: 7 text, 1 thread, stdin \"\"");
    assert_eq!(lines, [line(0), line(1), line(2)]);
}

fn keeps_arguments() {
    let mut command = program("arguments");
    command.arg0("another name").args(["--flag", "with space", ""]).env("OWN", "kept");
    passes(command);
}

fn passes_much() {
    passes(program("much"));
}

fn reports_error() {
    assert_eq!(
        passes(program("error")),
        "process 1 terminated with the following error: cannot read part 3: no such shard\n\
         stopped because of it: process 0 (SIGTERM)\n"
    );
}

fn adds_trace() {
    let mut command = program("error");
    command.env("RUST_BACKTRACE", "1");
    let out = passes(command);
    let (_, trace) = out.split_once("\ntrace of process 1:\n").expect("a trace");
    // `raise` if it was inlined, `spawn::raise` otherwise.
    assert!(trace.lines().any(|line| line.ends_with("raise")), "{trace}");
}

fn reports_panic() {
    let out = passes(program("panic"));
    assert!(out.starts_with("process 1 panicked at "), "{out}");
    assert!(out.contains(": index 7 is out\nstopped because of it: process 0 (SIGTERM)\n"), "{out}");
}

fn reports_exit() {
    passes(program("exit"));
}

fn reports_exit_0() {
    passes(program("exit 0"));
}

fn names_signal() {
    let out = passes(program("signal"));
    assert!(out.starts_with("process 1 terminated with signal SIGKILL"), "{out}");
}

fn kills_stubborn() {
    // An ignored signal stays ignored in the workers.
    passes(program_after("trap '' TERM", "stubborn"));
}

fn lists_second() {
    let out = passes(program_after("trap '' TERM", "second"));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("process 1 terminated with signal SIGKILL"), "{out}");
    assert_eq!(lines[1], "also failed: process 0 terminated with the following error: peer 1 is gone");
}

fn blames_the_panic() {
    let out = passes(program("slow unwinding"));
    assert!(
        out.ends_with("also failed: process 0 terminated with the following error: peer 1 said goodbye\n"),
        "{out}"
    );
}

fn stops_at_timeout() {
    passes(program("timeout"));
}

fn leaves_no_orphan() {
    let mut parent = KillOnDrop(program("forever").spawn().unwrap());
    let mut out = BufReader::new(parent.0.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    parent.0.kill().unwrap();
    until_closed(out);
}

fn leaves_none_half_started() {
    let out = passes(program_after("ulimit -n 60", "many"));
    assert!(out.contains("cannot start process") && out.contains("of 64: Too many open files"), "{out}");
}

fn skips_finished() {
    let out = passes(program("two calls"));
    let mut lines: Vec<_> = out.lines().collect();
    lines[..2].sort_unstable();
    lines[2..].sort_unstable();
    assert_eq!(lines, ["first 0 1", "first 1 1", "second 0 2", "second 1 2"]);
}

fn repeats_failure() {
    passes(program("second after failure"));
}

fn refuses_elsewhere() {
    let out = passes(program("elsewhere"));
    assert!(out.contains("this process reached the call of spawn at") && out.contains("its parent is at"), "{out}");
}

fn reports_never() {
    let out = passes(program("never"));
    assert!(out.contains("ended without reaching the call of spawn"), "{out}");
}

fn reports_early_error() {
    let output = finish(program("early error"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn refuses_nested() {
    passes(program("nested"));
}

fn refuses_grandchild() {
    passes(program("grandparent"));
}

fn refuses_concurrent() {
    passes(program("concurrent"));
}

fn refuses_launcher() {
    for name in ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"] {
        let mut command = program("plain");
        command.env(name, "2");
        let (code, stderr) = fails(command);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(&format!("cannot spawn under a launcher ({name}=2)")), "{stderr}");
        assert!(stderr.contains("start it plainly"), "{stderr}");
    }
}

fn refuses_absurd() {
    passes(program("absurd"));
}

fn reports_bad_args() {
    passes(program("bad args"));
    passes(program("not finite"));
}

fn reports_store() {
    let out = passes(program("no store"));
    assert_eq!(out, "cannot open the rendezvous store of the workers: port 29500 is taken\n");
}

fn runs_deleted() {
    let own = env::current_exe().unwrap();
    let link = own.with_file_name(format!("spawn-deleted-{}", process::id()));
    fs::hard_link(&own, &link).unwrap();
    let mut command = Command::new(&link);
    command.envs(program("deleted").get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(process::Stdio::null()).stdout(process::Stdio::piped()).stderr(process::Stdio::piped());
    let output = finish(command);
    let left = fs::remove_file(&link);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(left.is_err(), "the program did not delete its file");
}

fn records_for_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("error.json");
    for (case, code, message) in [("fail", 1, "Error: cannot save: disk full"), ("crash", 101, "panic: a bug")] {
        let mut command = program(case);
        command.env("TORCHELASTIC_ERROR_FILE", &file);
        let (ended, stderr) = fails(command);
        assert_eq!(ended, Some(code), "{stderr}");
        assert!(stderr.contains("disk full") || stderr.contains("a bug"), "the error is printed, too: {stderr}");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(record["message"]["message"], message);
    }
}
