//! `lockstep data make` draws the labs' data sets as files, with the labs' own programs. `lockstep data prepare` draws all of them on a folder
//! that a class shares. `lockstep data fetch` downloads one file with curl, continues a download that was cut off, and compares SHA-256; it
//! has no address of its own.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use lockstep_contract::foreign;
use rustix::fs::{FlockOperation, flock};

use crate::author::{data_check, data_text};
use crate::checkout::program_beside;
use crate::exit::{Code, Refused};
use crate::report::{Screen, Stdout};

/// A data set that the labs draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawn {
    /// Digits, as MNIST's four files: labs 02, 03, 06, 09 and 11
    Digits,
    /// Ten kinds of things, as CIFAR-10's binary files: lab 07
    Objects,
    /// Houses, some of them damaged, as folders of JPEG files: lab 08
    Houses,
    /// The prose of this book, as train.txt and validation.txt: for a language model of your own
    Text,
}

/// Draw a data set of the labs into a folder, as files for other programs to read
#[derive(Args)]
pub(crate) struct MakeData {
    /// What to draw
    #[arg(value_enum)]
    set: Drawn,
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training; a quarter as many are drawn for the test. By default as many as the lab draws for itself. The text is
    /// always whole
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl MakeData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        self.set.draw(&self.folder, self.samples, self.seed)?;
        let found = data_check::check_data(&self.folder, None);
        Stdout.write_all(found.text().as_bytes()).context("cannot write to stdout")?;
        Ok(if found.faults.is_empty() { Code::Success } else { Code::Failure })
    }
}

impl Drawn {
    /// The name of its folder on a shared disk.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Drawn::Digits => "digits",
            Drawn::Objects => "objects",
            Drawn::Houses => "houses",
            Drawn::Text => "text",
        }
    }

    /// The lab's program that draws it.
    fn program(self) -> Option<&'static str> {
        match self {
            Drawn::Digits => Some("lab-02-draw-digits"),
            Drawn::Objects => Some("lab-07-draw-objects"),
            Drawn::Houses => Some("lab-08-draw-houses"),
            Drawn::Text => None,
        }
    }

    /// Makes it in a folder.
    ///
    /// # Errors
    /// The lab's program is not built, or fails. For the text: there is no checkout, or samples or a seed were given.
    pub(crate) fn draw(self, folder: &Path, samples: Option<u32>, seed: u64) -> anyhow::Result<()> {
        let Some(program) = self.program() else {
            if samples.is_some() || seed != 0 {
                return Err(
                    Refused("the text is always the whole book's: leave out --samples and --seed".into()).into()
                );
            }
            return data_text::make(folder);
        };
        let mut command = Command::new(program_beside(program)?);
        command.arg(folder).args(["--seed", &seed.to_string()]);
        samples.map(|samples| command.args(["--samples", &samples.to_string()]));
        let status = command.status().with_context(|| format!("cannot start {program}"))?;
        if !status.success() {
            bail!("{program} failed with {status}: see above");
        }
        Ok(())
    }
}

/// Make and check the labs' data sets once on a folder that a class shares
#[derive(Args)]
pub(crate) struct PrepareData {
    /// The folder. Data sets that are in it already, such as mnist or cifar-10-batches-bin, are checked and, without a fault, made readable, too
    #[arg(value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training, in each set; by default as many as each lab draws for itself
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl PrepareData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let folder = &self.folder;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", foreign::path(folder)))?;
        let lock = folder.join(".preparing");
        let lock = File::create(&lock).with_context(|| format!("cannot write to {}", foreign::path(folder)))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Refused(format!("another `lockstep data prepare` is running in {}", foreign::path(folder))))?;
        // The book's text lies in every checkout.
        for set in Drawn::value_variants().iter().filter(|set| set.program().is_some()) {
            self.draw(*set)?;
        }
        let (mut out, mut code) = (Stdout, Code::Success);
        for set in folders_in(folder)? {
            let found = data_check::check_data(&set, None);
            // Other folders, and the targets of links, may not be meant for everybody.
            if !found.faults.is_empty() {
                code = Code::Failure;
            } else if !set.is_symlink() {
                share(&set)?;
            }
            write!(out, "{}", found.text()).context("cannot write to stdout")?;
        }
        share_one(folder)?;
        let told = match closed_above(folder) {
            Some(closed) => {
                writeln!(out, "other accounts cannot read it: {} is closed to them (chmod o+x {0})", closed.display())
            }
            None => writeln!(
                out,
                "all accounts of this machine can read it: give a lab `--data {}/digits`, for example",
                folder.display()
            ),
        };
        told.context("cannot write to stdout")?;
        Ok(code)
    }

    /// Draws a set, unless it is there. It gets its name when it is complete.
    fn draw(&self, set: Drawn) -> anyhow::Result<()> {
        let to = self.folder.join(set.folder());
        if to.exists() {
            return Ok(());
        }
        Screen::new(true).line(format_args!("drawing {}", to.display()));
        let unfinished = tempfile::Builder::new().prefix(".drawing-").tempdir_in(&self.folder)?;
        set.draw(unfinished.path(), self.samples, self.seed)?;
        let made = unfinished.keep();
        fs::rename(&made, &to)
            .with_context(|| format!("cannot rename {} to {}", foreign::path(&made), foreign::path(&to)))
    }
}

/// A folder above this one that other accounts may not pass.
fn closed_above(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let is_closed = |path: &&Path| fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 == 0);
    folder.ancestors().find(is_closed).map(Path::to_path_buf)
}

/// The folders in a folder, without hidden ones, sorted.
fn folders_in(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", foreign::path(dir)))?;
    let shown = |path: &PathBuf| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.');
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && shown(path)).collect();
    folders.sort();
    Ok(folders)
}

/// Lets everybody read all below `path`, and nobody write more than before. Does not follow links.
fn share(path: &Path) -> anyhow::Result<()> {
    share_one(path)?;
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("cannot list {}", foreign::path(path)))? {
            let entry = entry.with_context(|| format!("cannot list {}", foreign::path(path)))?;
            if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                share(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn share_one(path: &Path) -> anyhow::Result<()> {
    let mode = fs::metadata(path).with_context(|| format!("cannot read {}", foreign::path(path)))?.permissions().mode();
    let shared = mode | if path.is_dir() { 0o555 } else { 0o444 };
    if shared == mode {
        return Ok(());
    }
    let set = fs::set_permissions(path, Permissions::from_mode(shared));
    set.with_context(|| format!("cannot let everybody read {}", foreign::path(path)))
}

/// How curl(1) ended: with this exit code, and with the server's last status, 0 if it has not answered.
type End = (Option<i32>, u16);

/// Whether the server cannot send a part of the file (curl's code 33), or has nothing after this part (HTTP's 416).
/// Other statuses above 399, which also give curl's code 22, do not mean that.
fn has_no_part((code, status): End) -> bool {
    code == Some(33) || (code == Some(22) && status == 416)
}

/// Download a file from an address that you give; continues where it was cut off
#[derive(Args)]
pub(crate) struct FetchData {
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

impl FetchData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let file = self.out.clone().map_or_else(|| name_of(&self.url), Ok)?;
        if file.exists() {
            return self.there(&file);
        }
        let part = PathBuf::from(format!("{}.part", file.display()));
        let from = PathBuf::from(format!("{}.part-from", file.display()));
        // A part that came from another address does not belong to this file.
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
            [&part, &from].into_iter().try_for_each(fs::remove_file).context("cannot remove the part that arrived")?;
            bail!(
                "{} has the SHA-256 {found}, not {expected}: it is another file, or it was damaged. It was removed; check the address, and \
                 fetch it again",
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
            let again =
                format_args!("the server does not continue {}: it is fetched from its beginning", part.display());
            Screen::new(true).line(again);
            fs::remove_file(part).with_context(|| format!("cannot remove {}", foreign::path(part)))?;
            end = self.curl(part, false)?;
        }
        match end.0 {
            Some(0) => Ok(()),
            Some(code) => bail!(
                "cannot fetch {}: curl ended with code {code}, see above. The part that arrived is in {}; the same command continues it",
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
    let whole = if compared { "whole" } else { "as the server sent it, not compared with a checksum" };
    writeln!(Stdout, "{}: {whole}, SHA-256 {sum}", file.display()).context("cannot write to stdout")?;
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
