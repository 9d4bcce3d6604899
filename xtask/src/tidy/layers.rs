//! Which crate of the workspace may use which other one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

/// The crates each crate may depend on, normally and in its tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("core", &["wire"]),
    ("log", &["wire"]),
    ("client", &["core", "wire"]),
    ("processor", &["client", "core", "wire"]),
    ("queue", &["client", "core", "wire"]),
    ("broker", &["core", "log", "wire"]),
    ("tramline", &["wire", "core", "log", "client", "processor", "queue", "broker"]),
    ("cli", &["tramline"]),
    ("sim", &["wire", "core", "log", "client", "processor", "queue", "broker", "tramline"]),
    ("fuzzing", &["wire", "core", "log"]),
    ("xtask", &[]),
];

/// Reads the manifests and names each dependency that is not allowed.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut manifests = vec![("xtask".to_owned(), "xtask/Cargo.toml".to_owned())];
    for entry in fs::read_dir(root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = format!("crates/{name}/Cargo.toml");
        if root.join(&path).exists() {
            manifests.push((name, path));
        }
    }
    for (name, path) in manifests {
        let text = fs::read_to_string(root.join(&path))?;
        for used in forbidden(&name, &text).with_context(|| path.clone())? {
            let line = text.lines().position(|line| line.starts_with(&used)).map_or(1, |line| line + 1);
            findings.push(Finding { path: path.clone(), line, what: format!("{name} must not use {used}") });
        }
    }
    Ok(findings)
}

/// The packages of ours that the manifest of the crate in folder `name` lists without being allowed to.
fn forbidden(name: &str, manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse()?;
    let allowed = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, allowed)| *allowed);
    let allowed = allowed.with_context(|| format!("{name} has no place among the layers"))?;
    let mut tables: Vec<&toml::Value> = Vec::new();
    let per_target =
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    for scope in per_target.filter_map(toml::Value::as_table).chain([&manifest]) {
        let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
        tables.extend(kinds.iter().filter_map(|kind| scope.get(*kind)));
    }
    let mut found = Vec::new();
    for (key, value) in tables.into_iter().filter_map(toml::Value::as_table).flatten() {
        let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
        let Some(layer) = layer_of(package) else { continue };
        if layer != name && !allowed.contains(&layer) {
            found.push(package.to_owned());
        }
    }
    Ok(found)
}

/// The folder of a package of ours.
fn layer_of(package: &str) -> Option<&str> {
    match package {
        "tramline" | "xtask" => Some(package),
        _ => package.strip_prefix("tramline-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_of_this_workspace_keep_to_their_layers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let findings: Vec<String> = check(root).unwrap().iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{findings:#?}");
    }

    #[test]
    fn a_step_upwards_is_found_in_every_kind_of_table() {
        for table in
            ["dependencies", "dev-dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"]
        {
            let manifest = format!("[{table}]\ntramline-log = {{ path = \"../log\" }}\nbytes = \"1\"\n");
            assert_eq!(forbidden("core", &manifest).unwrap(), ["tramline-log"]);
            assert!(forbidden("broker", &manifest).unwrap().is_empty());
        }
        let renamed = "[dependencies]\nx = { package = \"tramline-broker\", version = \"1\" }";
        assert_eq!(forbidden("client", renamed).unwrap(), ["tramline-broker"]);
        assert!(forbidden("newcomer", "").is_err());
    }
}
