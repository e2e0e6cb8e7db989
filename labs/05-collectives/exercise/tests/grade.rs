//! `cargo test -p ex-05` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_05::LAB, env!("CARGO_BIN_EXE_ex-05"), env!("CARGO_MANIFEST_DIR"))
}
