//! Accepts connections. Not here: what they do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::connection::serve;
use super::shared::Shared;

/// Pause after a failed accept, for example when the limit of open files is reached.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections forever.
pub(super) async fn accept(listener: TcpListener, all: Arc<Shared>) {
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let admitted = all.lock().admit(address, Instant::now(), all.options.max_connections);
        if let Some((id, wake)) = admitted {
            prepare(&stream, all.options.keepalive);
            let task = tokio::spawn(serve(stream, address, id, wake, Arc::clone(&all)));
            all.lock().attach(id, task.abort_handle());
        }
    }
}

/// Sends replies without delay and detects dead hosts. If the kernel does not support an option, the connection still
/// works.
fn prepare(stream: &TcpStream, keepalive: Duration) {
    const PROBES: u32 = 3;
    let between = (keepalive / 6).max(Duration::from_secs(1));
    let gone_after = keepalive + between * PROBES;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, keepalive.max(Duration::from_secs(1)));
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(gone_after.as_millis()).unwrap_or(u32::MAX));
}
