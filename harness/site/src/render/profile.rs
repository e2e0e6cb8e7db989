//! A site profile: what a batch script needs to know about a cluster, read from a TOML file.
//!
//! [`FIELDS`] explains each field; the book's reference page is made of it. What is asked of one job stands on the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_launch::config::GpuVendor;
use serde::Deserialize;

use super::script::first_word;
use crate::exit::Refused;

/// A field of the profile, for people.
pub(crate) struct Field {
    /// The field's name, with its table's: `container.image`.
    pub(crate) name: &'static str,
    /// A value, as TOML.
    pub(crate) example: &'static str,
    /// What it means, its unit and default.
    pub(crate) meaning: &'static str,
}

const fn field(name: &'static str, example: &'static str, meaning: &'static str) -> Field {
    Field { name, example, meaning }
}

/// All fields. Only `scheduler` must be there.
pub(crate) const FIELDS: &[Field] = &[
    field("scheduler", "\"slurm\"", "how a job gets its nodes: `slurm`, `pbs` (PBS Pro, OpenPBS), `ssh` or `mpirun`"),
    field("queue", "\"gpu\"", "the partition (Slurm) or queue (PBS); the site's default if absent"),
    field("account", "\"proj01\"", "the account or project to charge"),
    field("constraint", "\"a100\"", "Slurm: a feature that all nodes must have"),
    field("directives", "[\"--qos=high\"]", "further directives, each as it stands after `#SBATCH` or `#PBS`"),
    field("gpus-per-node", "4", "GPUs of a node; the default of `--gpus-per-node`. 0, the default: training on CPUs"),
    field(
        "gpu-vendor",
        "\"amd\"",
        "who made the GPUs: `nvidia`, the default, or `amd`; containers get `--nv` or `--rocm`",
    ),
    field(
        "gpu-resource",
        "\"gpu:a100\"",
        "Slurm: the name of the GPUs for `--gres`; `gpu` if absent; an empty name asks by `--gpus-per-node`",
    ),
    field("cpus-per-node", "64", "CPUs that a job takes of each node; they are shared by its workers' threads"),
    field("select", "\"arch=arm\"", "PBS: further resources of each chunk in `select=`"),
    field(
        "architecture",
        "\"aarch64\"",
        "what `uname -m` prints on the nodes; a build job refuses to run anywhere else",
    ),
    field("interface", "\"hsn0\"", "the network interface for NCCL and Gloo; if absent, they choose"),
    field("modules", "[\"cuda/12.6\"]", "modules to load, after `module purge`"),
    field("setup", "[\"source /project/venv/bin/activate\"]", "lines of bash that follow the modules"),
    field("environment", "{ NCCL_IB_GID_INDEX = \"3\" }", "a table of variables for all processes of the job"),
    field("proxy", "\"http://proxy.example:3128\"", "the proxy for http and https, where nodes have no other way out"),
    field("no-proxy", "\"localhost,.example\"", "hosts that are reached without the proxy"),
    field(
        "shared",
        "\"/scratch/proj01\"",
        "a folder that all nodes see: output, host files and exit codes go there. Not needed with srun",
    ),
    field(
        "local",
        "\"/local/$USER\"",
        "a folder on each node's own disk, for `--stage`; variables must have the same value on all nodes",
    ),
    field("hostfile", "\"hosts\"", "ssh and mpirun: a file that names a host on each line"),
    field(
        "launcher",
        "\"lockstep run\"",
        "the program that starts the workers of a node; any with torchrun's flags will do",
    ),
    field(
        "rendezvous",
        "\"flags\"",
        "who finds out where the nodes meet. `launcher`: `lockstep run` asks the scheduler, or reads a host file; its default. `flags`: \
         the script, which passes it to the launcher as flags; the default of other launchers",
    ),
    field(
        "start",
        "\"mpiexec -n {nodes} --ppn 1\"",
        "a command that starts a program once on each node, in place of srun or pbsdsh; `{nodes}` is their number, `{hosts}` a file with a \
         host on each line",
    ),
    field("container.runtime", "\"apptainer\"", "`apptainer` or `singularity`"),
    field("container.image", "\"/scratch/proj01/lockstep.sif\"", "the image: a file that all nodes see"),
    field(
        "container.binds",
        "[\"/scratch/proj01\"]",
        "folders of the node to show in the container: `HOST` or `HOST:CONTAINER[:ro]`; `shared` as well, where launchers read a host file \
         there",
    ),
    field(
        "container.cache",
        "\"/scratch/proj01/cache\"",
        "where the runtime keeps unpacked images, instead of the home folder",
    ),
    field(
        "container.toggle",
        "\"USE_CONTAINER\"",
        "a variable by which one script runs in the container (`1`, also if it is not set) or without it (`0`), with what `modules` and `setup` \
         have made: `sbatch --export=ALL,USE_CONTAINER=0`, `qsub -v USE_CONTAINER=0`",
    ),
];

/// How a job gets its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduler {
    Slurm,
    Pbs,
    Ssh,
    Mpirun,
}

/// Who finds out where the nodes meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rendezvous {
    /// The script, which passes it to the launcher as flags.
    Flags,
    Launcher,
}

/// A site. The fields are explained in [`FIELDS`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Profile {
    pub(crate) scheduler: Scheduler,
    pub(crate) queue: Option<String>,
    pub(crate) account: Option<String>,
    pub(crate) constraint: Option<String>,
    #[serde(default)]
    pub(crate) directives: Vec<String>,
    #[serde(default)]
    pub(crate) gpus_per_node: u32,
    #[serde(default)]
    pub(crate) gpu_vendor: GpuVendor,
    #[serde(default = "gpu")]
    pub(crate) gpu_resource: String,
    pub(crate) cpus_per_node: Option<u32>,
    pub(crate) select: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) interface: Option<String>,
    #[serde(default)]
    pub(crate) modules: Vec<String>,
    #[serde(default)]
    pub(crate) setup: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) proxy: Option<String>,
    pub(crate) no_proxy: Option<String>,
    pub(crate) shared: Option<PathBuf>,
    pub(crate) local: Option<String>,
    pub(crate) hostfile: Option<PathBuf>,
    #[serde(default = "lockstep_run")]
    pub(crate) launcher: String,
    rendezvous: Option<Rendezvous>,
    pub(crate) start: Option<String>,
    pub(crate) container: Option<Container>,
}

/// A container in which the launcher and its workers run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Container {
    pub(crate) runtime: Runtime,
    pub(crate) image: PathBuf,
    #[serde(default)]
    pub(crate) binds: Vec<String>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) toggle: Option<String>,
}

/// A program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Runtime {
    Apptainer,
    Singularity,
}

impl Runtime {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Runtime::Apptainer => "apptainer",
            Runtime::Singularity => "singularity",
        }
    }
}

fn gpu() -> String {
    "gpu".into()
}

/// Returns true for a name that a shell takes as a variable's.
fn is_variable(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn lockstep_run() -> String {
    "lockstep run".into()
}

/// Reads the profile `text`, which `name` calls in errors.
pub(crate) fn parse(name: &str, text: &str) -> Result<Profile, Refused> {
    let refused = |why: String| Refused(format!("cannot read the site profile {name}: {why}"));
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| refused(error.to_string()))?;
    know_fields(&table, "").map_err(refused)?;
    let profile: Profile = toml::from_str(text).map_err(|error| refused(error.to_string()))?;
    profile.agree().map_err(refused)?;
    Ok(profile)
}

/// Refuses a field that is not in [`FIELDS`]; the names in `[environment]` are the site's own.
fn know_fields(table: &toml::Table, prefix: &str) -> Result<(), String> {
    for (name, value) in table {
        let full = format!("{prefix}{name}");
        let inner = format!("{full}.");
        match value {
            toml::Value::Table(inside) if FIELDS.iter().any(|field| field.name.starts_with(&inner)) => {
                know_fields(inside, &inner)?;
            }
            _ if FIELDS.iter().any(|field| field.name == full) => {}
            _ => return Err(unknown(&full)),
        }
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let like = |field: &&Field| (strsim::jaro_winkler(name, field.name) * 1000.0) as u32;
    let nearest = FIELDS.iter().max_by_key(like).filter(|field| like(field) > 700);
    let hint = nearest.map(|field| format!("did you mean `{}`? ", field.name)).unwrap_or_default();
    format!("there is no field `{name}`: {hint}the book's page \"Site profiles\" lists all")
}

impl Profile {
    fn agree(&self) -> Result<(), String> {
        let slurm = self.scheduler == Scheduler::Slurm;
        let by_hand = matches!(self.scheduler, Scheduler::Ssh | Scheduler::Mpirun);
        let demands = [
            (self.constraint.is_some() && !slurm, "`constraint` is for scheduler = \"slurm\""),
            (self.select.is_some() && self.scheduler != Scheduler::Pbs, "`select` is for scheduler = \"pbs\""),
            (by_hand && self.hostfile.is_none(), "this scheduler needs `hostfile`, a file that names the hosts"),
            (!by_hand && self.hostfile.is_some(), "`hostfile` is for ssh and mpirun: this scheduler knows the hosts"),
            (!self.uses_srun() && self.shared.is_none(), "this site needs `shared`, a folder that all nodes see"),
            (
                self.start.is_some() && self.scheduler == Scheduler::Ssh,
                "`start` has no meaning with scheduler = \"ssh\"",
            ),
            (
                self.rendezvous == Some(Rendezvous::Launcher) && !self.is_lockstep_run(),
                "rendezvous = \"launcher\" is for `lockstep run`: other launchers need their flags",
            ),
            (
                self.shared.as_ref().is_some_and(|path| path.is_relative()),
                "`shared` is relative: nodes start in folders of their own, so name it from the root",
            ),
            (
                self.toggle().is_some_and(|name| !is_variable(name)),
                "`container.toggle` is not the name of a variable: letters, digits and _, such as \"USE_CONTAINER\"",
            ),
        ];
        demands.iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, why)| Err((*why).into()))
    }

    /// The variable by which a script's user leaves the container.
    pub(crate) fn toggle(&self) -> Option<&str> {
        self.container.as_ref()?.toggle.as_deref()
    }

    fn is_lockstep_run(&self) -> bool {
        first_word(&self.launcher).is_some_and(|program| program.rsplit('/').next() == Some("lockstep"))
    }

    /// The signal, without SIG, that asks a launcher to end its workers before the time limit. `lockstep run` first lets them save.
    pub(crate) fn end_signal(&self) -> &'static str {
        if self.is_lockstep_run() { "USR2" } else { "TERM" }
    }

    /// Who finds out where the nodes meet.
    pub(crate) fn rendezvous(&self) -> Rendezvous {
        let own = if self.is_lockstep_run() { Rendezvous::Launcher } else { Rendezvous::Flags };
        self.rendezvous.unwrap_or(own)
    }

    /// Slurm starts the launchers by itself.
    pub(crate) fn uses_srun(&self) -> bool {
        self.scheduler == Scheduler::Slurm && self.start.is_none()
    }

    /// The folder that all nodes see; the current one where the site names none.
    pub(crate) fn shared(&self) -> &Path {
        self.shared.as_deref().unwrap_or(Path::new("."))
    }
}

/// Profiles to begin with, by name.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("slurm-amd", include_str!("../../profiles/slurm-amd.toml")),
    ("slurm-apptainer", include_str!("../../profiles/slurm-apptainer.toml")),
    ("slurm-cpu", include_str!("../../profiles/slurm-cpu.toml")),
    ("slurm-mpirun", include_str!("../../profiles/slurm-mpirun.toml")),
    ("slurm-virtual-environment", include_str!("../../profiles/slurm-virtual-environment.toml")),
    ("pbs-arm", include_str!("../../profiles/pbs-arm.toml")),
    ("ssh-torchrun", include_str!("../../profiles/ssh-torchrun.toml")),
    ("ssh-workstations", include_str!("../../profiles/ssh-workstations.toml")),
    ("mpirun-workstations", include_str!("../../profiles/mpirun-workstations.toml")),
];

/// The profile in this file, or the example of this name.
pub(crate) fn find(name: &str) -> Result<Profile, Refused> {
    if let Some((_, text)) = EXAMPLES.iter().find(|(known, _)| *known == name) {
        return parse(name, text);
    }
    match std::fs::read_to_string(name) {
        Ok(text) => parse(name, &text),
        Err(error) => Err(Refused(format!(
            "cannot read the site profile {name}: {error} (nor is it an example: `lockstep render --list` lists those)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn refusal(text: &str) -> String {
        parse("site.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn reads_every_example_of_its_folder() {
        for (name, text) in EXAMPLES {
            parse(name, text).unwrap_or_else(|refused| panic!("{refused}"));
        }
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/profiles")).unwrap();
        let files = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<_> = files.filter_map(|name| name.strip_suffix(".toml").map(str::to_owned)).collect();
        assert_eq!(files, EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }

    #[test]
    fn explains_all_fields_and_no_others() {
        for Field { name, example, .. } in FIELDS {
            let (text, of) = match name.split_once('.') {
                Some((table, name)) => (format!("[{table}]\n{name} = {example}\n"), "container"),
                None => (format!("{name} = {example}\n"), ""),
            };
            let message = refusal_of_serde(&text);
            assert!(!message.contains("unknown field") && !message.contains("invalid type"), "{of} {name}: {message}");
        }
        let known = |text: &str| refusal_of_serde(text).matches('`').count() / 2 - 1;
        let inner = FIELDS.iter().filter(|field| field.name.contains('.')).count();
        assert_eq!(known("nonsense = 1"), FIELDS.len() - inner + 1, "the table is a field, too");
        assert_eq!(known("[container]\nnonsense = 1"), inner);
    }

    fn refusal_of_serde(text: &str) -> String {
        toml::from_str::<Profile>(text).map(|_| String::new()).unwrap_or_else(|error| error.message().to_owned())
    }

    #[test]
    fn offers_the_nearest_name_for_an_unknown_field() {
        let message = refusal("scheduler = \"slurm\"\npartitoin = \"gpu\"\ngpu-per-node = 4\n");
        assert!(message.contains("there is no field `gpu-per-node`: did you mean `gpus-per-node`?"), "{message}");
        let message = refusal("scheduler = \"slurm\"\n[container]\nimag = 4\n");
        assert!(message.contains("did you mean `container.image`?"), "{message}");
        assert!(!refusal("xyz = 1").contains("did you mean"));
        parse("site.toml", "scheduler = \"slurm\"\n[environment]\nXYZ = \"1\"\n").unwrap();
    }

    #[test]
    fn knows_the_launcher_by_the_name_of_its_program() {
        let is = |launcher: &str| {
            let text = format!("scheduler = \"slurm\"\nlauncher = {launcher:?}\n");
            parse("site.toml", &text).unwrap().is_lockstep_run()
        };
        assert!(
            is("lockstep run") && is("/opt/bin/lockstep run") && is("'/a b/lockstep' run") && is(r"/a\ b/lockstep run")
        );
        assert!(!is("torchrun") && !is("'/a /lockstep/torchrun' x"));
    }

    #[test]
    fn refuses_fields_that_contradict_each_other() {
        for (text, why) in [
            ("scheduler = \"slurm\"\nselect = \"a=b\"", "`select` is for"),
            ("scheduler = \"ssh\"\nshared = \"/s\"", "needs `hostfile`"),
            ("scheduler = \"pbs\"", "needs `shared`"),
            ("scheduler = \"pbs\"\nshared = \"s\"", "is relative"),
            ("scheduler = \"slurm\"\nlauncher = \"torchrun\"\nrendezvous = \"launcher\"", "other launchers"),
            ("scheduler = \"lsf\"", "unknown variant"),
            ("scheduler = \"slurm\"\ngpu-vendor = \"intel\"", "unknown variant"),
            (
                "scheduler = \"slurm\"\n[container]\nruntime = \"apptainer\"\nimage = \"i.sif\"\ntoggle = \"a b\"",
                "not the name of a variable",
            ),
            ("scheduler = ", "site.toml"),
        ] {
            assert!(refusal(text).contains(why), "{text}: {}", refusal(text));
        }
    }
}
