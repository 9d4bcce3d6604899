//! The calls a person or a deployment makes: topics, groups, offsets, settings.

mod cluster;
mod delete_records;
mod error;
mod groups;
mod offsets;
mod topics;

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;
use tramline_wire::{ErrorCode, Request, Str};

pub use cluster::{BrokerInfo, ClusterInfo, ConfigEntry};
pub use error::{AdminError, Refusal};
pub use groups::{GroupDescription, GroupListing, MemberDescription};
pub use topics::{NewTopic, PartitionDescription, TopicDescription};

use crate::cluster::{Cluster, Target, jitter};
use crate::config::ClientConfig;
use crate::error::CallError;

/// How long an operation is repeated while brokers are unreachable, moving or loading.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Administers a cluster. Cheap to make: the first call dials. Every method takes `&self` and may run beside others.
///
/// Calls are repeated for up to a minute while a broker is away, is not the controller or still loads a group. A call
/// whose answer was lost is repeated, too, so that creating a topic can answer `TOPIC_ALREADY_EXISTS` for the topic it
/// made itself. Dropping a future loses only its answer: what was sent may be carried out.
#[derive(Debug)]
pub struct Admin {
    config: ClientConfig,
    cluster: OnceCell<Cluster>,
}

impl Admin {
    /// An admin client for the cluster that `config` names.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self { config, cluster: OnceCell::new() }
    }

    async fn cluster(&self) -> Result<&Cluster, AdminError> {
        Ok(self.cluster.get_or_try_init(|| Cluster::connect(self.config.clone())).await?)
    }

    /// Sends a request until it is answered with something that trying again does not change.
    ///
    /// `code` finds what the answer says about itself as a whole; codes of single items are the caller's.
    async fn ask<R: Request>(
        &self,
        target: &Target,
        request: R,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, AdminError> {
        self.ask_with(target, move |_| request.clone(), code).await
    }

    /// As [`ask`](Self::ask), for a request whose content depends on the version spoken.
    async fn ask_with<R: Request>(
        &self,
        target: &Target,
        build: impl Fn(i16) -> R + Clone + Send + 'static,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, AdminError> {
        let cluster = self.cluster().await?;
        let until = Instant::now() + OPERATION_TIMEOUT;
        let timeout = cluster.config().request_timeout;
        let mut backoff = cluster.backoff();
        loop {
            let failure = match cluster.call_with(target.clone(), timeout, build.clone()).await {
                Ok(answer) => match ErrorCode::from(code(&answer)) {
                    refused if refused.is_ok() || !worth_repeating(refused) => return Ok(answer),
                    refused => AdminError::Refused(Refusal::new(refused, None)),
                },
                Err(error) if error.is_retriable() => AdminError::Call(error),
                Err(error) => return Err(error.into()),
            };
            let again = Instant::now() + backoff.next_wait(jitter());
            if again >= until {
                return Err(failure);
            }
            tokio::time::sleep_until(again).await;
            self.look_again(cluster, target).await;
        }
    }

    /// Forgets who was asked in vain. A refresh that fails is repeated by the next round.
    async fn look_again(&self, cluster: &Cluster, target: &Target) {
        if let Target::Coordinator(group) = target {
            cluster.forget_coordinator(group);
        }
        if let Err(error) = cluster.refresh(Some(&[]), false).await {
            tracing::debug!(%error, "the brokers could not be asked who they are");
        }
    }

    /// Asks the coordinator of a group.
    async fn ask_coordinator<R: Request>(
        &self,
        group: &Str,
        request: R,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, AdminError> {
        self.ask(&Target::Coordinator(group.clone()), request, code).await
    }
}

fn worth_repeating(code: ErrorCode) -> bool {
    // Answers that mean "not here" or "not yet"; REQUEST_TIMED_OUT is the broker's own wait, which may have half succeeded.
    [14, 15, 16, 41].contains(&code.code())
}

/// Milliseconds for the wire.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

impl From<CallError> for AdminError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}
