//! The new package's manifest: the template's dependencies with the checkout's versions, and those parts of its profile that apply.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use toml::{Table, Value};

/// The template's own manifest: its dependencies are the new package's.
const TEMPLATE: &str = include_str!("../../../template/Cargo.toml");

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

/// # Errors
/// The checkout's manifest or lock file is not what it should be.
pub(super) fn of(name: &str, checkout: &Path, workspace: &str, lock: &str) -> anyhow::Result<String> {
    let workspace: Table = workspace.parse().context("cannot read the checkout's Cargo.toml")?;
    let lock: Lock = toml::from_str(lock).context("cannot read the checkout's Cargo.lock")?;
    let shared = workspace.get("workspace").context("the checkout's Cargo.toml is no workspace's")?;
    let of_workspace = |table: &str, name: &str| {
        let found = shared.get(table).and_then(|table| table.get(name)).cloned();
        found.with_context(|| format!("the checkout's Cargo.toml has no {name} in workspace.{table}"))
    };
    let template: Table = TEMPLATE.parse().context("cannot read the template's Cargo.toml")?;
    let names: Vec<&str> =
        template["dependencies"].as_table().into_iter().flat_map(Table::keys).map(|name| &**name).collect();
    let mut dependencies = Table::new();
    for &name in &names {
        let mut dependency = of_workspace("dependencies", name)?;
        if let Some(Value::String(path)) = dependency.get_mut("path") {
            *path = checkout.join(&*path).display().to_string();
        }
        dependencies.insert(name.to_owned(), dependency);
    }
    let mut profile = workspace.get("profile").cloned().unwrap_or_else(|| table([]));
    let needed = needed(&lock, names);
    if let Some(packages) = profile.get_mut("dev").and_then(|dev| dev.get_mut("package")).and_then(Value::as_table_mut)
    {
        packages.retain(|package, _| package == "*" || needed.contains(package));
    }
    let package = table([
        ("name", Value::String(name.to_owned())),
        ("version", Value::String("0.1.0".to_owned())),
        ("edition", of_workspace("package", "edition")?),
        ("publish", Value::Boolean(false)),
    ]);
    let sections = [
        ("package", package),
        ("dependencies", Value::Table(dependencies)),
        ("workspace", table([])),
        ("profile", profile),
    ];
    let texts: Result<Vec<String>, _> =
        sections.map(|section| toml::to_string(&table([section]))).into_iter().collect();
    Ok(texts?.join("\n"))
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Table(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The names of all crates that the package needs: cargo warns of a profile for any other.
fn needed<'a>(lock: &'a Lock, mut next: Vec<&'a str>) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    while let Some(name) = next.pop() {
        if needed.insert(name) {
            let packages = lock.package.iter().filter(|package| package.name == name);
            next.extend(packages.flat_map(|package| &package.dependencies).filter_map(|of| of.split(' ').next()));
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_versions_and_the_profiles_of_the_crates_that_it_needs() {
        let workspace = "[workspace.package]\nedition = \"2024\"\n[workspace.dependencies]\nanyhow = \"1\"\nclap = { version = \"4\", features = [\"derive\"] }\n\
                         tch = \"0.24\"\nlockstep = { path = \"crates/lockstep\" }\nserde = \"1\"\n[profile.dev]\ndebug = \"line-tables-only\"\n[profile.dev.package.\"*\"]\nopt-level = 1\n\
                         [profile.dev.package.zip]\nopt-level = 3\n[profile.dev.package.other]\nopt-level = 2\n";
        let lock = "[[package]]\nname = \"lockstep\"\ndependencies = [\"tch\"]\n[[package]]\nname = \"tch\"\ndependencies = [\"zip 9.4.0\"]\n\
                    [[package]]\nname = \"zip\"\n[[package]]\nname = \"other\"\n";
        let manifest: Table = of("mine", Path::new("/course"), workspace, lock).unwrap().parse().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some("mine"));
        assert_eq!(manifest["dependencies"]["lockstep"]["path"].as_str(), Some("/course/crates/lockstep"));
        assert_eq!(manifest["dependencies"]["clap"]["features"][0].as_str(), Some("derive"));
        assert!(manifest["dependencies"].get("serde").is_none());
        let packages: Vec<_> = manifest["profile"]["dev"]["package"].as_table().unwrap().keys().collect();
        assert_eq!(packages, ["*", "zip"]);
    }
}
