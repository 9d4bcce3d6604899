"""Our client's tests on other projects' brokers: franz-go's kfake, and the mock cluster inside librdkafka."""

import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import ROOT, Suite, run  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
FRANZ_GO, KFAKE = "v1.22.3", "v0.0.0-20260918054303-01f206a7e32c"
MARK = "on the given cluster: "

suite = Suite("brokers", tools=["cargo", "go", "make", "g++"])


def build_kfake():
    place = os.path.join(suite.place, KFAKE)
    if not os.path.exists(os.path.join(place, "go.sum")):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        run(["go", "mod", "init", "kfake"], cwd=place)
        # Its own requirement is older than what it is written against.
        run(["go", "get", f"github.com/twmb/franz-go/pkg/kfake@{KFAKE}", f"github.com/twmb/franz-go@{FRANZ_GO}"], cwd=place, timeout=300)
    shutil.copy(os.path.join(HERE, "main.go"), place)
    run(["go", "build", "-o", "kfake", "main.go"], cwd=place, timeout=900)
    return os.path.join(place, "kfake")


def programs(manifest, folder, *more):
    """The test programs that cargo builds from the files of a folder."""
    said = run(["cargo", "test", "--quiet", "--no-run", "--message-format=json", "--manifest-path", manifest, *more], timeout=1500)
    messages = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [message["executable"] for message in messages
            if message.get("executable") and os.path.dirname(message["target"]["src_path"]) == os.path.join(folder, "tests")]


def tests(peer, executables, folder, marked, **environment):
    """Runs tests of ours; those with `marked` set count only when they say that they used the given cluster."""
    for program in executables:
        done = subprocess.run([program, "--show-output"], cwd=folder, env={**os.environ, "RUST_BACKTRACE": "0", **environment},
                              capture_output=True, text=True, timeout=900)
        results = dict(re.findall(r"^test (\w+) \.\.\. (ok|FAILED)$", done.stdout, re.MULTILINE))
        used = set(re.findall(rf"^{MARK}(\w+)$", done.stdout, re.MULTILINE))
        for test, how in sorted(results.items()):
            name = f"{peer}: {test}"
            if marked and test not in used or suite.arguments.only not in name:
                continue
            if name in suite.skips:
                suite.skip(name, suite.skips[name])
            elif how == "ok":
                suite.passes(name)
            else:
                said = re.search(rf"^---- {test} stdout ----\n(.*?)\n\n(?:----|failures:)", done.stdout, re.MULTILINE | re.DOTALL)
                suite.fails(name, said.group(1)[-700:] if said else "")
        if not results:
            suite.fails(f"{peer} as a whole", (done.stdout[-500:] + done.stderr[-1500:]).strip())


def main():
    kfake = build_kfake()
    suite.version(f"kfake {KFAKE}")
    tramline = os.path.join(ROOT, "crates", "tramline")
    names = [name.removesuffix(".rs") for name in sorted(os.listdir(os.path.join(tramline, "tests"))) if name.endswith(".rs")]
    files = [part for name in (["consumer_group"] if suite.smoke else names) for part in ("--test", name)]
    executables = programs(os.path.join(ROOT, "Cargo.toml"), tramline, "--workspace", *files)
    # The second speaks the versions of the oldest Kafka that clients of today talk to.
    for peer, release in {"kfake": [], "kfake as Kafka 2.1": ["v2.1"]}.items():
        child = subprocess.Popen([kfake, *release], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            address = child.stdout.readline().split()[-1]
            tests(peer, executables, tramline, True, TRAMLINE_TEST_BROKERS=address)
        finally:
            child.terminate()
            child.wait()
    if suite.smoke:
        suite.finish()
    suite.version("librdkafka's mock cluster, by rdkafka 0.39")
    mock = os.path.join(ROOT, "interop", "mock")
    target = os.path.join(ROOT, "target", "interop", "mock")
    tests("mock", programs(os.path.join(mock, "Cargo.toml"), mock, "--target-dir", target), mock, False)
    suite.finish()


main()
