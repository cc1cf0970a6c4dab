//! Who belongs to the cluster: whoever has a certificate of its authority that names [`NAME`]. All nodes may have the same one.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// What certificates of layerd name (a DNS name of `subjectAltName`), so that those for other uses are of no use here.
pub const NAME: &str = "dsec-layerd";

pub struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

impl Tls {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` of a directory.
    pub fn read(directory: &Path) -> Result<Self, String> {
        let at = |name: &str| directory.join(name);
        let failed = |name: &'static str| {
            let path = at(name);
            move |error: &dyn std::fmt::Display| format!("{}: {error}", path.display())
        };
        let certificates = |name: &'static str| {
            let read = CertificateDer::pem_file_iter(at(name)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            read.map_err(|error| failed(name)(&error))
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("ca.pem")? {
            roots.add(certificate).map_err(|error| failed("ca.pem")(&error))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("cert.pem")?;
        let key = PrivateKeyDer::from_pem_file(at("key.pem")).map_err(|error| failed("key.pem")(&error))?;
        let own = chain.first().ok_or_else(|| failed("cert.pem")(&"it has no certificate"))?;
        if !is_layerd(own) {
            return Err(failed("cert.pem")(&format_args!("it does not name {NAME}")));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |error: rustls::Error| failed("cert.pem")(&error);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier = verifier.build().map_err(|error| failed("ca.pem")(&error))?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// The name that every layerd has.
pub fn name() -> Option<ServerName<'static>> {
    ServerName::try_from(NAME).ok()
}

/// Whether a certificate, which its authority has signed, is for this use.
pub fn is_layerd(certificate: &CertificateDer<'_>) -> bool {
    let parsed = ParsedCertificate::try_from(certificate);
    let name = name();
    parsed.is_ok_and(|parsed| name.is_some_and(|name| rustls::client::verify_server_name(&parsed, &name).is_ok()))
}
