//! Where a figure was taken: processor, cores, kernel, load, file system, and what a barrier costs there.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A barrier slower than this is not the disk's doing: the processor is taken, and durable figures say nothing.
const BUSY: Duration = Duration::from_millis(1);

/// Processor, cores, system and load, in one line, to stand beside every figure.
pub fn stand() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, {} {}, load {}", std::env::consts::OS, system.trim(), load())
}

fn load() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// A directory for the logs of one run, removed at its end.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
    file_system: String,
}

impl Place {
    /// A new directory below `TRAMLINE_BENCH_DIR`, or beside the program.
    ///
    /// # Errors
    /// It cannot be made, or it is in memory, where a barrier means nothing.
    pub fn new() -> Result<Self> {
        let program = std::env::current_exe()?;
        let below = match std::env::var_os("TRAMLINE_BENCH_DIR") {
            Some(dir) => dir.into(),
            None => program.parent().context("the program lies in no directory")?.to_path_buf(),
        };
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(below)?;
        let file_system = file_system(dir.path())?;
        let in_memory = ["tmpfs", "ramfs"].iter().any(|kind| file_system.starts_with(kind));
        ensure!(!in_memory, "the logs would lie in memory ({file_system}): set TRAMLINE_BENCH_DIR");
        Ok(Self { dir, file_system })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The file system and its device.
    #[must_use]
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// 1,000 times: append 100 bytes, `fdatasync`.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn probe(&self) -> Result<Barrier> {
        let path = self.dir.path().join("probe");
        let mut file = fs::File::create(&path)?;
        let mut spent = Vec::with_capacity(1000);
        for _ in 0..1000 {
            let start = Instant::now();
            file.write_all(&[7; 100])?;
            file.sync_data()?;
            spent.push(start.elapsed());
        }
        fs::remove_file(path)?;
        spent.sort();
        Ok(Barrier { p50: spent[500], p99: spent[990], load: load() })
    }
}

fn file_system(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?, words.next()?))
    });
    let holding = mounts.filter(|(_, at, _)| dir.starts_with(at)).max_by_key(|(_, at, _)| at.len());
    Ok(holding.map_or("unknown".to_owned(), |(device, _, kind)| format!("{kind} on {device}")))
}

/// What a barrier costs without us, and how loaded the machine was.
#[derive(Clone, Debug)]
pub struct Barrier {
    p50: Duration,
    p99: Duration,
    load: String,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.p50.as_secs_f64() * 1e6, self.p99.as_secs_f64() * 1e6);
        write!(
            f,
            "append 100 B + fdatasync, 1,000 times: p50 {p50:.0} us, p99 {p99:.0} us; load {}",
            self.load
        )?;
        if self.p50 > BUSY {
            write!(
                f,
                "\nTOO BUSY: such a barrier waits for a core and not for the disk; durable figures do not count"
            )?;
        }
        Ok(())
    }
}
