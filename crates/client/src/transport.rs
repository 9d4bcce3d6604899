//! The byte stream under a connection. TCP today; an encrypted one is another variant here and nothing else.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// An established byte stream to a broker.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A stream within the process, so that tests can have a whole conversation on virtual time.
    #[cfg(test)]
    Memory(tokio::io::DuplexStream),
}

impl Transport {
    /// Connects to `host:port`, trying each address the name resolves to.
    pub(crate) async fn dial(address: &str) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(stream) = memory::dial(address) {
            return stream.map(Self::Memory);
        }
        let stream = TcpStream::connect(address).await?;
        // Requests are coalesced here already; waiting for more in the kernel only adds latency.
        stream.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(std::time::Duration::from_secs(60));
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            #[cfg(test)]
            Self::Memory(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
pub(crate) mod memory {
    //! Places to connect to that are no sockets: hosts whose name ends with `.memory`.
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::{Mutex, PoisonError};

    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc;

    type Incoming = mpsc::UnboundedSender<DuplexStream>;

    static PLACES: Mutex<BTreeMap<String, Incoming>> = Mutex::new(BTreeMap::new());

    /// What comes to `host`, which no other test may name.
    pub(crate) fn listen(host: &str) -> mpsc::UnboundedReceiver<DuplexStream> {
        let (incoming, streams) = mpsc::unbounded_channel();
        let host = format!("{host}.memory");
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(host, incoming);
        streams
    }

    pub(super) fn dial(address: &str) -> Option<io::Result<DuplexStream>> {
        let (host, _) = address.rsplit_once(':')?;
        let known = host
            .ends_with(".memory")
            .then(|| PLACES.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned())?;
        let (ours, theirs) = duplex(1 << 20);
        let taken = known.is_some_and(|incoming| incoming.send(theirs).is_ok());
        Some(if taken { Ok(ours) } else { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}
