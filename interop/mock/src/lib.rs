//! Nothing but the tests beside it: our client against the mock cluster inside librdkafka.
