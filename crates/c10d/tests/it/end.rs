//! How a process ends that is linked to libtorch.

use std::env::current_exe;
use std::process::{Command, Output};

/// Runs this executable, while the dynamic linker tells on stderr which constructors and destructors it calls.
fn traced(argument: &str) -> Output {
    Command::new(current_exe().unwrap())
        .arg(argument)
        .env("LD_DEBUG", "files")
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

#[test]
fn a_process_ends_with_its_output_and_code_and_without_libtorchs_destructors() {
    for (argument, code, printed) in [("--list", 0, "end::a_process_ends_"), ("--no-such-option", 101, "")] {
        let output = traced(argument);
        let (stdout, calls) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{argument}");
        assert!(stdout.contains(printed), "{stdout}");
        let of_libtorch =
            |call: &str| calls.lines().any(|line| line.contains(call) && line.contains("libtorch_cpu.so"));
        assert!(of_libtorch("calling init: ") && !of_libtorch("calling fini: "), "{argument}");
    }
}
