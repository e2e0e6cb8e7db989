//! Bash itself.

use std::sync::LazyLock;

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;
use lockstep_launch::command::{LookAlike, LookAlikeKind};
use regex::Regex;

use super::environment::inherited;
use super::{RULE, ScriptFinding, Scripts, finding};
use crate::render::kept::{Kept, Loss, OF_FILES, PLACELESS, State};
use crate::render::script::{Command, ExitCode, Pipe, SHELLS, STARTERS, Script, base, launch, starter};
use crate::render::words::{Piece, Word};

pub(super) const SHELL: &[Rule<Scripts>] = &[
    Rule {
        name: "windows-line-ends",
        level: Error,
        why: "the shell takes the carriage return as part of the last word, and sbatch refuses the script",
        wrong: "#!/bin/bash\r\n#SBATCH --time=1:00:00\r\nset -e\r\nsrun hostname\r\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun hostname\n",
        find: |script| {
            let first = script.lines.iter().position(|line| line.ends_with('\r'));
            first
                .map(|index| {
                    finding(index + 1, "a line ends with a carriage return, as on Windows", "sed -i 's/\\r$//' FILE")
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "byte-order-mark",
        level: Error,
        why: "some editors on Windows write three bytes before `#!`, and then the kernel does not see that it is a bash script",
        wrong: "\u{feff}#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun hostname\n",
        find: |script| {
            let what = "the file begins with a byte order mark";
            script.marked.then(|| finding(1, what, "sed -i '1s/^\\xef\\xbb\\xbf//' FILE")).into_iter().collect()
        },
        ..RULE
    },
    Rule {
        name: "rest-of-a-command-lost",
        level: Error,
        why: "a comment, or a blank after the backslash, ends the command: the next line is a command of its own",
        wrong: "#!/bin/bash\nset -e\ntorchrun --standalone \\\n  # one for each GPU \\\n  --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\n# one for each GPU\ntorchrun --standalone \\\n  --nproc_per_node=2 train.py\n",
        find: rest_lost,
        ..RULE
    },
    Rule {
        name: "not-read",
        level: Warning,
        why: "this command cannot parse this part of the script, so it finds no mistakes in it",
        wrong: "#!/bin/bash\nset -e\nif true; then\n  srun ./train\n",
        right: "#!/bin/bash\nset -e\nif true; then\n  srun ./train\nfi\n",
        find: |script| {
            let what = "this part is not understood";
            script
                .unread
                .map(|line| finding(line, what, "bash -n FILE shows whether bash can read it"))
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "typographic-characters",
        level: Error,
        why: "a dash, quote or blank from a word processor or a web page is an ordinary letter to the shell and to the scheduler",
        wrong: "#!/bin/bash\nset -e\ntorchrun –standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\ntorchrun --standalone --nproc_per_node=2 train.py\n",
        find: typographic,
        ..RULE
    },
    Rule {
        name: "placeholder-left",
        level: Error,
        why: "the shell reads `<` as a redirection from a file of that name",
        wrong: "#!/bin/bash\nset -e\npython /home/<your-username>/train.py\n",
        right: "#!/bin/bash\nset -e\npython \"$HOME/train.py\"\n",
        find: |script| {
            let directives = script.directives.iter().map(|directive| (directive.line, directive.text.as_str()));
            let lines = script.code().chain(directives);
            let found = lines.filter_map(|(line, text)| Some((line, placeholder(text)?)));
            found
                .map(|(line, name)| {
                    finding(
                        line,
                        format!("{name} is still to be filled in"),
                        "write your own value; $HOME and $USER are set",
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "backslash-in-a-path",
        level: Error,
        why: "the shell drops backslashes: folders are separated by /",
        wrong: "#!/bin/bash\nset -e\nsource myenv\\bin\\activate\n",
        right: "#!/bin/bash\nset -e\nsource myenv/bin/activate\n",
        find: |script| {
            let path = |word: &str| {
                word.contains('\\')
                    && word.split('\\').count() > 1
                    && word.chars().all(|c| c.is_ascii_alphanumeric() || "\\._-/:".contains(c))
                    && word.split('\\').all(|part| part.len() > 1)
            };
            let mut findings = Vec::new();
            for command in &script.commands {
                let words = command.words.iter().filter(|word| path(&word.raw));
                findings.extend(words.map(|word| {
                    finding(word.line, format!("`{}` is a path of Windows", word.raw), word.raw.replace('\\', "/"))
                }));
            }
            findings
        },
        ..RULE
    },
    Rule {
        name: "goes-on-after-errors",
        level: Warning,
        why: "after a module, a folder or a copy that failed, the script goes on, and the job fails later and elsewhere",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nmodule load cuda\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -euo pipefail\nmodule load cuda\nsrun hostname\n",
        find: |script| {
            let set = ends_at_errors(script);
            let long = script.commands.len() > 1 && (script.lines[0].starts_with("#!") || script.scheduler().is_some());
            let first = script.commands.first().filter(|_| long && !set);
            first
                .map(|command| {
                    let last = script
                        .commands
                        .iter()
                        .filter(|command| command.far.is_none())
                        .rfind(|command| foreign(command).is_some());
                    let fix = match last {
                        // These may return an error without having failed, and use variables that are not set.
                        Some(last) => format!("set -eo pipefail, below line {}", last.line),
                        None => "set -euo pipefail".into(),
                    };
                    finding(command.line, "nothing ends the script at its first error", fix)
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "unset-variables-of-others",
        level: Warning,
        why: "with `set -u` a variable that is not set ends the script, and these files use some: BASHRCSOURCED in /etc/bashrc, ADDR2LINE in \
            conda's compilers, OCL_ICD_FILENAMES in oneAPI",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -euo pipefail\nsource ~/.bashrc\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -eo pipefail\nsource ~/.bashrc\nset -u\nsrun hostname\n",
        find: unset_variables,
        ..RULE
    },
    Rule {
        name: "exit-code-lost",
        level: Error,
        why: "the job's exit code is not the training's: a job that has failed counts as completed, and what depends on it starts",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun ./train 2>&1 | tee log\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -eo pipefail\nsrun ./train 2>&1 | tee log\n",
        find: exit_code_lost,
        ..RULE
    },
    Rule {
        name: "wait-without-exit-code",
        level: Error,
        why: "`wait` alone returns 0 whatever the programs returned, and with several it returns the last one's code: a job that has failed \
            counts as completed",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun ./train &\nwait\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun ./train &\nwait $!\n",
        find: wait_without_code,
        ..RULE
    },
    Rule {
        name: "lost-with-its-process",
        level: Error,
        why: "parts of a pipe, parentheses, `$(…)`, the background and `bash -c` are processes of their own: variables, folders, modules and \
            environments that change there are the old ones afterwards",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nmodule load cuda 2>&1 | tee modules.log\nsrun ./train\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nmodule load cuda >modules.log 2>&1\nsrun ./train\n",
        find: lost,
        ..RULE
    },
    Rule {
        name: "unquoted-variable",
        level: Warning,
        why: "a path with a blank becomes two words, and an empty one none",
        wrong: "#!/bin/bash\nset -e\ncd $PBS_O_WORKDIR/my_run\nrm -rf $SCRATCH/run\n",
        right: "#!/bin/bash\nset -e\ncd \"$PBS_O_WORKDIR/my_run\"\nrm -rf \"$SCRATCH/run\"\n",
        find: |script| {
            let risky = ["cd", "rm", "cp", "mv", "mkdir", "source", ".", "rsync", "tar", "sort", "cat"];
            let mut findings = Vec::new();
            for command in script.commands.iter().filter(|command| risky.contains(&command.program())) {
                let words = command
                    .words
                    .iter()
                    .skip(1)
                    .filter(|word| word.bare && word.raw.contains('$') && !word.raw.contains("$("));
                findings.extend(words.map(|word| {
                    finding(word.line, format!("`{}` is not quoted", word.raw), quoted_variables(&word.raw))
                }));
            }
            findings
        },
        ..RULE
    },
    Rule {
        name: "no-wait",
        level: Error,
        why: "the script ends while they run, and the scheduler kills them with it",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nfor node in $nodes; do\n  ssh -n \"$node\" ./train &\ndone\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nfor node in $nodes; do\n  ssh -n \"$node\" ./train &\n  pids+=($!)\ndone\n\
            for pid in \"${pids[@]}\"; do wait \"$pid\"; done\n",
        find: no_wait,
        ..RULE
    },
    Rule {
        name: "ssh-eats-the-hosts",
        level: Error,
        why: "ssh reads the rest of the host list as its input, and the loop ends after the first host",
        wrong: "#!/bin/bash\nset -e\nwhile read -r host; do\n  ssh \"$host\" ./train &\n  pids+=($!)\ndone <hosts\n\
            for pid in \"${pids[@]}\"; do wait \"$pid\"; done\n",
        right: "#!/bin/bash\nset -e\nwhile read -r host; do\n  ssh -n \"$host\" ./train &\n  pids+=($!)\ndone <hosts\n\
            for pid in \"${pids[@]}\"; do wait \"$pid\"; done\n",
        find: |script| {
            let reads = script.commands.iter().find(|command| command.program() == "read");
            let Some(reads) = reads else { return vec![] };
            let quiet = |command: &Command| {
                command.texts().any(|word| {
                    word.starts_with('-') && !word.starts_with("--") && word.contains('n') && !word.contains('=')
                }) || script
                    .lines
                    .get(command.line - 1)
                    .is_some_and(|line| line.contains("</dev/null") || line.contains("< /dev/null"))
            };
            let found = script
                .commands
                .iter()
                .filter(|command| command.program() == "ssh" && command.line > reads.line && !quiet(command));
            found.map(|command| finding(command.line, "ssh in a loop that reads hosts", "ssh -n …")).collect()
        },
        ..RULE
    },
    Rule {
        name: "quotes-lost-on-the-way",
        level: Error,
        why: "ssh, pdsh and clush join their words, and the shell there splits them again: `bash -c` gets the first word alone as its command",
        wrong: "#!/bin/bash\nset -e\nssh -n \"$head\" bash -lc 'cd /project && ./train'\n",
        right: "#!/bin/bash\nset -e\nssh -n \"$head\" \"bash -lc 'cd /project && ./train'\"\n",
        find: quotes_lost,
        ..RULE
    },
    Rule {
        name: "conda-without-its-functions",
        level: Error,
        why: "`conda activate` is a function of interactive shells; a batch script has to load it first",
        wrong: "#!/bin/bash\nset -e\nconda activate train\npython train.py\n",
        right: "#!/bin/bash\nset -e\nsource \"$HOME/miniconda3/etc/profile.d/conda.sh\"\nconda activate train\npython train.py\n",
        find: |script| {
            let loaded = script
                .code()
                .any(|(_, line)| line.contains("conda.sh") || line.contains("hook") || line.contains("bashrc"));
            // `source ~/miniconda3/bin/activate` brings them, too.
            let base = |command: &Command| {
                foreign(command).is_some_and(|file| {
                    file.ends_with("bin/activate") && ["conda", "forge", "mamba"].iter().any(|name| file.contains(name))
                })
            };
            let loaded = loaded || script.commands.iter().any(base);
            let login = script.lines[0].contains(" -l");
            // A module may bring them.
            let module = |command: &Command| ["module", "ml"].contains(&command.program());
            let loaded = loaded || script.commands.iter().any(module);
            let found = script.commands.iter().find(|command| {
                ["conda", "mamba"].contains(&command.program()) && command.texts().nth(1) == Some("activate")
            });
            found
                .filter(|_| !loaded && !login)
                .map(|command| {
                    finding(
                        command.line,
                        "conda's functions are not loaded",
                        "source \"$HOME/miniconda3/etc/profile.d/conda.sh\"",
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "modules-without-a-login-shell",
        level: Error,
        why: "`module` is a function of login shells; the shells that ssh and pbsdsh start do not have it",
        wrong: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\n\
            pbsdsh -- bash -c 'module load cuda && /project/train'\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\n\
            pbsdsh -- bash -lc 'module load cuda && /project/train'\n",
        find: modules_far,
        ..RULE
    },
];

fn no_wait(script: &Script) -> Vec<ScriptFinding> {
    let Some(at) = script.commands.iter().rposition(|command| command.background && command.far.is_none()) else {
        return vec![];
    };
    let (last, rest) = (&script.commands[at], &script.commands[at + 1..]);
    // A server may run beside the program that needs it, and there are other ways to wait; a trap may have one.
    let stays = |command: &Command| {
        let words: Vec<&str> = command.texts().collect();
        match words[..] {
            ["sleep", time] => time.starts_with("inf") || time.ends_with(['h', 'd']) || time.len() > 3,
            ["tail", ..] => words.contains(&"-f") || words.contains(&"-F"),
            ["pgrep" | "jobs" | "ps", ..] | ["kill", "-0", ..] => true,
            _ => !command.background && command.far.is_none() && trains(command),
        }
    };
    let waits =
        script.code().any(|(_, line)| line.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "wait"));
    if waits || rest.iter().any(stays) {
        return vec![];
    }
    let what = format!("`{}` runs in the background, and nothing waits for it", last.program());
    vec![finding(last.line, what, if last.repeated { WAIT_EACH } else { "wait $!" })]
}

const WAIT_EACH: &str = "pids+=($!) after each &, and at the end: for pid in \"${pids[@]}\"; do wait \"$pid\" || code=$?; done; exit \"${code:-0}\"";

/// `set -e`, in any of its forms.
fn ends_at_errors(script: &Script) -> bool {
    let is_set = |command: &Command| {
        command.program() == "set"
            && command.texts().skip(1).any(|word| word.starts_with('-') && word.contains('e') || word == "errexit")
    };
    script.commands.iter().any(is_set) || script.lines[0].contains(" -e")
}

/// The file or function of others that a command runs in the script's own shell.
fn foreign(command: &Command) -> Option<&str> {
    let file = command.words.get(1).map_or("", |word| word.text.as_str());
    match command.program() {
        "conda" | "mamba" | "micromamba" if file == "activate" => Some("conda activate"),
        "source" | "." => Some(file),
        _ => None,
    }
}

fn unset_variables(script: &Script) -> Vec<ScriptFinding> {
    let mut strict = script.lines[0].starts_with("#!")
        && script.lines[0].split(" -").skip(1).any(|word| word.contains('u') && !word.starts_with("l"));
    let mut findings = Vec::new();
    for command in script.commands.iter().filter(|command| command.far.is_none() && !command.substituted) {
        if command.program() == "set" {
            for word in command.texts().skip(1) {
                let is_u = word.len() < 6 && word.contains('u') || word == "nounset";
                strict =
                    if is_u { !word.starts_with('+') && !command.texts().any(|word| word == "+o") } else { strict };
            }
        }
        let uses = |file: &&str| {
            let name = base(file);
            *file == "conda activate"
                || [".bashrc", ".bash_profile", ".profile", "bashrc", "profile", "setvars.sh"].contains(&name)
                || name == "activate" && file.contains("conda")
        };
        if let Some(file) = foreign(command).filter(uses).filter(|_| strict) {
            let line = script.lines.get(command.line - 1).map_or("", |line| line.trim());
            findings.push(finding(command.line, format!("`{file}` under set -u"), format!("set +u; {line}; set -u")));
        }
    }
    findings
}

/// A command whose exit code should be the job's: training, as far as one sees.
pub(super) fn trains(command: &Command) -> bool {
    let program = command.program();
    let quiet =
        |word: &str| PLACELESS.contains(&base(word)) || OF_FILES.contains(&base(word)) || OTHERS.contains(&base(word));
    if quiet(program) || program.is_empty() {
        return false;
    }
    let text = |word: &str| quiet(word.split_whitespace().next().unwrap_or_default());
    let starts = STARTERS.contains(&program) && !command.texts().skip(1).any(text);
    let runs =
        program.starts_with("python") && command.texts().skip(1).any(|word| word.ends_with(".py") || word == "-m");
    let first = command.words[0].text.as_str();
    let path = first.contains('/') && !["/bin/", "/usr/", "/sbin/"].iter().any(|system| first.starts_with(system));
    let wraps = ["apptainer", "cargo", "conda", "docker", "podman", "poetry", "singularity", "uv"].contains(&program);
    let wrapped =
        wraps && command.texts().any(|word| ["run", "exec"].contains(&word)) && !command.texts().skip(1).any(text);
    launch(command).is_some()
        || starts
        || runs
        || path
        || wrapped
        || ["deepspeed", "julia"].contains(&program)
        || command.texts().any(|word| word.ends_with(".py"))
            && (program.ends_with(".py")
                || command.texts().any(|word| base(word).starts_with("python"))
                || PREFIXES.contains(&program))
        || command.texts().take(2).any(|word| word.ends_with(".sh"))
            && (program.ends_with(".sh") || SHELLS.contains(&program))
}

/// Programs that run another one.
const PREFIXES: [&str; 12] =
    ["accelerate", "eval", "exec", "ncu", "nice", "nohup", "nsys", "numactl", "stdbuf", "taskset", "time", "timeout"];
/// Programs that keep what passes through them: whoever uses them means it for the whole output of a job.
const LOGS: [&str; 4] = ["cat", "logger", "tee", "ts"];

/// Programs that only tell, or serve others.
const OTHERS: [&str; 20] = [
    ":",
    "cd",
    "command",
    "dcgmi",
    "echo",
    "env",
    "export",
    "jupyter",
    "kill",
    "module",
    "nvtop",
    "pip",
    "printf",
    "ray",
    "redis-server",
    "source",
    "tensorboard",
    "test",
    "top",
    "true",
];

fn exit_code_lost(script: &Script) -> Vec<ScriptFinding> {
    let mut findings = Vec::new();
    let mut seen = vec![];
    for command in script.commands.iter().filter(|command| trains(command)) {
        match command.code {
            ExitCode::Piped(index) if !seen.contains(&index) => {
                let Pipe { last, read_late } = &script.pipes[index];
                // `$(… | tail -1)` asks for a line, and so may a script that is no job.
                if !LOGS.contains(&base(last)) && (command.substituted || script.scheduler().is_none()) {
                    continue;
                }
                seen.push(index);
                let late = read_late.map_or(String::new(), |line| {
                    format!("; PIPESTATUS in line {line} belongs to the command before it")
                });
                let inner = command.far.is_some() && !command.starter.is_empty();
                let what = format!("the exit code comes from `{last}`, not from `{}`{late}", command.program());
                findings.push(finding(
                    command.line,
                    what,
                    if inner { "set -o pipefail; at the beginning of this shell's text" } else { "set -o pipefail" },
                ));
            }
            ExitCode::Dropped => {
                let what = format!("`||` turns an error of `{}` into success", command.program());
                findings.push(finding(command.line, what, "|| exit, or nothing: set -e ends the script"));
            }
            _ => {}
        }
    }
    findings
}

fn wait_without_code(script: &Script) -> Vec<ScriptFinding> {
    let mut findings = Vec::new();
    // `echo "$?" >file` in what was started: somebody reads it there.
    static KEPT_IN_FILES: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"\$\?"?\s*>[^&]"#).expect("the pattern is constant"));
    if script.lines.iter().any(|line| KEPT_IN_FILES.is_match(line)) {
        return findings;
    }
    let strict = ends_at_errors(script);
    let mut processes: Vec<usize> =
        script.commands.iter().filter(|command| command.background).map(|command| command.process).collect();
    processes.sort_unstable();
    processes.dedup();
    for process in processes {
        let all = || script.commands.iter().enumerate().filter(move |(_, command)| command.process == process);
        let started: Vec<_> = all()
            .filter(|(_, command)| command.background && trains(command) && command.code != ExitCode::Read)
            .collect();
        let (Some((first, program)), Some((last, _))) = (started.first(), started.last()) else { continue };
        let several = started.len() > 1 || started.iter().any(|(_, command)| command.repeated);
        let waits = all().filter(|(at, command)| !command.background && command.program() == "wait" && at > first);
        // `wait -n; wait -n` for two.
        let nexts = waits.clone().filter(|(_, wait)| wait.texts().any(|word| word == "-n")).count();
        let one_each = nexts >= started.len() && started.iter().all(|(_, command)| !command.repeated);
        let mut kept = 0;
        for (at, wait) in waits {
            let options = wait.texts().skip(1).filter(|word| word.starts_with('-')).count();
            let ids: Vec<&Word> = wait.words.iter().skip(1 + options).collect();
            let next = wait.texts().any(|word| word == "-n");
            let many = |word: &&Word| word.raw.contains(['@', '*', '(']);
            let lost = if wait.code == ExitCode::Dropped {
                Some("`||` turns its error into success")
            } else if ids.is_empty() && !next {
                Some("`wait` alone returns 0, whatever the programs returned")
            } else if several && ids.iter().any(many) || ids.len() > 1 && !next {
                Some("`wait` for several programs returns the last one's exit code")
            } else if several && next && !wait.repeated && at > *last && !one_each {
                Some("`wait -n` waits for the first that ends, and the script ends the others")
            } else if wait.repeated && !strict && wait.code != ExitCode::Read {
                Some("without set -e, a loop of `wait` keeps the last exit code only")
            } else {
                None
            };
            match lost {
                None => kept += if wait.repeated { started.len() } else { 1 },
                // All have been waited for, and this is for the rest.
                Some(_) if kept >= started.len() && !several || wait.code == ExitCode::Read && !ids.is_empty() => {}
                Some(_) if kept >= started.len() && kept > 0 => {}
                Some(what) => {
                    let what = format!("{what}: `{}` started in line {}", program.program(), program.line);
                    findings.push(finding(wait.line, what, if several { WAIT_EACH } else { "wait $!" }));
                    break;
                }
            }
        }
    }
    findings
}

fn lost(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
    for Loss { change, line, reader } in &script.losses {
        if findings.iter().any(|finding| finding.place == change.line) {
            continue;
        }
        let fix = match change.place {
            "a part of a pipe" => {
                "done < <(command) in place of command | while …; >file in place of | tee; or shopt -s lastpipe, for the last part"
            }
            "parentheses" => "{ …; } in place of ( … )",
            "the background" => "the same without &",
            "a shell of its own" => "the same in this shell: without bash -c, or with source",
            _ => "set it outside, to what the command prints",
        };
        let what = match &change.kept {
            Kept::Variable(name) if inherited(name) => continue,
            Kept::Variable(name) => {
                format!("{name} is set in {}, and {reader} in line {line} does not see it", change.place)
            }
            Kept::State(State::Folder) => {
                format!(
                    "`{}` in {} ends with it, and {reader} in line {line} runs in the folder before",
                    change.words, change.place
                )
            }
            Kept::State(State::Environment) => {
                format!(
                    "`{}` in {} ends with it, and {reader} in line {line} runs without it",
                    change.words, change.place
                )
            }
        };
        findings.push(finding(change.line, what, fix));
    }
    findings
}

/// A character that a word processor makes, outside quotes.
fn typographic(script: &Script) -> Vec<ScriptFinding> {
    let directives = script.directives.iter().map(|directive| (directive.line, directive.text.as_str()));
    let told = ["echo", "printf"];
    let words =
        script.commands.iter().filter(|command| !told.contains(&command.program())).flat_map(|command| &command.words);
    let words = words.map(|word| (word.line, word.raw.as_str()));
    let mut findings: Vec<ScriptFinding> = Vec::new();
    for (line, text) in directives.chain(words) {
        let found = outside_quotes(text).split_ascii_whitespace().find_map(|word| {
            let is_wrong = |(at, one): &(usize, LookAlike)| match one.kind {
                LookAlikeKind::Blank => true,
                LookAlikeKind::Dash => *at == 0,
                // Within a word it may be the apostrophe of a name.
                LookAlikeKind::Quote => !matches!(one.c, '‘' | '’') || *at == 0 || one.c == '’' && word.ends_with('’'),
                LookAlikeKind::Sign => false,
            };
            let known = word.char_indices().filter_map(|(at, c)| Some((at, LookAlike::of(c)?)));
            known.into_iter().find(is_wrong).map(|(_, one)| one.in_word(word))
        });
        let Some(what) = found.filter(|_| findings.iter().all(|finding| finding.place != line)) else {
            continue;
        };
        findings.push(finding(line, what, "type it again"));
    }
    findings
}

/// The text without what stands in quotes.
fn outside_quotes(text: &str) -> String {
    let mut quote = None;
    let outside = |c: &char| match (quote, *c) {
        (None, '"' | '\'') => {
            quote = Some(*c);
            false
        }
        (Some(open), c) => {
            quote = quote.filter(|_| c != open);
            false
        }
        (None, _) => true,
    };
    text.chars().filter(outside).collect()
}

/// `<name>` within a word: `/home/<name>/x`, `--account=<name>`.
fn placeholder(line: &str) -> Option<String> {
    let (before, rest) = line.split_once('<')?;
    let (name, after) = rest.split_once('>')?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_ ".contains(c)) && !name.trim().is_empty();
    let within = before.ends_with(['/', '=', ':']) || after.starts_with('/');
    (is_name && within && !name.starts_with(' ')).then(|| format!("<{name}>"))
}

/// The word with each of its variables in quotes; patterns such as `*` stay outside.
fn quoted_variables(word: &str) -> String {
    static VARIABLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\$(?:\w+|\{[^}]*\})").expect("the pattern is constant"));
    VARIABLE.replace_all(word, "\"$0\"").into_owned()
}

fn quotes_lost(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
    for command in script.commands.iter().filter(|command| command.far.is_none()) {
        let Some(far) = starter(&command.words).filter(|far| ["ssh", "pdsh", "clush"].contains(far)) else { continue };
        let behind = command.words.iter().skip_while(|word| base(&word.text) != far).skip(1);
        let words: Vec<&Word> = behind.skip_while(|word| !SHELLS.contains(&word.text.as_str())).collect();
        let [shell, option, text, ..] = &words[..] else { continue };
        let is_text = option.text.starts_with('-') && !option.text.starts_with("--") && option.text.ends_with('c');
        let blank = text
            .pieces()
            .iter()
            .any(|piece| matches!(piece, Piece::Text(text) if text.trim().contains(char::is_whitespace)));
        // Quotes of its own, which the shell there takes away.
        let kept = text.text.trim().starts_with(['\'', '"']);
        if is_text && blank && !kept {
            let first = text.text.split_whitespace().next().unwrap_or_default();
            findings.push(finding(
                text.line,
                format!(
                    "`{} {}` gets only `{first}` there: {far} sends its words without their quotes",
                    shell.text, option.text
                ),
                format!("{far} … \"{} {} '…'\", all in one word", shell.text, option.text),
            ));
        }
    }
    findings
}

fn modules_far(script: &Script) -> Vec<ScriptFinding> {
    let far = |command: &&Command| matches!(command.far.as_deref(), Some("ssh" | "pbsdsh" | "pdsh" | "clush"));
    let loads =
        script.commands.iter().filter(far).filter(|command| ["module", "ml"].contains(&base(command.program())));
    let is_login = |word: &Word| ["-l", "-lc", "--login", "-lic"].contains(&word.text.as_str());
    let found = loads.filter(|command| !command.starter.iter().any(is_login));
    found
        .map(|command| {
            finding(
                command.line,
                format!("`{}` in a shell that is not a login shell", command.program()),
                "bash -lc '…', or a script that begins with #!/bin/bash -l",
            )
        })
        .collect()
}

/// Commands that begin with an option, or that follow a comment between lines joined by a backslash.
fn rest_lost(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
    for command in script.commands.iter().filter(|command| command.line > 1) {
        let Some(first) = command.words.first() else { continue };
        let is_option = first.raw.starts_with('-') && first.raw.len() > 1;
        let above = &script.lines[..(command.line - 1).min(script.lines.len())];
        let comments = above.iter().rev().take_while(|line| line.trim_start().starts_with('#')).count();
        let continued = |line: Option<&String>| line.is_some_and(|line| line.trim_end_matches('\r').ends_with('\\'));
        let cut = comments > 0
            && above.len() > comments
            && continued(above.get(above.len() - comments - 1))
            && (is_option || continued(above.last()));
        if !cut && !is_option || findings.iter().any(|finding| finding.place == command.line) {
            continue;
        }
        let blank = above.last().is_some_and(|line| line.trim_end().ends_with('\\') && line.ends_with([' ', '\t']));
        let (line, fix) = if cut {
            (command.line - 1, "move the comment above the command")
        } else if blank {
            (command.line - 1, "remove what follows the backslash")
        } else {
            (command.line, "end the line before it with a backslash")
        };
        findings.push(finding(line, format!("`{}` begins a command of its own", first.text), fix));
    }
    findings
}
