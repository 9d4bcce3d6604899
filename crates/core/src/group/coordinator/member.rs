//! A member as the coordinator sees it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use tramline_wire::Str;
use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;
use tramline_wire::messages::{JoinGroupRequest, JoinGroupResponse, SyncGroupResponse};

use super::config::{Client, Config, Token};
use super::group::{Context, join_response};
use super::output::Response;
use super::record::MemberValue;
use crate::group::codes;
use crate::time::Instant;

/// A request that is answered later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    /// `None` when the connection is gone: the member waits, but nobody is told.
    token: Option<Token>,
    version: i16,
}

impl Parked {
    pub(super) const fn new(client: &Client) -> Self {
        Self { token: Some(client.token), version: client.version }
    }

    pub(super) fn holds(&self, token: Token) -> bool {
        self.token == Some(token)
    }
}

/// One member.
#[derive(Debug)]
pub(super) struct Member {
    pub id: Str,
    pub instance_id: Option<Str>,
    pub client_id: Str,
    pub client_host: Str,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
    pub protocol_type: Str,
    pub protocols: Vec<(Str, Bytes)>,
    pub assignment: Bytes,
    /// Its Join, while it waits.
    pub joining: Option<Parked>,
    /// Its Sync, while it waits.
    pub syncing: Option<Parked>,
    /// Its first Join waits still.
    pub is_new: bool,
    /// The client was told its id before it joined.
    pub id_is_known: bool,
    session_deadline: Instant,
}

impl Member {
    /// A new member with a parked Join.
    pub(super) fn joining(
        id: Str,
        id_is_known: bool,
        client: &Client,
        request: &JoinGroupRequest,
        config: &Config,
        now: Instant,
    ) -> Self {
        let mut member = Self {
            id,
            instance_id: request.group_instance_id.as_ref().map(Str::detached),
            client_id: Str::new(),
            client_host: Str::new(),
            session_timeout: Duration::ZERO,
            rebalance_timeout: Duration::ZERO,
            protocol_type: request.protocol_type.detached(),
            protocols: Vec::new(),
            assignment: Bytes::new(),
            joining: None,
            syncing: None,
            is_new: true,
            id_is_known,
            session_deadline: now + config.new_member_join_timeout,
        };
        member.update(client, request);
        member.joining = Some(Parked::new(client));
        member
    }

    pub(super) fn restored(value: &MemberValue, protocol_type: &Str, protocol: Str, now: Instant) -> Self {
        let session_timeout = millis(value.session_timeout);
        Self {
            id: value.member_id.clone(),
            instance_id: value.instance_id.clone(),
            client_id: value.client_id.clone(),
            client_host: value.client_host.clone(),
            session_timeout,
            rebalance_timeout: millis(value.rebalance_timeout),
            protocol_type: protocol_type.clone(),
            protocols: [(protocol, value.subscription.clone())].into(),
            assignment: value.assignment.clone(),
            joining: None,
            syncing: None,
            is_new: false,
            id_is_known: true,
            session_deadline: now + session_timeout,
        }
    }

    /// Takes over what a Join says about the member.
    pub(super) fn update(&mut self, client: &Client, request: &JoinGroupRequest) {
        self.client_id = client.id.detached();
        self.client_host = client.host.detached();
        self.session_timeout = millis(request.session_timeout_ms);
        // Version 0 has no rebalance timeout, and the message then says -1.
        let rebalance = if request.rebalance_timeout_ms < 0 {
            request.session_timeout_ms
        } else {
            request.rebalance_timeout_ms
        };
        self.rebalance_timeout = millis(rebalance);
        self.protocols = request
            .protocols
            .iter()
            .map(|protocol| (protocol.name.detached(), Bytes::copy_from_slice(&protocol.metadata)))
            .collect();
    }

    /// Parks a Join. One that waited before is told to try again: no request stays without an answer.
    pub(super) fn park_join(&mut self, cx: &mut Context<'_>, client: &Client) {
        let old = JoinGroupResponse {
            error_code: codes::REBALANCE_IN_PROGRESS,
            member_id: self.id.clone(),
            ..Default::default()
        };
        self.answer_join(cx, old);
        self.joining = Some(Parked::new(client));
    }

    /// Parks a Sync, as [`park_join`](Self::park_join) does a Join.
    pub(super) fn park_sync(&mut self, cx: &mut Context<'_>, client: &Client) {
        let code = codes::REBALANCE_IN_PROGRESS;
        self.answer_sync(cx, SyncGroupResponse { error_code: code, ..Default::default() });
        self.syncing = Some(Parked::new(client));
    }

    pub(super) fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// When the member counts as dead. One that waits for an answer of ours is alive, but the first wait of a
    /// new member has an end: it may have given up long ago.
    pub(super) fn expires(&self) -> Option<Instant> {
        let waits = self.joining.is_some() || self.syncing.is_some();
        (self.is_new || !waits).then_some(self.session_deadline)
    }

    /// The member was heard of.
    pub(super) fn refresh(&mut self, now: Instant) {
        if !self.is_new {
            self.session_deadline = now + self.session_timeout;
        }
    }

    pub(super) fn protocol_names(&self) -> BTreeSet<&str> {
        self.protocols.iter().map(|(name, _)| &**name).collect()
    }

    pub(super) fn metadata(&self, protocol: &str) -> Option<Bytes> {
        self.protocols.iter().find(|(name, _)| name == protocol).map(|(_, metadata)| metadata.clone())
    }

    /// Whether a Join says the same about protocols as the last one did.
    pub(super) fn matches(&self, protocols: &[JoinGroupRequestProtocol]) -> bool {
        self.protocols.len() == protocols.len()
            && self
                .protocols
                .iter()
                .zip(protocols)
                .all(|((name, metadata), new)| *name == new.name && *metadata == new.metadata)
    }

    pub(super) fn answer_join(&mut self, cx: &mut Context<'_>, response: JoinGroupResponse) {
        if let Some(Parked { token: Some(token), version }) = self.joining.take() {
            cx.journal.reply(token, join_response(version, response));
        }
    }

    pub(super) fn answer_sync(&mut self, cx: &mut Context<'_>, mut response: SyncGroupResponse) {
        if let Some(Parked { token: Some(token), version }) = self.syncing.take() {
            if version < 5 {
                (response.protocol_type, response.protocol_name) = (None, None);
            }
            cx.journal.reply(token, Response::Sync(response));
        }
    }

    /// Answers whatever waits with an error.
    pub(super) fn answer_waiting(&mut self, cx: &mut Context<'_>, code: i16) {
        let join = JoinGroupResponse { error_code: code, member_id: self.id.clone(), ..Default::default() };
        self.answer_join(cx, join);
        self.answer_sync(cx, SyncGroupResponse { error_code: code, ..Default::default() });
    }

    /// Whoever waited under this token is gone.
    pub(super) fn drop_reply(&mut self, token: Token) {
        for parked in [&mut self.joining, &mut self.syncing].into_iter().flatten() {
            if parked.holds(token) {
                parked.token = None;
            }
        }
    }

    pub(super) fn value(&self, subscription: Bytes, assignment: Bytes) -> MemberValue {
        MemberValue {
            member_id: self.id.clone(),
            instance_id: self.instance_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout: whole_millis(self.rebalance_timeout),
            session_timeout: whole_millis(self.session_timeout),
            subscription,
            assignment,
        }
    }
}

/// A protocol field of milliseconds; negative counts as none.
pub(super) fn millis(field: i32) -> Duration {
    Duration::from_millis(u64::try_from(field).unwrap_or(0))
}

fn whole_millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
