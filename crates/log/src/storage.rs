//! The small blocking storage seam: everything the log asks of a file system, and nothing else.
//!
//! What survives what: a write is seen by every later read at once and survives the end of the process; it survives
//! a power cut only after [`StorageFile::sync_data`] of its file. A created, renamed or removed name survives a
//! power cut only after [`Storage::sync_dir`] of the directory that holds it.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

pub mod delayed;
pub mod disk;
pub mod memory;

pub use delayed::DelayedStorage;
pub use disk::DiskStorage;
pub use memory::MemoryStorage;

/// How [`Storage::open`] treats a file that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; reading and writing.
    Existing,
    /// The file must exist; reading only.
    ReadOnly,
    /// The file must not exist; it is created empty.
    CreateNew,
    /// The file is created, or emptied when it exists.
    Truncate,
    /// The file is created when it is missing and kept as it is when it exists.
    Create,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name inside its directory.
    pub name: String,
    /// Whether the name is itself a directory.
    pub is_dir: bool,
}

/// A file system as the log needs it: blocking, shared by threads, object safe (`Arc<dyn Storage>`).
pub trait Storage: Send + Sync + Debug {
    /// Creates `dir` and the directories above it; one that exists is left alone. Durable only after `sync_dir` of
    /// each parent.
    ///
    /// # Errors
    /// What the file system answers.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// `NotFound` and `AlreadyExists` as `mode` says, else what the file system answers.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>>;

    /// The names in `dir`, sorted.
    ///
    /// # Errors
    /// `NotFound` when `dir` does not exist, else what the file system answers.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Gives the file at `from` the name `to`, replacing what had that name, in one step.
    ///
    /// # Errors
    /// What the file system answers.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file; handles that are open go on reading it.
    ///
    /// # Errors
    /// `NotFound` when it is not there, else what the file system answers.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the file system answers, for example when it is not empty.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes the names in `dir`, as they are now, survive a power cut.
    ///
    /// # Errors
    /// What the file system answers. The state on disk is unknown then; do not try again, reopen.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Reads and writes name their position; there is no cursor.
#[expect(clippy::len_without_is_empty, reason = "a length that can fail; emptiness is never asked")]
pub trait StorageFile: Send + Sync + Debug {
    /// Reads into `buf` from `pos`; returns how much was read, 0 at the end of the file. May be short.
    ///
    /// # Errors
    /// What the file system answers.
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize>;

    /// Writes all of `parts`, one after the other, from `pos` on: one system call where the system takes it whole.
    ///
    /// # Errors
    /// What the file system answers; part of the bytes may have been written.
    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()>;

    /// Makes the file `len` bytes long: cut, or extended by zeros that take no space.
    ///
    /// # Errors
    /// What the file system answers.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// What the file system answers.
    fn len(&self) -> io::Result<u64>;

    /// The barrier: everything written so far, and the length, survives a power cut once this returns.
    ///
    /// # Errors
    /// What the file system answers. The unwritten bytes may be lost for good then, and a second call may claim
    /// success without having written them: never call it again, reopen.
    fn sync_data(&self) -> io::Result<()>;

    /// Takes the advisory lock of this file for as long as it is open; `false` when someone else holds it.
    ///
    /// # Errors
    /// What the file system answers.
    fn try_lock(&self) -> io::Result<bool>;

    /// The file of the operating system, where there is one: what `sendfile` needs.
    fn as_std(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Bytes of an open file that do not change any more: what a read hands out.
///
/// Holding it keeps the file open, also after its name was removed.
#[derive(Clone, Debug)]
pub struct FileRange {
    file: Arc<dyn StorageFile>,
    pos: u64,
    len: usize,
}

impl FileRange {
    /// `len` bytes of `file` from `pos` on; the caller has made sure that they are there.
    #[must_use]
    pub fn new(file: Arc<dyn StorageFile>, pos: u64, len: usize) -> Self {
        Self { file, pos, len }
    }

    /// Where in the file the range begins.
    #[must_use]
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file of the operating system, where there is one.
    #[must_use]
    pub fn as_std(&self) -> Option<&std::fs::File> {
        self.file.as_std()
    }

    /// Reads the whole range into memory.
    ///
    /// # Errors
    /// What the file system answers; `UnexpectedEof` when the file became shorter, which nothing in this crate does.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut out = vec![0; self.len];
        read_exact_at(&*self.file, &mut out, self.pos)?;
        Ok(out.into())
    }

    /// Reads the whole range into `out`, which must be as long as the range.
    ///
    /// # Errors
    /// As [`FileRange::read`].
    pub fn read_into(&self, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&*self.file, out, self.pos)
    }
}

/// Fills `buf` from `pos` on.
///
/// # Errors
/// What the file system answers; `UnexpectedEof` when the file ends before.
pub fn read_exact_at(file: &dyn StorageFile, buf: &mut [u8], pos: u64) -> io::Result<()> {
    let read = read_up_to(file, buf, pos)?;
    if read == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Fills `buf` from `pos` on as far as the file goes; returns how much that was.
///
/// # Errors
/// What the file system answers.
pub fn read_up_to(file: &dyn StorageFile, buf: &mut [u8], pos: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], pos + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The whole content of the file at `path`, or `None` when there is no such file.
///
/// # Errors
/// What the file system answers.
pub fn read_file(storage: &dyn Storage, path: &Path) -> io::Result<Option<Bytes>> {
    let file = match storage.open(path, OpenMode::ReadOnly) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut out = vec![0; len];
    let read = read_up_to(&*file, &mut out, 0)?;
    out.truncate(read);
    Ok(Some(out.into()))
}

/// Replaces the file at `path` by `content` so that after a crash at any moment either the old or the new content is
/// there, and the new one once this has returned: temporary file, barrier, rename, barrier of the directory.
///
/// # Errors
/// What the file system answers; the old content, or the new one, is there then.
pub fn write_atomic(storage: &dyn Storage, path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let file = storage.open(&temporary, OpenMode::Truncate)?;
    file.write_at(&[content], 0)?;
    file.sync_data()?;
    storage.rename(&temporary, path)?;
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    storage.sync_dir(dir)
}
