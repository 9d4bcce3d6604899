//! Whole requests and responses: the length, the header, the body.

use bytes::Bytes;

use crate::api_key::ApiKey;
use crate::message::{Message, Request};
use crate::messages::{RequestHeader, ResponseHeader};
use crate::primitives::{DecodeError, EncodeError, Frame, Reader, Writer};
use crate::types::Str;

/// A request ready to be sent, with its length in front.
///
/// # Errors
/// The version cannot carry what the request holds, or the frame is longer than 2 GiB.
pub fn encode_request<R: Request>(
    correlation_id: i32,
    client_id: Option<&str>,
    version: i16,
    request: &R,
) -> Result<Frame, EncodeError> {
    let header = RequestHeader {
        request_api_key: R::KEY.into(),
        request_api_version: version,
        correlation_id,
        client_id: client_id.map(Str::from),
    };
    let mut out = Writer::framed();
    header.encode(&mut out, R::KEY.request_header_version(version))?;
    request.encode(&mut out, version)?;
    out.finish_frame()
}

/// The answer to a request of type `R`, ready to be sent, with its length in front.
///
/// # Errors
/// The version cannot carry what the response holds, or the frame is longer than 2 GiB.
pub fn encode_response<R: Request>(
    correlation_id: i32,
    version: i16,
    response: &R::Response,
) -> Result<Frame, EncodeError> {
    let mut out = Writer::framed();
    ResponseHeader { correlation_id }.encode(&mut out, R::KEY.response_header_version(version))?;
    response.encode(&mut out, version)?;
    out.finish_frame()
}

/// The header of a request frame (without its length), and a reader at the body.
///
/// The API is known when this returns `Ok`; whether the version is served is for the caller to say.
///
/// # Errors
/// An API key that Kafka does not have, or bytes that are no header.
pub fn decode_request_header(frame: Bytes) -> Result<(RequestHeader, Reader), DecodeError> {
    let mut reader = Reader::new(frame);
    let mut ahead = reader.clone();
    let key = ApiKey::try_from(ahead.i16()?)?;
    let version = ahead.i16()?;
    let header = RequestHeader::decode(&mut reader, key.request_header_version(version))?;
    Ok((header, reader))
}

/// The correlation id of a response frame (without its length).
///
/// # Errors
/// Fewer than four bytes.
pub fn response_correlation_id(frame: &Bytes) -> Result<i32, DecodeError> {
    Reader::new(frame.clone()).i32()
}

/// The correlation id and the body of the answer to a request of type `R` (a frame without its length).
///
/// # Errors
/// Bytes that are not this response.
pub fn decode_response<R: Request>(frame: Bytes, version: i16) -> Result<(i32, R::Response), DecodeError> {
    let mut reader = Reader::new(frame);
    let header = ResponseHeader::decode(&mut reader, R::KEY.response_header_version(version))?;
    Ok((header.correlation_id, R::Response::decode(&mut reader, version)?))
}
