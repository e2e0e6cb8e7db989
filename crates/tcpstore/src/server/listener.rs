//! Accepts connections. Left out: what they do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::connection::serve;
use super::shared::Shared;

/// How long to wait when the kernel gives no connection, as when all files are taken.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts for ever.
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

/// Replies go out at once, and a host that is gone is noticed. Where the kernel knows none of this the connection still works.
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
