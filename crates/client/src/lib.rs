//! Pure-Rust async Kafka client: producer, consumer, admin.
