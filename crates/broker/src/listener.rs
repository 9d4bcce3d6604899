//! Accepts connections, bounds their number, and gives each a task of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::connection;
use crate::node::Node;

/// Accepts until the node stops. No error of a connection, nor of accepting one, ends it.
pub(crate) async fn accept(listener: TcpListener, node: Arc<Node>, connections: TaskTracker) {
    let places = Arc::new(Semaphore::new(node.config.max_connections));
    loop {
        let accepted = tokio::select! {
            () = node.stopping.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly "too many open files": going on at once would spin.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            node.metrics.connections_refused.add(1);
            debug!(%peer, "too many connections");
            continue;
        };
        configure(&stream);
        node.metrics.connections_accepted.add(1);
        let node = Arc::clone(&node);
        connections.spawn(async move {
            node.metrics.connections_open.inc();
            let open = OpenConnection(&node);
            let hold = node.held_memory.hold();
            let evicted = hold.evicted();
            let closed = tokio::select! {
                closed = connection::serve(stream, peer, Arc::clone(&node), hold) => closed,
                () = evicted.cancelled() => connection::Closed::Evicted,
                () = node.killed.cancelled() => connection::Closed::Stopping,
            };
            if closed.is_fault() {
                node.metrics.connections_failed.add(1);
            }
            debug!(%peer, reason = %closed, "connection closed");
            drop(open);
            drop(place);
        });
    }
}

struct OpenConnection<'a>(&'a Node);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections_open.dec();
    }
}

fn configure(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    // Neither is needed for correctness; a socket that refuses them is served all the same.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_keepalive(true);
}
