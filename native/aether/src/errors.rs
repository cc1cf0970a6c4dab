//! Typed errors: the codes are those of the error table in `packages/contract/src/errors.ts`.

use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
    pub details: Map<String, Value>,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new() }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// A field of the params is wrong.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message).with("field", field)
    }

    /// The kernel refused something to do with the file at `path`.
    pub fn file(errno: i32, path: &str) -> Self {
        let (code, what) = match errno {
            libc::ENOENT => ("file_not_found", "There is no such file or directory"),
            libc::EEXIST => ("file_exists", "Something is already there"),
            libc::EACCES | libc::EPERM | libc::EROFS => ("file_permission", "The user may not do this to the file"),
            libc::EISDIR => ("is_directory", "It is a directory"),
            libc::ENOTDIR => ("not_directory", "It is not a directory"),
            libc::ENOTEMPTY => ("directory_not_empty", "The directory is not empty"),
            libc::ENOSPC | libc::EDQUOT => ("disk_full", "The disk or its quota is full"),
            libc::ENXIO | libc::ENODEV => ("not_regular_file", "It is not a regular file"),
            _ => ("file_error", "The kernel refused the file operation"),
        };
        Self::new(code, format!("{what}: {path} ({}).", errno_name(errno)))
            .with("path", path)
            .with("errno", errno_name(errno))
    }

    /// The kernel refused something of aether's own.
    pub fn internal(errno: i32, what: &str) -> Self {
        let code = match errno {
            libc::EAGAIN => "pids_exhausted",
            _ => "internal",
        };
        Self::new(code, format!("{what} ({}).", errno_name(errno))).with("errno", errno_name(errno))
    }
}

/// The codes that workers report.
const WORKER_CODES: [&str; 16] = [
    "file_not_found",
    "file_exists",
    "file_permission",
    "is_directory",
    "not_directory",
    "directory_not_empty",
    "disk_full",
    "not_regular_file",
    "file_error",
    "archive_unsafe",
    "archive_invalid",
    "user_not_found",
    "invalid_argument",
    "pids_exhausted",
    "cancelled",
    "internal",
];

/// The same code as a constant.
pub fn known_code(code: &str) -> Option<&'static str> {
    WORKER_CODES.into_iter().find(|known| *known == code)
}

/// The symbolic name of an error number.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ETXTBSY => "ETXTBSY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EDQUOT => "EDQUOT",
        libc::ESTALE => "ESTALE",
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}
