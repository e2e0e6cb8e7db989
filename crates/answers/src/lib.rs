//! `lockstep_answers::main!()`: the `main` of a lab's solution, with all answers that the lab's `lab.toml` lists.
//!
//! For a task `shard` with a wrong answer `blocks`, it lists `tasks::shard(shard::shard)` and
//! `tasks::shard(mutants::shard::blocks).variant("blocks")`. The modules are declared in the solution's own `main.rs`, where
//! rustfmt and rust-analyzer find them.

use std::path::Path;

use proc_macro::TokenStream;
use toml::{Table, Value};

/// Generates the `main` of the solution whose package invokes it, with all answers of `../lab.toml`.
#[proc_macro]
pub fn main(_: TokenStream) -> TokenStream {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let path = Path::new(&folder).join("../lab.toml");
    let code = read(&path).and_then(|lab| program(&lab)).map(|main| {
        // Makes the compiler run the macro again when the file changes.
        format!("const _: &[u8] = include_bytes!({path:?});\n{main}")
    });
    let code = code.unwrap_or_else(|why| format!("compile_error!({:?});", format!("{}: {why}", path.display())));
    code.parse().unwrap_or_else(|error| panic!("{error}: {code}"))
}

fn read(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.parse().map_err(|error: toml::de::Error| error.to_string())
}

/// The function `main` for the lab in `lab.toml`.
fn program(lab: &Table) -> Result<String, String> {
    let mut answers = String::new();
    for task in tables(lab, "task") {
        let name = name(task)?;
        answers += &format!("tasks::{name}({name}::{name}),\n");
        for answer in tables(task, "wrong").chain(tables(task, "right")) {
            let answer = self::name(answer)?;
            answers += &format!("tasks::{name}(mutants::{name}::{answer}).variant({answer:?}),\n");
        }
    }
    Ok(format!("fn main() -> std::process::ExitCode {{ lockstep_exercise::main([{answers}]) }}"))
}

fn tables<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

fn name(table: &Table) -> Result<&str, String> {
    table.get("name").and_then(Value::as_str).ok_or_else(|| "a task or an answer has no name".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_own_answer_and_all_others_of_a_task() {
        let lab = "[[task]]\nname = \"shard\"\n[[task.wrong]]\nname = \"blocks\"\n[[task.right]]\nname = \"skips\"\n";
        let main = program(&lab.parse().unwrap()).unwrap();
        let listed = |text: &str| assert!(main.contains(text), "{text}: {main}");
        listed("tasks::shard(shard::shard)");
        listed("tasks::shard(mutants::shard::blocks).variant(\"blocks\")");
        listed("tasks::shard(mutants::shard::skips).variant(\"skips\")");
    }

    #[test]
    fn refuses_an_answer_without_a_name() {
        let lab = "[[task]]\nname = \"shard\"\n[[task.wrong]]\nwhat = \"blocks\"\n";
        assert!(program(&lab.parse().unwrap()).unwrap_err().contains("no name"));
    }
}
