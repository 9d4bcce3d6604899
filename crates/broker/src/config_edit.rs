//! Changing the settings of a topic that exists: what the new settings are, and making them act. Those of the broker
//! are refused.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tramline_wire::{ErrorCode, Str};

use crate::admin::{Altered, Refusal, log_config};
use crate::broker_config;
use crate::config::BrokerConfig;
use crate::maintenance;
use crate::node::Node;
use crate::partition::Change;
use crate::topic_config::{self, Kind, MAX_VALUE, SETTINGS, default_value};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// What is to be done to one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Set(String),
    /// Back to the default.
    Remove,
    /// Add items to a list.
    Append(String),
    /// Take items from a list.
    Subtract(String),
}

/// Changes of one topic.
#[derive(Clone, Debug)]
pub(crate) struct Edits {
    /// Settings that are not named go back to their defaults.
    pub(crate) replace: bool,
    pub(crate) edits: Vec<(String, Edit)>,
}

impl Edits {
    /// What the overrides `current` become.
    pub(crate) fn apply(
        &self,
        current: &BTreeMap<String, String>,
        broker: &BrokerConfig,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let mut configs = if self.replace { BTreeMap::new() } else { current.clone() };
        let mut seen = BTreeSet::new();
        for (name, edit) in &self.edits {
            if !seen.insert(name) {
                let reason = format!("{name} is named twice");
                return Err(Refusal::new(ErrorCode::InvalidRequest, reason));
            }
            let invalid = |reason: String| Refusal::new(ErrorCode::InvalidConfig, reason);
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.name == name)
                .ok_or_else(|| invalid(format!("unknown topic setting {name}")))?;
            if let Edit::Append(items) | Edit::Subtract(items) = edit
                && items.len() > MAX_VALUE
            {
                return Err(invalid(format!("the items of {name} are too long")));
            }
            let value = match edit {
                Edit::Remove => {
                    configs.remove(name);
                    continue;
                }
                Edit::Set(value) => value.clone(),
                Edit::Append(_) | Edit::Subtract(_) if !matches!(setting.kind, Kind::List(_)) => {
                    return Err(invalid(format!("{name} is not a list")));
                }
                Edit::Append(items) => {
                    let now = configs.get(name).cloned().unwrap_or_else(|| default_value(setting, broker));
                    let added = items.split(',').filter(|item| !now.split(',').any(|known| known == *item));
                    join(now.split(',').chain(added))
                }
                Edit::Subtract(items) => {
                    let now = configs.get(name).cloned().unwrap_or_else(|| default_value(setting, broker));
                    join(now.split(',').filter(|item| !items.split(',').any(|gone| gone == *item)))
                }
            };
            if let Some(reason) = topic_config::refusal(name, &value) {
                return Err(invalid(reason));
            }
            configs.insert(name.clone(), value);
        }
        Ok(configs)
    }
}

fn join<'a>(items: impl Iterator<Item = &'a str>) -> String {
    items.filter(|item| !item.is_empty()).collect::<Vec<_>>().join(",")
}

/// A resource of a request: its kind and name.
pub(crate) type Resource = (i8, Str);

/// What is answered for one resource.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) resource: Resource,
    pub(crate) error_code: i16,
    pub(crate) error_message: Option<Str>,
}

/// Changes the settings of each resource of a request by itself, in their order; answered when they act and are on the
/// disk.
pub(crate) async fn alter_each(
    node: &Node,
    asked: Vec<(Resource, Result<Edits, Refusal>)>,
    validate_only: bool,
) -> Vec<Answer> {
    let mut seen = HashSet::new();
    let twice: HashSet<Resource> =
        asked.iter().map(|(resource, _)| resource).filter(|key| !seen.insert(*key)).cloned().collect();
    let mut answers = Vec::with_capacity(asked.len());
    for (resource, edits) in asked {
        let altered = match edits {
            Ok(_) if twice.contains(&resource) => {
                let reason = "the resource is named twice in the request";
                Err(Refusal::new(ErrorCode::InvalidRequest, reason))
            }
            Ok(edits) => alter(node, &resource, edits, validate_only).await,
            Err(refusal) => Err(refusal),
        };
        let refusal = altered.err();
        answers.push(Answer {
            resource,
            error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
            error_message: refusal.map(|refusal| refusal.message.into()),
        });
    }
    answers
}

async fn alter(node: &Node, resource: &Resource, edits: Edits, validate_only: bool) -> Result<(), Refusal> {
    match resource.0 {
        TOPIC => {}
        // Without a name: of all brokers.
        BROKER if resource.1.is_empty() || resource.1.parse() == Ok(node.node_id) => {
            return broker_config::refusal(&edits).map_or(Ok(()), Err);
        }
        BROKER => {
            let reason = format!("this broker is {} and not {}", node.node_id, resource.1);
            return Err(Refusal::new(ErrorCode::InvalidRequest, reason));
        }
        kind => {
            let reason = format!("resources of kind {kind} have no settings here");
            return Err(Refusal::new(ErrorCode::InvalidRequest, reason));
        }
    }
    let name = resource.1.clone();
    let altered = node.administer(move |admin| admin.alter(&name, &edits, validate_only)).await?;
    let Some(Altered { partitions, settings }) = altered else { return Ok(()) };
    for partition in partitions {
        let change = Change::Configure(log_config(settings, node.config.presize_bytes));
        if let Err(failure) = maintenance::change(&node.engine, &partition, change).await {
            let reason = format!("{}: {failure}; the next start will use the settings", partition.id);
            return Err(Refusal::new(failure.code(), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Edit, Edits};
    use crate::config::BrokerConfig;

    fn apply(replace: bool, edits: &[(&str, Edit)]) -> Result<String, i16> {
        let current = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
        let edits = edits.iter().map(|(name, edit)| ((*name).to_owned(), edit.clone())).collect();
        let result = Edits { replace, edits }.apply(&current, &BrokerConfig::default());
        let line = |configs: BTreeMap<String, String>| {
            configs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        result.map(line).map_err(|refusal| refusal.code.code())
    }

    fn list(items: &str) -> String {
        items.to_owned()
    }

    #[test]
    fn single_settings_are_set_and_go_back_to_their_defaults() {
        let set = ("segment.ms", Edit::Set("7".to_owned()));
        assert_eq!(apply(false, std::slice::from_ref(&set)).unwrap(), "retention.ms=5 segment.ms=7");
        assert_eq!(apply(true, &[set]).unwrap(), "segment.ms=7");
        assert_eq!(apply(false, &[("retention.ms", Edit::Remove)]).unwrap(), "");
        assert_eq!(apply(false, &[("segment.ms", Edit::Set("x".to_owned()))]), Err(40));
        assert_eq!(apply(false, &[("no.such", Edit::Remove)]), Err(40));
        assert_eq!(apply(false, &[("segment.ms", Edit::Remove), ("segment.ms", Edit::Remove)]), Err(42));
    }

    #[test]
    fn items_are_added_to_lists_and_taken_from_them_starting_from_the_default() {
        let policy = |edit| apply(true, &[("cleanup.policy", edit)]);
        assert_eq!(policy(Edit::Append(list("compact"))).unwrap(), "cleanup.policy=delete,compact");
        assert_eq!(policy(Edit::Append(list("delete"))).unwrap(), "cleanup.policy=delete");
        assert_eq!(policy(Edit::Subtract(list("delete"))).unwrap(), "cleanup.policy=");
        assert_eq!(policy(Edit::Append(list("nonsense"))), Err(40));
        assert_eq!(apply(true, &[("segment.ms", Edit::Append(list("1")))]), Err(40));
    }
}
