//! Where an S3 server is and who asks it: from the environment, or from a file. Never from arguments, which others can see.

use std::path::Path;

use serde::Deserialize;

/// Variables that say it, as other programs for S3 know them. The processes of a family hand them on.
pub const VARIABLES: [&str; 6] = [
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    // Certificates of the authorities that sign the server's; without it those of the web.
    "SSL_CERT_FILE",
];

const DEFAULT_REGION: &str = "us-east-1";
const MAX_FILE_BYTES: u64 = 65_536;
const MEMBERS: &str =
    "it must have the texts endpoint, region, accessKeyId, secretAccessKey and sessionToken, where they are needed,";

#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Host and port, as they stand in the header `Host`.
    pub authority: String,
    pub is_https: bool,
    pub region: String,
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
    pub authorities_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct File {
    endpoint: Option<String>,
    region: Option<String>,
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    session_token: Option<String>,
}

impl Account {
    /// Variables win over the file. The error names what is missing or wrong, and no secret.
    pub fn read(file: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let given = file.map_or_else(|| Ok(File::default()), read_file)?;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let need = |name: &str, member: &str, value: Option<String>| {
            let value =
                set(name).or(value).ok_or_else(|| format!("neither {name} nor {member} of the account is given"))?;
            let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            if is_plain { Ok(value) } else { Err(format!("{name} cannot be sent in a header")) }
        };
        let endpoint = need("AWS_ENDPOINT_URL", "endpoint", given.endpoint)?;
        let (is_https, authority) = endpoint_of(&endpoint)
            // It may have a password in it, which is no part of an endpoint here.
            .ok_or("the endpoint is neither http://HOST:PORT nor https://HOST")?;
        Ok(Self {
            authority: authority.to_owned(),
            is_https,
            region: need("AWS_REGION", "region", given.region.or_else(|| Some(DEFAULT_REGION.to_owned())))?,
            access_key_id: need("AWS_ACCESS_KEY_ID", "accessKeyId", given.access_key_id)?,
            secret_access_key: need("AWS_SECRET_ACCESS_KEY", "secretAccessKey", given.secret_access_key)?,
            session_token: match set("AWS_SESSION_TOKEN").or(given.session_token) {
                Some(token) => Some(need("AWS_SESSION_TOKEN", "sessionToken", Some(token))?),
                None => None,
            },
            authorities_file: set("SSL_CERT_FILE"),
        })
    }
}

/// The authority is sent in `Host` as it is, so it has no default port and no path.
fn endpoint_of(endpoint: &str) -> Option<(bool, &str)> {
    let endpoint = endpoint.strip_suffix('/').unwrap_or(endpoint);
    let (is_https, authority) = match endpoint.split_once("://")? {
        ("http", authority) => (false, authority.strip_suffix(":80").unwrap_or(authority)),
        ("https", authority) => (true, authority.strip_suffix(":443").unwrap_or(authority)),
        _ => return None,
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    (!authority.is_empty() && authority.bytes().all(is_name)).then_some((is_https, authority))
}

fn read_file(path: &Path) -> Result<File, String> {
    use std::io::Read;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    // Not the parser's own text, which may quote a value.
    serde_json::from_str(&text).map_err(|error| {
        let (path, line, column) = (path.display(), error.line(), error.column());
        format!("{path} is no account: {MEMBERS} and nothing else (line {line}, column {column})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], file: Option<&Path>) -> Result<Account, String> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Account::read(file, value)
    }

    #[test]
    fn variables_win_over_the_file() {
        let path = std::env::temp_dir().join(format!("dsec-account-{}", std::process::id()));
        let text = r#"{"endpoint":"https://s3.example/","accessKeyId":"file","secretAccessKey":"secret"}"#;
        std::fs::write(&path, text).expect("written");
        let account = read(&[("AWS_ACCESS_KEY_ID", "variable"), ("AWS_REGION", "")], Some(&path)).expect("an account");
        assert_eq!((account.authority.as_str(), account.is_https), ("s3.example", true));
        assert_eq!((account.access_key_id.as_str(), account.region.as_str()), ("variable", "us-east-1"));
        for wrong in [
            r#"{"password":"s3cret"}"#,
            r#"{"secretAccessKey":"s3cret","more":1}"#,
            r#"{"secretAccessKey":["s3cret"]}"#,
            r#""s3cret""#,
            "s3cret",
            r#"{"secretAccessKey":5333777}"#,
            r#"{"s3cret":""}"#,
        ] {
            std::fs::write(&path, wrong).expect("written");
            let why = read(&[], Some(&path)).err().expect(wrong);
            assert!(why.contains("accessKeyId") && why.contains("line 1, column"), "{why}");
            assert!(!why.contains("s3cret") && !why.contains("5333777"), "{why}");
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(read(&[], Some(&path)).is_err());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let all = [
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        assert!(read(&all, None).is_ok());
        for (name, _) in all {
            let rest: Vec<_> = all.into_iter().filter(|(other, _)| *other != name).collect();
            assert!(read(&rest, None).is_err_and(|why| why.contains(name)), "{name}");
        }
        for endpoint in
            ["ftp://x", "http://", "http://a/b", "http://a b", "a:1", "http://u:s3cret@h", "http://h\r\nx: y"]
        {
            let mut wrong = all;
            wrong[0].1 = endpoint;
            assert!(read(&wrong, None).is_err_and(|why| !why.contains("s3cret")), "{endpoint}");
        }
        for (endpoint, host) in [("http://h:80", "h"), ("https://h:443/", "h"), ("http://[::1]:9", "[::1]:9")] {
            let mut right = all;
            right[0].1 = endpoint;
            assert!(read(&right, None).is_ok_and(|account| account.authority == host), "{endpoint}");
        }
        let mut split = all;
        split[2].1 = "a\nb";
        assert!(read(&split, None).is_err_and(|why| !why.contains("a\nb")));
    }
}
