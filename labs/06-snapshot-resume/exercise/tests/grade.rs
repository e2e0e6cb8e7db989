//! `cargo test -p ex-06` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_06::LAB, env!("CARGO_BIN_EXE_ex-06"), env!("CARGO_MANIFEST_DIR"))
}
