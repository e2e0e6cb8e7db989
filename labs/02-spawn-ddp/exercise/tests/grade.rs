//! `cargo test -p ex-02` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_02::LAB, env!("CARGO_BIN_EXE_ex-02"), env!("CARGO_MANIFEST_DIR"))
}
