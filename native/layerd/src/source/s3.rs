//! Packs in a bucket of an S3 server, by ranged reads, path-style. Each is asked for again by whoever reads, while that may help.

use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error};

use super::account::Account;
use super::signature::{EMPTY, Get, Signer, timestamp};
use super::{ChunkSource, SourceError};
use crate::digest::Digest;
use crate::options::Bucket;
use crate::sys::Errno;

/// A server that says nothing for so long is asked again.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// For one range, a few megabytes at most.
const CALL_WAIT: Duration = Duration::from_secs(25);
const MAX_CONNECTIONS: usize = 16;
const MAX_HEADER_BYTES: usize = 65_536;
/// What is asked of an answer's error text.
const MAX_ERROR_BYTES: u64 = 4_096;
/// More is not believed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

pub struct S3Source {
    agent: Agent,
    account: Account,
    /// Before `packs/`.
    path: String,
    name: String,
}

impl S3Source {
    pub fn new(bucket: &Bucket, account: Account) -> Result<Self, String> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = &account.authorities_file {
            let pem = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            let certificates: Vec<_> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would be followed with the signature of another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent("dsec-layerd")
            .accept_encoding("identity")
            .max_response_header_size(MAX_HEADER_BYTES)
            .max_idle_connections(MAX_CONNECTIONS)
            .max_idle_connections_per_host(MAX_CONNECTIONS)
            .timeout_connect(Some(CONNECT_WAIT))
            .timeout_recv_response(Some(ANSWER_WAIT))
            .tls_config(tls.build())
            .build();
        let prefix = bucket.prefix.as_ref().map(|prefix| format!("{prefix}/")).unwrap_or_default();
        Ok(Self { agent: config.into(), account, path: format!("/{}/{prefix}", bucket.name), name: bucket.to_string() })
    }

    /// A part of an object, or as much of it as there is.
    fn part(
        &self,
        path: &str,
        offset: u64,
        length: u64,
        deadline: Instant,
    ) -> Result<ureq::http::Response<ureq::Body>, SourceError> {
        let range = format!("bytes={offset}-{}", offset + length - 1);
        let mut response = self.get(path, &range, deadline)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::RANGE_NOT_SATISFIABLE => Err(SourceError::Short),
            status => {
                let after = retry_after(response.headers());
                let mut text = Vec::new();
                let mut body = response.body_mut().as_reader().take(MAX_ERROR_BYTES);
                // What cannot be read says as little as nothing.
                let _ = body.read_to_end(&mut text);
                Err(refusal(status, &String::from_utf8_lossy(&text), after))
            }
        }
    }

    fn get(&self, path: &str, range: &str, deadline: Instant) -> Result<ureq::http::Response<ureq::Body>, SourceError> {
        let Account { authority, region, access_key_id, secret_access_key, session_token, .. } = &self.account;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let date = timestamp(seconds);
        let mut headers = vec![
            ("host", authority.as_str()),
            ("range", range),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", date.as_str()),
        ];
        if let Some(token) = session_token {
            headers.push(("x-amz-security-token", token));
        }
        let authorization = Signer { access_key_id, secret_access_key, region }.authorization(&Get {
            path,
            headers: &headers,
            date: &date,
        });
        let scheme = if self.account.is_https { "https" } else { "http" };
        let mut request =
            self.agent.get(format!("{scheme}://{authority}{path}")).header("authorization", authorization);
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, *value);
        }
        let wait = deadline.saturating_duration_since(Instant::now()).min(CALL_WAIT).max(Duration::from_millis(1));
        request.config().timeout_global(Some(wait)).build().call().map_err(|error| broken(&error))
    }
}

impl ChunkSource for S3Source {
    fn read(&self, pack: &Digest, offset: u64, buffer: &mut [u8], deadline: Instant) -> Result<(), SourceError> {
        let hex = pack.hex();
        let path = format!("{}packs/{}/{hex}", self.path, &hex[..2]);
        let mut response = self.part(&path, offset, buffer.len() as u64, deadline)?;
        let mut body = response.body_mut().as_reader();
        let mut done = 0;
        while done < buffer.len() {
            match body.read(&mut buffer[done..]) {
                // A body that is cut off is an error; a whole one that is short is the end of the object.
                Ok(0) => return Err(SourceError::Short),
                Ok(length) => done += length,
                Err(error) => return Err(unreachable(&error)),
            }
        }
        // To its end, so that the connection can be used again.
        let _ = body.read(&mut [0; 1]);
        Ok(())
    }

    fn object(&self, key: &str, max_bytes: u64, deadline: Instant) -> Result<Vec<u8>, SourceError> {
        let mut response = self.part(&format!("{}{key}", self.path), 0, max_bytes + 1, deadline)?;
        let mut bytes = Vec::new();
        let body = response.body_mut().as_reader().take(max_bytes + 1).read_to_end(&mut bytes);
        let length = body.map_err(|error| unreachable(&error))?;
        if length as u64 > max_bytes { Err(SourceError::Long) } else { Ok(bytes) }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn broken(error: &Error) -> SourceError {
    match error {
        Error::Io(error) => unreachable(error),
        Error::Timeout(_) => SourceError::Unreachable(Errno::TIMEDOUT),
        Error::HostNotFound => SourceError::Unreachable(Errno::HOSTUNREACH),
        _ => SourceError::Unreachable(Errno::PROTO),
    }
}

fn unreachable(error: &std::io::Error) -> SourceError {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let guess = match error.kind() {
        std::io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        std::io::ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        _ => Errno::CONNRESET,
    };
    SourceError::Unreachable(errno.unwrap_or(guess))
}

/// What an answer that is no data means.
fn refusal(status: StatusCode, text: &str, after: Duration) -> SourceError {
    match status.as_u16() {
        // A bucket that is not there may be one that is not there yet.
        404 if text.contains("<Code>NoSuchBucket</Code>") => SourceError::Refused(404),
        404 => SourceError::Missing,
        408 | 429 | 500..=599 => SourceError::Busy { status: status.as_u16(), after },
        other => SourceError::Refused(other),
    }
}

/// Seconds only: dates need clocks that agree.
fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(MAX_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_they_say() {
        let of = |status, text| refusal(StatusCode::from_u16(status).expect("a status"), text, Duration::ZERO);
        let busy = |status| SourceError::Busy { status, after: Duration::ZERO };
        for (status, text, meaning) in [
            (404, "<Error><Code>NoSuchKey</Code></Error>", SourceError::Missing),
            (404, "<Error><Code>NoSuchBucket</Code></Error>", SourceError::Refused(404)),
            (403, "", SourceError::Refused(403)),
            (200, "a server that knows no ranges", SourceError::Refused(200)),
            (301, "", SourceError::Refused(301)),
            (429, "", busy(429)),
            (503, "<Error><Code>SlowDown</Code></Error>", busy(503)),
        ] {
            assert_eq!(of(status, text), meaning, "{status}");
        }
    }

    #[test]
    fn a_server_is_left_alone_as_it_asks_within_reason() {
        for (value, seconds) in [("3", 3), (" 7 ", 7), ("99999", 60), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0)] {
            let headers = HeaderMap::from_iter([(ureq::http::header::RETRY_AFTER, value.parse().expect("a value"))]);
            assert_eq!(retry_after(&headers), Duration::from_secs(seconds), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), Duration::ZERO);
    }
}
