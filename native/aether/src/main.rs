//! The program: everything is in the library, so that tests and fuzz targets reach its parts.
#![no_main]

/// C's `main` and not Rust's: the standard runtime opens /dev/null by path, installs handlers and makes an alternate stack,
/// none of which PID 1 of an unknown image wants.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    aether::start::run()
}
