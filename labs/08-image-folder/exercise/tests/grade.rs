//! `cargo test -p ex-08` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_08::LAB, env!("CARGO_BIN_EXE_ex-08"), env!("CARGO_MANIFEST_DIR"))
}
