//! `lockstep render --check`: reads scripts that somebody wrote, and lists what is wrong with them, line by line. Nothing is run.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_contract::rules::{Finding, Level, Rule, Subject};
use serde::Serialize;

use super::script::{Scheduler, Script};
use super::words::shown;
use super::{directives, environment, launchers, meeting, shell};
use crate::exit::{Code, Refused};
use crate::report::{Screen, count};
use crate::site::rules::{Reported, has_error, listed, summary};

/// The subject: batch scripts.
pub(super) struct Scripts;

impl Subject for Scripts {
    type Facts<'a> = Script;
    type Level = Level;
    /// A line, from 1.
    type Place = usize;
    type Found = Vec<ScriptFinding>;
    /// A script.
    type Example = &'static str;
}

pub(super) type ScriptFinding = Finding<usize>;

/// The common fields of a rule: the evidence and the fix depend on the finding.
pub(super) const RULE: Rule<Scripts> =
    Rule { name: "", level: Level::Error, why: "", source: "", fix: "", wrong: "", right: "", find: |_| Vec::new() };

/// Where a finding is, for readers.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct AtLine {
    file: String,
    /// From 1.
    line: usize,
}

impl fmt::Display for AtLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Checks these files and prints what was found.
///
/// # Errors
/// [`Refused`] for a file that cannot be read.
pub(crate) fn check(files: &[PathBuf], json: bool) -> anyhow::Result<Code> {
    let mut findings = Vec::new();
    for file in files {
        let text =
            std::fs::read(file).map_err(|error| Refused(format!("cannot read {}: {error}", foreign::path(file))))?;
        findings.extend(examine(file, &String::from_utf8_lossy(&text)));
    }
    let text = if json {
        serde_json::to_string_pretty(&findings)? + "\n"
    } else {
        let sum = format!("{}: {}\n", count(files.len(), "script"), summary(&findings));
        listed(&findings, Screen::new(false).style()) + &sum
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")?;
    Ok(if has_error(&findings) { Code::Failure } else { Code::Success })
}

fn examine(file: &Path, text: &str) -> Vec<Reported<AtLine>> {
    let script = Script::read(text);
    let file = file.display().to_string();
    let found = |rule: &'static Rule<Scripts>| {
        let at = |finding: &ScriptFinding| AtLine { file: file.clone(), line: finding.place };
        let reported = |finding: ScriptFinding| {
            let place = at(&finding);
            Reported::new(rule, finding, place)
        };
        (rule.find)(&script).into_iter().map(reported).collect::<Vec<_>>()
    };
    let mut findings: Vec<_> = all().flat_map(found).collect();
    findings.sort_by_key(|finding| finding.place.line);
    findings
}

/// What is wrong with a line, with the script's names, and the line that fixes it.
pub(super) fn finding(line: usize, what: impl Into<String>, fix: impl Into<String>) -> ScriptFinding {
    Finding { place: line, what: shown(&what.into()), evidence: String::new(), fix: shown(&fix.into()) }
}

/// The text for the script's own scheduler; for LSF, Slurm's with LSF's variables.
pub(super) fn own(script: &Script, slurm: &str, pbs: &str) -> String {
    match script.scheduler() {
        Some(Scheduler::Pbs) => pbs.into(),
        Some(Scheduler::Lsf) => slurm.replace("SLURM_JOB_ID", "LSB_JOBID"),
        Some(Scheduler::Slurm) | None => slurm.into(),
    }
}

/// How a batch script finds the head node.
pub(super) fn head_node(script: &Script) -> &'static str {
    match script.scheduler() {
        Some(Scheduler::Pbs) => "head=$(sed -n 1p \"$PBS_NODEFILE\")",
        Some(Scheduler::Lsf) => "head=$(sed -n 1p \"$LSB_DJOB_HOSTFILE\")",
        Some(Scheduler::Slurm) | None => "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)",
    }
}

/// All rules, by subject.
pub(super) fn all() -> impl Iterator<Item = &'static Rule<Scripts>> {
    let lists = [
        directives::DIRECTIVES,
        launchers::LAUNCHERS,
        meeting::MEETING,
        environment::ENVIRONMENT,
        launchers::CONTAINERS,
        directives::ENDS,
        shell::SHELL,
    ];
    lists.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use lockstep_contract::rules::prove;

    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        examine(Path::new("job.sh"), text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn every_rule_finds_its_wrong_example_and_spares_the_right_one() {
        prove(all(), |_, text| found(text));
    }

    #[test]
    fn a_right_example_has_no_error_of_another_kind() {
        for Rule { name, right, .. } in all() {
            let errors =
                examine(Path::new("job.sh"), right).into_iter().filter(|finding| finding.level == Level::Error);
            let errors: Vec<_> = errors.map(|finding| (finding.place.line, finding.rule)).collect();
            assert!(errors.is_empty(), "{name}: {errors:?} in\n{right}");
        }
    }

    #[test]
    fn a_finding_names_the_line_it_stands_in() {
        let text = "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\nsrun bash -c '\n  export MASTER_ADDR=$(hostname)\n'\n";
        let findings = examine(Path::new("job.sh"), text);
        let at: Vec<_> = findings.iter().map(|finding| (finding.place.line, finding.rule)).collect();
        assert_eq!(at, [(6, "master-is-each-node")]);
    }

    /// Errors in a job of two nodes with one launcher each, by their rules.
    fn errors(lines: &str) -> Vec<&'static str> {
        let head =
            "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1:00:00\nset -e\nexport OMP_NUM_THREADS=8\n";
        let port = "port=$((20000 + SLURM_JOB_ID % 10000))\n";
        let findings = examine(Path::new("job.sh"), &format!("{head}{port}{lines}"));
        findings.into_iter().filter(|finding| finding.level == Level::Error).map(|finding| finding.rule).collect()
    }

    const HEAD: &str = "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n";

    #[test]
    fn a_value_that_the_shell_puts_into_flags_need_not_be_exported() {
        let addr = HEAD.replace("head=", "MASTER_ADDR=");
        let flags = "--nnodes 2 --rdzv_backend c10d --rdzv_endpoint";
        assert!(errors(&format!("{addr}srun torchrun {flags} \"$MASTER_ADDR:$port\" train.py\n")).is_empty());
        assert!(errors(&format!("{addr}srun bash -c \"torchrun {flags} $MASTER_ADDR:$port train.py\"\n")).is_empty());
        let inside = format!("{addr}srun bash -c 'torchrun {flags} \"$MASTER_ADDR:29400\" train.py'\n");
        assert_eq!(errors(&inside), ["not-exported"]);
        assert!(errors(&inside.replace("srun bash", "export MASTER_ADDR\nsrun bash")).is_empty());
        assert_eq!(errors(&format!("{addr}echo \"$MASTER_ADDR\"\nsrun ./train\n")), ["not-exported"]);
    }

    #[test]
    fn flags_may_come_from_arrays_functions_and_variables() {
        let array = "A=(--nnodes 2 --rdzv_backend c10d)\nA+=(--rdzv_endpoint \"$head:$port\")\n";
        for launch in [
            format!("{array}srun torchrun ${{A[@]}} train.py\n"),
            format!("{array}srun torchrun \"${{A[@]}}\" train.py\n"),
            format!("{array}run() {{ srun torchrun \"$@\"; }}\nrun \"${{A[@]}}\" train.py\n"),
            "F=\"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint $head:$port\"\nsrun torchrun $F train.py\n".into(),
            "srun torchrun $FLAGS train.py\n".into(),
            "srun bash -c 'torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $0:$1 x.py' $head $port\n".into(),
        ] {
            assert_eq!(errors(&format!("{HEAD}{launch}")), [""; 0], "{launch}");
        }
        let one = "A=(--nnodes 2 --rdzv_backend c10d)\nsrun torchrun \"${A[@]}\" train.py\n";
        assert_eq!(errors(one), ["no-rendezvous"]);
        assert_eq!(
            errors("srun torchrun --nnodes 2 --rdzv_backend c10d --master_addr $head train.py\n"),
            ["no-rendezvous"]
        );
    }

    #[test]
    fn a_ranks_number_is_made_in_its_task() {
        let once = "rank-of-the-batch-script";
        let torchrun = "torchrun --nnodes 2 --master_addr $head --master_port $port --node_rank $SLURM_NODEID x.py";
        for (right, lines) in [
            (false, format!("srun {torchrun}\n")),
            (false, format!("srun bash -c \"{torchrun}\"\n")),
            (true, format!("srun bash -c \"{}\"\n", torchrun.replace("$SLURM", "\\$SLURM"))),
            (true, format!("export head port\nsrun bash -c '{torchrun}'\n")),
            (false, format!("cat >node.sh <<END\n{torchrun}\nEND\nsrun bash node.sh\n")),
            (true, format!("export head port\ncat >node.sh <<'END'\n{torchrun}\nEND\nsrun bash node.sh\n")),
            (false, "NODE=$SLURM_NODEID\nsrun ./train --rank \"$NODE\"\n".into()),
            (false, "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID\nsrun python train.py\n".into()),
            (true, "export LOG=run-$SLURM_PROCID.log\nsrun python train.py\n".into()),
            (true, "srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $head:$port --node_rank $SLURM_NODEID x.py\n".into()),
        ] {
            let expected: &[&str] = if right { &[] } else { &[once] };
            assert_eq!(errors(&format!("{HEAD}{lines}")), expected, "{lines}");
        }
    }

    #[test]
    fn a_comment_or_a_blank_ends_a_command_that_goes_on() {
        let lost = |middle: &str| {
            errors(&format!("{HEAD}srun torchrun --nnodes 2 --rdzv_endpoint $head:$port {middle} --node_rank 0 x.py\n"))
        };
        assert!(lost("\\\n  # one \\\n ").contains(&"rest-of-a-command-lost"));
        assert!(lost("\\ \n ").contains(&"rest-of-a-command-lost"));
        assert!(lost("\n ").contains(&"rest-of-a-command-lost"));
        assert!(!lost("\\\n ").contains(&"rest-of-a-command-lost"));
        assert!(errors("srun ./train \\\n  --a 1 \\\n  # --b 2\nwait\n").is_empty());
    }

    #[test]
    fn what_stands_in_a_here_document_or_under_a_condition_is_not_taken_for_the_job() {
        let other = "sbatch <<'END'\n#!/bin/bash\n#SBATCH --nodes=4\nsrun hostname\nEND\n";
        assert!(errors(other).is_empty(), "{:?}", errors(other));
        let either = "if [ \"$SLURM_NNODES\" -gt 1 ]; then\n  srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $head:$port x.py\n\
                      else\n  torchrun --standalone x.py\nfi\n";
        assert!(errors(&format!("{HEAD}{either}")).is_empty());
        assert!(errors("# sbatch --account=x job.sh\nsrun ./train\n").is_empty());
    }

    #[test]
    fn survives_scripts_that_are_nested_deep_or_grow_without_end() {
        let deep = format!("echo {}x{}\n", "$(".repeat(20_000), ")".repeat(20_000));
        assert!(found(&deep).contains(&"not-read"));
        let double = |n: u32| format!("a{}=$a{n}$a{n}\nA=(${{A[@]}} ${{A[@]}} x)\n", n + 1);
        let growing: String = (0..40).map(double).collect();
        assert!(!found(&format!("a0=xxxxxxxx\n{growing}echo $a40 ${{A[@]}}\n")).contains(&"not-read"));
        assert!(!found("f() { f; f; }\nf\n").contains(&"not-read"));
    }

    #[test]
    fn survives_a_script_that_is_cut_anywhere() {
        for Rule { wrong, .. } in all() {
            for (end, _) in wrong.char_indices() {
                found(&wrong[..end]);
            }
        }
    }
}
