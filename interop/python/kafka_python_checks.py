"""kafka-python's checks: `kafka_python_checks.py ADDRESS [TEXT-IN-THE-NAME]`; one line for each, read by `run.py`."""

import sys
import threading
import time
import traceback

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

ADDRESS = sys.argv[1]
DEADLINE = 60


def values(count, start=0):
    return [f"record {n}".encode() for n in range(start, start + count)]


def admin():
    return KafkaAdminClient(bootstrap_servers=ADDRESS)


def create(topic, partitions=1):
    client = admin()
    client.create_topics([NewTopic(topic, partitions, 1)])
    client.close()


def produce(topic, records, **options):
    producer = KafkaProducer(bootstrap_servers=ADDRESS, **options)
    sent = [producer.send(topic, value, key=str(n).encode()) for n, value in enumerate(records)]
    producer.flush(DEADLINE)
    told = [one.get(DEADLINE) for one in sent]
    producer.close()
    return told


def reader(topic, group=None, **more):
    return KafkaConsumer(topic, bootstrap_servers=ADDRESS, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **more)


def read(consumer, count):
    got, until = [], time.monotonic() + DEADLINE
    while len(got) < count and time.monotonic() < until:
        for batch in consumer.poll(timeout_ms=500).values():
            got.extend(batch)
    assert len(got) >= count, f"{len(got)} of {count} records"
    return got


def codec(name):
    def check():
        topic = f"kp-{name}"
        create(topic)
        produce(topic, values(1000), compression_type=None if name == "none" else name, linger_ms=5)
        consumer = reader(topic)
        assert [record.value for record in read(consumer, 1000)] == values(1000)
        consumer.close()
    check.__name__ = f"check_codec_{name}"
    return check


def check_acks_0_and_1():
    create("kp-acks")
    produce("kp-acks", values(100), acks=0, enable_idempotence=False)
    produce("kp-acks", values(100, 100), acks=1, enable_idempotence=False)
    consumer = reader("kp-acks")
    assert [record.value for record in read(consumer, 200)] == values(200)
    consumer.close()


def check_metadata_of_a_send():
    create("kp-sent")
    told = produce("kp-sent", values(10))
    assert [one.offset for one in told] == list(range(10)), told


def check_topic_created_by_a_send():
    produce("kp-appears", values(3))
    consumer = reader("kp-appears")
    assert len(read(consumer, 3)) == 3
    consumer.close()


def check_group_commit_and_resume():
    create("kp-resume", 2)
    produce("kp-resume", values(100))
    consumer = reader("kp-resume", "kp-resume")
    read(consumer, 100)
    consumer.commit()
    consumer.close()
    produce("kp-resume", values(5, 100))
    consumer = reader("kp-resume", "kp-resume")
    assert sorted(record.value for record in read(consumer, 5)) == sorted(values(5, 100))
    consumer.close()


def check_three_members_with_a_session_of_a_second():
    create("kp-three", 6)
    produce("kp-three", values(300))
    seen, owned, stop = set(), {}, threading.Event()

    def member(n):
        consumer = reader("kp-three", "kp-three", session_timeout_ms=1000, heartbeat_interval_ms=200)
        while not stop.is_set():
            for batch in consumer.poll(timeout_ms=200).values():
                seen.update(record.value for record in batch)
            owned[n] = len(consumer.assignment())
        consumer.close()

    threads = [threading.Thread(target=member, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until and not (len(seen) == 300 and sorted(owned.values()) == [2, 2, 2]):
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert len(seen) == 300 and sorted(owned.values()) == [2, 2, 2], f"{len(seen)} records, {owned}"


def check_offsets_by_time():
    create("kp-times")
    producer = KafkaProducer(bootstrap_servers=ADDRESS)
    for n, value in enumerate(values(20)):
        producer.send("kp-times", value, timestamp_ms=1_600_000_000_000 + n * 1000).get(DEADLINE)
    producer.close()
    consumer, place = reader("kp-times"), TopicPartition("kp-times", 0)
    assert consumer.offsets_for_times({place: 1_600_000_004_500})[place].offset == 5
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 20}
    consumer.close()


def check_admin_topics():
    create("kp-admin", 2)
    client = admin()
    try:
        client.create_topics([NewTopic("kp-admin", 1, 1)])
        raise AssertionError("created twice")
    except TopicAlreadyExistsError:
        pass
    client.create_partitions({"kp-admin": 4})
    [told] = client.describe_topics(["kp-admin"])
    assert len(told["partitions"]) == 4, told
    assert "kp-admin" in client.list_topics()
    assert len(client.describe_cluster()["brokers"]) == 1
    client.delete_topics(["kp-admin"])
    try:
        client.delete_topics(["kp-admin"])
        raise AssertionError("deleted twice")
    except UnknownTopicOrPartitionError:
        pass
    client.close()


def check_admin_groups():
    create("kp-grouped")
    produce("kp-grouped", values(3))
    consumer = reader("kp-grouped", "kp-grouped")
    read(consumer, 3)
    consumer.commit()
    client = admin()
    told = client.describe_groups(["kp-grouped"])
    assert "Stable" in str(told), told
    consumer.close()
    assert "kp-grouped" in str(client.list_groups())
    offsets = client.list_group_offsets({"kp-grouped": None})
    assert "3" in str(offsets), offsets
    client.delete_groups(["kp-grouped"])
    assert "kp-grouped" not in str(client.list_groups())
    client.close()


def check_admin_settings():
    create("kp-settings")
    client = admin()
    told = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "kp-settings")], config_filter="all")
    assert "retention.ms" in str(told), told
    client.close()


def check_admin_deleted_records():
    create("kp-cut")
    produce("kp-cut", values(10))
    client = admin()
    client.delete_records({TopicPartition("kp-cut", 0): 4})
    client.close()
    consumer = reader("kp-cut")
    assert consumer.beginning_offsets([TopicPartition("kp-cut", 0)]) == {TopicPartition("kp-cut", 0): 4}
    consumer.close()


def main():
    print(f"kafka-python {kafka.__version__}")
    checks = [codec(name) for name in ["none", "gzip", "snappy", "lz4", "zstd"]]
    checks += [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        if len(sys.argv) > 2 and sys.argv[2] not in f"kafka-python {name}":
            continue
        try:
            check()
        except (KafkaError, AssertionError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {name}: {type(error).__name__} {error} (line {where.lineno})".replace("\n", " "), flush=True)
        else:
            print(f"ok {name}", flush=True)


main()
