//! Joins a process group at an address, as Python's `init_method`: `tcp://HOST:PORT` or `file:///PATH`.

use std::path::Path;

use c10d::{DEFAULT_STORE_TIMEOUT, Error, GroupOptions, ProcessGroup, Rank, Result, Store, TcpStoreOptions, WorldSize};
use tch::Device;

use crate::group::backends_for;

/// Joins the default group of `size` ranks at an address that all of them know, without a launcher, like
/// `init_process_group(init_method=…, rank=…, world_size=…)`.
///
/// - `tcp://HOST:PORT`: rank 0 serves the store there, and HOST is a name of its machine.
/// - `file:///PATH`: a file on a file system that all ranks share, and that locks files. It must not be there before: remove one that
///   a killed job has left.
///
/// For the variables that a launcher sets (`env://`) there is [`init_process_group`](crate::init_process_group).
///
/// # Errors
/// `BadArgument` for another address; otherwise as [`ProcessGroup::new`], and the store's.
///
/// ```no_run
/// # fn main() -> anyhow::Result<()> {
/// # let (rank, size) = (lockstep::Rank::ZERO, lockstep::WorldSize::new(2).unwrap());
/// let group = lockstep::init_process_group_at("tcp://node1:29500", rank, size, tch::Device::Cpu, &Default::default())?;
/// # drop(group); Ok(()) }
/// ```
pub fn init_process_group_at(
    address: &str,
    rank: Rank,
    size: WorldSize,
    device: Device,
    options: &GroupOptions,
) -> Result<ProcessGroup> {
    let backends = backends_for(device)?;
    let store = match parse(address)? {
        Address::Tcp { host, port } => {
            let timeout = options.timeout.min(DEFAULT_STORE_TIMEOUT);
            let host_server = rank.is_zero();
            let store = TcpStoreOptions { host_server, wait_for: Some(size.get()), timeout, multi_tenant: host_server };
            Store::tcp(host, port, &store)?
        }
        Address::File(path) => Store::file(path, size.get())?,
    };
    ProcessGroup::new(backends, &store, rank, size, options)
}

#[derive(Debug, PartialEq)]
enum Address<'a> {
    Tcp { host: &'a str, port: u16 },
    File(&'a Path),
}

fn parse(address: &str) -> Result<Address<'_>> {
    let refuse = |why: &str| {
        let detail = format!("{address:?} {why}: give tcp://HOST:PORT or file:///PATH");
        Err(Error::bad_argument("init_process_group", detail))
    };
    if let Some(path) = address.strip_prefix("file://") {
        return match path {
            "" | "/" => refuse("names no file"),
            _ if !path.starts_with('/') => refuse("has no absolute path"),
            _ => Ok(Address::File(Path::new(path))),
        };
    }
    let Some(place) = address.strip_prefix("tcp://") else { return refuse("is no address of a store") };
    let Some((host, port)) = place.rsplit_once(':') else { return refuse("has no port") };
    let Some(port) = port.parse().ok().filter(|port| *port != 0) else { return refuse("has no port from 1 to 65535") };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')); // of IPv6
    match bare.unwrap_or(host) {
        "" => refuse("names no host"),
        host if bare.is_none() && host.contains(':') => refuse("needs brackets around an IPv6 address"),
        host => Ok(Address::Tcp { host, port }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_a_port_or_of_a_file() {
        let tcp = |host, port| Address::Tcp { host, port };
        assert_eq!(parse("tcp://node1:29500").unwrap(), tcp("node1", 29_500));
        assert_eq!(parse("tcp://[::1]:7").unwrap(), tcp("::1", 7));
        assert_eq!(parse("file:///shared/store").unwrap(), Address::File(Path::new("/shared/store")));
        for (address, why) in [
            ("env://", "no address of a store"),
            ("node1:29500", "no address of a store"),
            ("tcp://node1", "no port"),
            ("tcp://node1:0", "no port from 1"),
            ("tcp://node1:70000", "no port from 1"),
            ("tcp://:29500", "no host"),
            ("tcp://::1:29500", "brackets"),
            ("file://", "no file"),
            ("file://store", "absolute"),
        ] {
            let error = parse(address).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(address), "{error}");
        }
    }
}
