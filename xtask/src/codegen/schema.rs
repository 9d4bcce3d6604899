//! Kafka's message schemas: JSON with `//` comments, read into plain structs.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A closed range of versions; empty when `first > last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The lowest version in the range.
    pub first: i16,
    /// The highest version in the range.
    pub last: i16,
}

impl Versions {
    /// No version at all.
    pub const NONE: Self = Self { first: 0, last: -1 };

    /// Reads `none`, `3`, `3-5` or `3+`.
    pub fn parse(text: &str) -> Result<Self> {
        let number = |part: &str| part.trim().parse::<i16>().with_context(|| format!("versions `{text}`"));
        if text == "none" {
            return Ok(Self::NONE);
        }
        if let Some(first) = text.strip_suffix('+') {
            return Ok(Self { first: number(first)?, last: i16::MAX });
        }
        if let Some((first, last)) = text.split_once('-') {
            return Ok(Self { first: number(first)?, last: number(last)? });
        }
        let only = number(text)?;
        Ok(Self { first: only, last: only })
    }

    /// The versions in both ranges.
    pub fn and(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.min(other.last) }
    }

    /// The smallest range that holds both.
    pub fn hull(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Whether there is no version in the range.
    pub fn is_empty(self) -> bool {
        self.first > self.last
    }

    /// Whether `version` is in the range.
    pub fn contains(self, version: i16) -> bool {
        (self.first..=self.last).contains(&version)
    }

    /// Whether every version of `other` is in this range.
    pub fn covers(self, other: Self) -> bool {
        other.is_empty() || (self.contains(other.first) && self.contains(other.last))
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (first, i16::MAX) => write!(f, "versions {first}+"),
            (first, last) if first == last => write!(f, "version {first}"),
            (first, last) => write!(f, "versions {first} to {last}"),
        }
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Sent by a client.
    Request,
    /// The answer to a request.
    Response,
    /// What stands before a request or a response.
    Header,
    /// A value that travels inside other messages.
    Data,
}

/// One schema file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schema {
    /// The number of the API, for requests and responses.
    pub api_key: Option<i16>,
    /// What the message is for.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The name of the message.
    pub name: String,
    valid_versions: String,
    #[serde(default = "none")]
    flexible_versions: String,
    #[serde(default)]
    latest_version_unstable: bool,
    /// The fields in their order on the wire.
    #[serde(default)]
    pub fields: Vec<Field>,
    /// Structs that several fields use.
    #[serde(default)]
    pub common_structs: Vec<CommonStruct>,
}

/// A struct that several fields of one message use.
#[derive(Debug, Deserialize)]
pub struct CommonStruct {
    /// The name of the struct.
    pub name: String,
    /// The fields in their order on the wire.
    pub fields: Vec<Field>,
}

/// One field.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Field {
    /// The name as the schema writes it.
    pub name: String,
    #[serde(rename = "type")]
    type_name: String,
    versions: Option<String>,
    #[serde(default = "none")]
    nullable_versions: String,
    #[serde(default = "none")]
    tagged_versions: String,
    flexible_versions: Option<String>,
    /// The number of the tagged field.
    pub tag: Option<u32>,
    /// Whether a value may be left out silently where a version lacks the field.
    #[serde(default)]
    pub ignorable: bool,
    default: Option<serde_json::Value>,
    /// The fields of the struct, when this is where the struct is written down.
    #[serde(default)]
    pub fields: Vec<Field>,
}

fn none() -> String {
    "none".to_owned()
}

/// The type of a field or of an array's element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `bool`.
    Bool,
    /// A number of this Rust type.
    Number(&'static str),
    /// `uuid`.
    Uuid,
    /// `string`.
    String,
    /// `bytes`.
    Bytes,
    /// `records`.
    Records,
    /// An array of elements.
    Array(Box<Type>),
    /// A struct of this name.
    Struct(String),
}

impl Type {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text.trim() {
            "bool" => Self::Bool,
            "int8" => Self::Number("i8"),
            "int16" => Self::Number("i16"),
            "uint16" => Self::Number("u16"),
            "int32" => Self::Number("i32"),
            "uint32" => Self::Number("u32"),
            "int64" => Self::Number("i64"),
            "float64" => Self::Number("f64"),
            "uuid" => Self::Uuid,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "records" => Self::Records,
            other => match other.strip_prefix("[]") {
                Some(element) => Self::Array(Box::new(Self::parse(element)?)),
                None if other.starts_with(|c: char| c.is_ascii_uppercase()) => Self::Struct(other.to_owned()),
                None => bail!("type `{other}` is not known"),
            },
        })
    }
}

impl Schema {
    /// Reads one schema file.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(&without_comments(text))?)
    }

    /// The versions the schema describes.
    pub fn versions(&self) -> Result<Versions> {
        Versions::parse(&self.valid_versions)
    }

    /// The versions that are settled: the last one may be marked as unstable.
    pub fn stable_versions(&self) -> Result<Versions> {
        let all = self.versions()?;
        Ok(Versions { last: all.last - i16::from(self.latest_version_unstable), ..all })
    }

    /// The versions with compact lengths and tagged fields.
    pub fn flexible(&self) -> Result<Versions> {
        Versions::parse(&self.flexible_versions)
    }
}

impl Field {
    /// The type of the field.
    pub fn kind(&self) -> Result<Type> {
        Type::parse(&self.type_name)
    }

    /// The versions that have the field.
    pub fn versions(&self) -> Result<Versions> {
        Versions::parse(self.versions.as_deref().unwrap_or(&self.tagged_versions))
    }

    /// The versions in which the value may be null.
    pub fn nullable(&self) -> Result<Versions> {
        Versions::parse(&self.nullable_versions)
    }

    /// The versions in which the field is a tagged one.
    pub fn tagged(&self) -> Result<Versions> {
        Versions::parse(&self.tagged_versions)
    }

    /// The versions in which the field's length is compact, where that differs from the message's.
    pub fn flexible(&self) -> Result<Option<Versions>> {
        self.flexible_versions.as_deref().map(Versions::parse).transpose()
    }

    /// The default as the schema writes it.
    pub fn default(&self) -> Option<String> {
        self.default.as_ref().map(|value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }
}

/// The text without `//` comments; a `//` inside of a string stays.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut quoted = false;
        let mut previous = ' ';
        let mut end = line.len();
        for (place, letter) in line.char_indices() {
            match letter {
                '"' if previous != '\\' => quoted = !quoted,
                '/' if previous == '/' && !quoted => {
                    end = place - 1;
                    break;
                }
                _ => {}
            }
            previous = letter;
        }
        out.push_str(&line[..end]);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_ends_at_the_line_and_a_quoted_slash_is_none() {
        let text =
            "// licence\n{ \"type\": \"data\", \"name\": \"A//B\", // why\n \"validVersions\": \"0-3\" }";
        let schema = Schema::parse(text).unwrap();
        assert_eq!(schema.name, "A//B");
        assert_eq!(schema.versions().unwrap(), Versions { first: 0, last: 3 });
        assert!(schema.flexible().unwrap().is_empty());
    }

    #[test]
    fn an_unstable_last_version_is_not_offered() {
        let text =
            r#"{ "type": "data", "name": "A", "validVersions": "0-6", "latestVersionUnstable": true }"#;
        assert_eq!(Schema::parse(text).unwrap().stable_versions().unwrap(), Versions { first: 0, last: 5 });
    }

    #[test]
    fn version_ranges_are_read_in_all_four_forms() {
        assert!(Versions::parse("none").unwrap().is_empty());
        assert_eq!(Versions::parse("4").unwrap(), Versions { first: 4, last: 4 });
        assert_eq!(Versions::parse("4-7").unwrap(), Versions { first: 4, last: 7 });
        assert!(Versions::parse("4+").unwrap().covers(Versions { first: 4, last: 90 }));
        assert!(Versions::parse("x").is_err());
    }
}
