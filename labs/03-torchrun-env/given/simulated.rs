//! SIMULATED: the environment of a process, the part of CUDA that task 4 needs, and workers. You do not change this file.
//!
//! The real CUDA behaves in the same way: it reads `CUDA_VISIBLE_DEVICES` once, at the first call that needs the devices, and
//! never again. The process then sees only the listed GPUs, in the order of the list, and numbers them from 0.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// The environment of a process as a value: variables by name. It need not be the environment of this process.
pub struct Variables(pub BTreeMap<String, String>);

impl Variables {
    /// The value of a variable; `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// The variable that lists the numbers of the GPUs that a process may see, such as `2,3`. If the list is empty, it sees none.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A process on a machine with GPUs.
pub struct CudaProcess {
    gpus: usize,
    variables: BTreeMap<String, String>,
    visible: OnceCell<Vec<usize>>,
    opened: Cell<Option<usize>>,
}

/// A GPU, identified by its number on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu(pub usize);

impl CudaProcess {
    /// A process with this environment on a machine with `gpus` GPUs.
    pub fn new(gpus: usize, variables: BTreeMap<String, String>) -> Self {
        CudaProcess { gpus, variables, visible: OnceCell::new(), opened: Cell::new(None) }
    }

    /// Reads a variable of its environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Sets a variable of its environment.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.insert(name.into(), value.into());
    }

    /// The number of GPUs that it sees. Initializes CUDA.
    pub fn device_count(&self) -> usize {
        self.visible().len()
    }

    /// Opens the GPU with this number among those that it sees. Initializes CUDA.
    ///
    /// # Errors
    /// When it sees no GPU with this number.
    pub fn open(&self, device: usize) -> Result<Gpu> {
        let gpu = self.visible().get(device).copied().map(Gpu);
        self.opened.set(gpu.map(|Gpu(gpu)| gpu));
        gpu.with_context(|| format!("CUDA error: invalid device ordinal ({device} of {} devices)", self.device_count()))
    }

    /// The GPU that was opened last, for the grader.
    pub fn opened(&self) -> Option<usize> {
        self.opened.get()
    }

    fn visible(&self) -> &[usize] {
        self.visible.get_or_init(|| match self.variable(VISIBLE) {
            // An invalid number hides all entries after it, too.
            Some(list) => {
                list.split(',').map_while(|gpu| gpu.trim().parse().ok().filter(|gpu| *gpu < self.gpus)).collect()
            }
            None => (0..self.gpus).collect(),
        })
    }
}

/// What a worker does: it records its rank, and waits until all workers have done so, as `init_process_group` does. The last one writes a
/// line for each into the gate. The worker then takes ten short naps: half a second, and more on a busy machine. If the program that started
/// it has ended by then, it keeps running, like a worker that no process waits for. If one is to fail, a signal kills it after its naps, and
/// the others take none.
const WORKER: &str = r#"
mkfifo "$GATE" 2>/dev/null
exec 3<>"$GATE"
echo $RANK >> "$NOTES"
if [ $(wc -l < "$NOTES") -ge $WORLD_SIZE ]; then for each in $(seq $WORLD_SIZE); do echo >&3; done; fi
read line <&3
[ "${FAILS:-$RANK}" = $RANK ] || exit 0
for nap in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done
[ "$FAILS" != $RANK ] || kill -KILL $$
if [ -e "$OVER" ]; then sleep 60; fi
"#;

/// The ranks whose commands were asked for, whether such a worker ends at once, and the rank of the one that fails.
type Asked = (Vec<usize>, bool, Option<usize>);
static ASKED: Mutex<Asked> = Mutex::new((Vec::new(), false, None));

fn asked() -> MutexGuard<'static, Asked> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command of one worker, which waits for all others as `init_process_group` does. Each call counts as a start.
pub fn worker(rank: usize, world_size: usize) -> Command {
    let mut asked = asked();
    asked.0.push(rank);
    let mut command = Command::new("sh");
    command.args(["-c", if asked.1 { ":" } else { WORKER }]);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.env("NOTES", file("notes")).env("OVER", file("over")).env("GATE", file("gate"));
    command.env("FAILS", asked.2.map_or(String::new(), |rank| rank.to_string()));
    command
}

/// Runs a program that a launcher has started, or none has. Returns the sorted ranks of the workers that it started, and its result. A
/// launched program may start none, so each worker counts for which it has the command, and has nothing to do.
pub fn watch<T>(launched: bool, fails: Option<usize>, program: impl FnOnce() -> T) -> (Vec<usize>, T) {
    for name in ["notes", "over", "gate"] {
        let _ = fs::remove_file(file(name)); // absent before the first program
    }
    *asked() = (Vec::new(), launched, fails);
    let returned = program();
    let _ = fs::write(file("over"), ""); // only workers that still run read it
    let text = fs::read_to_string(file("notes")).unwrap_or_default();
    let mut ranks: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
    if launched {
        ranks.clone_from(&asked().0);
    }
    ranks.sort_unstable();
    (ranks, returned)
}

fn file(name: &str) -> PathBuf {
    format!("{name}-{}", std::process::id()).into()
}
