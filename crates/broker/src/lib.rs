//! An embedded, durable, single-node log that Kafka clients use unmodified.
