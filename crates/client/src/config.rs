//! Settings of the client as a whole: where the cluster is and how patient to be with it.

use std::time::Duration;

/// Where the cluster is, who we are, and how long to wait. Shared by producers, consumers and admins.
///
/// Nothing is checked and nothing is dialled until it is used.
///
/// ```
/// use std::time::Duration;
/// use tramline_client::ClientConfig;
///
/// let config = ClientConfig::new("127.0.0.1:9092,127.0.0.1:9093")
///     .client_id("meter-reader")
///     .request_timeout(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub(crate) bootstrap: Vec<String>,
    pub(crate) client_id: String,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) metadata_max_age: Duration,
    pub(crate) retry_backoff: Duration,
    pub(crate) retry_backoff_max: Duration,
    pub(crate) reconnect_backoff: Duration,
    pub(crate) reconnect_backoff_max: Duration,
    pub(crate) max_frame_bytes: usize,
}

impl ClientConfig {
    /// The cluster reached through `brokers`: one `host:port`, or several separated by commas. Any living one of them
    /// is enough; it names the others.
    #[must_use]
    pub fn new(brokers: impl AsRef<str>) -> Self {
        Self {
            bootstrap: brokers
                .as_ref()
                .split(',')
                .map(str::trim)
                .filter(|address| !address.is_empty())
                .map(str::to_owned)
                .collect(),
            client_id: "tramline".to_owned(),
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            metadata_max_age: Duration::from_secs(300),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            max_frame_bytes: 128 << 20,
        }
    }

    /// The name brokers see in their logs and quotas. Default `tramline`.
    #[must_use]
    pub fn client_id(mut self, client_id: impl Into<String>) -> Self {
        self.client_id = client_id.into();
        self
    }

    /// How long one request may stay unanswered. When it passes, its connection is closed, since a late answer would be
    /// taken for another's. Default 30 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection may take to be usable, name lookup and version handshake included. Also how long a new
    /// producer, consumer or admin tries to reach the cluster before it gives up. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How old the picture of the cluster may become before it is asked for again. Shorter notices new partitions
    /// earlier and costs a request each time. Default 5 min.
    #[must_use]
    pub fn metadata_max_age(mut self, age: Duration) -> Self {
        self.metadata_max_age = age;
        self
    }

    /// The first and the longest wait before something that failed is tried again; doubled in between, with a fifth
    /// of jitter. Default 100 ms and 1 s.
    #[must_use]
    pub fn retry_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.retry_backoff = first;
        self.retry_backoff_max = longest;
        self
    }

    /// The first and the longest wait before a node that could not be reached is dialled again. Default 50 ms and 1 s.
    #[must_use]
    pub fn reconnect_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.reconnect_backoff = first;
        self.reconnect_backoff_max = longest;
        self
    }

    /// The largest answer accepted, in bytes; a longer one is taken for garbage and closes the connection.
    /// Default 128 MiB.
    #[must_use]
    pub fn max_frame_bytes(mut self, bytes: usize) -> Self {
        self.max_frame_bytes = bytes;
        self
    }
}
