//! The devices of the machine, and the ways between them.

use anyhow::Result;
use lockstep_gpu::{Gpu, Kind};

/// Prints what `nvidia-smi` and `nvidia-smi topo -m` print. A way in brackets has no peer access.
pub(crate) fn show(kind: Kind, gpus: &[Gpu]) -> Result<()> {
    println!("{} {kind}s", gpus.len());
    for gpu in gpus {
        let (free, total) = gpu.memory()?;
        println!(
            "device {}: {} at {}, {} of {} MiB free",
            gpu.ordinal(),
            gpu.name(),
            gpu.bus_id(),
            free >> 20,
            total >> 20
        );
    }
    for one in gpus {
        let ways = gpus.iter().map(|other| {
            if one.ordinal() == other.ordinal() {
                return Ok("X".to_owned());
            }
            let peer = one.peer(other)?;
            let tier = peer.tier.map_or("?".to_owned(), |tier| tier.to_string());
            Ok(if peer.access { tier } else { format!("({tier})") })
        });
        let ways = ways.collect::<Result<Vec<_>>>()?;
        let row: String = ways.iter().map(|way| format!("{way:>7}")).collect();
        println!("device {}:{row}", one.ordinal());
    }
    Ok(())
}
