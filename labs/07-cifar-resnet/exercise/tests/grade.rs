//! `cargo test -p ex-07` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_07::LAB, env!("CARGO_BIN_EXE_ex-07"), env!("CARGO_MANIFEST_DIR"))
}
