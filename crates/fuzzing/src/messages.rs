//! Requests and answers.

use bytes::Bytes;
use tramline_wire::messages::{ALL, RequestHeader, ResponseHeader};
use tramline_wire::{ApiKey, Frame, Message, Reader, Schema, Writer, decode_request_header};

use crate::counting::within;

/// What a decoder may hold at once for each byte of input: an empty string takes one byte on the wire and 32 in memory,
/// and while an array of them grows, half of it exists twice.
pub(crate) const PER_BYTE: usize = 48;
/// What it may hold whatever the input: the first few elements of the arrays it is inside of.
pub(crate) const FIXED: usize = 4096;

fn schema(key: ApiKey, part: &str) -> Option<&'static Schema> {
    ALL.iter().find(|schema| schema.name.strip_suffix(part) == Some(key.name()))
}

/// Reads a message of this version and holds its decoder to its promises: no panic, at most `per_byte` bytes of memory
/// for each byte of input beside a few kilobytes, and what was read is written and read again as it was. True when the
/// bytes were accepted.
///
/// # Panics
/// A promise was broken.
pub fn probe(schema: &Schema, version: i16, reader: &Reader, per_byte: usize) -> bool {
    let most = per_byte * reader.remaining() + FIXED;
    let what = || format!("{} version {version}", schema.name);
    let read = within(most, schema.name, || schema.describe(&mut reader.clone(), version));
    let Ok(read) = read else { return false };
    let again =
        |mut reader: Reader| schema.recode(&mut reader, version).ok()?.ok().map(|frame| frame.to_bytes());
    let written =
        again(reader.clone()).unwrap_or_else(|| panic!("{} was read and cannot be written", what()));
    let back = schema.describe(&mut Reader::new(written.clone()), version);
    let back = back.unwrap_or_else(|error| panic!("{} was written and cannot be read: {error}", what()));
    // As text, since a number that is none does not equal itself.
    assert_eq!(format!("{read:?}"), format!("{back:?}"), "{}", what());
    assert_eq!(again(Reader::new(written.clone())), Some(written), "{}", what());
    true
}

/// A request frame without its length.
pub(crate) fn check_request(data: &[u8]) -> bool {
    let frame = Bytes::copy_from_slice(data);
    let header = within(FIXED, "a request header", || decode_request_header(frame));
    let Ok((header, body)) = header else { return false };
    let Ok(key) = ApiKey::try_from(header.request_api_key) else { return false };
    let Some(schema) = schema(key, "Request") else { return false };
    probe(schema, header.request_api_version, &body, PER_BYTE)
}

/// The key and the version of the request, then the frame that answers it without its length.
pub(crate) fn check_response(data: &[u8]) -> bool {
    let mut asked = Reader::new(Bytes::copy_from_slice(data));
    let (Ok(key), Ok(version)) = (asked.i16(), asked.i16()) else { return false };
    let Ok(key) = ApiKey::try_from(key) else { return false };
    let Some(schema) = schema(key, "Response") else { return false };
    let mut frame = Reader::new(asked.rest());
    let header_version = key.response_header_version(version);
    let header = within(FIXED, "a response header", || ResponseHeader::decode(&mut frame, header_version));
    header.is_ok() && probe(schema, version, &frame, PER_BYTE)
}

fn bytes_of(message: &impl Message, version: i16) -> Vec<u8> {
    let mut out = Writer::new();
    message.encode(&mut out, version).expect("a header fits each of its versions");
    out.finish().to_bytes().to_vec()
}

/// For each API and version that has this part: what goes in front of the body, then a body of defaults.
fn seeds(part: &str, front: impl Fn(ApiKey, i16) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for key in ApiKey::ALL {
        let Some(schema) = schema(*key, part) else { continue };
        for version in schema.min_version..=schema.max_version {
            let blank =
                schema.blank(version).as_ref().map(Frame::to_bytes).expect("defaults fit each version");
            seeds.push([&front(*key, version)[..], &blank].concat());
        }
    }
    seeds
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    seeds("Request", |key, version| {
        let header = RequestHeader {
            request_api_key: key.into(),
            request_api_version: version,
            correlation_id: 7,
            client_id: Some("fuzz".into()),
        };
        bytes_of(&header, key.request_header_version(version))
    })
}

pub(crate) fn response_seeds() -> Vec<Vec<u8>> {
    seeds("Response", |key, version| {
        let header = bytes_of(&ResponseHeader { correlation_id: 7 }, key.response_header_version(version));
        [&i16::from(key).to_be_bytes()[..], &version.to_be_bytes(), &header].concat()
    })
}
