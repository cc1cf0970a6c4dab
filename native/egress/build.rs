//! Compiles the programs for the kernel.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=DSEC_CLANG");
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let clang = std::env::var("DSEC_CLANG").unwrap_or_else(|_| "clang".to_owned());
    // Debian keeps <asm/types.h> where only a target that is the machine itself looks.
    let headers = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    for name in ["egress", "origins"] {
        let object = Path::new(&variable("OUT_DIR")).join(format!("{name}.o"));
        let made = Command::new(&clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-idirafter", &headers])
            // Debug information names files: the same object wherever the checkout is.
            .arg(format!("-ffile-prefix-map={}=.", variable("CARGO_MANIFEST_DIR")))
            .args(["-c", &format!("bpf/{name}.c"), "-o"])
            .arg(&object)
            .status();
        match made {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{clang}: {status}"),
            Err(error) => {
                panic!("{clang}: {error}: clang is needed for the eBPF programs (make setup installs it)")
            }
        }
    }
}
