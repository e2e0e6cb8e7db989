//! Stores: every operation of every kind of store, and their failures.

use std::sync::Arc;
use std::time::Duration;

use c10d::{ErrorKind, Store, TcpStoreOptions};
use lockstep_process::watchdog::{scaled, until};

use crate::common::refused;

fn tcp_host() -> Store {
    let options = TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() };
    Store::tcp("127.0.0.1", 0, &options).unwrap()
}

fn exercises_the_basics(store: &Store) {
    store.set("key", "value").unwrap();
    assert_eq!(store.get("key").unwrap(), b"value");
    store.set("key", [0u8, 255, 10]).unwrap();
    assert_eq!(store.get("key").unwrap(), [0, 255, 10]);
    assert_eq!(store.add("counter", 3).unwrap(), 3);
    assert_eq!(store.add("counter", -5).unwrap(), -2);
    assert_eq!(store.get("counter").unwrap(), b"-2");
    assert!(store.check(&["key", "counter"]).unwrap());
    assert!(!store.check(&["key", "absent"]).unwrap());
    store.wait(&["key", "counter"], Duration::from_secs(5)).unwrap();
    assert!(store.num_keys().unwrap() >= 2);
    assert_eq!(store.compare_set("key", "wrong", "new").unwrap(), [0, 255, 10]);
    assert_eq!(store.compare_set("key", [0u8, 255, 10], "new").unwrap(), b"new");
    assert_eq!(store.compare_set("fresh", "", "first").unwrap(), b"first");
    store.delete("key").unwrap();
    assert!(!store.check(&["key"]).unwrap());
}

fn exercises_the_extended_calls(store: &Store) {
    store.append("log", "a").unwrap();
    store.append("log", "bc").unwrap();
    assert_eq!(store.get("log").unwrap(), b"abc");
    store.multi_set(&[("m1", "one"), ("m2", "")]).unwrap();
    assert_eq!(store.multi_get(&["m1", "m2"]).unwrap(), [b"one".to_vec(), b"".to_vec()]);
}

#[test]
fn hash_store_supports_every_call() {
    let store = Store::hash().unwrap();
    exercises_the_basics(&store);
    exercises_the_extended_calls(&store);
}

#[test]
fn tcp_store_supports_every_call_from_host_and_client() {
    let host = tcp_host();
    exercises_the_basics(&host);
    let port = host.port().unwrap();
    let client = Store::tcp("127.0.0.1", port, &TcpStoreOptions::default()).unwrap();
    exercises_the_extended_calls(&client);
    assert_eq!(host.get("log").unwrap(), b"abc");
    assert_eq!(client.port(), Some(port));
    let second = client.try_clone().unwrap();
    assert_eq!(second.get("m1").unwrap(), b"one");
}

#[test]
fn a_tcp_store_has_queues_lists_its_keys_and_changes_its_timeout() {
    let host = tcp_host();
    let store = host.prefix("jobs").unwrap();
    assert_eq!(store.queue_len("work").unwrap(), 0);
    store.queue_push("work", "first").unwrap();
    store.queue_push("work", [0_u8, 255]).unwrap();
    assert_eq!(store.queue_len("work").unwrap(), 2);
    assert_eq!(store.queue_pop("work").unwrap(), b"first");
    assert_eq!(store.queue_pop("work").unwrap(), [0, 255]);
    store.set("a", "1").unwrap();
    host.set("b", "2").unwrap();
    assert_eq!(store.list_keys().unwrap(), ["a"]);
    let keys = host.list_keys().unwrap();
    assert!(keys.iter().any(|key| key.ends_with("jobs/a")) && keys.contains(&"b".to_owned()), "{keys:?}");
    store.set_timeout(Duration::from_millis(50)).unwrap();
    let error = store.queue_pop("work").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(store.timeout(), Duration::from_millis(50));
    let folder = tempfile::tempdir().unwrap();
    let file = Store::file(&folder.path().join("store"), 1).unwrap();
    assert!(file.queue_len("work").is_err());
}

#[test]
fn file_store_supports_the_basic_calls() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::file(&folder.path().join("store"), 1).unwrap();
    exercises_the_basics(&store);
    let other = Store::file(&folder.path().join("store"), 1).unwrap();
    assert_eq!(other.get("counter").unwrap(), b"-2");
}

/// A write to `/dev/full` fails like one to a full disk.
#[test]
fn dropping_a_file_store_on_a_full_disk_does_not_end_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::file(&path, 1).unwrap();
    let view = store.prefix("view").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    assert!(store.set("key", "value").is_err());
    drop(store);
    drop(view);
    assert!(path.is_symlink(), "the file was not changed");
}

#[test]
fn file_store_in_a_missing_folder_is_refused_immediately() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(Store::file(&folder.path().join("absent/store"), 1));
    assert!(error.to_string().contains("no folder"), "{error}");
}

#[test]
fn prefix_store_hides_its_keys_from_others() {
    let store = Store::hash().unwrap();
    let view = store.prefix("job").unwrap();
    exercises_the_basics(&view);
    exercises_the_extended_calls(&view);
    assert!(!store.check(&["log"]).unwrap());
    assert_eq!(store.get("job/log").unwrap(), b"abc");
}

#[test]
fn a_wait_ends_at_its_deadline_and_names_the_missing_keys() {
    for store in [Store::hash().unwrap(), tcp_host()] {
        store.set("there", "1").unwrap();
        let error = store.wait(&["there", "absent"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("still missing: absent"), "{error}");
        assert!(error.elapsed() >= Duration::from_millis(50), "{error}");
    }
}

#[test]
fn get_waits_for_a_key_that_comes_later() {
    let host = Arc::new(tcp_host());
    let client = Store::tcp("127.0.0.1", host.port().unwrap(), &TcpStoreOptions::default()).unwrap();
    let reader = std::thread::spawn(move || client.get("late").unwrap());
    host.set("late", "now").unwrap();
    assert_eq!(reader.join().unwrap(), b"now");
}

#[test]
fn get_ends_at_the_stores_own_timeout() {
    // The timeout also limits connecting.
    let timeout = scaled(Duration::from_secs(1));
    let options = TcpStoreOptions { host_server: true, timeout, ..TcpStoreOptions::default() };
    let store = Store::tcp("127.0.0.1", 0, &options).unwrap();
    assert_eq!(store.timeout().as_millis(), timeout.as_millis());
    assert_eq!(store.get("never").unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_port_in_use_is_reported_with_its_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let options = TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() };
    let error = refused(Store::tcp("127.0.0.1", port, &options));
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(error.detail().contains("the port is taken"), "{error}");
}

#[test]
fn connecting_to_a_missing_host_ends_at_the_deadline() {
    // The port of a client: nobody listens there, and nobody else gets it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let port = client.local_addr().unwrap().port();
    let options = TcpStoreOptions { timeout: Duration::from_millis(300), ..TcpStoreOptions::default() };
    let error = Store::tcp("127.0.0.1", port, &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
}

#[test]
fn a_host_that_goes_away_fails_its_clients_calls() {
    let host = tcp_host();
    let client = Store::tcp("127.0.0.1", host.port().unwrap(), &TcpStoreOptions::default()).unwrap();
    client.set("k", "v").unwrap();
    drop(host);
    let error = client.get("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
    assert!(error.peer().unwrap().contains("TCPStore at 127.0.0.1"), "{error}");
}

#[test]
fn connecting_to_port_zero_is_refused() {
    refused(Store::tcp("127.0.0.1", 0, &TcpStoreOptions::default()));
}

#[test]
fn a_waiting_host_gives_up_when_a_client_is_missing() {
    let options = TcpStoreOptions {
        host_server: true,
        wait_for: Some(2),
        timeout: Duration::from_millis(300),
        ..TcpStoreOptions::default()
    };
    let error = Store::tcp("127.0.0.1", 0, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

/// The number of open connections to the port. `/proc` lists peer and state in the third and fourth column, in
/// hexadecimal.
fn connections_to(port: u16) -> usize {
    let tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines()).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 3 && row[2].ends_with(&format!(":{port:04X}")) && row[3] == "01").count()
}

#[test]
fn a_rank_of_a_group_has_two_connections_to_the_store() {
    let host = tcp_host();
    let port = host.port().unwrap();
    let before = connections_to(port);
    let (world, options) = (c10d::WorldSize::new(2).unwrap(), crate::common::options());
    let (both_are_there, barrier) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (both_are_there, barrier, options) = (&both_are_there, &barrier, &options);
            scope.spawn(move || {
                let store = Store::tcp("127.0.0.1", port, &TcpStoreOptions::default()).unwrap();
                let group = c10d::ProcessGroup::gloo(&store, c10d::Rank::new(rank), world, options).unwrap();
                both_are_there.wait();
                // Its own, and that of the thread that answers for desync reports, which connects in its own time.
                until(|| connections_to(port) - before == 4).unwrap();
                barrier.wait();
                drop(group);
            });
        }
    });
}

#[test]
fn a_hosted_store_closes_with_its_group_and_its_handles() {
    let options = TcpStoreOptions { host_server: true, multi_tenant: true, ..TcpStoreOptions::default() };
    let store = Store::tcp("127.0.0.1", 0, &options).unwrap();
    let port = store.port().unwrap();
    let group =
        c10d::ProcessGroup::gloo(&store, c10d::Rank::ZERO, c10d::WorldSize::ONE, &crate::common::options()).unwrap();
    let subgroup = group.new_group(&[c10d::Rank::ZERO], &crate::common::options()).unwrap();
    group.barrier().unwrap();
    drop(store);
    assert!(lockstep_testkit::listens(port), "the group still uses it");
    drop((group, subgroup));
    assert!(!lockstep_testkit::listens(port), "this process still listens on port {port}");
}
