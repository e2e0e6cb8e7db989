//! `cargo test -p ex-01` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_01::LAB, env!("CARGO_BIN_EXE_ex-01"), env!("CARGO_MANIFEST_DIR"))
}
