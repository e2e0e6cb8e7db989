//! `lockstep render --check`: reads scripts that somebody wrote, and lists what is wrong with them, line by line. Nothing is run.

mod directives;
mod environment;
mod launchers;
mod meeting;
mod shell;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_contract::rules::{Finding, Level, Rule, Subject};
use serde::Serialize;

use crate::exit::{Code, Refused};
use crate::render::script::{Scheduler, Script};
use crate::render::words::shown;
use crate::report::{Screen, Stdout, count};
use crate::rules::{Reported, has_error, listed, summary};

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
    Stdout.write_all(text.as_bytes()).context("cannot write to stdout")?;
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

/// The text for the script's own scheduler: Slurm's, PBS's or LSF's.
pub(super) fn own(script: &Script, [slurm, pbs, lsf]: [&'static str; 3]) -> &'static str {
    match script.served_by() {
        Some(Scheduler::Pbs) => pbs,
        Some(Scheduler::Lsf) => lsf,
        Some(Scheduler::Slurm) | None => slurm,
    }
}

/// How a batch script finds the head node.
pub(super) fn head_node(script: &Script) -> &'static str {
    own(
        script,
        [
            "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)",
            "head=$(sed -n 1p \"$PBS_NODEFILE\")",
            "head=$(sed -n 1p \"$LSB_DJOB_HOSTFILE\")",
        ],
    )
}

/// How a batch script makes a port that differs between jobs.
pub(super) fn port(script: &Script) -> &'static str {
    own(
        script,
        [
            "port=$((20000 + SLURM_JOB_ID % 10000))",
            "port=$((20000 + ${PBS_JOBID%%[!0-9]*} % 10000))",
            "port=$((20000 + LSB_JOBID % 10000))",
        ],
    )
}

/// What starts a program once on each node of the job.
pub(super) fn starter_of(script: &Script) -> &'static str {
    own(script, ["srun --ntasks-per-node=1", "pbsdsh --", "blaunch -z \"$(sort -u \"$LSB_DJOB_HOSTFILE\" | xargs)\""])
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

    /// The lines, without the head, in which a rule finds something in a job of two nodes with one launcher each.
    fn lines_of(rule: &str, lines: &str) -> Vec<usize> {
        let head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1:00:00\n";
        let findings = examine(Path::new("job.sh"), &format!("{head}{lines}"));
        findings.into_iter().filter(|finding| finding.rule == rule).map(|finding| finding.place.line - 2).collect()
    }

    #[track_caller]
    fn assert_lines(rule: &str, cases: &[(&[usize], &str)]) {
        for (expected, lines) in cases {
            assert_eq!(lines_of(rule, lines), *expected, "{rule} in\n{lines}");
        }
    }

    #[test]
    fn a_pipe_hides_the_exit_code_unless_pipefail_or_pipestatus_keeps_it() {
        let cases: &[(&[usize], &str)] = &[
            (&[2], "set -e\nsrun ./train 2>&1 | tee log\n"),
            (&[1], "srun ./train |& tee log\n"),
            (&[1], "srun torchrun train.py | grep -v Warning | ts\n"),
            (&[1], "( cd run; srun ./train ) | logger\n"),
            (&[2], "{\n  srun ./train\n} | tee log\n"),
            (&[1], "run() { srun \"$@\"; }\nrun ./train | tee log\n"),
            (&[1], "for seed in 1 2; do srun ./train $seed; done | tee log\n"),
            (&[1], "time python train.py | tee log\n"),
            (&[1], "deepspeed train.py | tee log &\nwait $!\n"),
            (&[1], "bash train.sh | tee log || exit 1\n"),
            (&[2], "set -o pipefail\nsrun bash -c 'python train.py | tee log'\n"),
            (&[2], "set -eo pipefail\nset +o pipefail; srun ./train | tee log\n"),
            (&[1], "srun ./train | tee log\necho done\nexit ${PIPESTATUS[0]}\n"),
            (&[1], "srun ./train | tee log\nset -o pipefail\n"),
            (&[1], "srun ./train || echo failed\n"),
            (&[], "set -euo pipefail\nsrun ./train 2>&1 | tee log\n"),
            (&[], "set -e -o pipefail\nsrun ./train |& tee log\n"),
            (&[], "srun ./train | tee log\nexit ${PIPESTATUS[0]}\n"),
            (&[], "srun ./train | tee log; code=${PIPESTATUS[0]}\nexit $code\n"),
            (&[], "srun bash -o pipefail -c 'python train.py | tee log'\n"),
            (&[], "srun bash -c 'set -o pipefail; python train.py | tee log'\n"),
            (&[], "cat config | srun ./train\nsrun ./train > >(tee log)\n"),
            (&[], "srun hostname | sort -u >hosts\nhead=$(srun -N1 hostname | head -1)\necho train.py | tee log\n"),
            (&[], "if srun ./train | grep -q converged; then echo yes; fi\n"),
            (&[], "srun ./train || exit 1\nsrun ./train || code=$?\nsrun ./train || true\n"),
            (&[1], "srun bash <<END | tee log\npython train.py\nEND\n"),
            (&[], "module list 2>&1 | tee modules\nnvidia-smi | tee gpus\n"),
            (&[], "last=$(python newest.py | tail -1)\npgrep -f train.py | head -1\n"),
        ];
        assert_lines("exit-code-lost", cases);
        let pipefail = "#!/bin/bash -eo pipefail\n#SBATCH --time=1:00:00\nsrun ./train | tee log\n";
        assert!(!found(pipefail).contains(&"exit-code-lost"));
    }

    #[test]
    fn a_wait_keeps_the_exit_code_of_what_it_names() {
        let cases: &[(&[usize], &str)] = &[
            (&[2], "srun ./train &\nwait\n"),
            (&[2], "srun bash -c 'torchrun train.py' &\nwait\n"),
            (&[3], "(\nsrun ./train ) &\nwait\n"),
            (&[4], "for node in a b; do\n  ssh -n $node ./train &\ndone\nwait\n"),
            (&[3], "srun ./a &\nsrun ./b &\nwait -n\n"),
            (&[3], "srun ./a & one=$!\nsrun ./b & two=$!\nwait $one $two\n"),
            (&[2], "for i in 1 2; do srun ./train $i & pids+=($!); done\nwait \"${pids[@]}\"\n"),
            (&[2], "for i in 1 2; do srun ./train $i & done\nwait $(jobs -p)\n"),
            (
                &[2],
                "for i in 1 2; do srun ./train $i & pids+=($!); done\nfor pid in \"${pids[@]}\"; do wait $pid; done\n",
            ),
            (&[2], "srun ./train &\nwait $! || echo failed\n"),
            (&[2], "srun ./train &\nwait\nexit $?\n"),
            (&[1], "bash -c 'python a.py & wait'\n"),
            (&[], "set -e\nsrun ./train &\nwait $!\n"),
            (&[], "srun ./train &\nwait -n\n"),
            (&[], "srun ./a & srun ./b & wait -n; wait -n\n"),
            (&[], "srun bash -c './train; echo $? >\"code.$SLURM_PROCID\"' &\nwait\n"),
            (&[], "srun ./train & step=$!\nwait $step || code=$?\nwait\nexit $code\n"),
            (
                &[],
                "set -e\nfor i in 1 2; do srun ./train $i & pids+=($!); done\nfor pid in ${pids[@]}; do wait $pid; done\n",
            ),
            (
                &[],
                "for i in 1 2; do srun ./train $i & pids+=($!); done\nfor pid in ${pids[@]}; do wait $pid || failed=1; done\n",
            ),
            (&[], "set -e\nfor i in 1 2; do srun ./train $i & done\nfor i in 1 2; do wait -n; done\n"),
            (&[], "nvidia-smi dmon >gpus &\nsrun ./train\nkill %1\nwait\n"),
            (&[], "for file in *.tar; do tar -xf $file & done\nwait\nsrun ./train\n"),
            (&[], "{ srun ./train || touch failed; } &\nwait\n[ ! -e failed ]\n"),
        ];
        assert_lines("wait-without-exit-code", cases);
    }

    #[test]
    fn what_a_process_changes_is_lost_for_those_who_rely_on_it_later() {
        let cases: &[(&[usize], &str)] = &[
            // Variables.
            (&[2], "n=0\nscontrol show hostnames | while read -r h; do n=$((n+1)); done\nsrun ./train --nodes $n\n"),
            (&[2], "n=0\ncat hosts | while read -r h; do ((n++)); done\necho $n\n"),
            (&[2], "hosts=()\ncat list | while read -r h; do hosts+=(\"$h\"); done\necho \"${hosts[0]}\"\n"),
            (&[1], "cat hosts | head -1 | read -r head\nsrun ./train --master $head\n"),
            (&[1], "cat hosts | mapfile -t all\nfor h in \"${all[@]}\"; do echo $h; done\n"),
            (&[1], "(\nport=$((20000 + SLURM_JOB_ID % 10000)) )\nsrun ./train --port $port\n"),
            (&[1], "name=$(day=$(date); echo run)\nif [ \"$day\" ]; then echo; fi\n"),
            (&[1], "bash -c 'head=$(hostname)'\nsrun ./train --master \"$head\"\n"),
            (&[1], "x=1 &\necho $x\n"),
            (&[1], "printf 'a b' | { read -r x; read -r y; }\necho $x $y\n"),
            (&[1], "set_up() { lr=0.1; }\nset_up | tee log\nsrun ./train --lr $lr\n"),
            // Folders, modules, environments, limits, exported variables.
            (&[1], "(cd run)\nsrun ./train\n"),
            (&[1], "cd run | tee log\npython train.py\n"),
            (&[1], "bash -c 'cd run'\npython train.py\n"),
            (&[1], "module load cuda 2>&1 | tee log\nsrun ./train\n"),
            (&[1], "(module load cuda)\nsrun ./train\n"),
            (&[1], "srun bash -c 'module load cuda'\nsrun ./train\n"),
            (&[1], "conda activate x | cat\npython train.py\n"),
            (&[1], "source venv/bin/activate | tee log\npython train.py\n"),
            (&[1], "source venv/bin/activate &\npython train.py\n"),
            (&[1], "bash venv/bin/activate\npython train.py\n"),
            (&[1], "./venv/bin/activate\npython train.py\n"),
            (&[1], "bash -c 'ulimit -l unlimited'\nsrun ./train\n"),
            (&[1], "(export NCCL_SOCKET_IFNAME=ib0)\nsrun ./train\n"),
            (&[1], "srun module load cuda\nsrun ./train\n"),
            (&[1], "srun -n 2 cd run\nsrun ./train\n"),
            // Nothing is lost.
            (&[], "n=0\nwhile read -r h; do n=$((n+1)); done < <(scontrol show hostnames)\necho $n\n"),
            (&[], "n=0\nwhile read -r h; do n=$((n+1)); done <hosts\necho $n\n"),
            (&[], "shopt -s lastpipe\ncat hosts | while read -r h; do n=$((n+1)); done\necho $n\n"),
            (&[], "{ cd run; module load cuda; x=1; }\nsrun ./train $x\n"),
            (&[], "(cd run && make)\nsrun ./train\n"),
            (&[], "here=$(cd run && pwd)\nsrun ./train\n"),
            (&[], "(module load cuda; nvcc -V)\nsrun ./train\n"),
            (&[], "(export CUDA_VISIBLE_DEVICES=0; python a.py)\npython b.py\n"),
            (&[], "i=1\n(i=5; echo $i)\necho $i\n"),
            (
                &[],
                "address() { local host=$1; host=${host%%.*}; echo $host; }\nhost=a\nhead=$(address b)\necho $host $head\n",
            ),
            (&[], "cat hosts | while read -r h; do echo $h; done\nfor h in a b; do echo $h; done\n"),
            (&[], "cat hosts | while read -r h; do n=1; done\nn=2\necho $n\n"),
            (&[], "built=0\ncat <<END | cc -xc - && built=1\nint main;\nEND\necho $built\n"),
            (&[], "awk '{n++} END {print n}' f | sort\nprintf '%s' '$n'\n"),
            (&[], "srun bash -c 'module load cuda; exec ./train'\nsrun bash -c 'cd run && ./train'\n"),
            (&[], "module avail 2>&1 | grep cuda\nsrun ./train\n"),
        ];
        for (expected, lines) in cases {
            let found = lines_of("lost-with-its-process", lines);
            assert_eq!(found.is_empty(), expected.is_empty(), "{found:?} in\n{lines}");
        }
        let text =
            "#!/bin/bash\nset -e\nn=0\ncat hosts | while read -r h; do n=$((n+1)); done\n\nsrun ./train \"$n\"\n";
        let findings = examine(Path::new("job.sh"), text);
        let loss = findings.iter().find(|finding| finding.rule == "lost-with-its-process").unwrap();
        assert_eq!(
            (loss.place.line, loss.what.as_str()),
            (4, "n is set in a part of a pipe, and `$n` in line 6 does not see it")
        );
    }

    #[test]
    fn sbatch_and_qsub_stop_at_the_first_line_that_is_no_comment_and_bsub_reads_all() {
        let first = [
            "usage() { echo; }",
            "f()\n{\n:\n}",
            "if true; then :; fi",
            "case x in x) ;; esac",
            "((n=1))",
            "[ -n \"$HOME\" ]",
            "[[ -e x ]]",
            ">log",
            "x=1",
            "set -e",
            "for i in 1; do :; done",
            "{ :; }",
            "cd .",
            "export X=1",
            "  echo",
            "<<END\nEND",
        ];
        for command in first {
            let text =
                format!("#!/bin/bash\n#SBATCH --nodes=2\n\n  # remark\n{command}\n#SBATCH --time=1\nsrun ./train\n");
            assert!(found(&text).contains(&"directive-after-command"), "{command}");
            assert!(found(&text).contains(&"no-time-limit"), "{command}");
            let pbs = text
                .replace("#SBATCH --nodes=2", "#PBS -l select=2")
                .replace("#SBATCH --time=1", "#PBS -l walltime=1:00:00");
            assert!(found(&pbs).contains(&"directive-after-command"), "{command}");
            let lsf = text.replace("#SBATCH --nodes=2", "#BSUB -nnodes 2").replace("#SBATCH --time=1", "#BSUB -W 10");
            assert!(
                !found(&lsf).iter().any(|rule| ["directive-after-command", "no-time-limit"].contains(rule)),
                "{command}"
            );
        }
        let comments = "#!/bin/bash\n#\n\t\n   # remark\n#SBATCH\t--nodes=2\n##SBATCH --time=9\n#SBATCH --time=1 # a minute\nset -e\nsrun ./train\n";
        assert!(found(comments).is_empty(), "{:?}", found(comments));
        let indented = "#!/bin/bash\n:\n #PBS -l select=1:mpiprocs=1,walltime=1:00:00\nset -e\n./train\n";
        assert!(found(indented).is_empty(), "{:?}", found(indented));
    }

    #[test]
    fn a_fallback_to_the_node_itself_makes_worlds_of_one_node() {
        let cases: &[(&[usize], &str)] = &[
            (&[1], "srun bash -c 'head=$(scontrol show hostnames | sed -n 1p || echo localhost); ./train $head'\n"),
            (&[1], "srun bash -c './train --master ${MASTER_ADDR:-localhost}'\n"),
            (&[1], "srun bash -c 'export MASTER_ADDR=${MASTER_ADDR-127.0.0.1}; ./train'\n"),
            (&[1], "srun bash -c ': ${MASTER_ADDR:=::1}; ./train'\n"),
            (&[1], "srun bash -c 'torchrun --nnodes 2 --rdzv_endpoint ${RDZV_ENDPOINT:-localhost:29500} x.py'\n"),
            (&[1], "srun bash -c 'head=${HEAD:-$(hostname)}; ./train $head'\n"),
            (&[1], "srun bash -c '[ -z \"$head\" ] && head=localhost; ./train $head'\n"),
            (&[1], "srun bash -c 'if [ -z \"$head\" ]; then head=127.0.0.1; fi; ./train $head'\n"),
            (&[1], "srun bash -c '[ \"$MASTER_ADDR\" ] || MASTER_ADDR=localhost; ./train'\n"),
            (&[1], "srun bash -c 'head=$(getent hosts x || hostname); ./train $head'\n"),
            (&[1], "export MASTER_ADDR=${MASTER_ADDR:-localhost}\nsrun ./train\n"),
            (&[1], "srun bash -c 'if [ -n \"$H\" ]; then head=$H; else head=localhost; fi; ./train $head'\n"),
            (
                &[1],
                "head() { scontrol show hostnames || echo localhost; }\nexport -f head\nsrun bash -c './train $(head)'\n",
            ),
            (&[], "export MASTER_ADDR=${MASTER_ADDR:-$(hostname)}\nsrun ./train\n"),
            (&[], "export MASTER_ADDR=node7\nsrun bash -c './train ${MASTER_ADDR:-localhost}'\n"),
            (&[], "srun bash -c './train ${MASTER_ADDR:?is not set} ${SEED:-127}'\n"),
            (&[], "if [ \"$SLURM_NNODES\" -eq 1 ]; then head=localhost; fi\nsrun ./train $head\n"),
        ];
        assert_lines("fallback-to-this-node", cases);
        let one = "#!/bin/bash\n#SBATCH --nodes=1 --time=1\nset -e\nexport MASTER_ADDR=${MASTER_ADDR:-localhost}\nsrun ./train\n";
        assert!(found(one).is_empty());
    }

    #[test]
    fn what_only_a_step_has_is_empty_in_the_batch_script() {
        let cases: &[(&[usize], &str)] = &[
            (&[1], "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun ./train\n"),
            (&[1], "srun bash -c \"./train --master $SLURM_LAUNCH_NODE_IPADDR\"\n"),
            (&[1], "if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then mkdir run; fi\nmpirun ./train\n"),
            (&[1], "echo step ${SLURM_STEP_ID}\n"),
            (&[], "srun bash -c './train --master $SLURM_LAUNCH_NODE_IPADDR'\n"),
            (&[], "if [ -z \"$SLURM_STEP_ID\" ]; then srun \"$0\"; fi\n"),
            (&[], "echo ${SLURM_STEP_ID:-none} $SLURM_JOB_ID $SLURM_PROCID\n"),
        ];
        assert_lines("variable-of-a-step", cases);
        assert_lines("rank-of-the-batch-script", &[(&[1], "export NODE=$SLURM_NODEID\nsrun ./train\n")]);
    }

    #[test]
    fn options_that_sbatch_does_not_take_are_named() {
        let option = |text: &str| {
            let findings = examine(Path::new("job.sh"), &format!("#!/bin/bash\n#SBATCH {text}\nset -e\n"));
            let of = |name: &str| findings.iter().any(|finding| finding.rule == name && finding.place.line == 2);
            (of("unknown-option"), of("typographic-characters"))
        };
        for text in [
            "--nodes = 2",
            "--nodes= 2",
            "--nodes =2",
            "--ntask-per-node=1",
            "--ntasks_per_node=1",
            "--nodes=2 two nodes",
            "-N=2",
            "-nodes=2",
            "--job-name=my run",
            "--cpu-bind=none",
            "--walltime=1:00",
            "--cpus=2",
            "-y 2",
            "--parition=gpu",
        ] {
            assert_eq!(option(text), (true, false), "{text}");
        }
        for text in [
            "–nodes=2",
            "—nodes=2",
            "--job-name=“run”",
            "--nodes=2\u{a0}--time=1",
            "\u{a0}--nodes=2",
            "−N 2",
            "--comment=„x“",
        ] {
            assert!(option(text).1, "{text}");
        }
        for text in [
            "--nodes=2 --ntasks-per-node 1 -t 1:00 -Jx -N2",
            "--exclusive --mem=0 # all",
            "--exclusive=user",
            "--job-name=\"my run\"",
            "--mail-type=END,FAIL",
            "--constraint=\"a|b\"",
            "--container-image=x.sqsh",
            "--gpus-per-node=4",
            "--tres-per-task=gpu:1",
            "hetjob",
            "--part=gpu",
            "-p gpu,cpu -A x",
            "--comment='a – b'",
        ] {
            assert_eq!(option(text), (false, false), "{text}");
        }
    }

    #[test]
    fn a_word_processors_characters_count_outside_quotes() {
        let cases: &[(&[usize], &str)] = &[
            (&[1], "srun ./train –epochs 3\n"),
            (&[1], "srun ./train —epochs 3\n"),
            (&[1], "srun ./train --name=“x”\n"),
            (&[1], "srun ./train\u{a0}--epochs 3\n"),
            (&[], "srun ./train --note 'a – b' --name \"“x”\" # don’t – “ever”\necho don’t – stop\n"),
        ];
        assert_lines("typographic-characters", cases);
    }

    #[test]
    fn set_u_is_neither_advised_nor_passed_over_before_files_that_do_not_bear_it() {
        let cases: &[(&[usize], &str)] = &[
            (&[2], "set -euo pipefail\nsource ~/.bashrc\n"),
            (&[2], "set -eu\nconda activate x\n"),
            (&[2], "set -o nounset\nsource /opt/conda/bin/activate x\n"),
            (&[], "set -e\nsource ~/.bashrc\nconda activate x\nset -u\n"),
            (&[], "set -eu\nset +u; source ~/.bashrc; set -u\n"),
            (&[], "set -eu\nsource venv/bin/activate\nmodule load cuda\n"),
        ];
        assert_lines("unset-variables-of-others", cases);
        let advice = |lines: &str| {
            let findings = examine(Path::new("job.sh"), &format!("#!/bin/bash\n{lines}srun ./train\n"));
            findings.into_iter().find(|finding| finding.rule == "goes-on-after-errors").unwrap().fix
        };
        assert_eq!(advice("module load cuda\n"), "set -euo pipefail");
        assert_eq!(advice("source ~/.bashrc\nconda activate x\n"), "set -eo pipefail, below line 3");
    }

    #[test]
    fn cpus_per_task_that_differ_are_fatal_from_some_version_on() {
        let of = |lines: &str| {
            let text = format!("#!/bin/bash\n#SBATCH --cpus-per-task=8 --time=1\nset -e\n{lines}srun ./train\n");
            found(&text).contains(&"cpus-per-task-differ")
        };
        assert!(of("export SRUN_CPUS_PER_TASK=4\n") && of("export SLURM_CPUS_PER_TASK=16\n"));
        assert!(of("export SRUN_CPUS_PER_TASK=$((SLURM_CPUS_PER_TASK / 2))\n"));
        assert!(!of("export SRUN_CPUS_PER_TASK=8\n") && !of("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"));
        let apart =
            "#!/bin/bash\n#SBATCH --time=1\nset -e\nexport SLURM_CPUS_PER_TASK=4 SRUN_CPUS_PER_TASK=8\nsrun ./train\n";
        assert!(found(apart).contains(&"cpus-per-task-differ"));
    }

    #[test]
    fn what_is_advised_passes_the_check_itself() {
        for Rule { name, wrong, .. } in all() {
            let script = Script::read(wrong);
            let nodes = script.nodes().map_or(1, |(_, nodes)| nodes);
            let own = match script.scheduler() {
                Some(Scheduler::Pbs) => format!("#PBS -l select={nodes}:ncpus=64:ngpus=4:mpiprocs=1,walltime=1:00:00"),
                Some(_) => format!("#SBATCH --nodes={nodes} --ntasks-per-node=1 --time=1:00:00 --gres=gpu:4"),
                None => "#".into(),
            };
            for fix in examine(Path::new("job.sh"), wrong).into_iter().map(|finding| finding.fix) {
                let (directive, line) = match fix.chars().next() {
                    Some('#') => (fix.as_str(), String::new()),
                    Some('-' | '|') => ("#", format!("srun ./train {fix}")),
                    _ => ("#", fix.clone()),
                };
                for strict in ["set -eo pipefail", "set -euo pipefail"] {
                    let set_up = "trap 'asked=1' USR1\nexport OMP_NUM_THREADS=8";
                    let text = format!("#!/bin/bash\n{own}\n{directive}\n{strict}\n{set_up}\n{line}\n");
                    let all = examine(Path::new("job.sh"), &text);
                    let is_wrong = |found: &&Reported<AtLine>| {
                        found.level == Level::Error || found.rule == "unset-variables-of-others"
                    };
                    let wrong: Vec<_> = all.iter().filter(is_wrong).collect();
                    assert!(wrong.is_empty(), "{name} advises `{fix}`: {wrong:?}");
                }
            }
        }
    }

    #[test]
    fn spares_other_ways_to_wait_to_load_conda_and_to_name_nodes() {
        let cases: &[(&str, &[usize], &str)] = &[
            ("no-wait", &[1], "srun ./serve &\nsleep 10\necho started\n"),
            ("no-wait", &[], "srun ./serve &\nsleep 10\nsrun python train.py\n"),
            ("no-wait", &[], "srun ./serve &\nsleep infinity\n"),
            ("no-wait", &[], "srun ./train &\nwhile pgrep -P $$ >/dev/null; do sleep 5; done\n"),
            ("no-wait", &[], "on_signal() { kill $!; wait $!; }\ntrap on_signal TERM\nsrun ./train &\n"),
            ("conda-without-its-functions", &[1], "conda activate x\n"),
            ("conda-without-its-functions", &[2], "source venv/bin/activate\nconda activate x\n"),
            ("conda-without-its-functions", &[], "source ~/miniconda3/bin/activate\nconda activate x\n"),
            ("unexpanded-nodelist", &[1], "head=${SLURM_JOB_NODELIST%%,*}\n"),
            ("unexpanded-nodelist", &[], "echo \"SLURM_NODELIST: $SLURM_NODELIST\"\n"),
            ("sleep-decides-the-order", &[1], "sleep 10\nsrun lockstep run train\n"),
            ("sleep-decides-the-order", &[], "until [ -e ready ]; do sleep 2; done\nsrun lockstep run train\n"),
            ("trap-waits-for-the-step", &[], "trap 'kill $!' USR1\npython train.py\n"),
            ("container-without-gpus", &[1], "srun apptainer exec x.sif lockstep run --nproc-per-node=gpu x\n"),
            ("container-without-gpus", &[], "srun singularity exec lumi-x.sif lockstep run --nproc-per-node=gpu x\n"),
            (
                "rank-of-the-batch-script",
                &[],
                "srun apptainer exec x.sif bash -c \"torchrun --nnodes 2 --node_rank $SLURM_PROCID \\\n  --rdzv_backend c10d \\\n  --rdzv_endpoint \"$head:29400\" x.py\"\n",
            ),
        ];
        for (rule, expected, lines) in cases {
            assert_eq!(lines_of(rule, lines), *expected, "{rule} in\n{lines}");
        }
        let signal = "#!/bin/bash\n#SBATCH --time=1 --signal=B:USR1@60\nset -e\ntrap 'kill $!' USR1\npython train.py\n";
        assert!(found(signal).contains(&"trap-waits-for-the-step"));
    }

    /// Right scripts that start a launcher on each node without srun, as centres' documentation has them, and changes each of which
    /// makes a mistake: the rule that finds it, the text, and what it becomes.
    type Changes = &'static [(&'static str, &'static str, &'static str)];
    const OTHER_STARTERS: &[(&str, &str, Changes)] = &[
        (
            "PBS4",
            "source venv/bin/activate\npython split.py\nfor n in $(sort -u \"$PBS_NODEFILE\"); do\n  ssh -n \"$n\" \"{L} {C} x.py\" & pids+=($!)\ndone\n{W}",
            &[
                ("several-launchers-on-a-node", "sort -u", "cat"),
                ("several-launchers-on-a-node", "$(sort -u \"$PBS_NODEFILE\")", "$(<\"$PBS_NODEFILE\")"),
                ("same-node-rank", "{C}", "{S} --node_rank=0"),
                ("rank-of-the-batch-script", "{C}", "{S} --node_rank=$PBS_NODENUM"),
                ("rank-of-the-batch-script", "{C}", "{S} --node_rank=\\$PBS_NODENUM"),
                ("exports-do-not-travel", "{L}", "cd $PWD && OMP_NUM_THREADS=8 torchrun"),
                ("quotes-lost-on-the-way", "\"{L}", "bash -lc \"{L}"),
            ],
        ),
        (
            "PBS4",
            "while read -r n; do\n  ssh -n \"$n\" \"{L} {C} x.py\" & pids+=($!)\ndone < <(uniq \"$PBS_NODEFILE\")\n{W}",
            &[("several-launchers-on-a-node", "< <(uniq \"$PBS_NODEFILE\")", "<\"$PBS_NODEFILE\"")],
        ),
        (
            "PBS4",
            "nodes=($(sort -u \"$PBS_NODEFILE\"))\nhead=${nodes[0]}\nrank=0\nfor n in \"${nodes[@]}\"; do\n  ssh -n \"$n\" \"{L} {S} --node_rank=$rank x.py\" &\n  pids+=($!)\n  rank=$((rank + 1))\ndone\n{W}",
            &[
                ("several-launchers-on-a-node", "sort -u", "cat"),
                ("head-is-not-rank-0", "[0]", "[-1]"),
                ("rank-of-the-batch-script", "=$rank x", "=$OMPI_COMM_WORLD_RANK x"),
            ],
        ),
        (
            "PBS4",
            "head=$(sort -u \"$PBS_NODEFILE\" | tail -n 1)\nrank=0\nfor n in $(sort -ur \"$PBS_NODEFILE\"); do\n  ssh -n \"$n\" \"{L} {S} --node_rank=$rank x.py\" &\n  pids+=($!)\n  ((rank++)) || true\ndone\n{W}",
            &[("head-is-not-rank-0", "-ur", "-u")],
        ),
        (
            "PBS4",
            "sort -u \"$PBS_NODEFILE\" | xargs -P 0 -I% ssh -n % \"{L} {C} x.py\"\n",
            &[("several-launchers-on-a-node", "sort -u", "cat")],
        ),
        (
            "PBS4",
            "sort -u \"$PBS_NODEFILE\" >nodes.txt\nparallel -j 0 ssh -n {} \"{L} {C} x.py\" :::: nodes.txt\n",
            &[
                ("several-launchers-on-a-node", "sort -u \"$PBS_NODEFILE\" >", "cp \"$PBS_NODEFILE\" "),
                ("several-launchers-on-a-node", ":::: nodes.txt", ":::: \"$PBS_NODEFILE\""),
            ],
        ),
        (
            "PBS4",
            "module load parallel\nmodule load torch\nsort -u \"$PBS_NODEFILE\" >nodes.txt\n\
             parallel --nonall --sshloginfile nodes.txt \"module load torch; OMP_NUM_THREADS=8 torchrun {C} x.py\"\n",
            &[("exports-do-not-travel", "\"module load torch; ", "\"")],
        ),
        (
            "PBS4",
            "declare -A seen\nwhile read -r n; do\n  if [ -n \"${seen[$n]:-}\" ]; then continue; fi\n  seen[$n]=1\n  ssh -n \"$n\" \"{L} {C} x.py\" & pids+=($!)\ndone <\"$PBS_NODEFILE\"\n{W}",
            &[],
        ),
        (
            "PBS4",
            "i=0\nfor n in $(cat \"$PBS_NODEFILE\"); do\n  ssh -n \"$n\" \"cd $PWD; RANK=$i LOCAL_RANK=$((i % 4)) OMP_NUM_THREADS=8 venv/bin/python x.py\" &\n  pids+=($!)\n  i=$((i + 1))\ndone\n{W}",
            &[("rank-of-the-batch-script", "RANK=$i ", "RANK=$PBS_NODENUM ")],
        ),
        (
            "PBS4",
            "nodes=($(sort -u \"$PBS_NODEFILE\"))\nhead=${nodes[0]}\nrank=1\nfor n in \"${nodes[@]:1}\"; do\n  ssh -n \"$n\" \"{L} {S} --node_rank=$rank x.py\" &\n  pids+=($!)\n  rank=$((rank + 1))\ndone\nvenv/bin/torchrun {S} --node_rank=0 x.py\n{W}",
            &[],
        ),
        (
            "PBS4",
            "rank=0\nfor n in $(awk '!seen[$0]++' \"$PBS_NODEFILE\"); do\n  ssh -n \"$n\" MASTER_ADDR=\"$head\" NODE_RANK=\"$rank\" OMP_NUM_THREADS=8 \"$PWD/train.sh\" &\n  pids+=($!)\n  rank=$((rank + 1))\ndone\n{W}",
            &[("rank-of-the-batch-script", "\"$rank\"", "\"$PBS_NODENUM\"")],
        ),
        (
            "PBS1",
            "for n in $(cat \"$PBS_NODEFILE\"); do\n  ssh \"$n\" bash -s -- \"$PWD\" \"$head:$port\" <<'END' &\ncd \"$1\"\nsource venv/bin/activate\nexport OMP_NUM_THREADS=8\n\
             torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\"$2\" x.py\nEND\n  pids+=($!)\ndone\n{W}",
            &[
                ("not-exported", "\"$2\" x", "\"$head:$port\" x"),
                ("exports-do-not-travel", "export OMP_NUM_THREADS=8\n", ""),
            ],
        ),
        (
            "PBS1",
            "source venv/bin/activate\npython split.py\n\
             pbsdsh -- bash -c 'cd \"$0\" && source venv/bin/activate && OMP_NUM_THREADS=8 torchrun --nnodes=2 --nproc_per_node=4 --master_addr=\"$1\" --master_port=\"$2\" --node_rank=\"$PBS_NODENUM\" x.py' \"$PWD\" \"$head\" \"$port\"\n",
            &[
                ("exports-do-not-travel", " && source venv/bin/activate", ""),
                (
                    "head-is-not-rank-0",
                    "source venv/bin/activate\npython",
                    "head=$(tail -n 1 \"$PBS_NODEFILE\")\npython",
                ),
                ("rank-of-the-batch-script", "\"$PBS_NODENUM\"", "'$PBS_NODENUM'"),
            ],
        ),
        (
            "PBS1",
            "source venv/bin/activate\ncat >node.sh <<'END'\nsource venv/bin/activate\nexport OMP_NUM_THREADS=8\ntorchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\"$1\" x.py\nEND\n\
             pbsdsh -- bash \"$PWD/node.sh\" \"$head:$port\"\n",
            &[("exports-do-not-travel", "<<'END'\nsource venv/bin/activate\n", "<<'END'\n")],
        ),
        (
            "SLURM1",
            "launch() {\n  local node=$1 rank=$2\n  ssh -n \"$node\" \"{L} {S} --node_rank=$rank x.py\"\n}\nmapfile -t nodes < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")\nhead=${nodes[0]}\n\
             for i in \"${!nodes[@]}\"; do launch \"${nodes[$i]}\" \"$i\" & pids+=($!); done\n{W}",
            &[
                ("rank-of-the-batch-script", "=$rank x", "=$SLURM_NODEID x"),
                ("fixed-port", "{S}", "--nnodes=2 --master_addr=$head --master_port=29500"),
            ],
        ),
        (
            "SLURM4",
            "clush -S -w \"$SLURM_JOB_NODELIST\" \"{L} {C} x.py\"\n",
            &[
                ("exports-do-not-travel", "clush", "export NCCL_IB_HCA=mlx5\nclush"),
                (
                    "exports-do-not-travel",
                    "clush -S -w \"$SLURM_JOB_NODELIST\" \"{L}",
                    "conda activate x # conda.sh\npdsh -w \"$SLURM_JOB_NODELIST\" \"OMP_NUM_THREADS=8 torchrun",
                ),
                ("quotes-lost-on-the-way", "\"{L}", "bash -c \"{L}"),
                ("rank-of-the-batch-script", "{C}", "{S} --node_rank=$SLURM_PROCID"),
            ],
        ),
        (
            "SLURM4",
            "for n in $(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); do\n  ssh -n \"$n\" \"bash -lc 'module load torch && OMP_NUM_THREADS=8 torchrun {C} x.py'\" & pids+=($!)\ndone\n{W}",
            &[(
                "several-launchers-on-a-node",
                "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\")",
                "$(srun hostname)",
            )],
        ),
        (
            "LSF4",
            "hosts=$(echo $LSB_HOSTS | tr ' ' '\\n' | sort -u)\nfor n in $hosts; do\n  ssh -n \"$n\" \"{L} {C} x.py\" & pids+=($!)\ndone\n{W}",
            &[
                ("several-launchers-on-a-node", "$hosts", "$LSB_HOSTS"),
                ("several-launchers-on-a-node", "$hosts", "$(cat \"$LSB_DJOB_HOSTFILE\")"),
            ],
        ),
        (
            "HOSTS",
            "head=$(tail -n 1 hosts.txt)\nrank=0\nfor n in $(tac hosts.txt); do\n  ssh -n \"$n\" \"{L} {S} --node_rank=$rank x.py\" &\n  pids+=($!)\n  rank=$((rank + 1))\ndone\n{W}",
            &[("head-is-not-rank-0", "tac", "cat")],
        ),
        ("HOSTS", "pdsh -S -w \"$(paste -sd, hosts.txt)\" \"{L} {C} x.py\"\n", &[]),
        (
            "SLURM1",
            "source venv/bin/activate\ncase \"${LAUNCHER:-srun}\" in\n  srun) srun torchrun {C} x.py ;;\n  mpi) mpirun -np 2 --map-by ppr:1:node --bind-to none -x OMP_NUM_THREADS torchrun {C} x.py ;;\nesac\n",
            &[
                (
                    "fixed-port",
                    "srun torchrun {C}",
                    "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$head:29500",
                ),
                (
                    "fixed-head-node",
                    "srun torchrun {C}",
                    "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:$port",
                ),
                ("standalone-on-several-nodes", "srun torchrun {C}", "srun torchrun --standalone"),
                ("launcher-on-the-head-node-only", "srun torchrun {C}", "torchrun {C}"),
                ("mpirun-takes-no-exports", "-x OMP_NUM_THREADS ", ""),
                ("bound-to-one-core", "--bind-to none ", ""),
            ],
        ),
        (
            "SLURM1",
            "source venv/bin/activate\nif [ \"$SLURM_NNODES\" -gt 1 ]; then\n  srun torchrun {C} x.py\nelse\n  torchrun --standalone --nproc_per_node=4 x.py\nfi\n",
            &[],
        ),
        (
            "SLURM1",
            "source venv/bin/activate\nif [ -n \"$SLURM_JOB_ID\" ]; then\n  srun torchrun {C} x.py\nelse\n  torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 x.py\nfi\n",
            &[],
        ),
    ];

    /// A script of [`OTHER_STARTERS`], complete.
    fn complete(job: &str, lines: &str) -> String {
        let pbs = |mpiprocs| format!("#PBS -l select=2:ncpus=32:ngpus=4:mpiprocs={mpiprocs},walltime=1:00:00\n");
        let slurm = |tasks| format!("#SBATCH --nodes=2 --ntasks-per-node={tasks} --gres=gpu:4 --time=1:00:00\n");
        let (directives, meeting) = match job {
            "PBS4" => {
                (pbs(4), "head=$(sed -n 1p \"$PBS_NODEFILE\")\nport=$((20000 + ${PBS_JOBID%%[!0-9]*} % 10000))\n")
            }
            "PBS1" => {
                (pbs(1), "head=$(sed -n 1p \"$PBS_NODEFILE\")\nport=$((20000 + ${PBS_JOBID%%[!0-9]*} % 10000))\n")
            }
            "LSF4" => (
                "#BSUB -n 8 -R \"span[ptile=4]\" -W 1:00\n".into(),
                "head=$(sed -n 1p \"$LSB_DJOB_HOSTFILE\")\nport=$((20000 + LSB_JOBID % 10000))\n",
            ),
            "HOSTS" => (String::new(), "head=$(sed -n 1p hosts.txt)\nport=$((20000 + RANDOM % 10000))\n"),
            slurm_job => (
                slurm(slurm_job.trim_start_matches("SLURM")),
                "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\nport=$((20000 + SLURM_JOB_ID % 10000))\n",
            ),
        };
        let lines = lines
            .replace("{L}", "cd $PWD && OMP_NUM_THREADS=8 venv/bin/torchrun")
            .replace("{C}", "--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:$port")
            .replace("{S}", "--nnodes=2 --nproc_per_node=4 --master_addr=$head --master_port=$port")
            .replace("{W}", "for pid in \"${pids[@]}\"; do wait \"$pid\"; done\n");
        let (head, port) = meeting.split_at(meeting.find("port=").unwrap_or_default());
        let head = if lines.contains("head=") { "" } else { head };
        format!("#!/bin/bash\n{directives}set -eo pipefail\nexport OMP_NUM_THREADS=8\n{head}{port}{lines}")
    }

    #[test]
    fn launchers_that_ssh_pdsh_parallel_and_others_start_are_judged_as_srun_s() {
        for (job, right, changes) in OTHER_STARTERS {
            let right_text = complete(job, right);
            let findings = examine(Path::new("job.sh"), &right_text);
            assert!(findings.is_empty(), "{findings:#?} in\n{right_text}");
            for (rule, from, to) in *changes {
                assert!(right.contains(from), "{from} in\n{right}");
                let wrong = complete(job, &right.replacen(from, to, 1));
                let findings = examine(Path::new("job.sh"), &wrong);
                assert!(findings.iter().any(|finding| finding.rule == *rule), "{rule}, not {findings:#?} in\n{wrong}");
                let others: &[&str] = match &job[..3] {
                    "PBS" => &["srun", "SLURM", "#SBATCH", "scontrol", "LSB", "blaunch"],
                    "LSF" => &["srun", "SLURM", "#SBATCH", "scontrol", "PBS", "pbsdsh"],
                    _ => &["PBS", "pbsdsh", "LSB", "blaunch"],
                };
                for Reported { fix, .. } in &findings {
                    assert!(
                        !others.iter().any(|other| fix.contains(other)),
                        "`{fix}` of another scheduler in\n{wrong}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_fix_names_the_scripts_own_scheduler() {
        for Rule { name, wrong, .. } in all().filter(|rule| !rule.wrong.contains("$SLURM_")) {
            let pbs = wrong
                .replace("#SBATCH --nodes=2", "#PBS -l select=2:ncpus=4")
                .replace("#SBATCH", "#PBS")
                .replace("srun", "mpirun --map-by ppr:1:node");
            if !pbs.contains("#PBS") {
                continue;
            }
            for Reported { fix, rule, .. } in examine(Path::new("job.sh"), &pbs) {
                let own =
                    ["variable-of-another-scheduler", "unexpanded-nodelist", "misspelt-directive"].contains(&rule);
                assert!(
                    own || !["srun ", "SLURM_", "#SBATCH"].iter().any(|other| fix.contains(other)),
                    "{name}: {rule}: {fix} in\n{pbs}"
                );
            }
        }
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
