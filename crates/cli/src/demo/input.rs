//! The events of the demo: flights out of a CSV file, columns found by the names in its header row.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

/// A month of real flights (CC0), so that the demo needs no file.
const SHIPPED: &[u8] = include_bytes!("../../../../examples/data/flights-2013-01.csv");

/// One data row of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The data row's number, from 1.
    pub row: u64,
    /// The aircraft: the text of `tailnum`, `NA` included.
    pub key: String,
    /// The whole row as a JSON object, numbers as numbers, `NA` numbers as null.
    pub value: Vec<u8>,
}

/// Reads the input file, or the month that ships with the program.
pub fn read(path: Option<&Path>) -> Result<Vec<Event>> {
    match path {
        Some(path) => {
            let file = std::fs::File::open(path)
                .with_context(|| format!("cannot open {}; --input takes a CSV of flights", path.display()))?;
            parse(std::io::BufReader::new(file)).with_context(|| format!("in {}", path.display()))
        }
        None => parse(SHIPPED),
    }
}

/// The columns whose values are numbers when they are not `NA`.
const NUMBERS: [&str; 2] = ["distance", "arr_delay"];

fn parse(input: impl Read) -> Result<Vec<Event>> {
    let mut reader = csv::Reader::from_reader(input);
    let header: Vec<String> = reader.headers().context("no header row")?.iter().map(str::to_owned).collect();
    let column = |name: &str| {
        header.iter().position(|column| column == name).with_context(|| {
            format!("the header row has no column `{name}`; needed are tailnum, distance and arr_delay")
        })
    };
    let key_column = column("tailnum")?;
    for name in NUMBERS {
        column(name)?;
    }
    let mut events = Vec::new();
    for record in reader.records() {
        let record = record?;
        let row = events.len() as u64 + 1;
        let mut object = Map::new();
        for (name, text) in header.iter().zip(record.iter()) {
            let value = if NUMBERS.contains(&name.as_str()) {
                match text {
                    "NA" | "" => Value::Null,
                    number => Value::from(
                        number
                            .parse::<i64>()
                            .map_err(|_| anyhow!("row {row}: {name} is not a whole number: {number}"))?,
                    ),
                }
            } else {
                Value::from(text)
            };
            object.insert(name.clone(), value);
        }
        let key = record.get(key_column).unwrap_or_default().to_owned();
        events.push(Event { row, key, value: serde_json::to_vec(&object)? });
    }
    if events.is_empty() {
        bail!("there are no data rows");
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_month_has_all_its_rows_and_aircraft() {
        let events = read(None).unwrap();
        let mut keys: Vec<_> = events.iter().map(|event| event.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((events.len(), keys.len()), (27_004, 3_149));
        assert!(keys.contains(&"NA"));
    }

    #[test]
    fn columns_are_found_by_name_and_na_numbers_are_null() {
        let text = "arr_delay,tailnum,distance,dest\nNA,N1,12,\"A,B\"\n-4,NA,7,C\n";
        let events = parse(text.as_bytes()).unwrap();
        assert_eq!(events[0].key, "N1");
        let value: Value = serde_json::from_slice(&events[0].value).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"arr_delay": null, "tailnum": "N1", "distance": 12, "dest": "A,B"})
        );
        assert_eq!((events[1].row, events[1].key.as_str()), (2, "NA"));
    }

    #[test]
    fn a_file_of_another_shape_says_which_column_is_missing() {
        let error = parse("a,b\n1,2\n".as_bytes()).unwrap_err();
        assert!(error.to_string().contains("tailnum"), "{error}");
        assert!(parse("tailnum,distance,arr_delay\n".as_bytes()).is_err());
        assert!(parse("tailnum,distance,arr_delay\nN1,far,1\n".as_bytes()).is_err());
    }
}
