//! Bash itself.

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::check::{RULE, ScriptFinding, Scripts, finding};
use regex::Regex;

use super::script::{Command, Script, base};
use super::words::Word;

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
        why: "a dash or quote from a word processor or a web page is an ordinary letter to the shell",
        wrong: "#!/bin/bash\nset -e\ntorchrun –standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\ntorchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            let odd = |line: &str| {
                line.split_whitespace()
                    .find(|word| word.starts_with(['–', '—', '“', '”', '‘', '’']) || word.ends_with(['”', '’']))
                    .map(str::to_owned)
            };
            let found = script
                .code()
                .filter(|(_, line)| !line.trim_start().starts_with("echo"))
                .filter_map(|(line, text)| Some((line, odd(text)?)));
            found
                .map(|(line, word)| {
                    finding(line, format!("`{word}` has a dash or quote that is not ASCII"), "write -- and \" by hand")
                })
                .collect()
        },
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
            let is_set = |command: &Command| {
                command.program() == "set"
                    && command
                        .texts()
                        .skip(1)
                        .any(|word| word.starts_with('-') && word.contains('e') || word == "errexit")
            };
            let set = script.commands.iter().any(is_set) || script.lines[0].contains(" -e");
            let long = script.commands.len() > 1 && (script.lines[0].starts_with("#!") || script.scheduler().is_some());
            let first = script.commands.first().filter(|_| long && !set);
            first
                .map(|command| finding(command.line, "nothing ends the script at its first error", "set -euo pipefail"))
                .into_iter()
                .collect()
        },
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
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nfor node in $nodes; do\n  ssh -n \"$node\" ./train &\ndone\nwait\n",
        find: |script| {
            let Some(last) = script.commands.iter().rfind(|command| command.background && command.far.is_none()) else {
                return vec![];
            };
            let waits = script.commands.iter().any(|command| command.program() == "wait");
            if waits {
                vec![]
            } else {
                vec![finding(
                    last.line,
                    format!("`{}` runs in the background, and nothing waits for it", last.program()),
                    "wait, at the end",
                )]
            }
        },
        ..RULE
    },
    Rule {
        name: "ssh-eats-the-hosts",
        level: Error,
        why: "ssh reads the rest of the host list as its input, and the loop ends after the first host",
        wrong: "#!/bin/bash\nset -e\nwhile read -r host; do\n  ssh \"$host\" ./train &\ndone <hosts\nwait\n",
        right: "#!/bin/bash\nset -e\nwhile read -r host; do\n  ssh -n \"$host\" ./train &\ndone <hosts\nwait\n",
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
        name: "conda-without-its-functions",
        level: Error,
        why: "`conda activate` is a function of interactive shells; a batch script has to load it first",
        wrong: "#!/bin/bash\nset -e\nconda activate train\npython train.py\n",
        right: "#!/bin/bash\nset -e\nsource \"$HOME/miniconda3/etc/profile.d/conda.sh\"\nconda activate train\npython train.py\n",
        find: |script| {
            let loaded = script
                .code()
                .any(|(_, line)| line.contains("conda.sh") || line.contains("hook") || line.contains("bashrc"));
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
    let variable = Regex::new(r"\$(?:\w+|\{[^}]*\})").expect("the pattern is constant");
    variable.replace_all(word, "\"$0\"").into_owned()
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
