//! The program that `lockstep run` becomes. It needs nothing of this package but its place next to `lockstep`.

fn main() -> std::process::ExitCode {
    lockstep_launch::command::main()
}
