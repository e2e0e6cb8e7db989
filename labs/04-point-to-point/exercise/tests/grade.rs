//! `cargo test -p ex-04` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_04::LAB, env!("CARGO_BIN_EXE_ex-04"), env!("CARGO_MANIFEST_DIR"))
}
