//! `lockstep_answers::main!()`: the `main` of a lab's solution, with all answers that the lab has.
//!
//! For a task `shard` with a wrong answer `blocks`, it lists `tasks::shard(shard::shard)` and
//! `tasks::shard(wrong_shard::blocks).variant("blocks")`. The modules are declared in the solution's own `main.rs`, where
//! rustfmt and rust-analyzer find them.

// The grader lists the same answers. A crate of macros can export only macros, and the grader's crate takes long to compile.
#[path = "../../grading/src/answers.rs"]
#[expect(unreachable_pub, reason = "public in the grader's crate")]
mod answers;
mod edit;

use std::fs;
use std::path::{Path, PathBuf};

use answers::Answers;
use edit::Base;
use proc_macro::{Span, TokenStream};
use toml::{Table, Value};

/// Generates the `main` of the solution whose package invokes it, with all tasks of `../lab.toml` and their answers.
#[proc_macro]
pub fn main(_: TokenStream) -> TokenStream {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    match program(&Path::new(&folder).join("..")) {
        Ok(code) => code.parse().unwrap_or_else(|error| panic!("{error}: {code}")),
        Err(why) => error(&why),
    }
}

/// Writes a wrong or unusual answer as an edit of the course's: above `pub fn NAME() {}` in a task's `wrong.rs`, `#[edit(FIND => REPLACE)]`
/// replaces code of the function in `answer.rs`. Several edits are several attributes.
#[proc_macro_attribute]
pub fn edit(argument: TokenStream, item: TokenStream) -> TokenStream {
    made(Base::Answer, Some(argument), item)
}

/// Writes a wrong answer as the program that the learner finds: above `pub fn NAME() {}` in a task's `wrong.rs`. Edits may follow.
#[proc_macro_attribute]
pub fn given(_: TokenStream, item: TokenStream) -> TokenStream {
    made(Base::Given, None, item)
}

fn made(base: Base, edit: Option<TokenStream>, item: TokenStream) -> TokenStream {
    let file = Span::call_site().local_file().unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    let task = folder.file_name().unwrap_or_default().to_string_lossy();
    let code = edit::made(&folder.join("answer.rs"), &task, base, edit.map(Into::into), item.into());
    code.map(TokenStream::from).unwrap_or_else(|why| error(&why))
}

fn error(why: &str) -> TokenStream {
    let code = format!("compile_error!({why:?});");
    code.parse().unwrap_or_else(|error| panic!("{error}: {code}"))
}

/// The function `main` for the lab in this folder.
fn program(lab: &Path) -> Result<String, String> {
    let path = lab.join("lab.toml");
    let mut listed = String::new();
    let mut read = vec![path.clone()];
    for task in tasks(&path)? {
        let path = lab.join("tasks").join(&task).join("wrong.rs");
        listed += &answers(&task, &Answers::read(&text(&path)?));
        read.push(path);
    }
    let main = match lab.join("given/program.rs").exists() {
        true => format!("main_of([{listed}], program::main)"),
        false => format!("main([{listed}])"),
    };
    let main = format!("fn main() -> std::process::ExitCode {{ lockstep_exercise::{main} }}");
    Ok(rerun_if_changed(&read) + &main)
}

/// The names of the tasks in `lab.toml`.
fn tasks(path: &Path) -> Result<Vec<String>, String> {
    let lab: Table = text(path)?.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let tasks = lab.get("task").and_then(Value::as_array).into_iter().flatten();
    let name = |task: &Value| Some(task.get("name")?.as_str()?.to_owned());
    tasks.map(|task| name(task).ok_or_else(|| format!("{}: a task has no name", path.display()))).collect()
}

/// The elements of the list for a task: its own answer and all others.
fn answers(task: &str, others: &Answers) -> String {
    let other = |name: &str| format!("tasks::{task}(wrong_{task}::{name}).variant({name:?}),\n");
    format!("tasks::{task}({task}::{task}),\n") + &others.all().map(other).collect::<String>()
}

/// Makes the compiler run the macro again when one of these files changes.
fn rerun_if_changed(files: &[PathBuf]) -> String {
    files.iter().map(|path| format!("const _: &[u8] = include_bytes!({path:?});\n")).collect()
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_own_answer_and_all_others_of_a_task() {
        let others = Answers { wrong: vec!["blocks".into()], right: vec!["skips".into()] };
        assert_eq!(
            answers("shard", &others),
            "tasks::shard(shard::shard),\n\
             tasks::shard(wrong_shard::blocks).variant(\"blocks\"),\n\
             tasks::shard(wrong_shard::skips).variant(\"skips\"),\n"
        );
    }
}
