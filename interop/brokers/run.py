"""Our client's tests on other projects' brokers: franz-go's kfake, and the mock cluster inside librdkafka."""

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


def cargo_test(peer, arguments, marked, **environment):
    """Runs tests of ours; those with `marked` set count only when they say that they used the given cluster."""
    done = subprocess.run(["cargo", "test", "--no-fail-fast", *arguments, "--", "--show-output"], cwd=ROOT,
                          env={**os.environ, **environment}, capture_output=True, text=True, timeout=1500)
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
    child = subprocess.Popen([kfake], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = child.stdout.readline().split()[-1]
        # A smoke of our own client: the producer's tests.
        wanted = "producer.rs" if suite.smoke else ".rs"
        names = [name.removesuffix(".rs") for name in os.listdir(os.path.join(ROOT, "crates", "tramline", "tests")) if name.endswith(wanted)]
        files = [part for name in sorted(names) for part in ("--test", name)]
        cargo_test("kfake", ["--workspace", *files], True, TRAMLINE_TEST_BROKERS=address)
    finally:
        child.terminate()
        child.wait()
    if suite.smoke:
        suite.finish()
    suite.version("librdkafka's mock cluster, by rdkafka 0.39")
    target = os.path.join(ROOT, "target", "interop", "mock")
    cargo_test("mock", ["--manifest-path", os.path.join(ROOT, "interop", "mock", "Cargo.toml"), "--target-dir", target], False)
    suite.finish()


main()
