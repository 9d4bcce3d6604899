//! Every target with a bounded number of cases, from the seeds on: what libFuzzer does without end, on stable and the same
//! each time.
//!
//! The cases are a function of a seed that is printed; `TRAMLINE_SEED` sets it and `TRAMLINE_CASES` their number.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tramline_fuzzing::{
    ALL, BATCHES, GROUP_LOG, LOG_FILES, MACHINES, MEMBERS, PROGRESS, REQUESTS, RESPONSES, Random, TASKS,
    Target,
};

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// Runs one case; a panic says which bytes it came from.
fn check(target: Target, data: &[u8], origin: &str) -> bool {
    let checked = catch_unwind(AssertUnwindSafe(|| (target.check)(data)));
    checked.unwrap_or_else(|_| panic!("{} fails on {origin}: {data:02x?}", target.name))
}

/// Mutates what was accepted so far, and keeps what is accepted: values grow step by step.
fn run(target: Target, cases: u64) {
    let seed = from_env("TRAMLINE_SEED", 20_261_130);
    let cases = from_env("TRAMLINE_CASES", cases);
    println!("{}: TRAMLINE_SEED={seed} TRAMLINE_CASES={cases}", target.name);
    let seeds = (target.seeds)();
    for data in &seeds {
        assert!(check(target, data, "a seed"), "{} refuses a seed: {data:02x?}", target.name);
    }
    let mut grown = seeds.clone();
    let (mut accepted, mut refused) = (0u64, 0u64);
    for case in 0..cases {
        let mut random = Random::new(seed ^ case << 20);
        let place = random.below(grown.len());
        let mut data = match random.below(16) {
            0 => random.bytes(200),
            _ => grown[place].clone(),
        };
        random.mutate(&mut data);
        if check(target, &data, &format!("case {case}")) {
            accepted += 1;
            // Some stay as they were, so that no bad turn is for ever; none grows without end.
            if place >= seeds.len() && data.len() < 2000 {
                grown[place] = data;
            } else if grown.len() < 8 * seeds.len() {
                grown.push(data);
            }
        } else {
            refused += 1;
        }
    }
    println!("{}: {accepted} accepted, {refused} refused", target.name);
    let part = cases / 50;
    assert!(accepted > part && refused > part, "{accepted} accepted, {refused} refused: it misses the point");
}

#[test]
fn requests_cost_an_error_and_nothing_else() {
    run(REQUESTS, 20_000);
}

#[test]
fn answers_cost_an_error_and_nothing_else() {
    run(RESPONSES, 20_000);
}

#[test]
fn batches_and_what_is_packed_in_them_cost_an_error_and_nothing_else() {
    run(BATCHES, 6_000);
}

#[test]
fn subscriptions_and_assignments_cost_an_error_and_nothing_else() {
    run(MEMBERS, 20_000);
}

#[test]
fn records_of_the_group_log_cost_an_error_and_nothing_else() {
    run(GROUP_LOG, 10_000);
}

#[test]
fn files_of_a_partition_cost_what_they_say_and_nothing_else() {
    run(LOG_FILES, 4_000);
}

#[test]
fn texts_of_progress_cost_an_error_and_nothing_else() {
    run(PROGRESS, 20_000);
}

#[test]
fn records_of_the_task_queue_cost_an_error_and_nothing_else() {
    run(TASKS, 10_000);
}

#[test]
fn answers_to_the_clients_machines_cost_time_and_nothing_else() {
    run(MACHINES, 10_000);
}

#[test]
fn what_once_broke_a_promise_keeps_it() {
    for line in include_str!("data/found.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, digits) = line.split_once(' ').expect("a target and its bytes");
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
        let data: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect();
        let target = ALL.into_iter().find(|target| target.name == name).expect(name);
        check(target, &data, "what was found");
    }
}
