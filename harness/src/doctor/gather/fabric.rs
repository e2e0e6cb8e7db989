//! Adapters of InfiniBand, RoCE, EFA and Slingshot, from `/sys/class`, and NCCL's network plugins.

use std::path::{Path, PathBuf};

use super::super::facts::{Adapter, AdapterPort, Fabric};
use super::read::{entries, line, name_of};

/// Where packages and container images install NCCL's network plugins, besides `LD_LIBRARY_PATH`.
const PLUGINS: [&str; 6] = [
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/aws-ofi-nccl/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
];

/// The fabric of this machine; files are read below `root`.
pub(super) fn fabric(root: &Path, library_path: Option<&str>) -> Fabric {
    let adapters = entries(&root.join("sys/class/infiniband"));
    let drivers = adapters.iter().filter_map(|path| path.join("device/driver").canonicalize().ok());
    let of_path = library_path.unwrap_or_default().split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folders = of_path.chain(PLUGINS.map(|folder| root.join(folder)));
    let plugins = folders.flat_map(|folder| entries(&folder)).filter(|path| is_plugin(&name_of(path)));
    Fabric {
        efa: drivers.into_iter().any(|driver| name_of(&driver) == "efa"),
        cxi: !entries(&root.join("sys/class/cxi")).is_empty(),
        adapters: adapters.iter().map(|path| adapter(path)).collect(),
        plugins: plugins.collect(),
    }
}

/// NCCL loads `libnccl-net.so`, or `libnccl-net-NAME.so` for `NCCL_NET_PLUGIN=NAME`.
fn is_plugin(name: &str) -> bool {
    name.starts_with("libnccl-net") && name.contains(".so")
}

fn adapter(path: &Path) -> Adapter {
    let port = |path: PathBuf| {
        // `4: ACTIVE`
        let state = line(path.join("state")).unwrap_or_default();
        Some(AdapterPort {
            number: name_of(&path).parse().ok()?,
            state: state.rsplit(' ').next().unwrap_or_default().to_owned(),
            link_layer: line(path.join("link_layer")).unwrap_or_default(),
            gids: entries(&path.join("gids")).iter().filter_map(|path| gid(path)).collect(),
        })
    };
    Adapter { name: name_of(path), ports: entries(&path.join("ports")).into_iter().filter_map(port).collect() }
}

/// The index of a GID that is not zero.
fn gid(path: &Path) -> Option<u32> {
    let value = line(path)?;
    if value.chars().all(|c| "0:".contains(c)) { None } else { name_of(path).parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_ports_gids_and_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        for (path, text) in [
            (format!("{port}/state"), "4: ACTIVE\n"),
            (format!("{port}/link_layer"), "Ethernet\n"),
            (format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            (format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("opt/aws-ofi-nccl/lib/libnccl-net.so".into(), ""),
            ("usr/lib64/libnccl.so.2".into(), ""),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = fabric(dir.path(), None);
        assert_eq!((found.efa, found.cxi, found.plugins.len()), (false, false, 1));
        let port = &found.adapters[0].ports[0];
        assert_eq!((port.number, port.state.as_str(), port.link_layer.as_str()), (1, "ACTIVE", "Ethernet"));
        let mut gids = port.gids.clone();
        gids.sort_unstable();
        assert_eq!(gids, [0, 3]);
        assert_eq!(fabric(&dir.path().join("none"), None), Fabric::default());
    }
}
