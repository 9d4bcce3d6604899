//! Writes the Rust module of one schema.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use super::schema::{Field, Kind, Schema, Type, Versions};

/// One struct of a message with the versions in which it can occur.
struct Struct<'a> {
    name: String,
    fields: &'a [Field],
    versions: Versions,
}

struct Emitter<'a> {
    schema: &'a Schema,
    flexible: Versions,
    structs: Vec<Struct<'a>>,
    out: String,
}

/// The module for `schema`, not yet formatted.
pub fn module(schema: &Schema) -> Result<String> {
    let versions = schema.versions()?;
    let mut emitter =
        Emitter { schema, flexible: schema.flexible()?, structs: Vec::new(), out: String::new() };
    emitter.collect(&schema.name, &schema.fields, versions)?;
    emitter.head()?;
    for index in 0..emitter.structs.len() {
        emitter.declaration(index)?;
        emitter.codec(index)?;
    }
    Ok(emitter.out)
}

impl<'a> Emitter<'a> {
    /// Finds the structs of a message, the outermost first.
    fn collect(&mut self, name: &str, fields: &'a [Field], versions: Versions) -> Result<()> {
        if let Some(known) = self.structs.iter_mut().find(|s| s.name == name) {
            let hull = known.versions.hull(versions);
            if hull == known.versions {
                return Ok(());
            }
            known.versions = hull;
        } else {
            self.structs.push(Struct { name: name.to_owned(), fields, versions });
        }
        for field in fields {
            let inner = match field.kind()? {
                Type::Struct(inner) => inner,
                Type::Array(element) => match *element {
                    Type::Struct(inner) => inner,
                    _ => continue,
                },
                _ => continue,
            };
            let common = self.schema.common_structs.iter().find(|s| s.name == inner);
            let nested: &[Field] = common.map_or(&field.fields, |s| &s.fields);
            ensure!(!nested.is_empty(), "{name}.{}: struct {inner} has no fields", field.name);
            self.collect(&inner, nested, versions.and(field.versions()?))?;
        }
        Ok(())
    }

    fn head(&mut self) -> Result<()> {
        let Schema { name, kind, .. } = self.schema;
        let stable = self.schema.stable_versions()?;
        let impls = match kind {
            Kind::Request => {
                let api = name.strip_suffix("Request").context("a request's name ends in Request")?;
                format!(" request {api} -> super::{api}Response")
            }
            _ => String::new(),
        };
        writeln!(self.out, "//! `{name}`, {stable}.\n//!\n//! {}\n", super::GENERATED)?;
        writeln!(self.out, "use super::codec::*;\n")?;
        writeln!(self.out, "message!({name}, {}..={}{impls});\n", stable.first, stable.last)?;
        Ok(())
    }

    fn declaration(&mut self, index: usize) -> Result<()> {
        let Struct { name, fields, versions } = &self.structs[index];
        let out = &mut self.out;
        let mut derive = "Clone, Debug, PartialEq";
        let defaults = fields.iter().map(default_of).collect::<Result<Vec<_>>>()?;
        if defaults.iter().all(Default::is_rusts) {
            derive = "Clone, Debug, Default, PartialEq";
        }
        let what = if index == 0 { "The message" } else { "The struct" };
        writeln!(out, "/// {what} `{name}`, {versions}.\n#[derive({derive})]\npub struct {name} {{")?;
        for field in *fields {
            let (snake, kind) = (snake_case(&field.name), rust_type(field)?);
            let tag = field.tag.map_or(String::new(), |tag| format!(", tag {tag}"));
            let seen = field.versions()?;
            writeln!(out, "/// The `{snake}` field, {seen}{tag}.\npub {}: {kind},", escaped(&snake))?;
        }
        writeln!(out, "}}\n")?;
        if derive.contains("Default") {
            return Ok(());
        }
        writeln!(out, "impl Default for {name} {{\nfn default() -> Self {{\nSelf {{")?;
        for (field, default) in fields.iter().zip(&defaults) {
            writeln!(out, "{}: {},", escaped(&snake_case(&field.name)), default.expression())?;
        }
        writeln!(out, "}}\n}}\n}}\n")?;
        Ok(())
    }

    fn codec(&mut self, index: usize) -> Result<()> {
        let Struct { name, fields, versions } = &self.structs[index];
        let flexible = condition(self.flexible, *versions);
        let (mut read, mut write) = (Steps::default(), Steps::default());
        let (mut read_tags, mut write_tags) = (String::new(), Steps::default());
        for field in *fields {
            let context = FieldContext::new(self, index, field)?;
            context.read(&mut read, &mut read_tags)?;
            context.write(&mut write, &mut write_tags)?;
        }
        if flexible != "false" {
            let read_section = if read_tags.is_empty() {
                "r.skip_tags()?;".to_owned()
            } else {
                format!("r.tags(|tag, r| {{ match tag {{ {read_tags} _ => {{}} }} Ok(()) }})?;")
            };
            let write_section = if write_tags.0.is_empty() {
                "w.no_tags();".to_owned()
            } else {
                format!("let mut tags = Tags::default();\n{} w.tags(tags);", write_tags.code())
            };
            read.push(named(&flexible), &read_section, "");
            write.push(named(&flexible), &write_section, "");
        }
        let (read, write) = (read.code(), write.code());
        let binding = |body: &str| match named(&flexible) {
            "flexible" if uses(body, "flexible") => format!("let flexible = {flexible};\n"),
            _ => String::new(),
        };
        let (read_binding, write_binding) = (binding(&read), binding(&write));
        let argument = |body: &str, binding: &str| match uses(body, "version") || !binding.is_empty() {
            true => "version",
            false => "_version",
        };
        let (read_version, write_version) =
            (argument(&read, &read_binding), argument(&write, &write_binding));
        let smallest = self.smallest(fields, *versions, 0)?;
        writeln!(
            self.out,
            "impl Wire for {name} {{\nconst MIN_SIZE: usize = {smallest};\n\n\
             fn read(r: &mut Reader, {read_version}: i16) -> Result<Self, DecodeError> {{\n\
             {read_binding}let mut m = Self::default();\n{read}Ok(m)\n}}\n\n\
             fn write(&self, w: &mut Writer, {write_version}: i16) -> Result<(), EncodeError> {{\n\
             {write_binding}{write}Ok(())\n}}\n}}\n"
        )?;
        Ok(())
    }

    /// The fewest bytes these fields take in any of the versions.
    fn smallest(&self, fields: &[Field], versions: Versions, depth: usize) -> Result<usize> {
        ensure!(depth < 16, "structs of {} nest without end", self.schema.name);
        let mut best = usize::MAX;
        for version in versions.first..=versions.last {
            let flexible = self.flexible.contains(version);
            let mut size = usize::from(flexible);
            for field in fields {
                let absent = !field.versions()?.contains(version) || field.tagged()?.contains(version);
                if !absent {
                    size += self.smallest_of(field, flexible, version, depth)?;
                }
            }
            best = best.min(size);
        }
        Ok(best.max(1))
    }

    fn smallest_of(&self, field: &Field, flexible: bool, version: i16, depth: usize) -> Result<usize> {
        let flexible = field.flexible()?.map_or(flexible, |own| own.contains(version));
        Ok(match field.kind()? {
            Type::Bool | Type::Number("i8") => 1,
            Type::Number("i16" | "u16") => 2,
            Type::Number("i32" | "u32") => 4,
            Type::Number(_) => 8,
            Type::Uuid => 16,
            Type::String if !flexible => 2,
            Type::Bytes | Type::Records | Type::Array(_) if !flexible => 4,
            Type::Struct(_) if field.nullable()?.contains(version) => 1,
            Type::Struct(name) => {
                let only = Versions { first: version, last: version };
                let found = self.structs.iter().find(|s| s.name == name).context("a struct was collected")?;
                self.smallest(found.fields, only, depth + 1)?
            }
            _ => 1,
        })
    }
}

/// What the statements for one field need to know.
struct FieldContext<'a> {
    field: &'a Field,
    /// `Message.field` for error texts.
    path: String,
    /// The place of the value, without `self.` or `m.`.
    place: String,
    kind: Type,
    present: String,
    tagged: Option<String>,
    nullable: Option<String>,
    flexible: String,
}

impl<'a> FieldContext<'a> {
    fn new(emitter: &Emitter<'_>, index: usize, field: &'a Field) -> Result<Self> {
        let Struct { name, versions, .. } = &emitter.structs[index];
        let (own, tagged, nullable) = (field.versions()?, field.tagged()?, field.nullable()?);
        let seen = versions.and(own);
        ensure!(
            tagged.and(seen).is_empty() || (tagged.covers(seen) && field.tag.is_some()),
            "{name}.{}: tagged in some of its versions only",
            field.name
        );
        let flexible = match field.flexible()? {
            Some(own) => condition(own, seen),
            None => named(&condition(emitter.flexible, seen)).to_owned(),
        };
        let snake = snake_case(&field.name);
        let outer = if index == 0 { String::new() } else { format!("{}.", emitter.schema.name) };
        Ok(Self {
            field,
            path: format!("{outer}{name}.{snake}"),
            place: escaped(&snake),
            kind: field.kind()?,
            present: condition(own, *versions),
            tagged: (!tagged.and(seen).is_empty())
                .then(|| condition(own.and(tagged), versions.and(emitter.flexible))),
            nullable: (!nullable.is_empty()).then(|| condition(nullable, seen)),
            flexible,
        })
    }

    fn read(&self, body: &mut Steps, tags: &mut String) -> Result<()> {
        let value = self.read_value()?;
        let place = &self.place;
        match &self.tagged {
            None => body.push(&self.present, &format!("m.{place} = {value}?;"), ""),
            Some(when) => {
                let tag = self.field.tag.context("a tagged field has a tag")?;
                let guard = if when == "true" { String::new() } else { format!(" if {when}") };
                writeln!(tags, "{tag}{guard} => m.{place} = {value}?,")?;
            }
        }
        Ok(())
    }

    fn read_value(&self) -> Result<String> {
        let flexible = &self.flexible;
        let lengths = match &self.nullable {
            Some(nullable) => format!("{flexible}, {nullable}"),
            None => flexible.clone(),
        };
        let opt = if self.nullable.is_some() { "opt_" } else { "" };
        Ok(match &self.kind {
            Type::Bool => "r.bool()".to_owned(),
            Type::Number(name) => format!("r.{name}()"),
            Type::Uuid => "r.uuid()".to_owned(),
            Type::String => format!("r.{opt}string({lengths})"),
            Type::Bytes => format!("r.{opt}bytes({lengths})"),
            Type::Records => match &self.nullable {
                Some(nullable) => format!("r.opt_bytes({flexible}, {nullable})"),
                None => format!("r.opt_bytes({flexible}, false)"),
            },
            Type::Struct(_) => match &self.nullable {
                Some(nullable) => format!("r.opt_struct({nullable}, version)"),
                None => "Wire::read(r, version)".to_owned(),
            },
            Type::Array(element) => match &**element {
                Type::Struct(_) => format!("r.{opt}structs({lengths}, version)"),
                Type::String => format!("r.{opt}array({lengths}, 1, |r| r.string({flexible}))"),
                Type::Bytes => format!("r.{opt}array({lengths}, 1, |r| r.bytes({flexible}))"),
                Type::Bool => format!("r.{opt}array({lengths}, 1, Reader::bool)"),
                Type::Uuid => format!("r.{opt}array({lengths}, 16, Reader::uuid)"),
                Type::Number(name) => format!("r.{opt}array({lengths}, size_of::<{name}>(), Reader::{name})"),
                Type::Records | Type::Array(_) => bail!("{}: array of {element:?}", self.path),
            },
        })
    }

    fn write(&self, body: &mut Steps, tags: &mut Steps) -> Result<()> {
        let (path, place) = (&self.path, &self.place);
        let differs = default_of(self.field)?.differs(&format!("self.{place}"));
        let value = self.write_value()?;
        let refusal = match self.field.ignorable {
            true => String::new(),
            false => format!("w.absent(\"{path}\", version, {differs})?;"),
        };
        let Some(when) = &self.tagged else {
            body.push(&self.present, &value, &refusal);
            return Ok(());
        };
        let tag = self.field.tag.context("a tagged field has a tag")?;
        let value = match value.strip_suffix("?;") {
            Some(fallible) => fallible.to_owned(),
            None => format!("{{ {value} Ok(()) }}"),
        };
        let both = if when == "true" { differs } else { format!("{when} && {differs}") };
        tags.push(&both, &format!("tags.put({tag}, |w| {value})?;"), "");
        body.push(&self.present, "", &refusal);
        Ok(())
    }

    fn write_value(&self) -> Result<String> {
        let (flexible, path, place) = (&self.flexible, &self.path, &self.place);
        let opt = if self.nullable.is_some() { "opt_" } else { "" };
        let lengths = match &self.nullable {
            Some(nullable) => format!("{flexible}, {nullable}"),
            None => flexible.clone(),
        };
        let array = |element: &str| {
            format!("w.{opt}array(\"{path}\", &self.{place}, {lengths}, |w, item| {element})?;")
        };
        Ok(match &self.kind {
            Type::Bool => format!("w.bool(self.{place});"),
            Type::Number(name) => format!("w.{name}(self.{place});"),
            Type::Uuid => format!("w.uuid(self.{place});"),
            Type::String => format!("w.{opt}string(\"{path}\", &self.{place}, {lengths})?;"),
            Type::Bytes => format!("w.{opt}bytes(\"{path}\", &self.{place}, {lengths})?;"),
            Type::Records => {
                let nullable = self.nullable.as_deref().unwrap_or("false");
                format!("w.opt_bytes(\"{path}\", &self.{place}, {flexible}, {nullable})?;")
            }
            Type::Struct(_) => match &self.nullable {
                Some(nullable) => format!("w.opt_struct(\"{path}\", &self.{place}, {nullable}, version)?;"),
                None => format!("self.{place}.write(w, version)?;"),
            },
            Type::Array(element) => match &**element {
                Type::Struct(_) => format!("w.{opt}structs(\"{path}\", &self.{place}, {lengths}, version)?;"),
                Type::String => array(&format!("w.string(\"{path}\", item, {flexible})")),
                Type::Bytes => array(&format!("w.bytes(\"{path}\", item, {flexible})")),
                Type::Bool => array("{ w.bool(*item); Ok(()) }"),
                Type::Uuid => array("{ w.uuid(*item); Ok(()) }"),
                Type::Number(name) => array(&format!("{{ w.{name}(*item); Ok(()) }}")),
                Type::Records | Type::Array(_) => bail!("{path}: array of {element:?}"),
            },
        })
    }
}

/// The default of a field.
enum Default {
    /// A Rust expression that can be compared with `!=`.
    Value(String),
    /// `None`.
    Null,
    /// An empty string, sequence of bytes or array; `true` when inside of `Some`.
    Empty(&'static str, bool),
    /// The default of a struct.
    Struct,
}

impl Default {
    /// Whether `derive(Default)` gives this value.
    fn is_rusts(&self) -> bool {
        match self {
            Self::Value(text) => matches!(text.as_str(), "0" | "false" | "Uuid::ZERO" | "0.0"),
            Self::Null | Self::Struct => true,
            Self::Empty(_, inside) => !inside,
        }
    }

    fn expression(&self) -> String {
        match self {
            Self::Value(text) => text.clone(),
            Self::Null => "None".to_owned(),
            Self::Empty(kind, false) => format!("{kind}::new()"),
            Self::Empty(kind, true) => format!("Some({kind}::new())"),
            Self::Struct => "Default::default()".to_owned(),
        }
    }

    /// An expression that says whether `place` holds something else.
    fn differs(&self, place: &str) -> String {
        match self {
            Self::Value(text) if text == "false" => place.to_owned(),
            Self::Value(text) if text == "true" => format!("!{place}"),
            Self::Value(text) => format!("{place} != {text}"),
            Self::Null => format!("{place}.is_some()"),
            Self::Empty(_, false) => format!("!{place}.is_empty()"),
            Self::Empty(_, true) => format!("{place}.as_ref().is_none_or(|value| !value.is_empty())"),
            Self::Struct => format!("{place} != Default::default()"),
        }
    }
}

fn default_of(field: &Field) -> Result<Default> {
    let given = field.default();
    let nullable = !field.nullable()?.is_empty();
    let kind = field.kind()?;
    Ok(match (&kind, given.as_deref()) {
        (Type::Records, None) | (_, Some("null")) => {
            ensure!(nullable || kind == Type::Records, "{}: default null but never nullable", field.name);
            Default::Null
        }
        (Type::Bool, given) => Default::Value(given.unwrap_or("false").to_owned()),
        (Type::Uuid, None) => Default::Value("Uuid::ZERO".to_owned()),
        (Type::Number("f64"), given) => {
            let value: f64 = given.unwrap_or("0").parse()?;
            Default::Value(format!("{value:?}"))
        }
        (Type::Number(_), given) => Default::Value(number(given.unwrap_or("0"))?.to_string()),
        (Type::String, None | Some("")) => Default::Empty("Str", nullable),
        (Type::Bytes, None | Some("")) => Default::Empty("Bytes", nullable),
        (Type::Array(_), None | Some("")) => Default::Empty("Vec", nullable),
        (Type::Struct(_), None) => {
            ensure!(!nullable, "{}: a nullable struct whose default is not null", field.name);
            Default::Struct
        }
        (kind, Some(text)) => bail!("{}: default `{text}` for {kind:?}", field.name),
    })
}

fn number(text: &str) -> Result<i64> {
    Ok(match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16)?,
        None => text.parse()?,
    })
}

fn rust_type(field: &Field) -> Result<String> {
    fn of(kind: &Type) -> String {
        match kind {
            Type::Bool => "bool".to_owned(),
            Type::Number(name) => (*name).to_owned(),
            Type::Uuid => "Uuid".to_owned(),
            Type::String => "Str".to_owned(),
            Type::Bytes => "Bytes".to_owned(),
            Type::Records => "Option<Bytes>".to_owned(),
            Type::Array(element) => format!("Vec<{}>", of(element)),
            Type::Struct(name) => name.clone(),
        }
    }
    let kind = field.kind()?;
    let plain = of(&kind);
    Ok(match field.nullable()?.is_empty() || kind == Type::Records {
        true => plain,
        false => format!("Option<{plain}>"),
    })
}

/// A Rust condition on `version` that holds for `wanted`, given that the version is one of `within`.
fn condition(wanted: Versions, within: Versions) -> String {
    let both = wanted.and(within);
    if both.is_empty() {
        "false".to_owned()
    } else if wanted.covers(within) {
        "true".to_owned()
    } else if both.first == both.last {
        format!("version == {}", both.first)
    } else if both.last == within.last {
        format!("version >= {}", both.first)
    } else if both.first == within.first {
        format!("version <= {}", both.last)
    } else {
        format!("({}..={}).contains(&version)", both.first, both.last)
    }
}

/// A condition on the flexible versions, by the name its value is bound to.
fn named(condition: &str) -> &str {
    match condition {
        "true" | "false" => condition,
        _ => "flexible",
    }
}

/// The opposite of a condition made by [`condition`].
fn negated(condition: &str) -> String {
    match condition.split_once(' ') {
        Some(("version", rest)) if rest.starts_with(">=") => format!("version <{}", &rest[2..]),
        Some(("version", rest)) if rest.starts_with("<=") => format!("version >{}", &rest[2..]),
        Some(("version", rest)) if rest.starts_with("==") => format!("version !={}", &rest[2..]),
        _ => format!("!{condition}"),
    }
}

/// Statements in order, each with the condition under which it runs and what runs otherwise.
#[derive(Default)]
struct Steps(Vec<(String, String, String)>);

impl Steps {
    /// Adds a statement; joins it with the one before when their conditions are the same.
    fn push(&mut self, condition: &str, then: &str, otherwise: &str) {
        match self.0.last_mut() {
            Some((same, before, before_otherwise)) if same == condition => {
                before.push('\n');
                before.push_str(then);
                before_otherwise.push_str(otherwise);
            }
            _ => self.0.push((condition.to_owned(), then.to_owned(), otherwise.to_owned())),
        }
    }

    fn code(&self) -> String {
        let mut out = String::new();
        for (condition, then, otherwise) in &self.0 {
            let text = match (condition.as_str(), then.trim(), otherwise.as_str()) {
                ("true", "", _) | (_, "", "") | ("false", _, "") => continue,
                ("true", then, _) => then.to_owned(),
                ("false", _, otherwise) => otherwise.to_owned(),
                (condition, "", otherwise) => format!("if {} {{ {otherwise} }}", negated(condition)),
                (condition, then, "") => format!("if {condition} {{ {then} }}"),
                (condition, then, otherwise) => format!("if {condition} {{ {then} }} else {{ {otherwise} }}"),
            };
            out.push_str(&text);
            out.push('\n');
        }
        out
    }
}

/// Whether the code uses the variable of this name; a field or a path of that name is not a use.
fn uses(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    code.match_indices(name).any(|(place, _)| {
        let behind = &code[place + name.len()..];
        !code[..place].ends_with(is_part) && !behind.starts_with(|c| is_part(c) && c != '.')
    })
}

/// `HighWatermark` as `high_watermark`.
pub fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    let letters: Vec<char> = name.chars().collect();
    for (place, letter) in letters.iter().enumerate() {
        let before = place.checked_sub(1).map(|p| letters[p]);
        let word_starts = before.is_some_and(|b| !b.is_uppercase())
            || (before.is_some() && letters.get(place + 1).is_some_and(|next| next.is_lowercase()));
        if letter.is_uppercase() && word_starts {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

fn escaped(name: &str) -> String {
    match name {
        "type" | "match" | "ref" | "move" | "use" => format!("r#{name}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
