"""kcat, from the machine, against `tramline serve`: every codec, offsets, groups, kills of the broker, our command beside it."""

import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import CODECS, DEADLINE, Suite, run, stored_codecs  # noqa: E402

suite = Suite("kcat", tools=["kcat"])
broker = suite.start()
# A short session: a kill may come before the broker has heard that a reader left.
MEMBER = ["-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", "-q"]


def lines(count):
    return "".join(f"record {n} " * 4 + "\n" for n in range(count))


def ours(*arguments):
    return run([suite.arguments.binary, *arguments, "-b", broker.address])


def kcat(*arguments, **more):
    return run(["kcat", "-b", broker.address, *arguments], **more)


def produce(topic, count, *more):
    kcat("-P", "-t", topic, *more, input=lines(count))


def read(topic, *more):
    return kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", *more)


def codec(name):
    def body():
        ours("topic", "create", f"codec-{name}")
        produce(f"codec-{name}", 2000, "-z", name, "-X", "acks=all")
        got = read(f"codec-{name}")
        assert got == lines(2000), f"{len(got)} bytes came back"
        stored = stored_codecs(broker, f"codec-{name}")
        assert stored == {CODECS[name]}, f"stored as {stored}"
    return body


def features():
    ours("topic", "create", "features")
    done = subprocess.run(["kcat", "-b", broker.address, "-P", "-t", "features", "-z", "lz4", "-X", "debug=feature,protocol,msg"],
                          input=lines(1), capture_output=True, text=True, timeout=DEADLINE)
    for feature in ["LZ4", "IdempotentProducer", "MsgVer2"]:
        assert re.search(rf"Enabling feature {feature}$", done.stderr, re.MULTILINE), f"no {feature}: {done.stderr[-900:]}"
    assert "not compressing" not in done.stderr.lower(), "compression is off"


def metadata():
    ours("topic", "create", "listed", "-p", "3")
    said = kcat("-L", "-t", "listed")
    assert 'topic "listed" with 3 partitions' in said and f"broker 1 at {broker.address}" in said, said


def offsets():
    ours("topic", "create", "offsets")
    begun = int(time.time() * 1000)
    produce("offsets", 10)
    for time_of, at in [(-2, 0), (-1, 10), (begun - 60_000, 0)]:
        said = kcat("-Q", "-t", f"offsets:0:{time_of}")
        assert said.split() == ["offsets", "[0]", "offset", str(at)], said


def idempotent():
    ours("topic", "create", "idempotent")
    produce("idempotent", 1000, "-X", "enable.idempotence=true")
    assert read("idempotent") == lines(1000)


def survive():
    ours("topic", "create", "survive")
    produce("survive", 2000, "-X", "acks=all")
    broker.kill()
    broker.start()
    produce("survive", 10, "-X", "acks=all")
    assert read("survive") == lines(2000) + lines(10)


def group_resumes():
    ours("topic", "create", "resume")
    produce("resume", 100)
    assert kcat(*MEMBER, "-e", "-G", "resume", "resume") == lines(100), "the first hundred through the group"
    broker.kill()
    broker.start()
    produce("resume", 7)
    assert kcat(*MEMBER, "-e", "-G", "resume", "resume") == lines(7), "only what came after the commit"


def mixed_group():
    ours("topic", "create", "mixed", "-p", "4")
    with tempfile.TemporaryDirectory() as place:
        paths = [os.path.join(place, name) for name in ("ours", "theirs")]
        commands = [[suite.arguments.binary, "consume", "mixed", "-b", broker.address, "-g", "mixed"],
                    ["kcat", "-b", broker.address, *MEMBER, "-u", "-G", "mixed", "mixed"]]
        outputs = [open(path, "wb") for path in paths]
        members = [subprocess.Popen(command, stdout=output) for command, output in zip(commands, outputs)]

        def printed():
            # Opened anew: a shared handle would move the place the children write to.
            found = []
            for path in paths:
                with open(path, "rb") as output:
                    found.append(len(output.read().splitlines()))
            return found

        try:
            sent, until = 0, time.monotonic() + DEADLINE
            # Goes on until each of them has had some: at first one of them may own everything.
            while time.monotonic() < until and not all(printed()):
                produce("mixed", 400)
                sent += 400
            while time.monotonic() < until and sum(printed()) < sent:
                time.sleep(0.05)
            counts = printed()
        finally:
            for member, output in zip(members, outputs):
                member.terminate()
                member.wait(timeout=DEADLINE)
                output.close()
    assert all(counts) and sum(counts) >= sent, f"{counts} of {sent}"


said = run(["kcat", "-V"])
suite.version(re.sub(r".*Version (\S+) .*librdkafka (\S+) .*", r"kcat \1, librdkafka \2", said, flags=re.DOTALL))
for name in CODECS:
    suite.check(f"codec {name}", codec(name))
suite.check("protocol features", features)
suite.check("metadata", metadata)
suite.check("offsets by time", offsets)
suite.check("idempotent producer", idempotent)
suite.check("acknowledged records survive a SIGKILL of the broker", survive)
suite.check("a group resumes after a SIGKILL of the broker", group_resumes)
suite.check("a member of ours and one of kcat share a group", mixed_group)
suite.finish()
