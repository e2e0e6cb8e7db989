//! Writes files atomically.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes the output of `fill` to `path`: first to a temporary file in the same folder, which is then synced and renamed.
///
/// # Errors
/// The errors of the disk and of `fill`. The temporary file is then removed, and an existing file stays unchanged.
pub fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o666); // less the umask, as for any new file
    let file = tempfile::Builder::new().prefix(".data-").permissions(readable).tempfile_in(folder)?;
    let mut out = BufWriter::new(file.as_file());
    fill(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
