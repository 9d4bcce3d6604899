//! Spans around handlers, and the trace a record's producer was in.

use std::fmt;

use tracing::Span;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tramline_wire::Record;
use tramline_wire::partitioner::murmur2;

/// The trace context a producer left in a record's headers, as W3C Trace Context defines them: `traceparent`
/// and, beside it, `tracestate`.
///
/// The span around each handler names trace and parent. With OpenTelemetry, make the context the parent of
/// `Span::current()` in the handler; [`traceparent`](Self::traceparent) is what its propagators read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<String>,
}

/// The longest `tracestate` that must be passed on.
const MAX_STATE: usize = 512;

impl TraceContext {
    /// The trace context of a record; none when it has none, or one that is not well formed. Of several
    /// `traceparent` headers the last one counts: it was added last.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        let mut context: Option<Self> = None;
        let mut state: Option<String> = None;
        for (name, value) in record.headers() {
            let value = value.and_then(|value| std::str::from_utf8(value).ok());
            if name.eq_ignore_ascii_case("traceparent") {
                context = value.and_then(Self::parse);
            } else if name.eq_ignore_ascii_case("tracestate") {
                state = value.map(str::trim).filter(|state| is_state(state)).map(str::to_owned);
            }
        }
        Some(Self { state, ..context? })
    }

    /// Reads a `traceparent`, of this version or a later one that begins alike.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex::<1>(parts.next()?)?[0];
        let (trace_id, span_id) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
        let flags = hex::<1>(parts.next()?)?[0];
        let is_valid = version != 0xff
            && (version > 0 || parts.next().is_none())
            && trace_id != [0; 16]
            && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags, state: None })
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The producer's span.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether the producer recorded its span.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The `tracestate`, as it was.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The header again, in version 00.
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", Hex(&self.trace_id), Hex(&self.span_id), self.flags)
    }
}

fn is_state(state: &str) -> bool {
    let is_member = |member: &str| member.trim().is_empty() || member.trim().split_once('=').is_some();
    state.len() <= MAX_STATE && state.contains('=') && state.split(',').all(is_member)
}

/// Lower-case hexadecimal digits for exactly `N` bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The span around the handling of these records, the first of which is `first`; none, and nothing looked at,
/// unless somebody listens to the level of debugging.
pub(crate) fn around(first: Option<&Record>, records: usize, attempt: u32) -> Span {
    if LevelFilter::current() < LevelFilter::DEBUG {
        return Span::none();
    }
    first.map_or_else(Span::none, |record| open(record, records, attempt))
}

#[cold]
fn open(record: &Record, records: usize, attempt: u32) -> Span {
    let span = tracing::debug_span!(
        "handle",
        otel.kind = "consumer",
        topic = record.topic(),
        partition = record.partition(),
        offset = record.offset(),
        records,
        attempt,
        key_hash = Empty,
        trace_id = Empty,
        parent_span_id = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(key) = record.key() {
        span.record("key_hash", format_args!("{:08x}", murmur2(key)));
    }
    if let Some(context) = TraceContext::of(record) {
        span.record("trace_id", tracing::field::display(Hex(&context.trace_id)));
        span.record("parent_span_id", tracing::field::display(Hex(&context.span_id)));
    }
    span
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tramline_wire::TopicPartition;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context(headers: &[(&'static str, Option<&'static [u8]>)]) -> Option<TraceContext> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).into(), value.map(Bytes::from_static))).collect();
        TraceContext::of(&Record::from_parts(TopicPartition::new("t", 0), 0, -1, None, None, headers))
    }

    #[test]
    fn the_producers_context_is_read_and_written_again() {
        let state: &[u8] = b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7";
        let read = context(&[("traceparent", Some(PARENT.as_bytes())), ("tracestate", Some(state))]).unwrap();
        assert_eq!(read.traceparent(), PARENT);
        assert_eq!(read.state().map(str::as_bytes), Some(state));
        assert_eq!((read.trace_id()[0], read.span_id()[1], read.is_sampled()), (0x4b, 0xf0, true));
        let later: &[u8] = b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-what-else";
        assert!(!context(&[("Traceparent", Some(later))]).unwrap().is_sampled());
    }

    #[test]
    fn what_is_not_well_formed_is_no_context() {
        for wrong in [
            "",
            "-",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-01",
        ] {
            assert_eq!(context(&[("traceparent", Some(wrong.as_bytes()))]), None, "{wrong}");
        }
        assert_eq!(context(&[]), None);
        assert_eq!(context(&[("traceparent", None)]), None);
        assert_eq!(context(&[("traceparent", Some(b"\xff\xfe"))]), None);
        assert_eq!(context(&[("tracestate", Some(b"a=b"))]), None, "a state alone says nothing");
    }

    #[test]
    fn a_state_that_is_not_well_formed_goes_and_the_context_stays() {
        let parent = ("traceparent", Some(PARENT.as_bytes()));
        for state in [None, Some(&b"no member"[..]), Some(b"\xff"), Some(&[b'='; 600])] {
            assert_eq!(context(&[parent, ("tracestate", state)]).unwrap().state(), None);
        }
        let last = "00-0bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let of_two = context(&[parent, ("traceparent", Some(last.as_bytes()))]).unwrap();
        assert_eq!(of_two.traceparent(), last);
    }
}
