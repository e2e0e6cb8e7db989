//! The program that the tests start: each case asserts what the caller of `spawn` gets.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{env, fs, process, thread};

use anyhow::{Context, bail, ensure};
use lockstep::spawn::{Failure, Hosted, Spawn, SpawnError, Stage, Stopped, StoppedBy};
use lockstep::{LaunchEnv, Rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

use crate::LONG;
use crate::spawn::program;

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
    let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
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
pub(crate) fn case(name: &str) -> anyhow::Result<()> {
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
            assert!(at.contains("tests/procs/spawn_cases.rs:"), "{at}");
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
            let report = failed(Spawn::new(2, relay).grace(LONG).run(&(), |env, ()| {
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
