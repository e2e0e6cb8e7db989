//! The device's options: environment variables that are read once.

use std::sync::OnceLock;
use std::time::Duration;

/// The number of devices, 4 by default.
pub const COUNT: &str = "LOCKSTEP_GPU_COUNT";
/// The memory of each device in MiB, 256 by default.
pub const MEMORY: &str = "LOCKSTEP_GPU_MEMORY";
/// A number from which the delay of each operation is drawn. Without it, work starts when it is asked for.
pub const SEED: &str = "LOCKSTEP_GPU_SEED";
/// The number of seconds after which a wait gives up, 300 by default.
pub const DEADLINE: &str = "LOCKSTEP_GPU_DEADLINE";

/// Of a machine that NVIDIA sells.
const MOST_DEVICES: u64 = 16;

pub(crate) struct Options {
    /// The numbers of the visible devices on the simulated machine.
    pub(crate) devices: Vec<usize>,
    pub(crate) memory: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) deadline: Duration,
}

/// What [`SET_COUNT`](crate::SET_COUNT) was given.
static SET: OnceLock<u32> = OnceLock::new();

#[unsafe(no_mangle)]
extern "C" fn simgpuSetCount(count: u32) {
    SET.get_or_init(|| count);
}

pub(crate) fn get() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let text = |name: &str| std::env::var(name).ok();
        let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok());
        let count = |number: u64| number.clamp(1, MOST_DEVICES) as usize;
        let devices = match SET.get() {
            Some(set) => visible(count((*set).into()), None),
            None => visible(count(number(COUNT).unwrap_or(4)), text("CUDA_VISIBLE_DEVICES").as_deref()),
        };
        Options {
            devices,
            memory: number(MEMORY).unwrap_or(256) << 20,
            seed: number(SEED),
            deadline: Duration::from_secs(number(DEADLINE).unwrap_or(300).max(1)),
        }
    })
}

/// The devices that `CUDA_VISIBLE_DEVICES` names. As CUDA does, it stops at the first that is not there.
fn visible(count: usize, named: Option<&str>) -> Vec<usize> {
    let Some(named) = named else { return (0..count).collect() };
    let numbers = named.split(',').map(|name| name.trim().parse().ok().filter(|number| *number < count));
    numbers.take_while(Option::is_some).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_devices_that_are_named_up_to_the_first_that_is_not_there() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(4, Some("2, 0")), [2, 0]);
        assert_eq!(visible(4, Some("1,7,2")), [1]);
        assert!(visible(4, Some("")).is_empty() && visible(4, Some("-1")).is_empty());
    }
}
