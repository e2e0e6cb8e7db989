//! `cargo test -p ex-03` grades the answers in `src`.

fn main() -> std::process::ExitCode {
    lockstep_grading::learner::main(&grade_03::LAB, env!("CARGO_BIN_EXE_ex-03"), env!("CARGO_MANIFEST_DIR"))
}
