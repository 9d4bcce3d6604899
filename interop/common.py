"""What every ecosystem's script shares: the broker under test, its checks, the allow-list of skips, the closing line.

An ecosystem is a folder with a `run.py`, called as `run.py PATH-OF-THE-TRAMLINE-BINARY [--smoke]`. It ends with
`NAME: N passed, N failed, N skipped` and exit status 1 when something failed. `skips.txt` beside it is the allow-list:
`test name: reason` on each line.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEADLINE = 90.0
# Kafka's numbers of the codecs.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SETTINGS = "default-partitions = 4\ngroup-initial-rebalance-delay-ms = 0\n"


class Failure(Exception):
    """A check that did not hold; the text says what was seen."""


class Broker:
    """`tramline serve` as a child on a free port and an own folder; a restart keeps both."""

    def __init__(self, binary, settings=SETTINGS):
        self.binary, self.address, self.child = os.path.abspath(binary), "127.0.0.1:0", None
        self.folder = tempfile.mkdtemp(prefix="tramline-interop-")
        self.settings = os.path.join(self.folder, "settings.toml")
        with open(self.settings, "w", encoding="utf-8") as file:
            file.write(settings)
        self.log = open(os.path.join(self.folder, "broker.log"), "ab")
        self.start()

    def start(self):
        command = [self.binary, "serve", "--data", os.path.join(self.folder, "data"),
                   "--config", self.settings, "--listen", self.address]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.child.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"the broker did not come up: {line!r}, see {self.log.name}")
        self.address = line.split()[-1]

    def kill(self):
        """Ends the broker as a power cut would, as far as a process can."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def stop(self):
        """Asks for a clean stop; the exit status, of which 0 is the only good one."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
                return "none within 20 s of SIGTERM"
        return self.child.returncode

    def remove(self):
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Relay:
    """A port that stays open while the broker is away: a new connection waits for it, an old one ends with it.

    For clients whose tests take a refused connection for a failure, or one that is closed before it has answered a
    request beside ApiVersions.
    """

    def __init__(self):
        self.target, self.loop = None, asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def serve(self, reader, writer):
        asked, upstream = [], None
        try:
            while len(asked) < 2:
                asked.append(await self.frame(reader))
                upstream, answer = await self.ask(asked, upstream)
                writer.write(answer)
            await asyncio.gather(self.copy(reader, upstream[1]), self.copy(upstream[0], writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            if upstream:
                upstream[1].close()

    async def ask(self, asked, upstream):
        """The answer to the last of `asked`: what a dying broker leaves unanswered is asked again of the next one."""
        while True:
            try:
                begin = len(asked) - 1 if upstream else 0
                upstream = upstream or await asyncio.open_connection(*self.target)
                for frame in asked[begin:]:
                    upstream[1].write(frame)
                    answer = await self.frame(upstream[0])
                return upstream, answer
            except (OSError, asyncio.IncompleteReadError):
                upstream = None
                await asyncio.sleep(0.02)

    async def frame(self, reader):
        length = await reader.readexactly(4)
        return length + await reader.readexactly(int.from_bytes(length, "big"))

    async def copy(self, source, sink):
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        sink.close()


def skips(name):
    """The allow-list of an ecosystem: test name to reason."""
    place = os.path.join(ROOT, "interop", name, "skips.txt")
    if not os.path.exists(place):
        return {}
    with open(place, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    return {test.strip(): reason.strip() for test, reason in (line.rsplit(": ", 1) for line in lines)}


class Suite:
    """One ecosystem's run: a broker, the counts, and the closing line."""

    def __init__(self, name, tools=()):
        parser = argparse.ArgumentParser()
        parser.add_argument("binary", help="path of the tramline binary")
        parser.add_argument("--smoke", action="store_true", help="only what is quick")
        parser.add_argument("--only", default="", help="only the checks whose name has this text")
        parser.add_argument("--kafka", help="the address of an Apache Kafka, for what compares with it")
        parser.add_argument("--keep", action="store_true", help="keep the broker's folder")
        self.arguments, self.name = parser.parse_args(), name
        self.smoke, self.passed, self.failed, self.skipped = self.arguments.smoke, 0, 0, 0
        self.skips, self.broker, self.versions, self.left_out, self.wrong = skips(name), None, [], {}, {}
        self.place = os.path.join(ROOT, "target", "interop", name)
        os.makedirs(self.place, exist_ok=True)
        for tool in tools:
            if shutil.which(tool) is None:
                self.missing(tool)

    def missing(self, tool):
        """Ends the run as skipped: this machine lacks what the ecosystem needs."""
        print(f"skipped: no {tool}")
        print(f"{self.name}: 0 passed, 0 failed, 1 skipped", flush=True)
        sys.exit(0)

    def start(self, settings=SETTINGS):
        self.broker = Broker(self.arguments.binary, settings)
        return self.broker

    def version(self, text):
        """Says which release is under test."""
        self.versions.append(text)
        print(text, flush=True)

    def passes(self, test, note=""):
        self.passed += 1
        print(f"ok      {test}{note and f' ({note})'}", flush=True)

    def fails(self, test, why):
        self.failed += 1
        self.wrong[test] = str(why).strip().splitlines()[-1][:200] if str(why).strip() else ""
        print(f"FAILED  {test}: {why}", flush=True)

    def skip(self, test, why):
        self.skipped += 1
        self.left_out[test] = why
        print(f"skipped {test}: {why}", flush=True)

    def check(self, test, body):
        """Runs one check, unless the allow-list or `--only` says otherwise."""
        if self.arguments.only not in test:
            return
        if test in self.skips:
            self.skip(test, self.skips[test])
            return
        begun = time.monotonic()
        try:
            note = body()
        except (Failure, AssertionError, subprocess.TimeoutExpired) as error:
            self.fails(test, error)
        else:
            seconds = f"{time.monotonic() - begun:.1f} s"
            self.passes(test, f"{note}, {seconds}" if note else seconds)

    def finish(self):
        """Stops the broker, prints the closing line and leaves."""
        if self.broker is not None:
            status = self.broker.stop()
            if status != 0:
                self.fails("clean stop on SIGTERM", f"exit status {status}")
            if self.arguments.keep:
                print(f"kept: {self.broker.folder}")
            else:
                self.broker.remove()
        if not (self.smoke or self.arguments.only):
            if 10 * self.skipped > self.passed + self.failed + self.skipped:
                self.fails("at most a tenth is skipped", f"{self.skipped} are")
            self.write_results()
        print(f"{self.name}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)


    def write_results(self):
        """What a whole run found, for `cargo xtask compatibility`."""
        told = {"versions": self.versions, "passed": self.passed, "failed": self.wrong, "skipped": self.left_out}
        with open(os.path.join(self.place, "results.json"), "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)


def stored_codecs(broker, topic, partition=0):
    """The codec of every batch in a partition's segments, read from the files themselves."""
    codecs = set()
    place = os.path.join(broker.folder, "data", f"{topic}-{partition}")
    for name in sorted(os.listdir(place)):
        if not name.endswith(".log"):
            continue
        with open(os.path.join(place, name), "rb") as file:
            data = file.read()
        at = 0
        while at + 61 <= len(data):
            length = int.from_bytes(data[at + 8 : at + 12], "big")
            if length < 49 or at + 12 + length > len(data):
                break
            codecs.add(int.from_bytes(data[at + 21 : at + 23], "big") & 7)
            at += 12 + length
    return codecs


def run(command, **more):
    """A command's standard output; its failure is a `Failure` with the end of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=more.pop("timeout", DEADLINE), **more)
    if done.returncode != 0:
        said = (done.stdout[-700:] + done.stderr[-1500:]).strip()
        raise Failure(f"exit status {done.returncode}: {said}")
    return done.stdout
