//! The test of all exercises: `cargo test -p ex-NN` grades the answers in the package's `src`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME")));
    lockstep_grading::labs::grade(env!("CARGO_PKG_NAME"), program, env!("CARGO_MANIFEST_DIR"))
}
