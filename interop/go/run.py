"""franz-go's own tests of its client (`kgo`), from the Go module proxy, against `tramline serve`."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import SETTINGS, Broker, Relay, Suite, run  # noqa: E402

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.3"
SMOKE = ["TestGroupETL", "TestGroupSimple", "TestClient_Produce", "TestPing", "TestConsumeRegex"]

suite = Suite("go", tools=["go"])


def prepare():
    """A module of our own whose only dependency is the one under test, so that its tests can be built from here."""
    place = os.path.join(suite.place, VERSION)
    binary = os.path.join(place, "kgo.test")
    if not os.path.exists(binary):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        run(["go", "mod", "init", "interop"], cwd=place)
        run(["go", "get", "-t", f"{MODULE}/pkg/kgo@{VERSION}"], cwd=place, timeout=300)
        run(["go", "test", "-c", "-o", binary, f"{MODULE}/pkg/kgo"], cwd=place, timeout=900)
    source = run(["go", "list", "-m", "-f", "{{.Dir}}", MODULE], cwd=place).strip()
    return binary, os.path.join(source, "pkg", "kgo")


def counted(results):
    """The tests whose outcome is their own: those of which no subtest passed or failed."""
    parents = {name[:at] for name, how in results.items() if how != "skip" for at, text in enumerate(name) if text == "/"}
    return {name: how for name, how in results.items() if name not in parents}


class Run:
    """One call of the test binary: outcomes and what each test said, from the runner's own events."""

    def __init__(self, binary, source, wanted, records, log, **more):
        left_out = "|".join(f"^{re.escape(name)}$" for name, why in suite.skips.items() if why.startswith("not run")) or "^$"
        environment = {**os.environ, "KGO_SEEDS": suite.broker.address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records), **more}
        command = ["go", "tool", "test2json", "-p", "kgo", binary, "-test.v=test2json", "-test.timeout=15m",
                   f"-test.run={wanted}", f"-test.skip={left_out}"]
        self.said, self.results, self.wanted = {}, {}, wanted
        self.log = os.path.join(suite.place, log)
        self.child = subprocess.Popen(command, cwd=source, env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)

    def read(self):
        with open(self.log, "w", encoding="utf-8") as log:
            for line in self.child.stdout:
                event = json.loads(line) if line.startswith("{") else {"Action": "output", "Output": line}
                name = event.get("Test", "")
                if event["Action"] == "output":
                    log.write(event["Output"])
                    self.said.setdefault(name, []).append(event["Output"])
                elif event["Action"] == "run":
                    self.results[name] = "never ended"
                elif name and event["Action"] in ("pass", "fail", "skip"):
                    self.results[name] = event["Action"]
        self.child.wait()

    def report(self, note=""):
        before = suite.failed
        for name, how in sorted(counted(self.results).items()):
            if how == "pass":
                suite.passed += 1
            elif how == "skip" and name in suite.skips:
                suite.skip(name + note, suite.skips[name])
            elif how == "skip":
                suite.fails(name + note, "skipped itself, and is not on the allow-list")
            else:
                suite.fails(name + note, f"{how}: " + "".join(self.said.get(name, []))[-1500:].strip())
        if self.child.returncode != 0 and suite.failed == before:
            suite.fails(f"the run as a whole{note}", "".join(self.said.get("", []))[-3000:])


def with_kills(test):
    """Kills and restarts the broker every three seconds, five times, while the test runs."""
    for _ in range(5):
        try:
            test.wait(timeout=3)
            return
        except subprocess.TimeoutExpired:
            suite.broker.kill()
            suite.broker.start()


def main():
    binary, source = prepare()
    suite.start()
    suite.version(f"franz-go {VERSION}, {run(['go', 'version']).split()[2]}")
    every = "^(" + "|".join(SMOKE) + ")$" if suite.smoke else "."
    run_of_all = Run(binary, source, suite.arguments.only or every, 5_000 if suite.smoke else 20_000, "output.log")
    run_of_all.read()
    run_of_all.report()
    for name, why in sorted(suite.skips.items()):
        if why.startswith("not run") and re.search(run_of_all.wanted, name):
            suite.skip(name, why)
    if not suite.smoke and re.search(suite.arguments.only or ".", "TestGroupETL"):
        suite.broker.stop()
        relay = Relay()
        suite.broker = Broker(suite.arguments.binary, f"{SETTINGS}advertised-port = {relay.port}\n")
        relay.target = suite.broker.address.split(":")
        killed = Run(binary, source, "^TestGroupETL$", 20_000, "output-kills.log", KGO_SEEDS=f"127.0.0.1:{relay.port}")
        reader = threading.Thread(target=killed.read)
        reader.start()
        with_kills(killed.child)
        reader.join()
        killed.report(" over SIGKILLs of the broker")
    suite.finish()


main()
