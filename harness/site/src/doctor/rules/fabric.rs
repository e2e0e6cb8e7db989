//! Rules on networks with RDMA: InfiniBand, RoCE, EFA and Slingshot, and of NCCL's and libfabric's variables for them.

use lockstep_contract::rules::Level::{Error, Note, Warning};
use lockstep_contract::rules::Rule;
use lockstep_launch::config::GpuVendor;

use super::nodes::{is_on, setting};
use super::{Nodes, RULE, bytes, each};
use crate::doctor::examples;
use crate::doctor::facts::{Adapter, AdapterPort, Node};

pub(super) const FABRIC: &[Rule<Nodes>] = &[
    Rule {
        name: "ib-disabled",
        level: Warning,
        why: "NCCL uses TCP although there is InfiniBand or RoCE: many times slower",
        source: "NCCL_IB_DISABLE, and /sys/class/infiniband",
        wrong: |job| {
            examples::adapters(job, "InfiniBand");
            examples::set_all(job, "NCCL_IB_DISABLE", "1");
        },
        find: |job| {
            each(job, |node| {
                (is_on(node, "NCCL_IB_DISABLE") && !node.fabric.adapters.is_empty())
                    .then(|| setting(node, "NCCL_IB_DISABLE"))
            })
        },
        ..RULE
    },
    Rule {
        name: "ib-adapter-unknown",
        level: Error,
        why: "NCCL finds none of the adapters that the variable names, and uses TCP or fails",
        source: "NCCL_IB_HCA, and /sys/class/infiniband",
        wrong: |job| {
            examples::adapters(job, "InfiniBand");
            examples::set_all(job, "NCCL_IB_HCA", "mlx5_0,mlx4_1:1");
        },
        find: |job| {
            each(job, |node| {
                let wanted =
                    node.variable("NCCL_IB_HCA").filter(|value| !value.starts_with('^') && !value.starts_with("=^"))?;
                let names =
                    wanted.trim_start_matches('=').split(',').map(|name| name.split(':').next().unwrap_or(name));
                let absent: Vec<&str> =
                    names.filter(|name| !name.is_empty() && !has(node, name, wanted.starts_with('='))).collect();
                let there: Vec<&str> = node.fabric.adapters.iter().map(|adapter| adapter.name.as_str()).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                (!absent.is_empty()).then(|| {
                    [
                        format!("NCCL_IB_HCA={wanted} names {}, which does not exist", absent.join(", ")),
                        format!("the adapters are: {there}"),
                        "`ibv_devinfo -l` lists them; unset NCCL_IB_HCA".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "ib-gid-index-empty",
        level: Error,
        why: "NCCL ends with `ibv_modify_qp failed with error Invalid argument`, or connections time out",
        source: "NCCL_IB_GID_INDEX, and the GIDs in /sys/class/infiniband",
        wrong: |job| {
            examples::adapters(job, "Ethernet");
            examples::set_all(job, "NCCL_IB_GID_INDEX", "1");
        },
        find: |job| {
            each(job, |node| {
                let index = node.variable("NCCL_IB_GID_INDEX")?.parse::<u32>().ok()?;
                let (adapter, port) = roce(node).find(|(_, port)| !port.gids.contains(&index))?;
                let there: Vec<String> = port.gids.iter().map(u32::to_string).collect();
                Some([
                format!("NCCL_IB_GID_INDEX={index}, but {} has no GID there", adapter.name),
                format!("port {} has GIDs at {}", port.number, there.join(", ")),
                "`show_gids` lists them; choose the one of RoCE v2 with the interface's IPv4 address, or unset the variable (NCCL 2.21 and \
                 newer choose)".to_owned(),
            ])
            })
        },
        ..RULE
    },
    Rule {
        name: "ib-gid-index-unset",
        level: Note,
        why: "NCCL older than 2.21 takes index 0, which on RoCE is an address of version 1 that routers and some switches drop",
        source: "NCCL_IB_GID_INDEX, and ports of RoCE with several GIDs in /sys/class/infiniband",
        wrong: |job| {
            examples::adapters(job, "Ethernet");
            examples::set_all(job, "NCCL_DEBUG", "INFO");
        },
        find: |job| {
            each(job, |node| {
                let (adapter, port) = roce(node).find(|(_, port)| port.gids.len() > 1)?;
                (node.uses_nccl() && node.variable("NCCL_IB_GID_INDEX").is_none()).then(|| {
                    [
                        "NCCL_IB_GID_INDEX is not set, but there is RoCE".to_owned(),
                        format!("port {} of {} has {} GIDs", port.number, adapter.name, port.gids.len()),
                        "nothing, from NCCL 2.21 on; before, `show_gids`, then export NCCL_IB_GID_INDEX=3 or what it shows for RoCE \
                         v2".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "ib-port-down",
        level: Warning,
        why: "NCCL leaves the adapter out, and the node has less bandwidth than its peers",
        source: "/sys/class/infiniband/ADAPTER/ports/N/state",
        wrong: |job| {
            examples::adapters(job, "InfiniBand");
            job.nodes[1].fabric.adapters[0].ports[0].state = "DOWN".into();
        },
        find: |job| {
            each(job, |node| {
                let down: Vec<String> = ports(node)
                    .filter(|(_, port)| port.state != "ACTIVE")
                    .map(|(adapter, port)| format!("{}/{} {}", adapter.name, port.number, port.state))
                    .collect();
                (!down.is_empty()).then(|| {
                    [
                        format!("ports of adapters are not active ({})", down.len()),
                        down.join(", "),
                        "`ibstat`; the cable, the switch, or a subnet manager that does not run".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "locked-memory-low",
        level: Error,
        why: "RDMA needs locked memory: `ibv_reg_mr` or `fi_mr_reg` fails with `Cannot allocate memory`",
        source: "getrlimit(2), where there are adapters with RDMA",
        wrong: |job| {
            examples::adapters(job, "InfiniBand");
            job.nodes[1].limits.locked_memory = Some(65_536);
        },
        find: |job| {
            each(job, |node| {
                let limit = node.limits.locked_memory.filter(|_| has_rdma(node))?;
                Some([
                    format!("a process may lock only {} of memory", bytes(limit)),
                    format!("`ulimit -l` is {}", limit / 1024),
                    "ulimit -l unlimited, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity of slurmd"
                        .to_owned(),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "p2p-disabled",
        level: Warning,
        why: "GPUs of a node exchange data through the host's memory instead of NVLink or PCIe",
        source: "NCCL_P2P_DISABLE",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            examples::set_all(job, "NCCL_P2P_DISABLE", "1");
        },
        find: |job| {
            each(job, |node| {
                (is_on(node, "NCCL_P2P_DISABLE") && node.gpus.present > 1).then(|| setting(node, "NCCL_P2P_DISABLE"))
            })
        },
        ..RULE
    },
    Rule {
        name: "shm-disabled",
        level: Warning,
        why: "GPUs of a node without a direct link exchange data through the network",
        source: "NCCL_SHM_DISABLE",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            examples::set_all(job, "NCCL_SHM_DISABLE", "1");
        },
        find: |job| {
            each(job, |node| {
                (is_on(node, "NCCL_SHM_DISABLE") && node.gpus.present > 1).then(|| setting(node, "NCCL_SHM_DISABLE"))
            })
        },
        ..RULE
    },
    Rule {
        name: "fi-provider-slow",
        level: Warning,
        why: "libfabric uses TCP although there is EFA or Slingshot",
        source: "FI_PROVIDER, and /sys/class/infiniband and /sys/class/cxi",
        wrong: |job| {
            examples::efa(job);
            examples::set_all(job, "FI_PROVIDER", "tcp");
        },
        find: |job| {
            each(job, |node| {
                let provider = node.variable("FI_PROVIDER").filter(|_| node.fabric.efa || node.fabric.cxi)?;
                let slow = provider.split([',', ';']).all(|name| ["tcp", "sockets", "udp", "shm"].contains(&name));
                let right = if node.fabric.efa { "efa" } else { "cxi" };
                slow.then(|| {
                    [
                        format!("FI_PROVIDER={provider}, but there is {right}"),
                        "the adapters of this machine".to_owned(),
                        format!("export FI_PROVIDER={right}"),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "fi-provider-absent",
        level: Error,
        why: "libfabric finds no provider: NCCL ends with `No eligible providers were found`, or uses TCP",
        source: "FI_PROVIDER, and /sys/class/infiniband and /sys/class/cxi",
        wrong: |job| examples::set_all(job, "FI_PROVIDER", "efa"),
        find: |job| {
            each(job, |node| {
                let provider = node.variable("FI_PROVIDER")?;
                let absent = |name: &str| (name == "efa" && !node.fabric.efa) || (name == "cxi" && !node.fabric.cxi);
                provider.split([',', ';']).all(absent).then(|| {
                    [
                        format!("FI_PROVIDER={provider}, but there is no such adapter"),
                        "/sys/class/infiniband and /sys/class/cxi".to_owned(),
                        "unset FI_PROVIDER; `fi_info` lists the providers of this machine".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "ofi-plugin-missing",
        level: Error,
        why: "NCCL and RCCL know EFA and Slingshot only through the OFI plugin; without it, they use TCP",
        source: "libnccl-net*.so and librccl-net*.so in LD_LIBRARY_PATH and in the folders where packages install them",
        wrong: |job| {
            examples::efa(job);
            examples::gpus(job, &["NV18"]);
        },
        find: |job| {
            each(job, |node| {
                let needs = node.uses_nccl() && (node.fabric.efa || node.fabric.cxi) && node.fabric.plugins.is_empty();
                let (library, plugin, folder) = match node.gpus.vendor {
                    GpuVendor::Nvidia => ("libnccl-net.so", "aws-ofi-nccl", "/opt/amazon/ofi-nccl/lib"),
                    GpuVendor::Amd => ("librccl-net.so", "aws-ofi-rccl", "/opt/aws-ofi-rccl"),
                };
                needs.then(|| {
                    [
                        format!("there is EFA or Slingshot, but no {library}"),
                        format!("not found in LD_LIBRARY_PATH, {folder}, /usr/lib and others"),
                        format!("module load {plugin}, or export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "net-plugin-unknown",
        level: Error,
        why: "NCCL cannot load the plugin that the variable names, and uses TCP or fails",
        source: "NCCL_NET_PLUGIN, and libnccl-net*.so and librccl-net*.so in LD_LIBRARY_PATH and in the folders where packages install them",
        wrong: |job| examples::set_all(job, "NCCL_NET_PLUGIN", "ofi"),
        find: |job| {
            each(job, |node| {
                let wanted = node.variable("NCCL_NET_PLUGIN").filter(|value| *value != "none")?;
                let file = if wanted.ends_with(".so") { wanted.to_owned() } else { format!("libnccl-net-{wanted}.so") };
                let there = std::path::Path::new(&file).is_absolute()
                    || node.fabric.plugins.iter().any(|path| {
                        let path = path.to_string_lossy().replace("librccl-net", "libnccl-net");
                        path.contains(&file.replace("librccl-net", "libnccl-net"))
                    });
                (!there).then(|| {
                    [
                        format!("NCCL_NET_PLUGIN={wanted}, but there is no {file}"),
                        "not found in LD_LIBRARY_PATH, /opt/amazon/ofi-nccl, /usr/lib and others".to_owned(),
                        "export LD_LIBRARY_PATH with the plugin's folder, or unset NCCL_NET_PLUGIN".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
];

fn ports(node: &Node) -> impl Iterator<Item = (&Adapter, &AdapterPort)> {
    node.fabric.adapters.iter().flat_map(|adapter| adapter.ports.iter().map(move |port| (adapter, port)))
}

/// Active ports whose GIDs are chosen by an index.
fn roce(node: &Node) -> impl Iterator<Item = (&Adapter, &AdapterPort)> {
    ports(node).filter(|(_, port)| port.link_layer == "Ethernet" && port.state == "ACTIVE")
}

fn has_rdma(node: &Node) -> bool {
    !node.fabric.adapters.is_empty() || node.fabric.cxi
}

/// NCCL compares beginnings of names, unless `=` is in front of the list.
fn has(node: &Node, name: &str, whole: bool) -> bool {
    node.fabric.adapters.iter().any(|adapter| if whole { adapter.name == name } else { adapter.name.starts_with(name) })
}
