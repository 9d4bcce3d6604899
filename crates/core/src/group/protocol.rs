//! What members tell each other through the coordinator: subscriptions and assignments, as bytes.
