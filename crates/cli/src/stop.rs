//! Ctrl-C and SIGTERM: the first asks for a clean stop, a second Ctrl-C ends the process with 130.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::child::Children;
use crate::output;

/// Becomes true at the first signal, for everyone who holds a clone.
#[derive(Debug, Clone)]
pub struct Stop {
    token: CancellationToken,
    children: Children,
}

impl Stop {
    /// Listens for the signals from now on.
    pub fn on_signals() -> Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let token = CancellationToken::new();
        let children = Children::default();
        let stop = Self { token: token.clone(), children: children.clone() };
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            token.cancel();
            interrupt.recv().await;
            output::note("stopped at once: work that was not finished will be done again");
            children.kill_all();
            std::process::exit(130);
        });
        Ok(stop)
    }

    /// The token behind it, for what takes one.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Where commands are known that must not outlive a second Ctrl-C.
    pub fn children(&self) -> Children {
        self.children.clone()
    }

    /// Asks for a stop when stdin ends, so that a child never outlives the process that started it.
    pub fn at_end_of_stdin(&self) {
        let token = self.token.clone();
        // A thread of its own: a read of stdin cannot be cancelled, and would keep the runtime from ending.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            token.cancel();
        });
    }

    /// Does `work`, unless a stop is asked for before it is done: for what has nothing to finish cleanly.
    ///
    /// # Errors
    /// Those of `work`; and that it was interrupted, which leaves open whether what was sent is carried out.
    pub async fn or<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.asked() => anyhow::bail!("interrupted; what was asked of the broker may be done or not"),
        }
    }

    /// Waits until a stop is asked for. Cancel safe.
    pub async fn asked(&self) {
        self.token.cancelled().await;
    }
}
