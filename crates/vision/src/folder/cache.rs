//! A cache of decoded pictures: a folder that all ranks of a host share, valid across epochs and runs.
//!
//! Decoding is more than half of the time from a file to a tensor, and it gives the same pixels in each epoch. A folder on a file
//! system in memory, such as `/dev/shm`, makes this a cache in memory.
//!
//! - A picture is one file, which is written under another name first. So it is complete or absent, no matter when a process
//!   is killed.
//! - It holds the identity of its source: inode, length, and the times of the last change of contents and of the inode. The
//!   kernel sets the last of these, so a source that was changed or replaced never matches. A source that changed a moment ago is
//!   not kept, because it may change again before the clock of its file system ticks.
//! - It holds a checksum. A damaged file is decoded again, and replaced.
//! - A file `used` counts the bytes of all pictures, under a lock. Once the next picture does not fit, no more are added.
//!   Nothing is evicted: since an epoch asks for each picture once, no choice of pictures is hit more often than another.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use image::RgbImage;
use rustix::fs::{FlockOperation, flock};

use lockstep::data::DataError;

/// Raise this number whenever [`decode`](lockstep_picture_decoder::decode) gives other pixels than before: a test detects
/// that.
const VERSION: u8 = 1;
/// The first bytes of a file of the cache.
const MAGIC: [u8; 7] = *b"pixels\0";
/// The extension of the cache's files.
const ENDING: &str = "pixels";
/// The beginning of the name of a file that is being written.
const UNFINISHED: &str = ".unfinished-";
/// The file that counts the bytes of all pictures.
const USED: &str = "used";

/// Decoded pictures in a folder.
pub struct DecodedCache {
    folder: PathBuf,
    limit: u64,
    tick: Duration,
    /// Set once no more pictures are added.
    closed: AtomicBool,
    warn: Box<dyn Fn(String) + Send + Sync>,
}

impl DecodedCache {
    /// A picture is kept once its file has not changed for this time: clocks of file systems tick at least this often.
    pub const TICK: Duration = Duration::from_secs(2);

    /// The cache in `folder`, which is made if it is missing, of at most `limit` bytes in all. Removes files that killed
    /// processes left half-written. If the disk fills up later, `warn` is called once, and no more pictures are added.
    pub fn open(folder: &Path, limit: u64, warn: impl Fn(String) + Send + Sync + 'static) -> Result<Self, DataError> {
        let fail = |error| DataError::unwritable(folder, error);
        fs::create_dir_all(folder).map_err(fail)?;
        let mut used = Used::lock(folder).map_err(fail)?;
        let counted = count(folder).map_err(fail)?;
        used.set(counted).map_err(fail)?;
        let closed = AtomicBool::new(false);
        Ok(DecodedCache { folder: folder.into(), limit, tick: Self::TICK, closed, warn: Box::new(warn) })
    }

    /// The picture in the file `path`, from the cache or decoded.
    pub(super) fn picture(&self, path: &Path) -> Result<RgbImage, DataError> {
        // Before the file is read: what changes after this has another identity.
        let Some(source) = fs::metadata(path).ok().map(|about| Identity::of(&about)) else {
            return lockstep_picture_decoder::read(path);
        };
        let entry = self.entry(path);
        if let Some(picture) = read(&entry, source) {
            return Ok(picture);
        }
        let picture = lockstep_picture_decoder::read(path)?;
        if !self.closed.load(Ordering::Relaxed) && source.has_settled(self.tick) {
            self.keep(&entry, source, &picture);
        }
        Ok(picture)
    }

    /// The file of the picture in `path`. If two pictures get the same name, each replaces the other, since their identities
    /// differ.
    fn entry(&self, path: &Path) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        self.folder.join(format!("{:016x}.{ENDING}", hasher.finish()))
    }

    fn keep(&self, entry: &Path, source: Identity, picture: &RgbImage) {
        let added = self.add(entry, source, picture);
        if !matches!(added, Ok(true)) {
            self.closed.store(true, Ordering::Relaxed);
        }
        if let Err(error) = added {
            (self.warn)(format!("no more pictures are added to the cache {}: {error}", self.folder.display()));
        }
    }

    /// Adds a picture; returns false if it does not fit.
    fn add(&self, entry: &Path, source: Identity, picture: &RgbImage) -> io::Result<bool> {
        let named = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(&self.folder)?;
        // A process that opens the cache meanwhile sees that the writer is alive.
        flock(&named, FlockOperation::LockExclusive)?;
        named.as_file().write_all(&header(source, picture))?;
        named.as_file().write_all(picture.as_raw())?;
        let mut used = Used::lock(&self.folder)?;
        let replaced = fs::metadata(entry).map_or(0, |about| about.len());
        let after = used.get()?.saturating_sub(replaced) + named.as_file().metadata()?.len();
        if after > self.limit {
            return Ok(false);
        }
        named.persist(entry).map_err(|error| error.error)?;
        used.set(after)?;
        Ok(true)
    }
}

impl std::fmt::Debug for DecodedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecodedCache").field("folder", &self.folder).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Properties that change whenever a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    bytes: u64,
    /// Nanoseconds since 1970: the last change of the contents, which programs can set.
    modified: i64,
    /// The last change of the inode, which only the kernel sets.
    changed: i64,
}

impl Identity {
    fn of(about: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Identity {
            inode: about.ino(),
            bytes: about.len(),
            modified: nanoseconds(about.mtime(), about.mtime_nsec()),
            changed: nanoseconds(about.ctime(), about.ctime_nsec()),
        }
    }

    /// Returns true if the last change was more than a tick ago.
    fn has_settled(&self, tick: Duration) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(tick).as_nanos() as i64 >= self.changed
    }
}

/// Bytes before the pixels.
const HEADER: usize = MAGIC.len() + 1 + 4 * 8 + 3 * 4;

fn header(source: Identity, picture: &RgbImage) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.push(VERSION);
    header.extend([source.inode, source.bytes].map(u64::to_le_bytes).as_flattened());
    header.extend([source.modified, source.changed].map(i64::to_le_bytes).as_flattened());
    let (width, height) = picture.dimensions();
    header.extend([width, height, crc32fast::hash(picture.as_raw())].map(u32::to_le_bytes).as_flattened());
    header
}

/// The picture that a file of the cache holds of this source; `None` if it is absent, outdated or damaged.
fn read(entry: &Path, source: Identity) -> Option<RgbImage> {
    let mut file = File::open(entry).ok()?;
    let mut found = [0; HEADER];
    file.read_exact(&mut found).ok()?;
    let (_, sizes) = found.split_at(HEADER - 12);
    let [width, height, _] =
        std::array::from_fn(|at| u32::from_le_bytes(std::array::from_fn(|byte| sizes[4 * at + byte])));
    let bytes = 3 * u64::from(width)
        .checked_mul(u64::from(height))
        .filter(|pixels| *pixels <= lockstep_picture_decoder::MAX_PIXELS as u64)?;
    let mut pixels = Vec::with_capacity(bytes as usize + 1); // room for the read that finds the end
    file.take(bytes + 1).read_to_end(&mut pixels).ok()?;
    let picture = RgbImage::from_raw(width, height, pixels).filter(|picture| picture.as_raw().len() as u64 == bytes)?;
    (header(source, &picture) == found).then_some(picture)
}

/// The bytes of all pictures in the folder. Removes those that a killed process left half written.
fn count(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(ENDING)) {
            bytes += fs::metadata(&path).map_or(0, |about| about.len());
        } else if path.file_name().is_some_and(|name| name.as_bytes().starts_with(UNFINISHED.as_bytes())) {
            let locked =
                File::open(&path).is_ok_and(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_err());
            if !locked {
                let _ = fs::remove_file(&path); // Another process may have been faster.
            }
        }
    }
    Ok(bytes)
}

/// The count of bytes, locked until it is dropped.
struct Used(File);

impl Used {
    fn lock(folder: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(folder.join(USED))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Used(file))
    }

    /// The count that was last set; 0 if none was.
    fn get(&mut self) -> io::Result<u64> {
        let mut text = String::new();
        self.0.rewind()?;
        self.0.read_to_string(&mut text)?;
        Ok(text.trim().parse().unwrap_or(0))
    }

    fn set(&mut self, bytes: u64) -> io::Result<()> {
        self.0.rewind()?;
        // All numbers have the same length, so that no digits of an earlier one remain.
        writeln!(self.0, "{bytes:020}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use image::Rgb;
    use tempfile::TempDir;

    use super::*;

    /// A folder with pictures, and a cache for them.
    struct Site {
        folder: TempDir,
    }

    impl Site {
        fn new() -> Self {
            Site { folder: tempfile::tempdir().unwrap() }
        }

        fn cached(&self) -> PathBuf {
            self.folder.path().join("cache")
        }

        /// A cache that also accepts sources that have just changed, and panics instead of warning.
        fn cache(&self, limit: u64) -> DecodedCache {
            DecodedCache {
                tick: Duration::ZERO,
                ..DecodedCache::open(&self.cached(), limit, |text| panic!("{text}")).unwrap()
            }
        }

        /// A picture of 4 × 3 pixels of this red.
        fn write(&self, name: &str, red: u8) -> PathBuf {
            let path = self.folder.path().join(name);
            RgbImage::from_pixel(4, 3, Rgb([red, 2, 3])).save(&path).unwrap();
            path
        }

        fn entries(&self) -> Vec<PathBuf> {
            let all = fs::read_dir(self.cached()).unwrap().map(|entry| entry.unwrap().path());
            all.filter(|path| path.extension().is_some()).collect()
        }
    }

    /// Bytes of one such picture in the cache.
    const ONE: u64 = HEADER as u64 + 36;

    fn red(cache: &DecodedCache, path: &Path) -> u8 {
        cache.picture(path).unwrap().get_pixel(3, 2).0[0]
    }

    /// Shows where a picture comes from: gives the file other pixels, with a checksum that fits.
    fn mark(entry: &Path) {
        let bytes = fs::read(entry).unwrap();
        let pixels = [99; 36];
        let marked = [&bytes[..HEADER - 4], &crc32fast::hash(&pixels).to_le_bytes(), &pixels].concat();
        fs::write(entry, marked).unwrap();
    }

    #[test]
    fn a_picture_is_decoded_once_by_all_caches_of_a_folder() {
        let site = Site::new();
        let path = site.write("a.png", 7);
        assert_eq!(red(&site.cache(1000), &path), 7);
        mark(&site.entries()[0]);
        assert_eq!((red(&site.cache(1000), &path), red(&site.cache(0), &path)), (99, 99));
    }

    #[test]
    fn a_source_that_changed_is_decoded_again_even_if_its_times_are_set_back() {
        let site = Site::new();
        let path = site.write("a.png", 7);
        let cache = site.cache(1000);
        red(&cache, &path);
        let before = File::open(&path).unwrap().metadata().unwrap();
        let changed = |about: &Metadata| (about.ctime(), about.ctime_nsec());
        // Until the clock of the file system ticks: a cache with its usual `tick` keeps no source that may change before.
        while changed(&path.metadata().unwrap()) == changed(&before) {
            site.write("a.png", 8);
            File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
        }
        assert_eq!((before.len(), before.mtime()), (path.metadata().unwrap().len(), path.metadata().unwrap().mtime()));
        assert_eq!(red(&cache, &path), 8);
        assert_eq!(Used::lock(&site.cached()).unwrap().get().unwrap(), ONE, "the old one was replaced");
        let other = site.write("b.png", 9);
        fs::rename(other, &path).unwrap();
        assert_eq!(red(&cache, &path), 9);
    }

    #[test]
    fn a_source_that_changed_a_moment_ago_is_not_kept() {
        let site = Site::new();
        let path = site.write("a.png", 7);
        let cache = DecodedCache { tick: Duration::from_secs(1 << 30), ..site.cache(1000) };
        assert_eq!(red(&cache, &path), 7);
        assert!(site.entries().is_empty());
    }

    #[test]
    fn a_damaged_file_is_decoded_again_and_replaced() {
        let site = Site::new();
        let path = site.write("a.png", 7);
        red(&site.cache(1000), &path);
        let entry = &site.entries()[0];
        let good = fs::read(entry).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(entry, bad).unwrap();
            assert_eq!(red(&site.cache(1000), &path), 7, "byte {at}");
            assert_eq!(fs::read(entry).unwrap(), good, "byte {at}");
        }
        for bad in [&good[..20], &good[..good.len() - 1], &[&good[..], &[0]].concat()] {
            fs::write(entry, bad).unwrap();
            assert_eq!(red(&site.cache(1000), &path), 7);
        }
    }

    #[test]
    fn pictures_are_added_up_to_the_limit_and_counted_again_when_it_is_opened() {
        let site = Site::new();
        let paths = [1, 2, 3].map(|red| site.write(&format!("{red}.png"), red));
        let cache = site.cache(2 * ONE);
        paths.iter().for_each(|path| drop(cache.picture(path).unwrap()));
        assert_eq!(site.entries().len(), 2);
        fs::write(site.cached().join(USED), "what is this?").unwrap();
        let left = site.cached().join(format!("{UNFINISHED}1"));
        fs::write(&left, "half").unwrap();
        let cache = site.cache(3 * ONE);
        assert!(!left.exists(), "nobody writes it");
        assert_eq!(Used::lock(&site.cached()).unwrap().get().unwrap(), 2 * ONE);
        paths.iter().for_each(|path| drop(cache.picture(path).unwrap()));
        assert_eq!(site.entries().len(), 3);
    }

    #[test]
    fn a_folder_that_is_gone_costs_a_warning_and_no_picture() {
        let site = Site::new();
        let paths = [1, 2].map(|red| site.write(&format!("{red}.png"), red));
        let (sender, warnings) = mpsc::channel();
        let warn = move |text| sender.send(text).unwrap();
        let cache = DecodedCache { tick: Duration::ZERO, ..DecodedCache::open(&site.cached(), 1000, warn).unwrap() };
        fs::remove_dir_all(site.cached()).unwrap();
        assert_eq!(paths.each_ref().map(|path| red(&cache, path)), [1, 2]);
        let warnings: Vec<String> = warnings.try_iter().collect();
        assert!(warnings.len() == 1 && warnings[0].contains("cache"), "{warnings:?}");
        let file = site.write("file.png", 1);
        assert!(DecodedCache::open(&file, 1, drop).unwrap_err().to_string().contains("write"));
    }

    #[test]
    fn the_pixels_of_this_version_are_these() {
        // A JPEG of noise in which every step of a decoder rounds. If this fails, decoders have changed: raise VERSION.
        let noise =
            RgbImage::from_fn(40, 24, |x, y| Rgb([x * 37 + y * 11, x * 7 + y * 53, x * y].map(|value| value as u8)));
        let mut jpeg = Vec::new();
        image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, 80).encode_image(&noise).unwrap();
        let pixels = lockstep_picture_decoder::decode(&jpeg).unwrap();
        assert_eq!((VERSION, crc32fast::hash(&jpeg), crc32fast::hash(pixels.as_raw())), (1, 489_673_807, 424_495_027));
    }
}
