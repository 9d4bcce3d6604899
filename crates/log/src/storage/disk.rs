//! Storage on real files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{DirEntry, OpenMode, Storage, StorageFile};

/// Groups up to this many bytes are copied together and written by one positional call; larger ones go out vectored.
const COPY_LIMIT: usize = 32 * 1024;

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskStorage;

impl DiskStorage {
    /// The file system of the operating system, behind the handle the log wants.
    #[must_use]
    pub fn shared() -> Arc<dyn Storage> {
        Arc::new(Self)
    }
}

impl Storage for DiskStorage {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::ReadOnly => &mut options,
            OpenMode::Existing => options.write(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
            OpenMode::Truncate => options.write(true).create(true).truncate(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
        };
        Ok(Arc::new(DiskFile { file: options.open(path)?, cursor: Mutex::new(()) }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A name that is not UTF-8 was not written by the log and is no business of it.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

#[derive(Debug)]
struct DiskFile {
    file: File,
    /// Held while the cursor of the file is set and used, which only a large vectored write does.
    cursor: Mutex<()>,
}

impl DiskFile {
    fn write_vectored(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        let _cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(pos))?;
        write_all_vectored(file, parts)
    }
}

/// Writes all parts in as few calls as `out` takes them in: one takes about a thousand, and may take less than it was
/// given.
fn write_all_vectored(mut out: impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match out.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl StorageFile for DiskFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        FileExt::read_at(&self.file, buf, pos)
    }

    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        if let [one] = parts {
            return self.file.write_all_at(one, pos);
        }
        if parts.iter().map(|part| part.len()).sum::<usize>() <= COPY_LIMIT {
            return self.file.write_all_at(&parts.concat(), pos);
        }
        self.write_vectored(parts, pos)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn as_std(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, never more than one part, and is interrupted now and then.
    #[derive(Default)]
    struct Reluctant {
        written: Vec<u8>,
        calls: usize,
    }

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(5) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let taken = bytes.len().min(self.calls % 3 + 1);
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn b142_a_file_that_takes_less_than_it_is_given_gets_all_of_it_in_order() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let mut parts: Vec<&[u8]> = bytes.chunks(7).collect();
        parts.insert(3, &[]);
        let mut file = Reluctant::default();
        write_all_vectored(&mut file, &parts).unwrap();
        assert_eq!(file.written, bytes);
    }
}
