//! Fetch sessions (KIP-227): what a client reads is remembered, so that it names, and is told, changes only.
//!
//! A session is opened by a full fetch with epoch 0 and goes on with epochs 1, 2, and so on. It lives in memory and may
//! go at any time: a client that names one that is not there gets 70 and begins anew. Bounded in sessions and in
//! partitions over all of them; when there is no room a session that was idle for two minutes makes some, else the
//! answer says id 0 and the client goes on with full fetches.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use tramline_wire::messages::fetch_response::PartitionData;
use tramline_wire::messages::{FetchRequest, FetchResponse};
use tramline_wire::{ErrorCode, Str, Uuid};

/// Sessions there are at most.
pub(crate) const MAX_SESSIONS: usize = 1000;
const MAX_PARTITIONS: usize = 100_000;
const MIN_IDLE: Duration = Duration::from_mins(2);

/// A partition by name or by id, whichever the session uses; the other one is empty.
type Key = (Str, Uuid, i32);

struct Cached {
    asked: FetchPartition,
    /// What the client was told last; -1 before, and after an error.
    high_watermark: i64,
    log_start: i64,
}

struct Session {
    /// The epoch that the next request must have.
    epoch: i32,
    by_id: bool,
    used: Instant,
    /// In the order in which they are read; partitions that had data go to the end.
    order: Vec<Key>,
    partitions: HashMap<Key, Cached>,
}

/// What a fetch has to do with sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Nothing.
    None,
    /// It may open one.
    Full,
    /// It goes on with this one; the request now names everything the session reads.
    Incremental(i32),
    /// Nothing is left to read in it; it was closed.
    Emptied,
}

/// All sessions of the node.
#[derive(Default)]
pub(crate) struct FetchSessions(Mutex<HashMap<i32, Session>>);

impl std::fmt::Debug for FetchSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchSessions").finish_non_exhaustive()
    }
}

impl FetchSessions {
    /// Finds the session of a request and brings it up to date. The code is one for the whole answer.
    pub(crate) fn begin(
        &self,
        request: &mut FetchRequest,
        by_id: bool,
        now: Instant,
    ) -> Result<Opened, ErrorCode> {
        let mut sessions = self.lock();
        if request.session_epoch <= 0 {
            sessions.remove(&request.session_id);
            let opens = request.session_epoch == 0 && !request.topics.is_empty();
            return Ok(if opens { Opened::Full } else { Opened::None });
        }
        let id = request.session_id;
        let others: usize =
            sessions.iter().filter(|(of, _)| **of != id).map(|(_, other)| other.order.len()).sum();
        let session = sessions.get_mut(&id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.epoch != request.session_epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        session.used = now;
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        session.forget(&std::mem::take(&mut request.forgotten_topics_data));
        for topic in std::mem::take(&mut request.topics) {
            session.read(&topic);
        }
        if session.order.is_empty() || others + session.order.len() > MAX_PARTITIONS {
            let emptied = session.order.is_empty();
            sessions.remove(&id);
            return if emptied { Ok(Opened::Emptied) } else { Err(ErrorCode::FetchSessionIdNotFound) };
        }
        request.topics = session.topics();
        Ok(Opened::Incremental(id))
    }

    /// Opens a session for a full fetch of `topics`, when there is room, and puts its id into the answer.
    pub(crate) fn open(
        &self,
        topics: &[FetchTopic],
        by_id: bool,
        now: Instant,
        response: &mut FetchResponse,
    ) {
        let mut session =
            Session { epoch: 1, by_id, used: now, order: Vec::new(), partitions: HashMap::new() };
        for topic in topics {
            session.read(topic);
        }
        session.told(response, false);
        let mut sessions = self.lock();
        let fits = |sessions: &HashMap<i32, Session>| {
            let held: usize = sessions.values().map(|other| other.order.len()).sum();
            sessions.len() < MAX_SESSIONS && held + session.order.len() <= MAX_PARTITIONS
        };
        if !fits(&sessions) {
            let idlest = sessions.iter().min_by_key(|(_, other)| other.used);
            let idle = |used: Instant| now.saturating_duration_since(used) >= MIN_IDLE;
            match idlest.filter(|(_, other)| idle(other.used)).map(|(id, _)| *id) {
                Some(id) => sessions.remove(&id),
                None => return,
            };
            if !fits(&sessions) {
                return;
            }
        }
        let Some(id) = fresh_id(&sessions) else { return };
        sessions.insert(id, session);
        response.session_id = id;
    }

    /// Leaves out of the answer what the client knows already.
    pub(crate) fn shorten(&self, id: i32, response: &mut FetchResponse) {
        // Evicted meanwhile: the answer is still right, the next request learns of it.
        if let Some(session) = self.lock().get_mut(&id) {
            session.told(response, true);
        }
        response.session_id = id;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn read(&mut self, topic: &FetchTopic) {
        // Not a slice of the request's frame, which would be kept for as long as the session.
        let name = topic.topic.detached();
        for asked in &topic.partitions {
            let key = key(&name, topic.topic_id, asked.partition);
            match self.partitions.get_mut(&key) {
                Some(cached) => cached.asked = asked.clone(),
                None => {
                    let cached = Cached { asked: asked.clone(), high_watermark: -1, log_start: -1 };
                    self.partitions.insert(key.clone(), cached);
                    self.order.push(key);
                }
            }
        }
    }

    fn forget(&mut self, topics: &[ForgottenTopic]) {
        for topic in topics {
            for partition in &topic.partitions {
                self.partitions.remove(&key(&topic.topic, topic.topic_id, *partition));
            }
        }
        if !topics.is_empty() {
            self.order.retain(|key| self.partitions.contains_key(key));
        }
    }

    /// Everything that is read, as a full request would name it.
    fn topics(&self) -> Vec<FetchTopic> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for key in &self.order {
            let Some(cached) = self.partitions.get(key) else { continue };
            match topics.last_mut() {
                Some(last) if last.topic == key.0 && last.topic_id == key.1 => {
                    last.partitions.push(cached.asked.clone());
                }
                _ => topics.push(FetchTopic {
                    topic: key.0.clone(),
                    topic_id: key.1,
                    partitions: vec![cached.asked.clone()],
                }),
            }
        }
        topics
    }

    /// Notes what an answer tells; with `shorten` rows that tell nothing new are taken out of it.
    fn told(&mut self, response: &mut FetchResponse, shorten: bool) {
        let mut had_data = HashSet::new();
        for topic in &mut response.responses {
            let (name, id) = (topic.topic.clone(), topic.topic_id);
            topic.partitions.retain(|row| {
                let key = key(&name, id, row.partition_index);
                let Some(cached) = self.partitions.get_mut(&key) else { return !shorten };
                let news = cached.told(row);
                if row.records.as_ref().is_some_and(|records| !records.is_empty()) {
                    had_data.insert(key);
                }
                news || !shorten
            });
        }
        response.responses.retain(|topic| !topic.partitions.is_empty());
        if !had_data.is_empty() {
            let order = std::mem::take(&mut self.order);
            let (last, first): (Vec<Key>, Vec<Key>) =
                order.into_iter().partition(|key| had_data.contains(key));
            self.order = first;
            self.order.extend(last);
        }
    }
}

impl Cached {
    /// Whether the row says anything new. After an error the next healthy row does.
    fn told(&mut self, row: &PartitionData) -> bool {
        let failed = row.error_code != 0;
        let news = failed
            || row.records.as_ref().is_some_and(|records| !records.is_empty())
            || (self.high_watermark, self.log_start) != (row.high_watermark, row.log_start_offset);
        self.high_watermark = if failed { -1 } else { row.high_watermark };
        self.log_start = row.log_start_offset;
        news
    }
}

fn key(topic: &Str, id: Uuid, partition: i32) -> Key {
    (topic.clone(), id, partition)
}

/// An id that cannot be guessed, so that no client lands in the session of another by counting.
fn fresh_id(sessions: &HashMap<i32, Session>) -> Option<i32> {
    loop {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).ok()?;
        let id = i32::from_be_bytes(bytes) & i32::MAX;
        if id != 0 && !sessions.contains_key(&id) {
            return Some(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FetchSessions, MAX_PARTITIONS, MAX_SESSIONS, MIN_IDLE};
    use tokio::time::Instant;
    use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic};
    use tramline_wire::messages::{FetchRequest, FetchResponse};

    fn open(sessions: &FetchSessions, partitions: usize, now: Instant) -> i32 {
        let partition = |partition| FetchPartition { partition, ..FetchPartition::default() };
        let count = i32::try_from(partitions).unwrap();
        let partitions = (0..count).map(partition).collect();
        let topic = FetchTopic { topic: "t".into(), partitions, ..FetchTopic::default() };
        let mut response = FetchResponse::default();
        sessions.open(&[topic], false, now, &mut response);
        response.session_id
    }

    #[test]
    fn a_full_cache_gives_no_session_until_one_has_been_idle_and_then_that_one_goes() {
        let (sessions, now) = (FetchSessions::default(), Instant::now());
        let oldest = open(&sessions, 1, now);
        for _ in 1..MAX_SESSIONS {
            assert!(open(&sessions, 1, now + MIN_IDLE / 2) > 0);
        }
        assert_eq!(open(&sessions, 1, now + MIN_IDLE / 2), 0);
        assert!(open(&sessions, 1, now + MIN_IDLE) > 0);
        let request = FetchRequest { session_id: oldest, session_epoch: 1, ..FetchRequest::default() };
        assert_eq!(sessions.begin(&mut request.clone(), false, now).unwrap_err().code(), 70);
    }

    #[test]
    fn partitions_are_bounded_over_all_sessions_and_a_session_cannot_outgrow_them() {
        let (sessions, now) = (FetchSessions::default(), Instant::now());
        let large = open(&sessions, MAX_PARTITIONS - 1, now);
        assert!(large > 0);
        assert_eq!(open(&sessions, 2, now), 0);
        let small = open(&sessions, 1, now);
        assert!(small > 0);
        let partition = FetchPartition { partition: 7, ..FetchPartition::default() };
        let topic = FetchTopic { topic: "u".into(), partitions: vec![partition], ..FetchTopic::default() };
        let mut request = FetchRequest {
            session_id: small,
            session_epoch: 1,
            topics: vec![topic],
            ..FetchRequest::default()
        };
        assert_eq!(sessions.begin(&mut request, false, now).unwrap_err().code(), 70);
        let mut quiet = FetchRequest { session_id: large, session_epoch: 1, ..FetchRequest::default() };
        assert!(sessions.begin(&mut quiet, false, now).is_ok(), "its neighbours go on");
    }
}
