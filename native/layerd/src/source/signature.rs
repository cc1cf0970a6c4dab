//! AWS Signature Version 4 of a GET without a body
//! ([Signature Calculations for the Authorization Header](https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html)).

use ring::hmac::{HMAC_SHA256, Key, Tag, sign};

use crate::digest::Digest;

/// The digest of no bytes.
pub const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

pub struct Signer<'a> {
    pub access_key_id: &'a str,
    pub secret_access_key: &'a str,
    pub region: &'a str,
}

/// What is signed. Headers are in the order of their names, which are in lower case; the path needs no escapes.
pub struct Get<'a> {
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    /// As `timestamp` writes it.
    pub date: &'a str,
}

impl Signer<'_> {
    /// The value of the header `Authorization`.
    pub fn authorization(&self, get: &Get<'_>) -> String {
        let names = get.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let headers: String = get.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical = format!("GET\n{}\n\n{headers}\n{names}\n{EMPTY}", get.path);
        let day = &get.date[..get.date.len().min(8)];
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", get.date, Digest::of(canonical.as_bytes()).hex());
        let first = format!("AWS4{}", self.secret_access_key);
        let key = [day, self.region, "s3", "aws4_request"]
            .into_iter()
            .fold(first.into_bytes(), |key, part| hmac(&key, part).as_ref().to_vec());
        let signature: String = hmac(&key, &text).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key_id
        )
    }
}

fn hmac(key: &[u8], text: &str) -> Tag {
    sign(&Key::new(HMAC_SHA256, key), text.as_bytes())
}

/// Seconds since 1970 as `YYYYMMDDTHHMMSSZ`.
pub fn timestamp(seconds: u64) -> String {
    // Howard Hinnant's days_from_civil the other way round: years begin in March, so that the leap day is the last.
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_signature_wants_them() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    /// The first example of the published description.
    #[test]
    fn the_published_example_is_signed_as_published() {
        let signer = Signer {
            access_key_id: "AKIAIOSFODNN7EXAMPLE",
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            region: "us-east-1",
        };
        let headers = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", "20130524T000000Z"),
        ];
        let get = Get { path: "/test.txt", headers: &headers, date: "20130524T000000Z" };
        assert_eq!(
            signer.authorization(&get),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }
}
