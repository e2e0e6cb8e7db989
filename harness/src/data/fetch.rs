//! `lockstep data fetch`: downloads one file by curl, continues a download that was cut off, and compares SHA-256.
//!
//! Only from the address that the user gives: no address is built in.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use lockstep_contract::foreign;

use crate::exit::{Code, Refused};

/// How curl(1) ended: with this exit code, and with the server's last status, 0 if it has not answered.
type End = (Option<i32>, u16);

/// Whether the server cannot send a part of the file (curl's code 33), or has nothing after this part (HTTP's 416). Other statuses
/// above 399, which curl's code 22 stands for too, say nothing of the part.
fn has_no_part((code, status): End) -> bool {
    code == Some(33) || (code == Some(22) && status == 416)
}

/// Download a file from an address that you give; continues where it was cut off
#[derive(Args)]
pub(crate) struct Options {
    /// The address, http or https
    #[arg(value_name = "URL", value_parser = address)]
    url: String,
    /// The file to write; by default the last part of the address, in this folder
    #[arg(long, value_name = "FILE", value_parser = lockstep_paths::parse_file)]
    out: Option<PathBuf>,
    /// The SHA-256 that the file must have, 64 hex digits
    #[arg(long, value_name = "HEX", value_parser = sum)]
    sha256: Option<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let file = self.out.clone().map_or_else(|| name_of(&self.url), Ok)?;
        if file.exists() {
            return self.there(&file);
        }
        let part = PathBuf::from(format!("{}.part", file.display()));
        let from = PathBuf::from(format!("{}.part-from", file.display()));
        // What came from another address is no part of this file.
        if part.exists() && fs::read_to_string(&from).ok().as_deref() != Some(&*self.url) {
            fs::remove_file(&part).with_context(|| format!("cannot remove {}", foreign::path(&part)))?;
        }
        fs::write(&from, &self.url).with_context(|| format!("cannot write {}", foreign::path(&from)))?;
        let is_whole = |sum: &String| part.exists() && digest(&part).is_ok_and(|found| found == *sum);
        if !self.sha256.as_ref().is_some_and(is_whole) {
            self.download(&part)?;
        }
        let found = digest(&part)?;
        let compared = self.sha256.is_some();
        if let Some(expected) = self.sha256.filter(|expected| *expected != found) {
            [&part, &from].into_iter().try_for_each(fs::remove_file).context("cannot remove what has come")?;
            bail!(
                "{} has the SHA-256 {found}, and not {expected}: it is another file, or was damaged on its way. It is removed; check the \
                 address, and fetch it again",
                self.url
            );
        }
        fs::rename(&part, &file)
            .with_context(|| format!("cannot rename {} to {}", foreign::path(&part), foreign::path(&file)))?;
        fs::remove_file(&from).with_context(|| format!("cannot remove {}", foreign::path(&from)))?;
        say(&file, &found, compared)
    }

    /// The file is there already.
    fn there(&self, file: &Path) -> anyhow::Result<Code> {
        let found = digest(file)?;
        match &self.sha256 {
            Some(expected) if *expected != found => Err(Refused(format!(
                "{} exists and has the SHA-256 {found}, not {expected}: remove it, or give another --out",
                foreign::path(file)
            ))
            .into()),
            Some(_) => say(file, &found, true),
            None => Err(Refused(format!(
                "{} exists: give --sha256 to check it, or remove it to fetch it again",
                foreign::path(file)
            ))
            .into()),
        }
    }

    fn download(&self, part: &Path) -> anyhow::Result<()> {
        let mut end = self.curl(part, true)?;
        if has_no_part(end) && part.exists() {
            eprintln!("the server does not continue {}: it is fetched from its beginning", part.display());
            fs::remove_file(part).with_context(|| format!("cannot remove {}", foreign::path(part)))?;
            end = self.curl(part, false)?;
        }
        match end.0 {
            Some(0) => Ok(()),
            Some(code) => bail!(
                "cannot fetch {}: curl ended with code {code}, see above. What has come is in {}; the same command continues it",
                self.url,
                foreign::path(part)
            ),
            None => bail!("curl was ended by a signal; the same command continues {}", foreign::path(part)),
        }
    }

    /// Runs curl, which gives up when less than a byte a second comes for a minute.
    fn curl(&self, part: &Path, go_on: bool) -> anyhow::Result<End> {
        let mut curl = Command::new("curl");
        curl.args(["--fail", "--location", "--proto", "=http,https", "--silent", "--show-error", "--globoff"]);
        curl.args(["--write-out", "%{http_code}"]).stderr(Stdio::inherit());
        curl.args(["--connect-timeout", "30", "--speed-limit", "1", "--speed-time", "60", "--retry", "2"]);
        if go_on {
            curl.args(["--continue-at", "-"]);
        }
        match curl.arg("--output").arg(part).arg("--").arg(&self.url).output() {
            Ok(output) => {
                Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Refused(
                "the program curl is not installed: install it, or download the file by other means".into(),
            )
            .into()),
            Err(error) => Err(error).context("cannot start curl"),
        }
    }
}

/// `compared`: with a sum that the user has given.
fn say(file: &Path, sum: &str, compared: bool) -> anyhow::Result<Code> {
    let whole = if compared { "whole" } else { "as the server sent it, compared with nothing" };
    writeln!(io::stdout().lock(), "{}: {whole}, SHA-256 {sum}", file.display()).context("cannot write to stdout")?;
    Ok(Code::Success)
}

fn address(text: &str) -> Result<String, String> {
    let known = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    if known { Ok(text.into()) } else { Err("give an address that begins with http:// or https://".into()) }
}

fn sum(text: &str) -> Result<String, String> {
    let hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex { Ok(text.to_ascii_lowercase()) } else { Err("a SHA-256 has 64 hex digits".into()) }
}

/// The last part of an address's path.
fn name_of(url: &str) -> anyhow::Result<PathBuf> {
    let path = url.split(['?', '#']).next().unwrap_or(url).splitn(4, '/').nth(3).unwrap_or("");
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() && name != "." && name != ".." => Ok(PathBuf::from(name)),
        _ => Err(Refused(format!("{url} has no file name at its end: give --out FILE")).into()),
    }
}

/// The SHA-256 of a file, by sha256sum(1) of coreutils.
fn digest(path: &Path) -> anyhow::Result<String> {
    let file = File::open(path).with_context(|| format!("cannot read {}", foreign::path(path)))?;
    let printed = Command::new("sha256sum").stdin(file).output().context("cannot start sha256sum")?;
    let text = String::from_utf8_lossy(&printed.stdout);
    let sum = text.split_whitespace().next().and_then(|sum| self::sum(sum).ok());
    sum.filter(|_| printed.status.success()).with_context(|| {
        format!("cannot read {}: sha256sum: {}", foreign::path(path), String::from_utf8_lossy(&printed.stderr).trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_name_from_the_address() {
        let name = |url| name_of(url).ok().map(|name| name.display().to_string());
        assert_eq!(name("https://a.org/b/c.gz?d=e/f").as_deref(), Some("c.gz"));
        for url in ["https://a.org", "https://a.org/", "https://a.org/..", "http://a.org/b/#c"] {
            assert_eq!(name(url), None, "{url}");
        }
    }

    #[test]
    fn computes_the_sum_of_the_standard_s_example() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(file.path()).unwrap(), sum);
    }
}
