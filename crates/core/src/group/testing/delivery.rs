//! What happens when something arrives, and what members and their owners do about it.

use tramline_wire::Str;
use tramline_wire::messages::FindCoordinatorResponse;
use tramline_wire::messages::find_coordinator_response::Coordinator as Found;

use super::net::{Asked, CommitOutcome, MemberIndex, Message, Net, Revoking};
use super::node::Request;
use crate::group::coordinator::Response;
use crate::group::member::{Disconnected, Event, Member, RequestBody, ResponseBody, leave_group};
use crate::time::Instant;

impl Net {
    pub(super) fn deliver(&mut self, message: Message) {
        match message {
            Message::Request { from, connection, asked, request, repeat } => {
                if connection != self.members[from].connection || self.node_down_until.is_some() {
                    return;
                }
                self.node_advance();
                let client = self.members[from].client.clone();
                let version = version_of(&request);
                let token = self.node.handle(version, &client, request);
                if !repeat {
                    self.asked.insert(token, (from, connection, asked));
                }
                self.send_replies();
            }
            Message::Answer { to, asked, response } => self.answer(to, asked, response),
            Message::Found { to, id } => {
                let found =
                    Found { key: Str::new(), node_id: 1, host: "node".into(), port: 1, ..Default::default() };
                let response = FindCoordinatorResponse { coordinators: [found].into(), ..Default::default() };
                let down = self.node_down_until.is_some();
                let response =
                    if down { Err(Disconnected) } else { Ok(ResponseBody::FindCoordinator(response)) };
                self.when_awake(to, Message::Found { to, id }, |member, now| {
                    member.handle_response(now, id, response);
                });
            }
            Message::GiveUp { of, id } => self.revocation_done(of, id),
            Message::Metadata { to } => {
                let counts = self.partition_counts.clone();
                self.when_awake(to, Message::Metadata { to }, |member, now| {
                    member.handle_metadata(now, &counts);
                });
            }
        }
    }

    /// Runs a member, or puts the message off until it is awake.
    fn when_awake(
        &mut self,
        index: MemberIndex,
        message: Message,
        action: impl FnOnce(&mut Member, Instant),
    ) {
        let endpoint = &mut self.members[index];
        if !endpoint.running {
            return;
        }
        if let Some(until) = endpoint.paused_until.filter(|until| *until > self.now) {
            self.post(until, message);
            return;
        }
        // Timers come first: after a pause they tell that the session is over.
        if endpoint.member.next_timeout().is_some_and(|at| at <= self.now) {
            self.wake(index);
        }
        self.members[index].paused_until = None;
        self.members[index].last_ran = self.now;
        action(&mut self.members[index].member, self.now);
        self.carry_out(index);
    }

    fn answer(&mut self, to: MemberIndex, asked: Asked, response: Option<Response>) {
        let again = Message::Answer { to, asked: asked.clone(), response: response.clone() };
        match asked {
            Asked::Member(id) => {
                let response = response.and_then(body_of).ok_or(Disconnected);
                self.when_awake(to, again, |member, now| member.handle_response(now, id, response));
            }
            Asked::Commit(number, context) => {
                let mut outcome = None;
                self.when_awake(to, again, |member, now| {
                    outcome = Some(match response {
                        Some(Response::OffsetCommit(response)) => {
                            let code = response.topics[0].partitions[0].error_code;
                            let failed = code != 0;
                            let verdict = failed.then(|| member.commit_failed(now, &context, code));
                            CommitOutcome::Answered { code, verdict }
                        }
                        _ => CommitOutcome::Disconnected,
                    });
                });
                self.members[to].commits.extend(outcome.map(|outcome| (number, outcome)));
            }
        }
    }

    /// Sends what a member wants sent and acts on what it tells.
    pub(super) fn carry_out(&mut self, index: MemberIndex) {
        while let Some(request) = self.members[index].member.poll_request() {
            let id = request.id;
            if request.overtakes {
                self.break_connection(index, false);
            }
            let request = match request.body {
                RequestBody::FindCoordinator(_) => {
                    let at = self.now + self.delay();
                    self.post(at, Message::Found { to: index, id });
                    continue;
                }
                RequestBody::Join(request) => Request::Join(request),
                RequestBody::Sync(request) => Request::Sync(request),
                RequestBody::Heartbeat(request) => Request::Heartbeat(request),
                RequestBody::Leave(group, member) => Request::Leave(leave_group(i16::MAX, group, member)),
            };
            self.send(index, Asked::Member(id), request);
        }
        while let Some(event) = self.members[index].member.poll_event() {
            self.act_on(index, event);
        }
        self.expire_giving_up(index);
    }

    fn act_on(&mut self, index: MemberIndex, event: Event) {
        let now = self.now;
        let endpoint = &mut self.members[index];
        match &event {
            Event::Assigned { added, .. } => {
                for of in added {
                    assert!(endpoint.owns.insert(of.clone()), "{of} was assigned twice, seed {}", self.seed);
                }
            }
            Event::Revoked { id, partitions, deadline } => {
                // One at a time: the one before ended at its deadline.
                for of in endpoint.giving_up.take().into_iter().flat_map(|(.., partitions)| partitions) {
                    endpoint.owns.remove(&of);
                }
                endpoint.giving_up = Some((*id, *deadline, partitions.clone()));
                let (of, id) = (index, *id);
                match endpoint.revoking {
                    Revoking::AtOnce => self.post(now, Message::GiveUp { of, id }),
                    Revoking::After(wait) => self.post(now + wait, Message::GiveUp { of, id }),
                    Revoking::Never | Revoking::ByHand => {}
                }
            }
            Event::Lost { partitions } => {
                for of in partitions {
                    assert!(endpoint.owns.remove(of), "{of} was lost but not owned, seed {}", self.seed);
                }
                endpoint.giving_up = None;
            }
            Event::MetadataNeeded { .. } => {
                let at = now + self.delay();
                self.post(at, Message::Metadata { to: index });
            }
            Event::Left | Event::Failed(_) => {}
        }
        self.members[index].events.push(event);
    }

    /// A deadline that passed took the partitions from the owner without an event.
    fn expire_giving_up(&mut self, index: MemberIndex) {
        let endpoint = &mut self.members[index];
        let over = endpoint.giving_up.is_some() && endpoint.member.revoking().is_empty();
        if over && let Some((_, _, partitions)) = endpoint.giving_up.take() {
            for of in partitions {
                endpoint.owns.remove(&of);
            }
        }
    }
}

fn body_of(response: Response) -> Option<ResponseBody> {
    match response {
        Response::Join(response) => Some(ResponseBody::Join(response)),
        Response::Sync(response) => Some(ResponseBody::Sync(response)),
        Response::Heartbeat(response) => Some(ResponseBody::Heartbeat(response)),
        Response::Leave(response) => Some(ResponseBody::Leave(response)),
        _ => None,
    }
}

const fn version_of(request: &Request) -> i16 {
    match request {
        Request::Join(_) => 9,
        Request::Sync(_) | Request::Leave(_) => 5,
        Request::Heartbeat(_) => 4,
        _ => 8,
    }
}
