"""kcat and confluent-kafka against `tramline serve`, with a SIGKILL of the broker in the middle.

Each check prints one line; the last line counts them. Exit status 1 when one failed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
DEADLINE = 60.0


class Broker:
    """`tramline serve` as a child; a restart keeps folder and address."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.address, self.child = binary, folder, "127.0.0.1:0", None
        self.start()

    def start(self):
        command = [self.binary, "serve", "--data", self.folder, "--listen", self.address]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"the broker did not come up: {line!r}")
        self.address = line.split()[-1]

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                return self.child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                return self.child.wait()
        return self.child.returncode


def stored_codecs(folder, topic, partition=0):
    """The codec of every batch in the partition's segments, read from the files themselves."""
    codecs = set()
    place = os.path.join(folder, f"{topic}-{partition}")
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


def payloads(count):
    return [f"record {n} ".encode() * 4 for n in range(count)]


def create(address, topic, partitions=1):
    admin = AdminClient({"bootstrap.servers": address})
    created = admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
    created[topic].result(timeout=DEADLINE)


def produce(address, topic, values, codec="none", keys=None):
    failures = []
    producer = Producer({
        "bootstrap.servers": address, "compression.type": codec, "linger.ms": 5,
        "acks": "all", "enable.idempotence": True,
    })

    def delivered(error, _):
        if error:
            failures.append(error)

    for n, value in enumerate(values):
        producer.produce(topic, value, key=keys[n] if keys else None, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(DEADLINE)
    if left or failures:
        raise AssertionError(f"{left} unsent, failures {failures[:3]}")


def read(consumer, count):
    values, until = [], time.monotonic() + DEADLINE
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        values.append(message.value())
    return values


def reader(address, topic):
    """A consumer of partition 0 from its start that is in no group."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def member(address, group, topic, **more):
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": 10000, **more,
    })
    consumer.subscribe([topic])
    return consumer


def check_every_codec_with_confluent_kafka(broker):
    for codec, number in CODECS.items():
        topic, values = f"confluent-{codec}", payloads(2000)
        create(broker.address, topic)
        produce(broker.address, topic, values, codec)
        consumer = reader(broker.address, topic)
        got = read(consumer, len(values))
        consumer.close()
        assert got == values, f"{codec}: {len(got)} of {len(values)} records came back"
        stored = stored_codecs(broker.folder, topic)
        assert stored == {number}, f"{codec} is stored as {stored}"


def kcat(*arguments, **more):
    done = subprocess.run(["kcat", *arguments], capture_output=True, timeout=DEADLINE, **more)
    assert done.returncode == 0, done.stderr.decode()[-400:]
    return done.stdout


def lines(count):
    return b"".join(value + b"\n" for value in payloads(count))


def check_every_codec_with_kcat(broker):
    for codec, number in CODECS.items():
        topic = f"kcat-{codec}"
        create(broker.address, topic)
        kcat("-P", "-b", broker.address, "-t", topic, "-z", codec, "-X", "acks=all", input=lines(2000))
        got = kcat("-C", "-b", broker.address, "-t", topic, "-o", "beginning", "-e", "-q")
        assert got == lines(2000), f"{codec}: {len(got)} bytes came back"
        stored = stored_codecs(broker.folder, topic)
        assert stored == {number}, f"{codec} is stored as {stored}"


def check_a_group_resumes_after_a_kill(broker):
    topic, group, values = "resume", "billing", payloads(500)
    create(broker.address, topic)
    produce(broker.address, topic, values)
    consumer = member(broker.address, group, topic)
    first = read(consumer, 200)
    consumer.commit(asynchronous=False)
    assert first == values[:200], "the first two hundred, in order"
    broker.kill()
    broker.start()
    rest = read(consumer, 300)
    assert rest == values[200:], f"{len(rest)} records after the restart, expected the remaining 300"
    consumer.commit(asynchronous=False)
    consumer.close()
    produce(broker.address, topic, payloads(10))
    again = member(broker.address, group, topic)
    assert read(again, 10) == payloads(10), "a new member begins at the commit"
    again.close()


def check_a_kcat_group_resumes_after_a_kill(broker):
    topic, group = "kcat-resume", "kcat-group"
    create(broker.address, topic)
    kcat("-P", "-b", broker.address, "-t", topic, input=lines(100))
    # A short session: the kill may come before the broker has heard that the first reader left.
    session = ["-X", "session.timeout.ms=6000"]
    options = ["-b", broker.address, "-X", "auto.offset.reset=earliest", *session, "-q", "-e", "-G", group, topic]
    assert kcat(*options) == lines(100), "the first hundred through the group"
    broker.kill()
    broker.start()
    kcat("-P", "-b", broker.address, "-t", topic, input=lines(7))
    assert kcat(*options) == lines(7), "only what came after the commit"


def check_acknowledged_records_survive_a_kill(broker):
    topic, values = "survive", payloads(3000)
    create(broker.address, topic)
    produce(broker.address, topic, values[:2000], "lz4")
    broker.kill()
    broker.start()
    produce(broker.address, topic, values[2000:], "lz4")
    consumer = reader(broker.address, topic)
    assert read(consumer, 3000) == values
    consumer.close()


def check_two_members_share_a_topic(broker):
    topic, group, count = "shared", "pair", 400
    create(broker.address, topic, partitions=4)
    produce(broker.address, topic, payloads(count), keys=[f"key {n}" for n in range(count)])
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    members = [member(broker.address, group, topic, **strategy) for _ in range(2)]
    seen, owned, until = set(), [set(), set()], time.monotonic() + DEADLINE
    while time.monotonic() < until:
        for consumer in members:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                seen.add((message.partition(), message.offset()))
        owned = [{place.partition for place in consumer.assignment()} for consumer in members]
        if len(seen) == count and owned[0] and owned[1]:
            break
    for consumer in members:
        consumer.close()
    assert len(seen) == count, f"{len(seen)} of {count} records"
    assert owned[0].isdisjoint(owned[1]) and owned[0] | owned[1] == {0, 1, 2, 3}, f"assignment {owned}"


def check_kcat_and_our_command_share_a_group(broker):
    topic, group, count = "mixed", "mixed-group", 400
    create(broker.address, topic, partitions=4)
    place = tempfile.TemporaryDirectory()
    paths = [os.path.join(place.name, name) for name in ("ours", "theirs")]
    outputs = [open(path, "wb") for path in paths]
    commands = [
        [broker.binary, "consume", topic, "-b", broker.address, "-g", group],
        ["kcat", "-b", broker.address, "-X", "auto.offset.reset=earliest", "-u", "-q", "-G", group, topic],
    ]
    members = [subprocess.Popen(command, stdout=output) for command, output in zip(commands, outputs)]

    def printed():
        # Opened anew: a shared handle would move the place the children write to.
        found = []
        for path in paths:
            with open(path, "rb") as output:
                found.append(output.read().splitlines())
        return found

    try:
        sent, until = 0, time.monotonic() + DEADLINE
        # Goes on until each of them has had some: at first one of them may own everything.
        while time.monotonic() < until and not all(printed()):
            produce(broker.address, topic, payloads(count), keys=[f"key {n}" for n in range(count)])
            sent += count
        while time.monotonic() < until and sum(map(len, printed())) < sent:
            time.sleep(0.05)
        ours, theirs = printed()
    finally:
        for member in members:
            member.terminate()
            member.wait(timeout=DEADLINE)
        for output in outputs:
            output.close()
        place.cleanup()
    assert ours and theirs, f"{len(ours)} records came to our command, {len(theirs)} to kcat"
    assert len(ours) + len(theirs) >= sent, f"{len(ours)} and {len(theirs)} records of {sent}"


def main():
    binary = sys.argv[1]
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(binary, folder)
        try:
            for check in checks:
                name = check.__name__.removeprefix("check_").replace("_", " ")
                if "kcat" in name and shutil.which("kcat") is None:
                    print(f"skipped: no kcat ({name})")
                    skipped += 1
                    continue
                begun = time.monotonic()
                try:
                    check(broker)
                except (AssertionError, KafkaException, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"FAILED  {name}: {error}", flush=True)
                else:
                    passed += 1
                    print(f"ok      {name} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            status = broker.stop()
        if status != 0:
            failed += 1
            print(f"FAILED  clean stop on SIGTERM: exit status {status}")
    print(f"clients: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
