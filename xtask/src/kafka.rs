//! `cargo xtask kafka up|down|test|keys`: one Apache Kafka on loopback, broker and controller in one process, jars from Maven.
//!
//! Everything it keeps lies in `target/kafka`. `down` ends the process that `up` started and no other.

pub mod keys;
mod suite;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// What interop/kafka/pom.xml asks for.
const VERSION: &str = "Apache Kafka 4.4.0";

/// What a start may take, also on a machine that builds something else beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// About 1 GB: half of it heap.
const JVM: [&str; 8] = [
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:ReservedCodeCacheSize=64m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
];

/// What a broker for tests needs beside its addresses: few partitions and threads, one replica, no waiting.
const SETTINGS: &str = "process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.partitions=4
num.network.threads=2
num.io.threads=3
background.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=8388608
log.segment.bytes=67108864
";

/// What became of a start.
pub enum Up {
    /// It listens there.
    Listening(String),
    /// This tool is not installed.
    Skipped(&'static str),
}

struct Place {
    folder: PathBuf,
    pom: PathBuf,
}

impl Place {
    fn new(root: &Path) -> Self {
        Self { folder: root.join("target/kafka"), pom: root.join("interop/kafka/pom.xml") }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The process of an earlier start, when it still is that one.
    fn running(&self) -> Option<String> {
        let process = fs::read_to_string(self.file("pid")).ok()?;
        let told = Command::new("ps").args(["-ww", "-o", "command=", "-p", &process]).output().ok()?;
        let command = String::from_utf8_lossy(&told.stdout);
        command.contains(&*self.file("server.properties").to_string_lossy()).then_some(process)
    }
}

/// Starts Kafka with empty data and waits until it serves; when it runs already, says where.
///
/// # Errors
/// Maven has no jars, or Kafka ends or does not serve in time; the error has the end of its log.
pub fn up(root: &Path) -> Result<Up> {
    let place = Place::new(root);
    if place.running().is_some() {
        return Ok(Up::Listening(fs::read_to_string(place.file("address"))?));
    }
    if let Some(missing) = ["java", "mvn"].into_iter().find(|tool| !installed(tool)) {
        return Ok(Up::Skipped(missing));
    }
    fs::create_dir_all(&place.folder)?;
    let classpath = classpath(&place)?;
    let _ = fs::remove_dir_all(place.file("data"));
    // Both are held until both are known, so that they differ.
    let free = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let [broker, controller] = free.map(|listener| listener.and_then(|listener| listener.local_addr()));
    let (broker, controller) = (broker?, controller?);
    let settings = format!(
        "{SETTINGS}listeners=PLAINTEXT://{broker},CONTROLLER://{controller}\nadvertised.listeners=PLAINTEXT://{broker}\n\
         controller.quorum.voters=1@{controller}\nlog.dirs={}\n",
        place.file("data").display()
    );
    fs::write(place.file("server.properties"), settings)?;
    format_storage(&place, &classpath)?;
    let mut child = start(&place, &classpath)?;
    fs::write(place.file("pid"), child.id().to_string())?;
    fs::write(place.file("address"), broker.to_string())?;
    wait(&place, &mut child)?;
    Ok(Up::Listening(broker.to_string()))
}

/// Ends what `up` started; false when nothing was running.
///
/// # Errors
/// It does not end, even when killed.
pub fn down(root: &Path) -> Result<bool> {
    let place = Place::new(root);
    let Some(process) = place.running() else { return Ok(false) };
    for (signal, patience) in [("-TERM", Duration::from_secs(20)), ("-KILL", Duration::from_secs(10))] {
        Command::new("kill").args([signal, &process]).status().context("cannot start kill")?;
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if place.running().is_none() {
                let _ = fs::remove_file(place.file("pid"));
                let _ = fs::remove_dir_all(place.file("data"));
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    bail!("process {process} does not end")
}

/// As [`up`], on empty data in any case: one that runs is ended first.
///
/// # Errors
/// As [`up`] and [`down`].
pub fn fresh(root: &Path) -> Result<Up> {
    down(root)?;
    up(root)
}

/// Runs the tests that take a given cluster, and the demo, on a fresh Kafka; none when a tool is missing.
///
/// # Errors
/// Kafka does not start, or a test fails on it.
pub fn test(root: &Path) -> Result<Option<usize>> {
    let address = match fresh(root)? {
        Up::Listening(address) => address,
        Up::Skipped(tool) => {
            println!("skipped: no {tool}");
            return Ok(None);
        }
    };
    let tests = suite::run(root, &address);
    down(root)?;
    let tests = tests?;
    // For docs/compatibility.md.
    let folder = root.join("target/interop/kafka");
    fs::create_dir_all(&folder)?;
    let told = serde_json::json!({"versions": [VERSION], "passed": tests, "failed": {}, "skipped": {}});
    fs::write(folder.join("results.json"), told.to_string())?;
    Ok(Some(tests))
}

fn installed(tool: &str) -> bool {
    let said = Command::new(tool).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    !matches!(said, Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// Maven's class path for the pom, asked for again when the pom is newer.
fn classpath(place: &Place) -> Result<String> {
    let kept = place.file("classpath");
    let written = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    if written(&kept) <= written(&place.pom) {
        let output = format!("-Dmdep.outputFile={}", kept.display());
        let status = Command::new("mvn")
            .args(["-q", "-B", "-f"])
            .arg(&place.pom)
            .args(["dependency:build-classpath", &output])
            .stdout(Stdio::null())
            .status()
            .context("cannot start mvn")?;
        ensure!(status.success(), "mvn dependency:build-classpath: {status}");
    }
    fs::read_to_string(kept).context("mvn wrote no class path")
}

fn java(classpath: &str, class: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-cp", classpath]).args(JVM).arg(class);
    command
}

fn format_storage(place: &Place, classpath: &str) -> Result<()> {
    let done = java(classpath, "kafka.tools.StorageTool")
        // Any 16 bytes do: the cluster is alone and its data short-lived.
        .args(["format", "-t", "dHJhbWxpbmUtaW50ZXJvcA", "-c"])
        .arg(place.file("server.properties"))
        .output()
        .context("cannot start java")?;
    ensure!(done.status.success(), "cannot format: {}", String::from_utf8_lossy(&done.stdout));
    Ok(())
}

fn start(place: &Place, classpath: &str) -> Result<Child> {
    let log = fs::File::create(place.file("server.log"))?;
    let mut command = java(classpath, "kafka.Kafka");
    command.arg(place.file("server.properties")).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // A Ctrl-C for the caller is not one for Kafka.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().context("cannot start java")
}

fn wait(place: &Place, child: &mut Child) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let log = fs::read_to_string(place.file("server.log"))?;
        if log.contains("Kafka Server started") {
            return Ok(());
        }
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= until {
            let _ = child.kill();
            let last: Vec<&str> = log.lines().rev().take(12).collect();
            let what =
                ended.map_or_else(|| "does not serve".to_owned(), |status| format!("ended with {status}"));
            bail!("Kafka {what}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
