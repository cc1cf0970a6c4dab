//! HTTP/1.x as it comes from a sandbox: RFC 9112, and stricter where programs differ. What one server might read otherwise than another is refused.

pub mod chunks;
pub mod head;
pub mod requests;
pub mod upgrade;
