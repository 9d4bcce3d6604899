//! Events and spans of this thread, as text.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone)]
pub struct TracingLog(Arc<Shared>);

struct Shared {
    level: LevelFilter,
    events: Mutex<Vec<String>>,
    spans: Mutex<Vec<String>>,
    next: AtomicU64,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl TracingLog {
    /// Listens to this thread up to `level`, until the guard is dropped.
    pub fn listen(level: LevelFilter) -> (Self, DefaultGuard) {
        let (events, spans) = (Mutex::default(), Mutex::default());
        let log = Self(Arc::new(Shared { level, events, spans, next: AtomicU64::new(1) }));
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// What the runtime told whose text holds `part`.
    pub fn events(&self, part: &str) -> Vec<String> {
        self.0.events.lock().unwrap().iter().filter(|event| event.contains(part)).cloned().collect()
    }

    /// The spans in the order in which they were opened.
    pub fn spans(&self) -> Vec<String> {
        self.0.spans.lock().unwrap().clone()
    }
}

impl Subscriber for TracingLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0.level && metadata.target().starts_with("tramline_processor")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.level)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        self.0.spans.lock().unwrap().push(text.0);
        Id::from_u64(self.0.next.fetch_add(1, Ordering::SeqCst))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        self.0.spans.lock().unwrap()[usize::try_from(span.into_u64()).unwrap() - 1] += &text.0;
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.events.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
