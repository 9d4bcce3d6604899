//! The demo's temporary folder: locked while its demo lives, so that one left behind by a kill can be told and removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use tempfile::TempDir;

use crate::{explain, output};

const PREFIX: &str = "tramline-demo-";
const LOCK: &str = "lock";
/// Less than this, in bytes, and the demo on the month that ships with the program may not fit.
const ENOUGH: u64 = 64 << 20;

/// A folder of this demo's own. Removed when dropped.
pub struct Folder {
    folder: TempDir,
    /// Held for as long as this process lives, however it ends.
    _lock: File,
}

impl Folder {
    /// Removes what demos that were killed have left, and makes a new one.
    pub fn new() -> Result<Self> {
        Self::inside(&std::env::temp_dir())
    }

    fn inside(parent: &Path) -> Result<Self> {
        remove_stale(parent);
        let what =
            || format!("cannot make a temporary folder in {}; another is named by TMPDIR", parent.display());
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).with_context(what)?;
        // Locked before it has its name: nobody ever sees it unlocked while this process lives.
        let unnamed = folder.path().join("lock.new");
        let lock = File::create(&unnamed).with_context(what)?;
        lock.lock().with_context(what)?;
        fs::rename(unnamed, folder.path().join(LOCK)).with_context(what)?;
        Ok(Self { folder, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves it where it is, for good: without its lock file, no later demo takes it for a leftover.
    pub fn keep(self) -> PathBuf {
        let path = self.folder.keep();
        // One that stays costs the folder at the next demo, which says so.
        let _ = fs::remove_file(path.join(LOCK));
        path
    }

    /// What is left of the disk, when that is so little that it explains a failure.
    pub fn room(&self) -> Option<String> {
        room(self.path())
    }

    /// The failure, with the full disk it comes from if there is one.
    pub fn blame(&self, error: Error) -> Error {
        match self.room() {
            Some(room) => anyhow!("{}; {room}", explain::text(&error)),
            None => error,
        }
    }
}

/// Removes the folders whose demo is gone.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || !is_stale(&path.join(LOCK)) {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => {
                output::note(format_args!("removed {}, left by a demo that was killed", path.display()));
            }
            Err(error) => output::note(format_args!(
                "{} was left by a demo that was killed and cannot be removed: {error}",
                path.display()
            )),
        }
    }
}

fn is_stale(lock: &Path) -> bool {
    match File::open(lock).map(|file| file.try_lock()) {
        Ok(Ok(())) => true,
        Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))) | Err(_) => false,
    }
}

fn room(path: &Path) -> Option<String> {
    let left = left(path).ok().filter(|left| *left < ENOUGH)?;
    let parent = path.parent().unwrap_or(path);
    Some(format!(
        "{} has only {} MB left: set TMPDIR to a folder with more room",
        parent.display(),
        left >> 20
    ))
}

/// The bytes that can still be written there.
fn left(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_left_by_a_kill_is_removed_and_those_in_use_or_kept_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let alive = Folder::inside(parent.path()).unwrap();
        let kept = Folder::inside(parent.path()).unwrap().keep();
        let killed = parent.path().join("tramline-demo-killed");
        fs::create_dir(&killed).unwrap();
        File::create(killed.join(LOCK)).unwrap();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        File::create(other.join(LOCK)).unwrap();
        let next = Folder::inside(parent.path()).unwrap();
        assert!(!killed.exists());
        assert!(alive.path().exists() && kept.exists() && next.path().exists() && other.exists());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }

    #[test]
    fn the_room_that_is_left_is_known() {
        assert!(left(Path::new("/")).is_ok());
        assert!(left(Path::new("/no/such")).is_err());
    }
}
