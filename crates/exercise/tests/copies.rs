//! Copies of a program that has loaded libtorch: how they relate to the process that requested them, and how they end.
//!
//! This executable plays all roles: the test, the agent that keeps the workers (in a process of its own, since it adopts every
//! orphan below it), its reaper, and the template.

#![allow(clippy::unwrap_used)] // a test may

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Trial};
use lockstep_process::proc::{self, Stat};
use lockstep_process::watchdog::until;
use lockstep_process::{Exit, Forking, Sink, Spec, Stdin, Template, Workers};
use tempfile::TempDir;

const PROGRAM: &str = "program";
const AGENT: &str = "agent";
/// What a copy is to do.
const TASK: &str = "COPIES_TASK";

type Scenario = (&'static str, fn(&mut Agent));

const SCENARIOS: [Scenario; 4] = [
    ("a_copy_is_a_worker_with_its_own_environment_folder_and_output", is_a_worker),
    ("the_end_of_a_copy_is_reported_as_it_was", ends_are_reported),
    ("a_copy_that_cannot_settle_says_why", says_why),
    ("a_template_that_has_ended_makes_no_copy", makes_none),
];

fn main() -> ExitCode {
    if let Some(code) = lockstep_process::internal_main() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [PROGRAM] => program(),
        [AGENT, name] => agent(name),
        _ => libtest_mimic::run(&Arguments::from_args(), tests()).exit_code(),
    }
}

fn tests() -> Vec<Trial> {
    let trial = |name: &'static str, test: fn(&str)| {
        Trial::test(name, move || {
            test(name);
            Ok(())
        })
    };
    let scenarios = SCENARIOS.iter().map(|(name, _)| trial(name, plays));
    scenarios.chain([trial("copies_and_their_template_end_with_the_agent", end_with_the_agent)]).collect()
}

fn plays(scenario: &str) {
    assert!(agent_command(scenario).status().unwrap().success());
}

fn agent_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([AGENT, name]);
    command
}

fn agent(name: &str) -> ExitCode {
    let mut agent = Agent::new();
    match SCENARIOS.iter().find(|(scenario, _)| *scenario == name) {
        Some((_, scenario)) => scenario(&mut agent),
        None => agent.print_pids_and_wait(),
    }
    agent.workers.close();
    ExitCode::SUCCESS
}

/// The template and its copies.
fn program() -> ExitCode {
    let forking =
        Forking { fork: c10d::process::fork, set_variables: c10d::process::set_variables, exit: c10d::process::exit };
    if !lockstep_process::serve(&forking).unwrap() {
        return ExitCode::SUCCESS;
    }
    match std::env::var(TASK).unwrap_or_default().as_str() {
        "tell" => {
            // Computes with a tensor, because libtorch must work in a copy.
            let two = tch::Tensor::ones([2], tch::kind::FLOAT_CPU).sum(tch::Kind::Float).double_value(&[]);
            println!("{two} {} {}", std::env::current_dir().unwrap().display(), std::env::var_os("PATH").is_some());
            eprintln!("beside");
        }
        "abort" => std::process::abort(),
        "wait" => loop {
            std::thread::park();
        },
        code => return ExitCode::from(code.parse::<u8>().unwrap()),
    }
    ExitCode::SUCCESS
}

struct Agent {
    template: Template,
    workers: Workers,
    folder: TempDir,
}

impl Agent {
    fn new() -> Self {
        let this = std::env::current_exe().unwrap();
        let template = Template::start(this.as_os_str(), &[PROGRAM.into()], &[]).unwrap();
        Agent { template, workers: Workers::new().unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    fn copy(&mut self, index: usize, task: &str, folder: &Path) -> std::io::Result<u32> {
        let variable = |name: &str, value: Option<&str>| (OsString::from(name), value.map(OsString::from));
        let file = |name: &str| Sink::Fd(File::create(self.folder.path().join(name)).unwrap().into());
        let spec = Spec {
            program: "".into(),
            args: vec![],
            env: vec![variable(TASK, Some(task)), variable("PATH", None)],
            folder: Some(folder.into()),
            stdin: Stdin::Null,
            stdout: file("out"),
            stderr: file("err"),
        };
        self.workers.start_copy(index, &self.template, spec)
    }

    fn printed(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn end(&mut self) -> (usize, Exit) {
        let died = self.workers.next(None).unwrap().unwrap();
        assert!(self.workers.sweep(std::time::Duration::from_secs(600)).killed.is_empty());
        (died.index, died.exit)
    }

    fn print_pids_and_wait(&mut self) {
        let copy = self.copy(0, "wait", Path::new("/")).unwrap();
        let own = std::process::id() as i32;
        let template = proc::children().into_iter().find(|pid| session(*pid) == session(own)).unwrap();
        println!("{copy} {template}");
        self.workers.next(None).unwrap();
    }
}

fn session(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.session)
}

fn is_a_worker(agent: &mut Agent) {
    let pid = agent.copy(3, "wait", Path::new("/")).unwrap() as i32;
    until(|| session(pid) == Some(pid)).unwrap();
    assert_eq!(Stat::of(pid).unwrap().parent, std::process::id() as i32);
    agent.workers.kill();
    assert_eq!(agent.end(), (3, Exit::Signal(9)));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    agent.copy(0, "tell", &folder).unwrap();
    assert_eq!(agent.end(), (0, Exit::Code(0)));
    assert_eq!(agent.printed("out"), format!("2 {} false\n", folder.display()));
    assert_eq!(agent.printed("err"), "beside\n");
}

fn ends_are_reported(agent: &mut Agent) {
    for (task, exit) in
        [("0", Exit::Code(0)), ("7", Exit::Code(7)), ("abort", Exit::Signal(6)), ("127", Exit::Code(127))]
    {
        agent.copy(1, task, Path::new("/")).unwrap();
        assert_eq!(agent.end(), (1, exit), "{task}");
    }
}

fn says_why(agent: &mut Agent) {
    agent.copy(0, "0", Path::new("/no/such/folder")).unwrap();
    let (_, exit) = agent.end();
    assert!(matches!(&exit, Exit::NotStarted(why) if why.contains("No such file")), "{exit:?}");
}

fn makes_none(agent: &mut Agent) {
    let own = session(std::process::id() as i32);
    let template = proc::children().into_iter().find(|pid| session(*pid) == own).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(template).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    assert!(agent.copy(0, "0", Path::new("/")).is_err());
    assert!(agent.workers.alive().is_empty());
}

fn end_with_the_agent(name: &str) {
    let mut agent = agent_command(name).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(agent.stdout.as_mut().unwrap()), &mut line).unwrap();
    let pids: Vec<i32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2, "{line}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    until(|| pids.iter().all(|pid| Stat::of(*pid).is_none_or(|stat| stat.is_dead()))).unwrap();
}
