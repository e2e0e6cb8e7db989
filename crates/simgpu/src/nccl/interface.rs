//! Where a hub listens, and how ranks tell machines apart: NCCL's variables `NCCL_SOCKET_IFNAME` and `NCCL_HOSTID`.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};

use getifaddrs::getifaddrs;

/// Without the variable, or if it is empty, ranks of this machine only can connect. NCCL itself would choose an interface.
pub(super) fn address() -> io::Result<Ipv4Addr> {
    let rule = std::env::var("NCCL_SOCKET_IFNAME").unwrap_or_default();
    if rule.is_empty() {
        return Ok(Ipv4Addr::LOCALHOST);
    }
    let interfaces: Vec<(String, Ipv4Addr)> = getifaddrs()?
        .filter_map(|entry| match entry.address.ip_addr() {
            Some(IpAddr::V4(address)) => Some((entry.name, address)),
            _ => None,
        })
        .collect();
    chosen(&rule, &interfaces).ok_or_else(|| {
        let names: Vec<&str> = interfaces.iter().map(|(name, _)| name.as_str()).collect();
        io::Error::other(format!(
            "NCCL_SOCKET_IFNAME={rule} names no interface with an IPv4 address; there are {}",
            names.join(", ")
        ))
    })
}

/// The first that the rule names: beginnings of names with commas, whole names after `=`, all others after `^`.
fn chosen(rule: &str, interfaces: &[(String, Ipv4Addr)]) -> Option<Ipv4Addr> {
    let (rule, is_negated) = rule.strip_prefix('^').map_or((rule, false), |rest| (rest, true));
    let (rule, is_whole) = rule.strip_prefix('=').map_or((rule, false), |rest| (rest, true));
    let fits = |name: &str| {
        let named = |one: &str| if is_whole { name == one } else { name.starts_with(one) };
        rule.split(',').filter(|one| !one.is_empty()).any(named) != is_negated
    };
    interfaces.iter().find(|(name, _)| fits(name)).map(|(_, address)| *address)
}

/// A number of this machine.
pub(super) fn host() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    match std::env::var("NCCL_HOSTID") {
        Ok(id) => id.hash(&mut hasher),
        Err(_) => (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id")).hash(&mut hasher),
    }
    hasher.finish()
}

/// A number that nobody guesses.
pub(super) fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_beginnings_whole_names_or_all_others() {
        let of = |last| Ipv4Addr::new(10, 0, 0, last);
        let interfaces =
            [("lo", of(1)), ("eth0", of(2)), ("eth01", of(3)), ("ib0", of(4))].map(|(name, at)| (name.to_owned(), at));
        for (rule, found) in [
            ("eth", Some(2)),
            ("ib,eth", Some(2)),
            ("=eth01", Some(3)),
            ("=eth", None),
            ("^lo", Some(2)),
            ("^lo,eth", Some(4)),
            ("^=lo,eth0", Some(3)),
            ("wlan", None),
            ("", None),
        ] {
            assert_eq!(chosen(rule, &interfaces), found.map(of), "{rule}");
        }
    }
}
