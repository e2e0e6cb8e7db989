//! Rules on the scheduler's directives, and on how jobs end: signals, time limits, and being queued again.

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::launchers::each;
use super::shell::trains;
use super::{RULE, ScriptFinding, Scripts, finding};
use crate::render::script::{Command, Launch, Scheduler, Script};
use crate::render::words::is_plain;
use crate::report::count;

pub(super) const DIRECTIVES: &[Rule<Scripts>] = &[
    Rule {
        name: "no-shebang",
        level: Error,
        why: "sbatch refuses a script without it",
        wrong: "#SBATCH --nodes=1 --time=1:00:00\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00\nset -e\nsrun hostname\n",
        find: |script| match &script.lines[0] {
            line if line.starts_with("#!") => vec![],
            _ if script.scheduler() != Some(Scheduler::Slurm) => vec![],
            _ => vec![finding(1, "the first line names no shell", "#!/bin/bash")],
        },
        ..RULE
    },
    Rule {
        name: "directive-after-command",
        level: Error,
        why: "sbatch and qsub stop reading at the first line that is neither blank nor a comment, be it a function, an assignment or a test, \
            so the line is a comment without effect",
        wrong: "#!/bin/bash\nusage() { echo usage; }\n#SBATCH --time=1:00:00\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00\nusage() { echo usage; }\nsrun hostname\n",
        find: |script| {
            let late = script.directives.iter().filter(|directive| directive.is_late);
            late.map(|directive| {
                finding(
                    directive.line,
                    format!("`{}` comes after a command", directive.text),
                    "move it above the first command",
                )
            })
            .collect()
        },
        ..RULE
    },
    Rule {
        name: "misspelt-directive",
        level: Error,
        why: "only `#SBATCH`, `#PBS` and `#BSUB` at the beginning of a line, in capitals, are read; anything else is a comment",
        wrong: "#!/bin/bash\n# SBATCH --nodes=2\n#SBATCH --time=1:00:00\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=1:00:00\nsrun hostname\n",
        find: misspelt,
        ..RULE
    },
    Rule {
        name: "unknown-option",
        level: Error,
        why: "sbatch refuses a script with an option that it does not know, and reads a word that belongs to none as the end of all options",
        wrong: "#!/bin/bash\n#SBATCH --nodes = 2\n#SBATCH --ntasks_per_node=1 --time=1:00:00\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1 --time=1:00:00\nset -e\nsrun hostname\n",
        find: unknown_options,
        ..RULE
    },
    Rule {
        name: "nodes-and-select",
        level: Error,
        why: "`nodes=` is the old form and `select=` the new one; PBS Pro refuses a job with both",
        wrong: "#!/bin/bash\n#PBS -l nodes=2:ppn=4\n#PBS -l select=2:ncpus=4\n#PBS -l walltime=1:00:00\nset -e\nhostname\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4\n#PBS -l walltime=1:00:00\nset -e\nhostname\n",
        find: |script| {
            let old = script.live(Scheduler::Pbs).find(|directive| directive.text.contains("nodes="));
            let both = old.filter(|_| script.select().is_some());
            both.map(|directive| {
                finding(
                    directive.line,
                    format!("`{}` next to `select=`", directive.text),
                    "remove it; `select=` says all",
                )
            })
            .into_iter()
            .collect()
        },
        ..RULE
    },
    Rule {
        name: "no-time-limit",
        level: Warning,
        why: "the queue's default applies: too short and the job is killed, too long and it waits behind others",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nset -e\nsrun hostname\n",
        find: no_time_limit,
        ..RULE
    },
    Rule {
        name: "variable-of-another-scheduler",
        level: Error,
        why: "the other scheduler sets this variable, so here it is empty",
        wrong: "#!/bin/bash\n#PBS -l select=2:ncpus=4,walltime=1:00:00\nset -e\nscontrol show hostnames \"$SLURM_JOB_NODELIST\"\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4,walltime=1:00:00\nset -e\nsort -u \"$PBS_NODEFILE\"\n",
        find: |script| {
            let other = match script.scheduler() {
                Some(Scheduler::Slurm) => "$PBS_",
                Some(Scheduler::Pbs | Scheduler::Lsf) => "$SLURM_",
                None => return vec![],
            };
            let found = script.code().filter(|(_, line)| line.replace("${", "$").contains(other));
            found
                .map(|(line, _)| {
                    finding(
                        line,
                        format!("`{other}…` under the other scheduler"),
                        "use the one of your scheduler: SLURM_JOB_NODELIST, PBS_NODEFILE, LSB_DJOB_HOSTFILE",
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "variable-in-directive",
        level: Error,
        why: "the scheduler does not expand variables in directives",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --output=$HOME/job.out\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --output=job-%j.out\nset -e\nsrun hostname\n",
        find: |script| {
            let found = script.directives.iter().filter(|directive| directive.text.contains('$'));
            found
                .map(|directive| {
                    finding(
                        directive.line,
                        format!("a variable in `{}`", directive.text),
                        "write the value, or give it to sbatch or qsub on the command line",
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "no-gpus-requested",
        level: Warning,
        why: "unless the partition or queue gives whole nodes with their GPUs, the job gets none, or none that it sees",
        wrong: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00\nset -e\nsrun lockstep run --nproc-per-node=gpu train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00 --gres=gpu:4\nset -e\nsrun lockstep run --nproc-per-node=gpu train\n",
        find: |script| {
            let fix = match script.scheduler() {
                Some(Scheduler::Slurm) => "#SBATCH --gres=gpu:4",
                Some(Scheduler::Pbs) => "#PBS -l select=2:ncpus=64:ngpus=4:mpiprocs=1",
                Some(Scheduler::Lsf) | None => return vec![],
            };
            let launches = script.launches();
            let launch = launches.first().filter(|_| script.is_for_gpus() && script.gpus().is_none());
            launch
                .map(|launch| finding(launch.line(), "training on GPUs, but the directives ask for none", fix))
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "more-workers-than-gpus",
        level: Error,
        why: "each worker takes the GPU of its local rank, so some workers have no GPU",
        wrong: "#!/bin/bash\n#PBS -l select=1:ncpus=4:ngpus=1,walltime=00:30:00\nset -e\ntorchrun --standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\n#PBS -l select=1:ncpus=4:ngpus=2,walltime=00:30:00\nset -e\ntorchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            let Some(gpus) = script.gpus() else { return vec![] };
            let workers = |launch: &Launch<'_>| launch.workers().and_then(|workers| workers.parse::<u32>().ok());
            let launches = script.launches();
            let found = launches
                .iter()
                .filter_map(|launch| Some((launch.line(), workers(launch).filter(|workers| *workers > gpus)?)));
            found
                .map(|(line, workers)| {
                    finding(
                        line,
                        format!("{} on a node with {}", count(workers as usize, "worker"), count(gpus as usize, "GPU")),
                        format!("--nproc-per-node={gpus}, or ask for {workers} GPUs"),
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "fixed-nodes",
        level: Warning,
        why: "the job waits for these very nodes, and the script fails on all others",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00 --nodelist=node[01-02]\nset -e\nsrun hostname\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun hostname\n",
        find: fixed_nodes,
        ..RULE
    },
];

fn misspelt(script: &Script) -> Vec<ScriptFinding> {
    let mut findings = Vec::new();
    for (index, line) in script.lines.iter().enumerate().filter(|(index, _)| !script.is_document(index + 1)) {
        let Some(rest) = line.trim_start().strip_prefix('#') else { continue };
        let word: String = rest.trim_start().chars().take_while(|c| c.is_ascii_alphabetic()).collect();
        // `# sbatch --account=x job.sh` is a comment about the command.
        if word == "sbatch" && rest.starts_with(' ') {
            continue;
        }
        let upper = word.to_ascii_uppercase();
        let Some(right) = ["SBATCH", "PBS", "BSUB"].into_iter().find(|right| close(&upper, right)) else { continue };
        let option = rest.trim_start()[word.len()..].trim_start().starts_with(['-', '–', '—']);
        if option && script.directives.iter().all(|directive| directive.line != index + 1) {
            findings.push(finding(
                index + 1,
                format!("`{}` is a comment", line.trim()),
                format!("#{right} {}", rest.trim_start()[word.len()..].trim()),
            ));
        }
    }
    findings
}

// ---- the options that sbatch knows

/// Options that take a value, from the manuals of Slurm 20.02 to 25.05 and `slurm_opt.c`.
const WITH_VALUE: &str = "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container \
    container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude \
    export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint \
    input job-name jobid kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network \
    nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres oom-kill-step open-mode \
    output partition power prefer priority profile qos reservation resv-ports segment signal sockets-per-node switches tasks-per-node \
    thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap";
/// Options that take no value, or one behind `=` alone.
const WITHOUT_VALUE: &str = "consolidate-segments contiguous exclusive get-user-env help hold ignore-pbs immediate nice no-kill no-requeue \
    overcommit oversubscribe parsable propagate quiet reboot requeue share spread-job spread-segments stepmgr test-only usage use-min-nodes \
    verbose version wait";
/// srun's own.
const OF_SRUN: &str = "accel-bind bcast compress cpu-bind disable-status epilog exact external het-group interactive kill-on-bad-exit label \
    max-threads mpi multi-prog no-allocate overlap preserve-env prolog pty quit-on-interrupt relative send-libs slurmd-debug task-epilog \
    task-prolog threads unbuffered whole";
/// Short ones, those with a value and those without.
const SHORT: (&str, &str) = ("AabBcCdDeFgGiJLmMnNopPqStTwx", "hHIkOQsvVW");

/// Words that sbatch does not know, or reads as something else.
fn unknown_options(script: &Script) -> Vec<ScriptFinding> {
    let mut findings = Vec::new();
    for directive in script.directives.iter().filter(|directive| directive.scheduler == Scheduler::Slurm) {
        let words = arguments(&directive.text);
        let mut rest = &words[..];
        while !rest.is_empty() {
            let (taken, wrong) = option(rest);
            findings.extend(wrong.map(|(what, fix)| finding(directive.line, what, fix)));
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    findings
}

/// How many words the first option takes, and what is wrong with it, with a directive that is right.
fn option(words: &[String]) -> (usize, Option<(String, String)>) {
    let word = words[0].as_str();
    let next = |index: usize| words.get(index).map_or("", String::as_str);
    let wrong = |taken: usize, what: String, fix: String| (taken, Some((what, format!("#SBATCH {fix}"))));
    let Some(long) = word.strip_prefix("--") else {
        let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
        return match (letters.next(), letters.as_str()) {
            // What is not ASCII has a rule of its own.
            _ if !word.is_ascii() || ["hetjob", "packjob"].contains(&word) => (1, None),
            (None, _) => {
                let what = format!("`{word}` belongs to no option");
                (1, Some((what, "# before a remark, quotes around a value with a blank".into())))
            }
            (Some(first), rest) if SHORT.0.contains(first) && rest.starts_with('=') => {
                wrong(1, format!("the value of `{word}` is `{rest}`, with the ="), format!("-{first} {}", &rest[1..]))
            }
            (Some(_), rest) if rest.len() > 1 && is_known(word[1..].split('=').next().unwrap_or_default()) => {
                wrong(1, format!("`{word}` is an option of one letter with the value `{rest}`"), format!("-{word}"))
            }
            (Some(first), "") if SHORT.0.contains(first) => (2, None),
            (Some(first), _) if SHORT.0.contains(first) || SHORT.1.contains(first) => (1, None),
            (Some(first), _) => {
                (1, Some((format!("sbatch knows no option -{first}"), "sbatch --help lists them".into())))
            }
        };
    };
    let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
    let of = |list: &str| list.split_whitespace().any(|known| known == name);
    if of(WITH_VALUE) {
        let (taken, value) = match (value, next(1)) {
            (Some(""), after) if !after.starts_with('-') => (2, after),
            (None, "=") => (3, next(2)),
            (None, after) if after.starts_with('=') => (2, &after[1..]),
            (None, _) => return (2, None),
            _ => return (1, None),
        };
        return wrong(
            taken,
            format!("`{}`: a blank ends the option", words[..taken.min(words.len())].join(" ")),
            format!("--{name}={value}"),
        );
    }
    // getopt_long takes a beginning that fits one option only.
    let fits = |list: &'static str| list.split_whitespace().filter(move |known| known.starts_with(name)).count();
    match (fits(WITH_VALUE), fits(WITHOUT_VALUE)) {
        _ if of(WITHOUT_VALUE) => return (1, None),
        (0, 1) => return (1, None),
        (1, 0) => return (1 + usize::from(value.is_none()), None),
        _ => {}
    }
    if of(OF_SRUN) {
        let what = format!("--{name} is an option of srun, and sbatch refuses it");
        return (1, Some((what, format!("srun {word} …"))));
    }
    let distance = |known: &str| strsim::osa_distance(&name.replace('_', "-"), known);
    let near =
        WITH_VALUE.split_whitespace().chain(WITHOUT_VALUE.split_whitespace()).min_by_key(|known| distance(known));
    match near.filter(|near| distance(near) <= 2) {
        Some(near) => wrong(
            1,
            format!("sbatch knows no option --{name}"),
            format!("--{near}{}", value.map(|value| format!("={value}")).unwrap_or_default()),
        ),
        // Options of pyxis, a plugin that many sites have.
        None if name.starts_with("container-") => (1, None),
        None => {
            let what = format!("sbatch knows no option --{name}, unless a plugin of the site adds it");
            (1, Some((what, "sbatch --help lists them".into())))
        }
    }
}

fn is_known(name: &str) -> bool {
    WITH_VALUE.split_whitespace().chain(WITHOUT_VALUE.split_whitespace()).any(|known| known == name)
}

/// The words of a directive, as sbatch divides them.
fn arguments(text: &str) -> Vec<String> {
    let (mut words, mut quote, mut inside) = (Vec::<String>::new(), None, false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if quote.is_none() => break,
            c if quote.is_none() && c.is_ascii_whitespace() => inside = false,
            c => {
                if !std::mem::replace(&mut inside, true) {
                    words.push(String::new());
                }
                match (c, quote) {
                    (c, Some(open)) if c == open => quote = None,
                    ('"' | '\'', None) => quote = Some(c),
                    (c, _) => words.last_mut().expect("one was begun").push(if c == '\\' {
                        chars.next().unwrap_or(c)
                    } else {
                        c
                    }),
                }
            }
        }
    }
    words
}

fn fixed_nodes(script: &Script) -> Vec<ScriptFinding> {
    let slurm = script.slurm("nodelist", 'w').into_iter();
    let pbs = script.live(Scheduler::Pbs).filter(|directive| directive.text.contains("host="));
    let asked = slurm.chain(pbs.map(|directive| (directive.line, directive.text.clone())));
    let constraint = "remove it; a feature (--constraint) chooses a kind of node";
    let mut findings: Vec<ScriptFinding> =
        asked.map(|(line, nodes)| finding(line, format!("the nodes are fixed: {nodes}"), constraint)).collect();
    for command in script.commands.iter().filter(|command| command.program() == "ssh" && script.scheduler().is_some()) {
        // Options with a value of their own are rare here: -o, -p, -i, -l.
        let words: Vec<&str> = command.texts().collect();
        let takes_value = |word: &str| ["-o", "-p", "-i", "-l"].contains(&word);
        let host = (1..words.len()).find(|at| !words[*at].starts_with('-') && !takes_value(words[*at - 1]));
        let host = host.map(|at| words[at]).filter(|host| is_plain(host) && !host.contains('*'));
        findings.extend(host.map(|host| {
            finding(command.line, format!("ssh to {host}, whichever nodes the job has"), "loop over the job's hosts")
        }));
    }
    findings
}

/// Returns true if the words are equal, or two letters have changed places.
fn close(word: &str, right: &str) -> bool {
    word == right || right.len() > 4 && strsim::osa_distance(word, right) == 1
}

fn no_time_limit(script: &Script) -> Vec<ScriptFinding> {
    let Some(first) = script.directives.first() else { return vec![] };
    let limited = match first.scheduler {
        Scheduler::Slurm => script.slurm("time", 't').is_some(),
        Scheduler::Pbs => script.live(Scheduler::Pbs).any(|directive| directive.text.contains("walltime=")),
        Scheduler::Lsf => script.live(Scheduler::Lsf).any(|directive| directive.text.contains("-W")),
    };
    let fix = match first.scheduler {
        Scheduler::Slurm => "#SBATCH --time=01:00:00",
        Scheduler::Pbs => "#PBS -l walltime=01:00:00",
        Scheduler::Lsf => "#BSUB -W 01:00",
    };
    if limited { vec![] } else { vec![finding(first.line, "the job has no time limit", fix)] }
}

// ---- how jobs end

pub(super) const ENDS: &[Rule<Scripts>] = &[
    Rule {
        name: "signal-without-trap",
        level: Error,
        why: "bash ends at a signal that it has no trap for, and the job with it, before the time limit and without a snapshot",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\nsrun ./train --resume\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\n\
            trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait $!\n",
        find: |script| {
            let signal = signal(script).filter(|(_, value)| value.contains("B:"));
            let missing = signal.filter(|(_, value)| !has_trap(script, value));
            missing
                .map(|(line, value)| {
                    finding(
                        line,
                        format!("--signal={value}, but no trap"),
                        "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1",
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "signal-does-not-reach-the-trap",
        level: Error,
        why: "without B: Slurm sends the signal to the steps, not to the batch script, where the trap is",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=USR1@120 --requeue\nset -e\ntrap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\n\
            srun ./train --resume &\nwait $!\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\n\
            trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait $!\n",
        find: |script| {
            let signal = signal(script)
                .filter(|(_, value)| !value.contains("B:") && !value.contains("B,") && has_trap(script, value));
            signal
                .map(|(line, value)| {
                    finding(
                        line,
                        format!("--signal={value} goes to the steps, and the trap is in the batch script"),
                        format!("#SBATCH --signal=B:{value}"),
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "trap-waits-for-the-step",
        level: Error,
        why: "bash runs a trap only when the program in the foreground has ended: here, when the time is up",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\n\
            trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\n\
            trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait $!\n",
        find: |script| {
            let Some((_, value)) = signal(script).filter(|(_, value)| value.contains("B:") && has_trap(script, value))
            else {
                return vec![];
            };
            let last = script.commands.iter().rfind(|command| {
                command.far.is_none() && (["srun", "mpirun"].contains(&command.program()) || trains(command))
            });
            let found = last.filter(|command| !command.background);
            found
                .map(|command| {
                    finding(
                        command.line,
                        format!("the trap for {value} has to wait for {}", command.program()),
                        format!("{} … & wait $!", command.program()),
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "no-requeue",
        level: Warning,
        why: "after a lost node the job does not run again by itself, although it could go on from its snapshots",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun ./train --snapshots /scratch/run\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --snapshots /scratch/run\n",
        find: |script| {
            let said = ["requeue", "no-requeue"].iter().any(|name| script.slurm(name, '\0').is_some());
            let found = script.commands.iter().find(|command| goes_on(command) && !command.substituted);
            found
                .filter(|_| script.scheduler() == Some(Scheduler::Slurm) && !said)
                .map(|command| finding(command.line, "it has snapshots, but is not requeued", "#SBATCH --requeue"))
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "no-resume",
        level: Warning,
        why: "the job is queued again after a failure, and then begins from nothing",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun lockstep run --nproc-per-node=1 train --epochs 90\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\n\
            srun lockstep run --nproc-per-node=1 train --epochs 90 --snapshots /scratch/run\n",
        find: |script| {
            // PBS asks it of an array.
            let says = |text: &str| script.live(Scheduler::Pbs).any(|directive| directive.text.starts_with(text));
            let requeued = script.slurm("requeue", '\0').is_some() || says("-r y") && !says("-J");
            let resumes = script.commands.iter().any(goes_on);
            each(
                script,
                |_| requeued && !resumes,
                |_| {
                    (
                        "nothing tells the program to go on from a snapshot".into(),
                        "pass the program's resume option, such as --snapshots DIR".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "output-on-the-nodes-own-disk",
        level: Warning,
        why: "/tmp is each node's own: other nodes do not see the files, and they are deleted when the job ends",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --snapshots /tmp/run\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --out /tmp/run\ncp -r /tmp/run /scratch/\n",
        find: |script| {
            let copied = |path: &str| {
                script.commands.iter().any(|command| {
                    ["cp", "rsync", "mv", "tar"].contains(&command.program())
                        && command.texts().any(|word| word.starts_with(path))
                })
            };
            let mut findings = Vec::new();
            for command in script.commands.iter().filter(|_| script.scheduler().is_some()) {
                for name in OUTPUTS {
                    let path = command
                        .flag(name)
                        .filter(|path| (path.starts_with("/tmp") || path.starts_with("$TMPDIR")) && !copied(path));
                    findings.extend(path.map(|path| {
                        finding(
                            command.line,
                            format!("--{name} {path}, and nothing copies it away"),
                            "a folder that all nodes see; or cp -r it there at the end",
                        )
                    }));
                }
            }
            findings
        },
        ..RULE
    },
];

/// Flags that name what a program writes.
const OUTPUTS: [&str; 8] =
    ["snapshots", "snapshot-path", "checkpoint", "checkpoint-dir", "output", "output-dir", "out", "save-dir"];

fn signal(script: &Script) -> Option<(usize, String)> {
    script.slurm("signal", '\0')
}

/// The script has a trap for the signal in `B:USR1@120`.
fn has_trap(script: &Script, signal: &str) -> bool {
    let name =
        signal.split('@').next().unwrap_or_default().rsplit(':').next().unwrap_or_default().trim_start_matches("SIG");
    script.commands.iter().any(|command| {
        command.program() == "trap" && command.texts().skip(2).any(|word| word.trim_start_matches("SIG") == name)
    })
}

/// A program with snapshots: it can be started again.
fn goes_on(command: &Command) -> bool {
    command.texts().any(|word| {
        let word = word.trim_start_matches('-');
        ["snapshot", "checkpoint", "resume", "ckpt"].iter().any(|name| word.starts_with(name))
    })
}
