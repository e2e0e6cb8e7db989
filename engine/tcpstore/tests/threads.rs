//! The server's threads end with it. This test is alone in its file because it counts the threads of its process.

mod support;

use support::{server, until};
use tcpstore::ServerOptions;

fn store_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux lists a process's threads").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("tcpstore")).count()
}

#[tokio::test]
async fn leaves_no_thread_behind() {
    let server = server(ServerOptions { worker_threads: 3, ..ServerOptions::default() });
    until("the server runs on its own threads", || store_threads() == 4).await;
    drop(server);
    until("the threads have ended", || store_threads() == 0).await;
}
